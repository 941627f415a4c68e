//! The real program on the real machine: the library of the end-to-end tests, and
//! campaigns that kill it or run it beside stock Nomad.
//!
//! In: the needs of a test (an agent, a private run, a Consul). Out: processes in directories of their own,
//! of which nothing remains at the end. A test ends its processes by pid or cgroup; tests run concurrently.
//!
//! - [`program`]: the program under test.
//! - [`home`]: the directories of one test, and the check that nothing remains.
//! - [`command`]: one command with its output, as root or as another user.
//! - [`agent`]: a running agent and its command line.
//! - [`shown`]: the agent's view of its allocations.
//! - [`host`]: the machine's processes, cgroups and mounts.
//! - [`consul`]: a real Consul agent.
//! - [`engine`]: real container engines.
//! - [`proxy`]: a proxy that gives wrong answers.
//! - [`http`]: one request over a socket.
//! - [`namespaces`]: networks of their own.
//! - [`openbao`]: a real OpenBao.
//! - [`ports`]: free ports.
//! - [`wait`]: polling with a deadline.
//! - [`environment`]: the components that the machine has.
//! - [`crashes`], [`daemon_restarts`], [`power_cuts`], [`stock_nomad`]: campaigns.
//! - [`flat`]: resource use after much work; [`upgrade`]: the state that a release leaves behind.
//! - [`random`]: pseudo-random numbers.
//!
//! This library must not know the internals of the program.

#![expect(clippy::expect_used, reason = "a test that cannot continue ends with the reason")]

pub mod agent;
pub mod command;
pub mod consul;
pub mod crashes;
pub mod daemon_restarts;
pub mod engine;
pub mod environment;
pub mod flat;
pub mod home;
pub mod host;
pub mod http;
pub mod namespaces;
pub mod openbao;
pub mod ports;
pub mod power_cuts;
pub mod program;
pub mod proxy;
pub mod random;
pub mod shown;
pub mod stock_nomad;
pub mod upgrade;
pub mod wait;
