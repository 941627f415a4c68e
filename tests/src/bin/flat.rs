//! Whether an agent grows over many restarts and updates:
//! `cargo run --release -p herdlet-tests --bin flat -- [RESTARTS [UPDATES]]`, 10000 and 1000 unless said otherwise. Needs root.
//!
//! In: how many. Out: what the agent had of everything after a tenth and in the end, and code 1 if something has grown.

use std::{env, process::ExitCode};

use herdlet_tests::flat;

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
