//! What runs in the machine to tell what else runs there.
//!
//! In: a connection. Out: facts as JSON, looked up at that moment; then the connection ends.

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
    e2e::host,
};

/// First argument of the program that is to be this: see [`run`].
pub const ARGUMENT: &str = "watch";
/// Where it listens.
pub const PORT: u16 = 7070;
/// Where the tasks' program lies in the machine; the same that watches.
pub const PROGRAM: &str = "/guest/program";
/// Where tasks write that they have begun. New with each boot.
pub const JOURNAL: &str = "/run/journal";
/// The agent's state directory.
const STATE: &str = "/var/lib/herdlet";

/// Tells facts to whoever connects.
///
/// # Panics
/// When it can't listen.
pub fn run() {
    let journal = Journal::new(PathBuf::from(JOURNAL));
    let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("a port to listen at");
    for mut client in listener.incoming().flatten() {
        // Whoever asked will ask again.
        let _ = client.write_all(facts(&journal).to_string().as_bytes());
    }
}

/// `running` and `begun`: place and word of tasks; `twice`: places that two had at a time; `supervisors`: how many; `strays`:
/// cgroups of attempts in which nothing runs; `allocs`: ids of allocations that have a directory; `damaged`: what was set aside.
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
