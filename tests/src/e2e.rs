//! The real program on the real machine: what the end-to-end tests are written with.
//!
//! In: what a test wants (an agent, a private run, a Consul). Out: processes of its own, in directories of its own, of
//! which nothing is left in the end. Whatever a test starts is ended by its own pid or cgroup; tests run side by side.
//!
//! - [`program`]: the program under test.
//! - [`home`]: the directories of one test, and the proof that nothing is left.
//! - [`command`]: one command with its output, as root or as somebody else.
//! - [`agent`]: a running agent and its command line.
//! - [`shown`]: what the agent shows of its allocations.
//! - [`host`]: what the machine shows: processes, cgroups, mounts.
//! - [`consul`]: a real Consul agent.
//! - [`proxy`]: what stands between and answers wrongly.
//! - [`http`]: one request over a socket.
//! - [`ports`]: ports for what must have some.
//! - [`wait`]: waiting for the world, with a deadline.
//!
//! It must not know how the program is built inside.

#![expect(clippy::expect_used, reason = "a test that can't go on says why and ends")]

pub mod agent;
pub mod command;
pub mod consul;
pub mod home;
pub mod host;
pub mod http;
pub mod ports;
pub mod program;
pub mod proxy;
pub mod shown;
pub mod wait;
