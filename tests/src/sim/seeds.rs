//! Simulations by their seeds: one, or a range of them on many threads.
//!
//! In: seeds. Out: statistics, or the first violation with the log of its simulation.

use std::{
    any::Any,
    ops::{AddAssign, Range},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use super::{
    coverage::Coverage,
    life::{Faults, Life},
    oracle::Violation,
};

/// The fault probabilities of a hard simulation.
pub const HARD: Faults = Faults {
    failing_one_in: 12,
    slow_one_in: 20,
    crash_one_in: 60,
    reboot_one_in: 6,
    drift_one_in: 30,
    outage_one_in: 100,
    lost_one_in: 20,
    doubled_one_in: 10,
    jump_one_in: 300,
    full_one_in: 150,
    damage_one_in: 100,
    driver_one_in: 120,
};

/// Moments of a simulation with faults.
pub const MOMENTS: u64 = 150;

/// The longest duration of a turn, by seed: zero, so that each event has a turn of its own; about as long as an operation;
/// so long that most pending operations end meanwhile.
const TURNS_NS: [u64; 3] = [0, 1_000_000, 20_000_000];

/// Seeds that a thread takes at a time.
const BATCH: u64 = 16;

/// Statistics of simulations.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lived {
    /// Simulations.
    pub lives: u64,
    /// Events applied and effects executed.
    pub steps: u64,
    /// Transactions.
    pub commits: u64,
    /// Processor time used.
    pub cpu: Duration,
    /// In how many simulations each kind of event occurred.
    pub met: Coverage,
}

/// A violation.
#[derive(Debug, Clone)]
pub struct Broken {
    /// The seed of the simulation.
    pub seed: u64,
    /// The violated property.
    pub why: Violation,
    /// The log of the simulation.
    pub log: Vec<String>,
}

/// Runs a simulation; after a violation, again with a log.
pub fn live(seed: u64) -> Result<Lived, Broken> {
    attempt(life_of(seed)).map_err(|(why, _)| {
        let (why, log) = match attempt(life_of(seed).logged()) {
            Ok(_) => (Violation::Safety(format!("{why}; not reproduced in a second run")), Vec::new()),
            Err(broken) => broken,
        };
        Broken { seed, why, log }
    })
}

/// The simulation of a seed.
pub fn life_of(seed: u64) -> Life {
    let speed = usize::try_from(seed % TURNS_NS.len() as u64).unwrap_or(0);
    Life::new(seed, HARD).with_turns_of(TURNS_NS[speed])
}

/// Runs all simulations on this many threads, up to the first violation. Calls `on_batch` with the statistics after each batch.
pub fn live_all(
    seeds: Range<u64>,
    threads: usize,
    on_batch: &(dyn Fn(&Lived) + Sync),
) -> Result<Lived, Broken> {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new((Lived::default(), None));
    let worker = || {
        let mut began = cpu_time();
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= seeds.end {
                return;
            }
            let mut lived = Lived::default();
            let mut broken = None;
            for seed in from..seeds.end.min(from.saturating_add(BATCH)) {
                match live(seed) {
                    Ok(one) => lived += one,
                    Err(found) => {
                        next.store(seeds.end, Ordering::Relaxed);
                        broken = Some(found);
                        break;
                    }
                }
            }
            let now = cpu_time();
            lived.cpu = now.saturating_sub(std::mem::replace(&mut began, now));
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.0 += lived;
            all.1 = all.1.take().or(broken);
            on_batch(&all.0);
        }
    };
    thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(worker))));
    match all.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some(broken)) => Err(broken),
        (lived, None) => Ok(lived),
    }
}

impl Lived {
    /// Steps per second of processor time, so on one core.
    pub fn steps_per_second(&self) -> f64 {
        self.steps as f64 / self.cpu.as_secs_f64().max(1e-9)
    }
}

impl AddAssign for Lived {
    fn add_assign(&mut self, more: Self) {
        self.lives += more.lives;
        self.steps += more.steps;
        self.commits += more.commits;
        self.cpu += more.cpu;
        self.met += more.met;
    }
}

/// Runs a simulation, and treats a panic as a violation.
fn attempt(mut life: Life) -> Result<Lived, (Violation, Vec<String>)> {
    let ended = catch_unwind(AssertUnwindSafe(|| life.live(MOMENTS)));
    let why = match ended {
        Ok(Ok(())) => {
            let (steps, commits, met) = (life.steps, life.commits, life.met.at_all());
            return Ok(Lived { lives: 1, steps, commits, met, cpu: Duration::ZERO });
        }
        Ok(Err(why)) => why,
        Err(payload) => Violation::Safety(format!("panic: {}", message(&*payload))),
    };
    Err((why, life.log().to_vec()))
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        (None, None) => "no message",
    }
}

/// The processor time of this thread; that of other threads does not count.
fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}
