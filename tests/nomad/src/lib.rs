//! For tests: a stand-in for the servers of a Nomad cluster, faithful in everything that a node observes.
//!
//! In: calls of nodes, over TCP or in memory; orders of a test ([`Cluster`]): place, stop, collect, purge, lose the
//! leader, fail. Out: the answers of stock servers, and a record of the calls. Must not know the side that it tests,
//! only the codec and the types of the messages, which are compared with recordings of stock peers.
//!
//! - [`state`]: nodes, allocations, variables, services and indexes. It does not wait, and has no clock.
//! - [`jobs`], [`schedule`], `place`: submitted jobs, decisions about them, and placement.
//! - [`server`]: one server: methods, tokens, blocking queries.
//! - [`cluster`]: several servers over one state, one of which leads; and the controls of a test. `inner`: what they share.
//! - [`reach`]: calls from servers to a node.
//! - [`faults`]: faults of answers.
//! - [`fields`]: fields that servers of other versions omit or add.
//! - [`lan`]: how nodes reach them.
//!
//! All servers share one state, as if Raft took no time. A server that must lag behind keeps a copy
//! ([`Cluster::freeze`]).

pub mod cluster;
pub mod faults;
pub mod fields;
mod inner;
pub mod jobs;
pub mod lan;
mod place;
pub mod reach;
pub mod schedule;
pub mod server;
pub mod state;

pub use cluster::Cluster;
pub use faults::Fault;
pub use fields::Fields;
pub use inner::{RecordedCall, Settings};
pub use lan::Lan;
