//! Counts the instructions of each operation: `cargo bench -p herdlet-tests --bench instructions [-- WORD…]`.
//!
//! In: parts of operations' names (default: all operations). Out: a line for each. Unlike times, the counts are also valid
//! on a busy machine. Needs valgrind: this program runs itself under callgrind with different numbers of repetitions; the
//! difference is the count of one operation.

#![expect(clippy::expect_used, reason = "an operation that fails ends the program with the reason")]

mod operations;

use std::process::{Command, ExitCode};

use operations::{ALL, Operation};

/// The variable with the operation and the number of repetitions, for the program under callgrind.
const WATCHED: &str = "HERDLET_BENCH_WATCHED";

/// Repetitions before counting, to exclude first-time work.
const WARM: u64 = 3;

fn main() -> ExitCode {
    if let Ok(watched) = std::env::var(WATCHED) {
        let (index, times) = watched.split_once(' ').expect("an operation and a number");
        do_it(&ALL[index.parse::<usize>().expect("an index")], times.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    // cargo adds `--bench`.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    for (index, operation) in ALL.iter().enumerate() {
        if words.is_empty() || words.iter().any(|word| operation.name.contains(word.as_str())) {
            match count(index) {
                Ok(instructions) => println!("{:<50} {instructions:>12} instructions", operation.name),
                Err(why) => {
                    eprintln!("failed to count \"{operation}\": {why}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}

fn do_it(operation: &Operation, times: u64) {
    let mut once = (operation.ready)();
    for _ in 0..times {
        once();
    }
}

/// Repeats small operations more often, because the cost of the queue depends on the key.
fn count(index: usize) -> Result<u64, String> {
    let few = watch(index, WARM)?;
    let one = watch(index, WARM + 1)?.saturating_sub(few);
    let more = if one > 100_000 { 1 } else { 1_000 };
    Ok(watch(index, WARM + more)?.saturating_sub(few) / more)
}

/// Counts the instructions of a run.
fn watch(index: usize, times: u64) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .env(WATCHED, format!("{index} {times}"))
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let collected = stderr.lines().find_map(|line| line.split_once("Collected :"));
    match collected.map(|(_, count)| count.trim().parse()) {
        Some(Ok(count)) if output.status.success() => Ok(count),
        Some(_) | None => Err(stderr.into_owned()),
    }
}
