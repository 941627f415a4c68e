//! Lives by their seeds: one, or a range of them on many threads.
//!
//! In: seeds. Out: how much was lived, or the first broken promise with the log of the life that led to it.

use std::{
    any::Any,
    ops::{AddAssign, Range},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use super::life::{Faults, Life};

/// A hard life.
pub const HARD: Faults = Faults {
    failing_one_in: 12,
    slow_one_in: 20,
    crash_one_in: 60,
    reboot_one_in: 6,
    drift_one_in: 30,
    outage_one_in: 100,
};

/// Moments of a life in which everything can happen.
pub const MOMENTS: u64 = 150;

/// Seeds that a thread takes at a time.
const BATCH: u64 = 16;

/// How much was lived.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lived {
    /// Lives.
    pub lives: u64,
    /// Events applied and effects executed.
    pub steps: u64,
    /// Transactions.
    pub commits: u64,
    /// Processor time that it took.
    pub cpu: Duration,
}

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Broken {
    /// Whose life.
    pub seed: u64,
    /// Which promise.
    pub why: String,
    /// The log of that life.
    pub log: Vec<String>,
}

/// Lives once; if a promise is broken, once more with a log.
pub fn live(seed: u64) -> Result<Lived, Broken> {
    attempt(Life::new(seed, HARD)).map_err(|(why, _)| {
        let (why, log) = match attempt(Life::new(seed, HARD).logged()) {
            Ok(_) => (format!("{why}; but not once more"), Vec::new()),
            Err(broken) => broken,
        };
        Broken { seed, why, log }
    })
}

/// Lives all of them on so many threads, up to the first broken promise.
pub fn live_all(seeds: Range<u64>, threads: usize) -> Result<Lived, Broken> {
    let next = AtomicU64::new(seeds.start);
    let broken = Mutex::new(None);
    let worker = || {
        let (mut sum, began) = (Lived::default(), cpu_time());
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            for seed in from..seeds.end.min(from.saturating_add(BATCH)) {
                match live(seed) {
                    Ok(lived) => sum += lived,
                    Err(found) => {
                        next.store(seeds.end, Ordering::Relaxed);
                        if let Ok(mut broken) = broken.lock() {
                            broken.get_or_insert(found);
                        }
                        return sum;
                    }
                }
            }
            if from >= seeds.end {
                sum.cpu = cpu_time() - began;
                return sum;
            }
        }
    };
    let mut sum = Lived::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            sum += worker.join().unwrap_or_default();
        }
    });
    match broken.into_inner() {
        Ok(Some(broken)) => Err(broken),
        Ok(None) | Err(_) => Ok(sum),
    }
}

impl Lived {
    /// Steps a second of processor time, that is on one core.
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
    }
}

/// Lives, and takes a panic for a broken promise.
fn attempt(mut life: Life) -> Result<Lived, (String, Vec<String>)> {
    let ended = catch_unwind(AssertUnwindSafe(|| life.live(MOMENTS)));
    let why = match ended {
        Ok(Ok(())) => {
            let lived = Lived { lives: 1, steps: life.steps, commits: life.commits, cpu: Duration::ZERO };
            return Ok(lived);
        }
        Ok(Err(why)) => why,
        Err(payload) => format!("it panics: {}", message(&*payload)),
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

/// Of this thread: what others do meanwhile does not count.
fn cpu_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}
