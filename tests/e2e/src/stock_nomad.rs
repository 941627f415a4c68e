//! Stock Nomad's own servers, command line and clients, with an agent of ours as one of their nodes.
//!
//! In: a `nomad` program of any release. Out: which stories passed. The repository contains no such program:
//! the user provides it.
//!
//! - [`program`]: such a program, and its version.
//! - [`stock`]: a running server or client.
//! - [`cluster`]: servers, an agent that is their node, and the command line.
//! - [`jobs`]: the servers' view of jobs and allocations.
//! - [`campaign`]: runs stories one after the other.
//! - [`stories`]: the stories themselves.
//! - [`standalone`]: the command line with an agent that has no servers.
//! - [`task`]: a task that serves requests.
//!
//! Everything is on loopback and in a temporary directory, and is ended by its pid. A failed story leaves
//! nothing to the next one.

pub mod campaign;
pub mod cluster;
pub mod jobs;
pub mod program;
pub mod standalone;
pub mod stock;
pub mod stories;
pub mod task;
