//! Simulated lives: the real planner, an invented machine, a seed.
//!
//! Goes in: a seed, which decides about latencies, failures, crashes, exits and what people do. Comes out: nothing, or the
//! first broken promise with the log of the life that led to it. No tokio, no clock, no file: a step costs microseconds and
//! the same seed gives the same log, byte for byte.
//!
//! - [`machine`]: what is real: directories, mounts, processes, registrations. Survives crashes of the agent.
//! - [`life`]: the agent's loop around the planner, with commits, operations in flight and crashes.
//! - [`promises`]: what must hold when the agent lets something out.
//! - [`oracle`]: what a life must come to once its faults stop.
//! - [`clock`]: the wall clock, which somebody sets.
//! - [`met`]: what lives have met with.
//! - [`people`]: what people do, and what happens behind the agent's back.
//! - [`probe`]: parts that only tests have.
//! - [`jobs`]: the jobs that lives are made of.
//! - [`tale`]: the log.
//! - [`rollouts`]: what a roll-out may do.
//! - [`rooms`]: who may have what of the machine.
//! - [`launches`]: what launches of periodic jobs must keep.
//! - [`seeds`]: many lives.

pub mod clock;
pub mod deployments;
pub mod jobs;
pub mod launches;
pub mod life;
pub mod machine;
pub mod met;
pub mod oracle;
pub mod people;
pub mod probe;
pub mod promises;
pub mod rollouts;
pub mod rooms;
pub mod seeds;
pub mod tale;

/// A small generator of pseudo-random numbers (SplitMix64): stable over releases, unlike a library's.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }

    /// True once in `n` on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
