//! Stock Nomad's servers and command line with an agent of ours:
//! `cargo run -p herdlet-tests --bin stock-nomad -- [--only TEXT] NOMAD…`. Needs root.
//!
//! In: stock `nomad` programs, of any releases. Out: a line for each story, with what it took and what was not as it should be; for each
//! program how many held; code 1 if one didn't. What a release doesn't have is named.

use std::{env, path::Path, process::ExitCode, time::Instant};

use herdlet_tests::stock_nomad::{campaign, program::Program, stories, task};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (only, programs) = match arguments.split_first() {
        Some((first, rest)) if first == task::ARGUMENT => {
            task::run(rest);
            return ExitCode::SUCCESS;
        }
        Some((first, rest)) if first == "--only" => {
            rest.split_first().map_or(("", rest), |(only, programs)| (only.as_str(), programs))
        }
        Some(_) | None => ("", arguments.as_slice()),
    };
    if programs.is_empty() {
        eprintln!("usage: stock-nomad [--only TEXT] NOMAD…");
        return ExitCode::from(2);
    }
    let mut failed = 0;
    for path in programs {
        match Program::ask(Path::new(path)) {
            Ok(program) => {
                let began = Instant::now();
                failed += campaign::tell(&program, stories::CHAPTERS, only).failed;
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
