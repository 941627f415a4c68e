//! The machine itself: the same programs with the same log files, started with `posix_spawn` alone.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{cost, ground::BenchDirs};

/// Concurrent starts, as in the agent.
const PARALLEL: usize = 8;

/// The costs of plain starts.
pub(super) struct Spawns {
    /// The time from the first to the last.
    pub(super) took: Duration,
    /// Processor time of all processes, including this one.
    pub(super) cpu: Duration,
}

/// Starts `program` `count` times, each with its own files for stdout and stderr, and ends them.
pub(super) fn spawns(ground: &BenchDirs, count: usize, program: &str, arguments: &[&str]) -> Spawns {
    let dir = ground.dir();
    let next = AtomicUsize::new(0);
    let own = cost::cpu([std::process::id()]);
    let began = Instant::now();
    let mut children: Vec<Child> = thread::scope(|scope| {
        let work = || {
            let mut started = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return started;
                }
                let file =
                    |kind| File::create(dir.path().join(format!("{number}.{kind}"))).expect("a log file");
                let mut command = Command::new(program);
                command.args(arguments).stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
                started.push(command.spawn().expect("a process"));
            }
        };
        let workers: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker ends")).collect()
    });
    let took = began.elapsed();
    // Includes the first instructions of the programs, as in the measurement of the agent's tasks.
    thread_rest();
    let cpu = cost::cpu(children.iter().map(Child::id)) + cost::cpu([std::process::id()]).saturating_sub(own);
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    Spawns { took, cpu }
}

/// Median time of one wait for an idle disk, as for a single commit.
pub(super) fn sync(ground: &BenchDirs) -> Duration {
    const TRIES: usize = 40;
    let dir = ground.dir();
    let file = File::create(dir.path().join("file")).expect("a file");
    let mut taken: Vec<Duration> = (0..TRIES)
        .map(|turn| {
            herdlet_e2e::wait::pause(Duration::from_millis(20));
            // As many bytes as a commit, to existing pages.
            file.write_all_at(&[0; 28 << 10], (turn as u64 % 2) << 15).expect("a write");
            let began = Instant::now();
            file.sync_data().expect("a sync");
            began.elapsed()
        })
        .collect();
    taken.sort_unstable();
    taken.get(TRIES / 2).copied().unwrap_or_default()
}

fn thread_rest() {
    herdlet_e2e::wait::pause(Duration::from_millis(300));
}
