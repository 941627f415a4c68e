//! Stock Nomad's own servers, command line and clients, with an agent of ours as a node among them.
//!
//! In: a `nomad` program, whichever release it is. Out: what of its stories held. Nothing of it is in the tree: who wants to know
//! brings one along.
//!
//! - [`program`]: such a program, and how old it is.
//! - [`stock`]: a server or client of it that runs.
//! - [`ground`]: servers, an agent that is their node, and the command line between them.
//! - [`jobs`]: what servers show of jobs and allocations.
//! - [`campaign`]: stories, told one after the other.
//! - [`stories`]: the stories themselves.
//! - [`task`]: what tasks run that need to answer somebody.
//!
//! Everything is on loopback and in a temporary directory, and ended by its own pid. A story that fails leaves nothing to the next one.

pub mod campaign;
pub mod ground;
pub mod jobs;
pub mod program;
pub mod stock;
pub mod stories;
pub mod task;
