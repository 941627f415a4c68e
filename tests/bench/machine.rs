//! What the machine itself can do: the same programs with the same log files, started by nothing but `posix_spawn`.

use std::{
    fs::File,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{cost, ground::Ground};

/// As many starts at a time as the agent makes.
const PARALLEL: usize = 8;

/// What plain starts took.
pub(super) struct Spawns {
    /// From the first to the last.
    pub(super) took: Duration,
    /// Processor time of all processes together, the starter's share too.
    pub(super) cpu: Duration,
}

/// Starts `count` times `program`, each with a stdout and a stderr file of its own, and ends them.
pub(super) fn spawns(ground: &Ground, count: usize, program: &str, arguments: &[&str]) -> Spawns {
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
    // Their own first steps are part of what is counted for the agent's tasks too.
    thread_rest();
    let cpu = cost::cpu(children.iter().map(Child::id)) + cost::cpu([std::process::id()]).saturating_sub(own);
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    Spawns { took, cpu }
}

fn thread_rest() {
    herdlet_tests::e2e::wait::pause(Duration::from_millis(300));
}
