//! Simulated lives: the real planner, an invented machine, a seed.
//!
//! Goes in: a seed, which decides about latencies, failures, crashes, exits and what people do. Comes out: nothing, or the
//! first broken promise with the log of the life that led to it. No tokio, no clock, no file: a step costs microseconds and
//! the same seed gives the same log, byte for byte.
//!
//! - [`machine`]: what is real: directories, mounts, processes, registrations. Survives crashes of the agent.
//! - [`life`]: the agent's loop around the planner, with commits, operations in flight and crashes.
//! - [`invariants`]: what must hold when the agent lets something out.
//! - [`oracle`]: what a life must come to once its faults stop.
//! - [`clock`]: the wall clock, which somebody sets.
//! - [`coverage`]: what lives have met with.
//! - [`workload`]: what people do, and what happens behind the agent's back.
//! - [`probe`]: parts that only tests have.
//! - [`jobs`]: the jobs that lives are made of.
//! - [`trace`]: the log.
//! - [`rollouts`]: what a roll-out may do.
//! - [`rooms`]: who may have what of the machine.
//! - [`launches`]: what launches of periodic jobs must keep.
//! - [`seeds`]: many lives.

pub use herdlet_e2e::random::Rng;

pub mod clock;
pub mod coverage;
pub mod deployments;
pub mod invariants;
pub mod jobs;
pub mod launches;
pub mod life;
pub mod machine;
pub mod oracle;
pub mod probe;
pub mod rollouts;
pub mod rooms;
pub mod seeds;
pub mod trace;
pub mod workload;
