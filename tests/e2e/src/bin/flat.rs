//! Tests whether an agent grows over many restarts and updates: `cargo run --release -p herdlet-e2e --bin
//! flat -- [RESTARTS [UPDATES]]`, by default 10000 and 1000. Needs root.
//!
//! In: the numbers of restarts and updates. Out: the agent's resources after a tenth of them and at the end,
//! and exit code 1 if something has grown.

use std::{env, process::ExitCode};

use herdlet_e2e::flat;

fn main() -> ExitCode {
    let mut numbers = env::args().skip(1).map(|text| text.parse::<u64>());
    let (Ok(restarts), Ok(updates)) =
        (numbers.next().unwrap_or(Ok(10_000)), numbers.next().unwrap_or(Ok(1_000)))
    else {
        eprintln!("usage: flat [RESTARTS [UPDATES]]");
        return ExitCode::from(2);
    };
    let outcomes = [flat::restarts(restarts), flat::updates(updates)];
    outcomes.iter().for_each(|outcome| println!("{}", outcome.table()));
    if outcomes.iter().all(|outcome| outcome.grown.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
