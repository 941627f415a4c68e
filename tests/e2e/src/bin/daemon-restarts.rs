//! Restarts a Docker daemon while containers run: `cargo run --release -p herdlet-e2e --bin daemon-restarts -- [--restarts N]
//! [--containers N] [--seed N]`, half of the restarts with `live-restore` and half without. Needs root, and the engines of `tests/setup`.
//!
//! In: the number of restarts and of containers, a seed. Out: a line for each half, the violations, and exit code 1 if there are any.

use std::{
    env,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{
    daemon_restarts::{CONTAINERS_MIN, Campaign, LiveRestore},
    engine::{Engines, Kind},
    namespaces,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let (mut restarts, mut containers, mut seed) = (200, 10, now);
    for pair in arguments.chunks(2) {
        let number = pair.last().and_then(|number| number.parse::<u64>().ok());
        match (pair.first().map(String::as_str), number) {
            (Some("--restarts"), Some(number)) => restarts = number,
            (Some("--containers"), Some(number)) => {
                containers = usize::try_from(number).unwrap_or(containers)
            }
            (Some("--seed"), Some(number)) => seed = number,
            _ => {
                eprintln!("usage: daemon-restarts [--restarts N] [--containers N] [--seed N]");
                return ExitCode::from(2);
            }
        }
    }
    if restarts == 0 {
        eprintln!("--restarts must be at least 1");
        return ExitCode::from(2);
    }
    if containers < CONTAINERS_MIN {
        eprintln!(
            "--containers must be at least {CONTAINERS_MIN}: some run on, some end by themselves, and the job of one changes"
        );
        return ExitCode::from(2);
    }
    if let Err(error) = namespaces::isolate() {
        eprintln!("cannot create namespaces for the daemon: {error}; run it as root");
        return ExitCode::FAILURE;
    }
    println!("--restarts {restarts} --containers {containers} --seed {seed}");
    let mut is_good = true;
    for live_restore in [LiveRestore::On, LiveRestore::Off] {
        let Some(engines) = Engines::of_this_process(&[Kind::Docker.name()]) else {
            return ExitCode::FAILURE;
        };
        let campaign = Campaign { restarts: restarts.div_ceil(2), containers, live_restore, seed };
        let outcome = campaign.run(engines.engine(Kind::Docker));
        println!("live-restore {live_restore:?}: {}", outcome.text());
        is_good &= outcome.broken.is_empty();
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
