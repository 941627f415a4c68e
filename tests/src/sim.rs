//! Simulations of the real planner on a simulated machine, driven by a seed.
//!
//! In: a seed, which determines latencies, failures, crashes, exits and the actions of users. Out: nothing, or the first violation
//! with the log of its simulation. No tokio, no clock, no files: a step costs microseconds, and the same seed gives the same log,
//! byte for byte.
//!
//! - [`machine`]: the real state: directories, mounts, processes, registrations. It survives crashes of the agent.
//! - [`networks`]: networks of allocations on that machine.
//! - [`life`]: the agent's loop around the planner, with commits, operations in flight and crashes.
//! - [`invariants`]: invariants of released actions and published views.
//! - [`oracle`]: safety at each step, and liveness after the faults have stopped.
//! - [`clock`]: the wall clock, which can be changed.
//! - [`coverage`]: the kinds of events that occurred.
//! - [`workload`]: actions of users, and events behind the agent's back.
//! - [`probe`]: parts that only tests have.
//! - [`templates`]: templates of tasks, and their data.
//! - [`jobs`]: jobs for simulations.
//! - [`trace`]: the log.
//! - [`rollouts`]: invariants of rolling updates.
//! - [`rooms`]: invariants of capacity.
//! - [`launches`]: invariants of periodic launches.
//! - [`seeds`]: many simulations.

pub use herdlet_e2e::random::Rng;

pub mod clock;
pub mod coverage;
pub mod deployments;
pub mod invariants;
pub mod jobs;
pub mod launches;
pub mod life;
pub mod machine;
pub mod networks;
pub mod oracle;
pub mod probe;
pub mod rollouts;
pub mod rooms;
pub mod seeds;
pub mod templates;
pub mod trace;
pub mod workload;
