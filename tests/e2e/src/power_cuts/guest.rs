//! A program in the machine that reports what runs there.
//!
//! In: a connection. Out: current facts as JSON; then the connection closes.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    crashes::{oracle, work::Journal},
    host,
};

/// First argument of a program that acts as this: see [`run`].
pub const ARGUMENT: &str = "watch";
/// The port on which it listens.
pub const PORT: u16 = 7070;
/// The path of the tasks' program in the machine, which is also this program.
pub const PROGRAM: &str = "/guest/program";
/// The journal of the tasks' starts, which is empty after each boot.
pub const JOURNAL: &str = "/run/journal";
/// The agent's state directory.
const STATE: &str = "/var/lib/herdlet";

/// Sends the facts to every client.
///
/// # Panics
/// If it can't listen.
pub fn run() {
    let journal = Journal::new(PathBuf::from(JOURNAL));
    let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("a port to listen at");
    for mut client in listener.incoming().flatten() {
        // The client will try again.
        let _ = client.write_all(facts(&journal).to_string().as_bytes());
    }
}

/// `running` and `begun`: place and word of tasks; `twice`: places with two tasks at the same time;
/// `supervisors`: their number; `strays`: cgroups of attempts without processes; `allocs`: ids of allocations
/// with a directory; `damaged`: quarantined files.
fn facts(journal: &Journal) -> Value {
    let instance = fs::read_to_string(Path::new(STATE).join("instance")).unwrap_or_default();
    let instance = instance.trim();
    let members = host::members(instance).into_iter();
    let live: BTreeSet<String> =
        members.map(|member| format!("{}.{}.{}", member.alloc, member.task, member.attempt)).collect();
    let strays: Vec<String> =
        host::attempts(instance).into_iter().filter(|name| !live.contains(name)).collect();
    let running: Vec<_> = oracle::running(instance).into_iter().map(|task| (task.place, task.word)).collect();
    let begun: Vec<_> = journal.begun().into_iter().map(|line| (line.place, line.word)).collect();
    let twice: Vec<_> = journal.twice().into_iter().map(|line| line.place).collect();
    let mut damaged = names(&Path::new(STATE).join("damaged"));
    damaged.extend(names(Path::new(STATE)).into_iter().filter(|name| name.contains("damaged-")));
    json!({
        "running": running,
        "begun": begun,
        "twice": twice,
        "supervisors": host::supervisors(instance).len(),
        "strays": strays,
        "allocs": names(&Path::new(STATE).join("alloc")),
        "damaged": damaged,
    })
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
