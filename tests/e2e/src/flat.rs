//! Whether an agent's use of resources stays constant, however long it works.
//!
//! In: the numbers of restarts of one task and of updates of one job. Out: the agent's resources after a
//! tenth of the work and at the end, and those that have grown.
//!
//! To cover a new part, add a line to [`Figures`] for each kind of resource that is not counted there.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{agent::Agent, crashes::oracle, host, http, wait};

/// The resources of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Open file descriptors.
    pub descriptors: usize,
    pub threads: usize,
    /// Anonymous memory in KiB, which other processes don't affect.
    pub memory_kib: usize,
    /// Its directories and files, and cgroups.
    pub paths: usize,
    pub mounts: usize,
    /// Size of the database in KiB.
    pub state_kib: usize,
    /// Processes of tasks and supervisors.
    pub processes: usize,
}

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// A description of the work.
    pub what: String,
    /// After a tenth of the work.
    pub before: Figures,
    /// After all of it.
    pub after: Figures,
    /// Descriptions of the resources that have grown.
    pub grown: Vec<String>,
    pub took: Duration,
}

/// Maximum wait for an agent to settle: an idle thread exits after ten seconds, a tombstone is removed after
/// a minute. What has grown by then is a leak.
const REST: Duration = Duration::from_secs(300);

/// Lets a task end and be restarted `times` times.
pub fn restarts(times: u64) -> Outcome {
    let mut agent = Agent::start();
    let hold = agent.home.write("hold", "");
    let script = format!("if [ -e {} ]; then exec sleep 100000; fi; exit 1", hold.display());
    agent.apply_and_wait(&manifest(
        &["/bin/sh", "-c", &script],
        "restart: {attempts: 1000000, interval: 24h, delay: 1ms, mode: delay}",
    ));
    let began = Instant::now();
    let until = |wanted: u64| {
        fs::remove_file(&hold).expect("removal of the file that holds the task");
        agent.members().iter().for_each(|member| host::signal(member.pid, rustix::process::Signal::KILL));
        // A restart takes long on a busy disk, but it does happen.
        while let restarts = restarted(&agent)
            && restarts < wanted
        {
            wait::until_true("the task is restarted", || restarted(&agent) > restarts);
        }
        fs::write(&hold, "").expect("a file that holds the task");
        wait::until_true("the task runs", || agent.members().len() == 1 && converged(&agent));
    };
    until(times / 10);
    let before = at_rest(&agent, |_| true);
    until(times);
    let outcome = compare(format!("{} restarts of a task", restarted(&agent)), &agent, before, began);
    agent.finish();
    outcome
}

/// Updates a job `times` times.
pub fn updates(times: u64) -> Outcome {
    let agent = Agent::start();
    let began = Instant::now();
    let update = |number: u64| {
        let seconds = (100_000 + number).to_string();
        let text = manifest(&["/bin/sleep", &seconds], "");
        let body = json!({ "files": [{ "name": "m.yaml", "text": text }] }).to_string();
        let answer = http::request(
            &agent.peer(),
            "POST",
            "/v1/herdlet/apply",
            &[("Content-Type", "application/json")],
            &body,
        );
        assert_eq!(answer.map(|answer| answer.status), Some(200), "an update is accepted");
        wait::until_true("the new work runs alone", || {
            let members = agent.members();
            members.len() == 1
                && members
                    .iter()
                    .all(|member| host::arguments(member.pid).is_some_and(|words| words.contains(&seconds)))
        });
    };
    let tenth = (times / 10).max(3);
    (0..tenth).for_each(update);
    wait::until_true("converged", || converged(&agent));
    let before = at_rest(&agent, |_| true);
    (tenth..times).for_each(update);
    wait::until_true("converged", || converged(&agent));
    let outcome = compare(format!("{times} updates of a job"), &agent, before, began);
    agent.finish();
    outcome
}

impl Outcome {
    /// Formats the table for people.
    pub fn table(&self) -> String {
        let Self { what, before, after, grown, took } = self;
        let mut text = format!(
            "{what}, {:.0} s\n{:<16}{:>12}{:>12}\n",
            took.as_secs_f64(),
            "",
            "after 1/10",
            "at the end"
        );
        for ((name, before), (_, after)) in before.named().into_iter().zip(after.named()) {
            text.push_str(&format!("{name:<16}{before:>12}{after:>12}\n"));
        }
        grown.iter().for_each(|words| text.push_str(&format!("has grown: {words}\n")));
        text
    }
}

impl Figures {
    fn measure(agent: &Agent) -> Self {
        let instance = agent.home.instance().expect("an instance has a name");
        let process = format!("/proc/{}", agent.pid());
        let entries =
            |dir: &str| fs::read_dir(format!("{process}/{dir}")).expect("a readable directory").count();
        let state = fs::metadata(agent.home.state().join("state.db")).expect("an agent has a database");
        let traces = oracle::traces(agent, &instance);
        let (mounts, paths): (BTreeSet<_>, BTreeSet<_>) = traces
            .into_iter()
            .filter(|path| !oracle::is_tombstone(path))
            .partition(|path| path.to_string_lossy().starts_with("mount "));
        Self {
            descriptors: entries("fd"),
            threads: entries("task"),
            memory_kib: anonymous_kib(&process),
            paths: paths.len(),
            mounts: mounts.len(),
            state_kib: usize::try_from(state.len() / 1024).expect("a size that fits"),
            processes: agent.members().len() + host::supervisors(&instance).len(),
        }
    }

    fn named(self) -> [(&'static str, usize); 7] {
        let Self { descriptors, threads, memory_kib, paths, mounts, state_kib, processes } = self;
        [
            ("descriptors", descriptors),
            ("threads", threads),
            ("memory, KiB", memory_kib),
            ("files, cgroups", paths),
            ("mounts", mounts),
            ("database, KiB", state_kib),
            ("processes", processes),
        ]
    }

    /// Returns the growth since `before` beyond the tolerance for allocators and thread pools.
    fn grown_since(self, before: Self) -> Vec<String> {
        let named = self.named().into_iter().zip(before.named());
        let grown = named.filter(|((name, after), (_, before))| {
            let room = match *name {
                "memory, KiB" => before / 5 + 1024,
                "database, KiB" => before / 4,
                "descriptors" | "threads" => 2,
                _ => 0,
            };
            *after > *before + room
        });
        grown.map(|((name, after), (_, before))| format!("{name}: {before} → {after}")).collect()
    }
}

fn compare(what: String, agent: &Agent, before: Figures, began: Instant) -> Outcome {
    let took = began.elapsed();
    let after = at_rest(agent, |figures| figures.grown_since(before).is_empty());
    Outcome { what, before, after, grown: after.grown_since(before), took }
}

/// Returns the figures of an idle agent once they satisfy `good` or [`REST`] has passed.
fn at_rest(agent: &Agent, good: impl Fn(Figures) -> bool) -> Figures {
    let deadline = Instant::now() + REST;
    wait::pause(Duration::from_secs(1));
    loop {
        let figures = Figures::measure(agent);
        if good(figures) || Instant::now() > deadline {
            return figures;
        }
        wait::pause(Duration::from_millis(500));
    }
}

fn restarted(agent: &Agent) -> u64 {
    agent.alloc("flat.g[0]").expect("the allocation").restarts("t")
}

fn converged(agent: &Agent) -> bool {
    let status = http::get(&agent.peer(), "/v1/herdlet/status").map(|answer| answer.json());
    status.is_some_and(|status| status["unconverged"].as_array().is_none_or(Vec::is_empty))
}

fn anonymous_kib(process: &str) -> usize {
    let text = fs::read_to_string(format!("{process}/smaps_rollup"))
        .expect("readable memory statistics of the agent");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse().ok()).expect("a line with anonymous memory")
}

fn manifest(command: &[&str], group: &str) -> String {
    let (program, arguments) = command.split_first().unwrap_or((&"", &[]));
    let arguments = json!(arguments);
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: flat}}\nspec:\n  type: service\n  groups:\n    - name: g\n      {group}\n      tasks:\n        - name: t\n          driver: raw_exec\n          config: {{command: {program}, args: {arguments}}}\n"
    )
}
