//! Kills agents at random points, with real processes: `cargo run --release -p herdlet-e2e --bin crashes --
//! [--points N] [--seed N] [--agents N] [--strangers N] [--reused N] [--tombstones 0]`, or `… -- starting
//! [--trials N] [--tasks N] [--seed N]` to kill agents while very many tasks start. Needs root.
//!
//! In: the number of points or trials, a seed. Out: progress; at the end a table, the violations with the
//! commands to reproduce them, and exit code 1 if there are any.

use std::{
    env,
    num::NonZero,
    process::ExitCode,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::crashes::{
    campaign::{Burial, Campaign},
    starting, work,
};

const USAGE: &str = "usage: crashes [--points N] [--seed N] [--agents N] [--strangers N] [--reused N] [--tombstones 0]\n       crashes starting [--trials N] [--tasks N] [--seed N]";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == work::ARGUMENT => {
            work::run(rest);
            ExitCode::SUCCESS
        }
        Some((first, rest)) if first == "starting" => {
            parse_flags(rest).map_or_else(usage, |wanted| many_starts(&wanted))
        }
        Some(_) | None => parse_flags(&arguments).map_or_else(usage, |wanted| points(&wanted)),
    }
}

/// The flags with their values.
struct Flags(Vec<(String, u64)>);

impl Flags {
    fn get(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(flag, _)| flag == name).map(|(_, number)| *number)
    }

    /// Returns the seed, and prints it so that the run can be repeated.
    fn seed(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs() * 1_000);
        let seed = self.get("--seed").unwrap_or_else(now);
        eprintln!("--seed {seed}");
        seed
    }
}

fn points(flags: &Flags) -> ExitCode {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let campaign = Campaign {
        points: flags.get("--points").unwrap_or(1_000),
        seed: flags.seed(),
        // A life spends most of its time waiting.
        agents: flags.get("--agents").and_then(|agents| agents.try_into().ok()).unwrap_or(4 * cores),
        program: env::current_exe().unwrap_or_default(),
        burial: match flags.get("--tombstones") {
            Some(0) => Burial::AtOnce,
            Some(_) | None => Burial::AfterTombstones,
        },
        strangers: flags.get("--strangers").and_then(|count| count.try_into().ok()).unwrap_or(0),
        reused: flags.get("--reused").and_then(|count| count.try_into().ok()).unwrap_or(0),
    };
    let outcome = campaign.run();
    print!("{}", outcome.table());
    let is_whole = outcome.reached() >= campaign.points && outcome.reused >= campaign.reused;
    if outcome.broken.is_empty() && is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many_starts(flags: &Flags) -> ExitCode {
    let (trials, tasks) = (flags.get("--trials").unwrap_or(200), flags.get("--tasks").unwrap_or(200));
    let program = env::current_exe().unwrap_or_default();
    let outcome = starting::run(trials, tasks, flags.seed(), &program);
    println!(
        "{} trials of {tasks} tasks, {} to {} of them started before the kill: {} ran twice at the same time, {} were restarted",
        outcome.trials, outcome.begun_at_kill.0, outcome.begun_at_kill.1, outcome.twice, outcome.again
    );
    outcome.broken.iter().for_each(|words| println!("{words}"));
    let good = outcome.broken.is_empty() && outcome.twice == 0 && outcome.again == 0;
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn parse_flags(arguments: &[String]) -> Option<Flags> {
    const KNOWN: [&str; 8] =
        ["--points", "--tombstones", "--seed", "--agents", "--strangers", "--reused", "--trials", "--tasks"];
    let flags = arguments.chunks(2).map(|pair| match pair {
        [flag, number] if KNOWN.contains(&flag.as_str()) => Some((flag.clone(), number.parse().ok()?)),
        _ => None,
    });
    flags.collect::<Option<Vec<_>>>().map(Flags)
}
