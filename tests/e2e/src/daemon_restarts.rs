//! Restarts of a Docker daemon while containers start, run, write and end.
//!
//! In: an engine of one's own, a number of restarts and of containers, a seed. Out: counts, and the violations: a task that ran twice
//! at the same time or was started without an attempt, an exit that the container did not have and that is not called unknown, a line
//! of output that is lost without a mark, comes twice or too late.

mod output;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::json;

use self::output::{Lines, START};
use crate::{
    agent::Agent,
    engine::{Engine, IMAGE},
    random::Rng,
    shown::{self, Alloc},
    wait,
};

/// The exit code of tasks that end by themselves, and of those that are asked to end.
const ENDED: i64 = 7;
const ASKED: i64 = 9;
/// The code of a killed container.
const KILLED: i64 = 137;
/// The reason of an attempt that was to restart while it waited for the daemon.
const CANCELLED: &str = "it was cancelled before it started";

/// One that runs on, one that ends by itself, and one whose job changes.
pub const CONTAINERS_MIN: usize = 3;

/// Whether containers outlive their daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveRestore {
    On,
    Off,
}

impl LiveRestore {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::On => &["--live-restore"],
            Self::Off => &[],
        }
    }
}

/// The parameters of a campaign.
#[derive(Debug, Clone, Copy)]
pub struct Campaign {
    pub restarts: u64,
    /// At least [`CONTAINERS_MIN`].
    pub containers: usize,
    pub live_restore: LiveRestore,
    pub seed: u64,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Outcome {
    pub restarts: u64,
    /// Runs of all tasks.
    pub runs: u64,
    /// Exits by code, of those that were seen before newer events replaced them.
    pub exits: BTreeMap<String, u64>,
    numbers: u64,
    gaps: u64,
    marks: u64,
    pub broken: Vec<String>,
    took: Duration,
}

impl Outcome {
    /// Formats it for people.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} restarts in {} s: {} runs; {} lines, {} gaps, {} marks; exits seen: {:?}",
            self.restarts,
            self.took.as_secs(),
            self.runs,
            self.numbers,
            self.gaps,
            self.marks,
            self.exits
        );
        for broken in &self.broken {
            let _ = write!(text, "\n{broken}");
        }
        text
    }
}

impl Campaign {
    /// Runs the campaign with a Docker daemon that this process has started.
    ///
    /// # Panics
    /// If the agent or the daemon does not do what it is asked to in time.
    pub fn run(&self, engine: Engine<'_>) -> Outcome {
        let began = Instant::now();
        engine.terminate();
        engine.start(self.live_restore.options());
        // A busy daemon creates a container after its agent was killed: nothing claims it.
        let agent = engine.agent("gc: {dangling_containers: {period: 2s, creation_grace: 10s}}");
        let mut life =
            Life { engine, agent, campaign: *self, seen: BTreeSet::new(), outcome: Outcome::default() };
        life.begin();
        let mut random = Rng::new(self.seed);
        while life.outcome.restarts < self.restarts && life.outcome.broken.is_empty() {
            life.restart(&mut random);
        }
        let mut outcome = life.end();
        outcome.took = began.elapsed();
        outcome
    }

    fn steady(&self) -> usize {
        self.containers.div_ceil(2)
    }
}

struct Life<'e> {
    engine: Engine<'e>,
    agent: Agent,
    campaign: Campaign,
    /// Exits that are counted: allocation and time.
    seen: BTreeSet<(String, u64)>,
    outcome: Outcome,
}

impl Life<'_> {
    fn begin(&mut self) {
        let count = self.campaign.steady();
        let brief = self.campaign.containers.saturating_sub(count + 1).max(1);
        self.agent.apply_and_wait(&job("steady", count, 0));
        self.agent.apply(&job("brief", brief, 0));
        self.agent.apply(&job("changing", 1, 0));
    }

    /// Restarts the daemon at a random moment, and checks what has become of the tasks.
    fn restart(&mut self, random: &mut Rng) {
        let before = self.containers_of("steady");
        self.outcome.restarts += 1;
        match random.below(3) {
            0 => self.agent.apply(&job("changing", 1, self.outcome.restarts)),
            1 => drop(self.agent.cli(&["restart", "brief"])),
            _ => {}
        }
        wait::pause(Duration::from_millis(random.below(1_000)));
        if random.one_in(2) {
            self.engine.kill()
        } else {
            self.engine.terminate()
        }
        if random.one_in(4) {
            self.agent.crash();
        }
        wait::pause(Duration::from_millis(random.below(500)));
        self.engine.start(self.campaign.live_restore.options());
        self.until_running("steady", self.campaign.steady());
        if self.campaign.live_restore == LiveRestore::On && self.containers_of("steady") != before {
            self.note("a container did not outlive its daemon");
        }
        self.note_exits();
        self.note_twins();
        eprintln!("restart {} of {}", self.outcome.restarts, self.campaign.restarts);
    }

    /// Waits until the tasks of a job run, once each. A task that has failed again and again converges much later.
    fn until_running(&self, name: &str, count: usize) {
        wait::until_true("each task has one container that runs", || {
            let allocs = self.allocs().into_iter().filter(|alloc| alloc.job() == name);
            let running = allocs.filter(|alloc| alloc.state("t") == "running").count();
            running == count && self.containers_of(name).len() == count
        });
    }

    /// The ids of a job's containers that run, by allocation.
    fn containers_of(&self, name: &str) -> BTreeSet<(String, String)> {
        let all = self.agent.home.instance().map(|instance| self.engine.containers(&instance));
        let running: Vec<_> =
            all.unwrap_or_default().into_iter().filter(|found| found["State"] == "running").collect();
        let allocs = self.agent.allocs().into_iter().filter(|alloc| alloc.job() == name);
        let ids = allocs.map(|alloc| alloc.id()).flat_map(|alloc| {
            let of_alloc = running.iter().filter(|found| found["Labels"].to_string().contains(&alloc));
            let ids: Vec<_> = of_alloc.map(|found| (alloc.clone(), found["Id"].to_string())).collect();
            ids
        });
        ids.collect()
    }

    /// All allocations, those that were replaced, too.
    fn allocs(&self) -> Vec<Alloc> {
        let peer = self.agent.peer();
        self.agent.allocs().iter().filter_map(|alloc| shown::alloc(&peer, &alloc.id())).collect()
    }

    /// Counts exits that were not seen before.
    fn note_exits(&mut self) {
        for alloc in self.allocs() {
            let events = alloc.0["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
            for event in events.iter().filter(|event| event["Type"] == "Terminated") {
                let at = event["Time"].as_u64().unwrap_or(0);
                if !self.seen.insert((alloc.id(), at)) {
                    continue;
                }
                let code = event["ExitCode"].as_i64().unwrap_or(-1);
                let is_unknown = event.to_string().contains("its exit is unknown");
                let name = if is_unknown { "unknown".to_owned() } else { code.to_string() };
                *self.outcome.exits.entry(name).or_default() += 1;
                let is_cancelled = code == -1 && event.to_string().contains(CANCELLED);
                if !is_unknown && !is_cancelled && !is_expected(&alloc.job(), code) {
                    self.note(&format!("{} ended with {code}: {event}", alloc.name()));
                }
            }
        }
    }

    /// Notes tasks that ran twice at the same time, and attempts with two containers.
    fn note_twins(&mut self) {
        for (alloc, folder) in self.folders() {
            if let Ok(twice) = fs::read_to_string(folder.join("twice")) {
                let runs = fs::read_to_string(folder.join("runs")).unwrap_or_default();
                let what =
                    format!("two containers of {alloc} ran at the same time: {twice}of the runs\n{runs}");
                self.note(&what);
            }
        }
        let instance = self.agent.home.instance().unwrap_or_default();
        let found = self.engine.containers(&instance);
        let attempts: BTreeSet<String> =
            found.iter().map(|found| found["Labels"]["herdlet.attempt"].to_string()).collect();
        if attempts.len() != found.len() {
            self.note(&format!("an attempt has two containers: {found:#?}"));
        }
    }

    /// The folders of all allocations in which tasks note their runs.
    fn folders(&self) -> Vec<(String, PathBuf)> {
        let entries = fs::read_dir(self.agent.home.state().join("alloc")).into_iter().flatten().flatten();
        let named = entries
            .map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path().join("alloc/data")));
        named.collect()
    }

    /// Lets everything settle, checks it, and removes it.
    fn end(mut self) -> Outcome {
        if self.outcome.broken.is_empty() {
            self.agent.apply(&job("changing", 1, 0));
            self.until_running("changing", 1);
            self.note_exits();
            self.note_runs();
            self.agent.cli(&["delete", "brief", "--wait"]).success();
            self.until_running("steady", self.campaign.steady());
            self.note_output();
        }
        if !self.outcome.broken.is_empty() {
            let end = format!("the agent's log ends\n{}", self.agent.log_tail());
            self.note(&end);
            return self.outcome;
        }
        let Self { engine, agent, outcome, .. } = self;
        for name in ["steady", "changing"] {
            agent.cli(&["delete", name, "--wait"]).success();
        }
        let instance = agent.home.instance().unwrap_or_default();
        wait::until_true("no container remains", || engine.containers(&instance).is_empty());
        agent.finish();
        outcome
    }

    /// Notes tasks that have run more often than they have attempts.
    fn note_runs(&mut self) {
        let runs = self.runs();
        self.outcome.runs = runs.values().map(|runs| count(runs)).sum();
        // After the files: an attempt may begin meanwhile.
        for alloc in self.allocs() {
            let Some(runs) = runs.get(&alloc.id()) else { continue };
            // A first attempt that was lost with its agent is no restart.
            let attempts = (1 + alloc.restarts("t")).max(self.newest_attempt(&alloc.id()));
            if count(runs) > attempts {
                let (name, events) = (alloc.name(), &alloc.0["TaskStates"]["t"]["Events"]);
                self.note(&format!("{name} has run too often in {attempts} attempts:\n{runs}{events:#}"));
            }
        }
    }

    /// The number of the newest attempt that has a container; 0 if none has.
    fn newest_attempt(&self, alloc: &str) -> u64 {
        let found = self.engine.containers(alloc);
        let names = found.iter().filter_map(|found| found["Labels"]["herdlet.attempt"].as_str());
        names.filter_map(|name| name.rsplit('.').next()?.parse().ok()).max().unwrap_or(0)
    }

    /// What the runs of each allocation have noted, a line each.
    fn runs(&self) -> BTreeMap<String, String> {
        let read = |(alloc, folder): (String, PathBuf)| {
            (alloc, fs::read_to_string(folder.join("runs")).unwrap_or_default())
        };
        self.folders().into_iter().map(read).collect()
    }

    fn note_output(&mut self) {
        let steady = self.allocs().into_iter().filter(|alloc| alloc.job() == "steady");
        for alloc in steady.filter(|alloc| alloc.state("t") == "running").collect::<Vec<_>>() {
            let container = self.engine.container(&alloc.id(), "t");
            let path = Path::new(container["LogPath"].as_str().unwrap_or_default());
            let stored = wait::until("the daemon has stored lines of the container", || {
                Some(output::stored(path)).filter(|lines| !lines.is_empty())
            });
            let log = self.agent.until_logged(&alloc.id(), "t", "stdout", |log| {
                log.ends_with('\n') && output::newest_run(log).len() >= stored.len()
            });
            if !output::newest_run(&log).iter().zip(&stored).all(|(copied, stored)| copied == stored) {
                self.note(&format!("the log of {} is not what the daemon has stored", alloc.name()));
            }
            // After the log: a run may begin meanwhile.
            let runs = self.runs().get(&alloc.id()).map_or(0, |runs| count(runs));
            match output::judge(&log, runs) {
                Ok(Lines { numbers, gaps, marks }) => {
                    self.outcome.numbers += numbers;
                    self.outcome.gaps += gaps;
                    self.outcome.marks += marks;
                }
                Err(why) => self.note(&format!("the log of {}: {why}", alloc.name())),
            }
        }
    }

    fn note(&mut self, broken: &str) {
        self.outcome.broken.push(format!("after restart {}: {broken}", self.outcome.restarts));
    }
}

fn count(runs: &str) -> u64 {
    runs.lines().count() as u64
}

/// Whether a task of the job may end with this code.
fn is_expected(job: &str, code: i64) -> bool {
    match code {
        ENDED => job == "brief",
        _ => [ASKED, KILLED].contains(&code),
    }
}

/// A job with this number of allocations. Each run of its task notes itself in its allocation, and ten times per second whether another
/// one has done so since.
fn job(name: &str, count: usize, release: u64) -> String {
    let work = match name {
        "brief" => {
            format!("i=$((RANDOM % 30)); while [ $i -gt 0 ]; do i=$((i-1)); watch; done; exit {ENDED}")
        }
        _ => "i=0; while :; do i=$((i+1)); echo $i; watch; done".to_owned(),
    };
    let script = format!(
        "trap 'exit {ASKED}' TERM INT; cd /alloc/data; own=$(cat /proc/sys/kernel/random/uuid); echo $own >current; echo \"{release} $(hostname) $(cut -d. -f1 /proc/uptime)\" >>runs; \
         watch() {{ sleep 0.1; now=; read now <current; [ \"$now\" = $own ] || echo \"$own in $(hostname) finds $now\" >>twice; }}; echo {START}; {work}"
    );
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: {name}}}\nspec:\n  type: service\n  groups:\n    - name: g\n      count: {count}\n      restart: {{attempts: 100000, interval: 24h, delay: 50ms, mode: delay}}\n      tasks:\n        - name: t\n          driver: docker\n          kill_timeout: 5s\n          config: {{image: \"{IMAGE}\", command: sh, args: [-c, {}], network_mode: none}}\n",
        json!(script)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_run_on_do_not_end_by_themselves() {
        for (job, codes) in [("brief", &[7, 9, 137][..]), ("steady", &[9, 137]), ("changing", &[9, 137])] {
            let expected: Vec<i64> = (-1..=255).filter(|code| is_expected(job, *code)).collect();
            assert_eq!(expected, codes, "{job}");
        }
    }
}
