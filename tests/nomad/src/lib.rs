//! For tests: a stand-in for the servers of a Nomad cluster, faithful where a node looks.
//!
//! In: calls of nodes, over TCP or in memory; orders of a test ([`Cluster`]): place, stop, collect, purge, lose the leader, fail. Out: what
//! stock servers would answer, and a record of what was asked. Must not know the side that it tests: only the codec, and the types of the
//! messages, which are held against recordings of stock peers.
//!
//! - [`state`]: nodes, allocations and indexes. No waiting, no clock.
//! - [`jobs`], [`schedule`], `place`: jobs that are submitted, what is decided of them, and where it goes.
//! - [`server`]: one server: methods, tokens, blocking queries, whom it forwards to.
//! - [`cluster`]: several servers over one state, of which one leads; and what a test may do to them.
//! - [`reach`]: servers that call a node.
//! - [`faults`]: what can be wrong with an answer.
//! - [`fields`]: what servers of other versions leave out, or send besides.
//! - [`lan`]: how nodes reach them.
//!
//! There is one state for all servers, as if Raft took no time; one that is to lag behind keeps a copy ([`Cluster::freeze`]).

pub mod cluster;
pub mod faults;
pub mod fields;
pub mod jobs;
pub mod lan;
mod place;
pub mod reach;
pub mod schedule;
pub mod server;
pub mod state;

pub use cluster::{Cluster, Settings};
pub use faults::Fault;
pub use fields::Fields;
pub use lan::Lan;
