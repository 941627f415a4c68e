//! Cuts the power of a virtual machine: `cargo run --release -p herdlet-e2e --bin power-cuts -- [--cuts N]
//! [--seed N]`. Needs the components of `tests/setup --guest`, and an agent: HERDLET_BIN, or
//! `target/release/herdlet`.
//!
//! In: the number of cuts, a seed. Out: a line for each cut; on a violation, the command to reproduce it and
//! exit code 1.

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{
    crashes::work,
    environment::{GUEST_KERNEL, GUEST_MODULES, component},
    power_cuts::{guest, life::Life, machine::Components},
    program::project,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.split_first() {
        Some((first, rest)) if first == work::ARGUMENT => {
            work::run(rest);
            ExitCode::SUCCESS
        }
        Some((first, _)) if first == guest::ARGUMENT => {
            guest::run();
            ExitCode::SUCCESS
        }
        Some(_) | None => campaign(&arguments),
    }
}

fn campaign(arguments: &[String]) -> ExitCode {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs());
    let (mut cuts, mut seed) = (100, now);
    for pair in arguments.chunks(2) {
        match pair {
            [flag, number] if flag == "--cuts" => cuts = number.parse().unwrap_or(cuts),
            [flag, number] if flag == "--seed" => seed = number.parse().unwrap_or(seed),
            _ => {
                eprintln!("usage: power-cuts [--cuts N] [--seed N]");
                return ExitCode::from(2);
            }
        }
    }
    let (Some(kernel), Some(modules)) = (component(GUEST_KERNEL), component(GUEST_MODULES)) else {
        return ExitCode::FAILURE;
    };
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| project().join("target"), PathBuf::from);
    let agent = env::var_os("HERDLET_BIN").map_or_else(|| target.join("release/herdlet"), PathBuf::from);
    let program = env::current_exe().unwrap_or_default();
    println!("--cuts {cuts} --seed {seed}");
    let began = Instant::now();
    match Life::new(seed, &Components { agent, program, kernel, modules }).live(cuts) {
        Ok(()) => {
            println!("{cuts} power cuts without a violation in {} s", began.elapsed().as_secs());
            ExitCode::SUCCESS
        }
        Err(broken) => {
            println!("{broken}\n--seed {seed}");
            ExitCode::FAILURE
        }
    }
}
