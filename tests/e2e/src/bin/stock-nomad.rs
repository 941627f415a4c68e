//! Runs an agent with the servers and the command line of stock Nomad: `cargo run -p herdlet-e2e --bin
//! stock-nomad -- [standalone] [--only TEXT] NOMAD…`. Needs root.
//!
//! In: stock `nomad` programs of any release. Out: a line for each story with its duration and failure, if
//! any; for each program the number of stories that passed; exit code 1 if one failed. Stories that a release
//! can't run are named. With `standalone` each command of docs/nomad/commands.md is run against an agent without
//! servers instead.

use std::{env, path::Path, process::ExitCode, time::Instant};

use herdlet_e2e::stock_nomad::{campaign, program::Program, standalone, stories, task};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (is_standalone, arguments) = match arguments.split_first() {
        Some((first, rest)) if first == "standalone" => (true, rest),
        Some(_) | None => (false, &*arguments),
    };
    let (only, programs) = match arguments.split_first() {
        Some((first, rest)) if first == task::ARGUMENT => {
            task::run(rest);
            return ExitCode::SUCCESS;
        }
        Some((first, rest)) if first == "--only" => {
            rest.split_first().map_or(("", rest), |(only, programs)| (only.as_str(), programs))
        }
        Some(_) | None => ("", arguments),
    };
    if programs.is_empty() {
        eprintln!("usage: stock-nomad [standalone] [--only TEXT] NOMAD…");
        return ExitCode::from(2);
    }
    let mut failed = 0;
    for path in programs {
        match Program::ask(Path::new(path)) {
            Ok(program) => {
                let began = Instant::now();
                let outcome = if is_standalone {
                    standalone::run(&program, only)
                } else {
                    campaign::tell(&program, stories::CHAPTERS, only)
                };
                failed += outcome.failed;
                println!("in {} s\n", began.elapsed().as_secs());
            }
            Err(words) => {
                println!("failed: {words}");
                failed += 1;
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
