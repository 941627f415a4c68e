//! Runs many simulated lives on all cores: `cargo run --release -p herdlet-tests --bin sim -- FROM..TO
//! [THREADS]`.
//!
//! In: a range of seeds. Out: how many lives covered each situation; the numbers of lives, steps (events
//! applied and effects) and steps per second; for each violation the seed, the end of that life's log and the
//! command to reproduce it, and exit code 1.

use std::{
    env,
    num::NonZero,
    ops::Range,
    process::ExitCode,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use herdlet_tests::sim::seeds::{self, Broken, Lived};

/// Interval between reports of progress.
const PROGRESS: Duration = Duration::from_secs(10);

/// Number of log lines shown for a violation, unless `HERDLET_SIM_LOG` asks for all.
const LINES: usize = 120;

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let Some(range) = arguments.next().as_deref().and_then(range) else {
        eprintln!("usage: sim FROM..TO [THREADS]");
        return ExitCode::from(2);
    };
    let all = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(all);
    let began = Instant::now();
    let shown = Mutex::new(began);
    let show_progress = |lived: &Lived| {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.elapsed() >= PROGRESS {
            *shown = Instant::now();
            eprintln!("{}", sum(lived, began.elapsed()));
        }
    };
    match seeds::live_all(range.clone(), threads, &show_progress) {
        Ok(lived) => {
            for (what, lives) in lived.met.iter() {
                println!("{lives:>12} lives with {what}");
            }
            println!(
                "seeds {}..{}, {threads} threads: {}",
                range.start,
                range.end,
                sum(&lived, began.elapsed())
            );
            println!("violations: 0 of safety, 0 of liveness");
            ExitCode::SUCCESS
        }
        Err(Broken { seed, why, log }) => {
            let shown = if env::var_os("HERDLET_SIM_LOG").is_some() { usize::MAX } else { LINES };
            for line in log.iter().skip(log.len().saturating_sub(shown)) {
                println!("{line}");
            }
            println!("seed {seed}: {why}");
            println!("to reproduce it with the whole log: HERDLET_SIM_LOG=1 sim {seed}..{}", seed + 1);
            ExitCode::FAILURE
        }
    }
}

fn sum(lived: &Lived, took: Duration) -> String {
    format!(
        "{} lives, {} steps, {} commits in {took:.1?}: {:.0} steps/s on one core",
        lived.lives,
        lived.steps,
        lived.commits,
        lived.steps_per_second()
    )
}

fn range(text: &str) -> Option<Range<u64>> {
    let (from, to) = text.split_once("..")?;
    Some(from.parse().ok()?..to.parse().ok()?)
}
