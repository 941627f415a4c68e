//! One agent over some points: operations, kills, new agents, and checks every few points.
//!
//! In: a seed. Out: its points, and every violation. The same seed gives the same requests; the exact time of
//! a kill depends on the machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    job::Networks,
    moment::{MOMENTS, Moment, Snapshot},
    networks::{self, LifeNetwork},
    operation::{self, Begun, ExpectedState},
    oracle,
    work::Journal,
};
use crate::{
    agent::{Agent, Setup},
    host,
    random::Rng,
    wait,
};

/// Points between two checks.
const POINTS_JUDGED_TOGETHER: u64 = 4;

/// What to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Victim {
    Agent,
    /// One or all supervisors; the agent keeps running.
    Supervisor,
    /// Both, in either order.
    Both,
}

impl Victim {
    /// The name in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Supervisor => "supervisor",
            Self::Both => "both",
        }
    }
}

/// One point, as counted in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// The name of the operation.
    pub operation: &'static str,
    /// The moment of the kill; `None` if the awaited event did not occur in time.
    pub moment: Option<Moment>,
    pub victim: Victim,
}

/// The result of a life.
#[derive(Debug, Default)]
pub struct LifeReport {
    pub points: Vec<Point>,
    /// Descriptions of the violations.
    pub broken: Vec<String>,
    /// Pids of its tasks.
    pub pids: Vec<u32>,
}

/// One agent with its directories and jobs.
#[derive(Debug)]
pub struct Life {
    pub(super) agent: Agent,
    pub(super) instance: String,
    pub(super) journal: Journal,
    pub(super) network: LifeNetwork,
    pub(super) wanted: ExpectedState,
    /// Supervisors of versions up to this one were killed: their tasks may have started more often than
    /// requested.
    pub(super) bereaved: u64,
    /// Requested restarts, by the allocation's name and word.
    pub(super) restarts: BTreeMap<(String, String), usize>,
    /// Prefixes of places whose processes may have changed since the last check.
    pub(super) disturbed: BTreeSet<String>,
    /// Running tasks at the last check: pid and start time by place and word.
    pub(super) known: BTreeMap<(String, String), (u32, u64)>,
    /// The paths of an agent without jobs.
    pub(super) bare: BTreeSet<PathBuf>,
    program: PathBuf,
    rng: Rng,
    versions: u64,
}

impl Life {
    /// Starts a new agent. Tasks run `program`: see [`super::work::run`].
    pub fn begin(seed: u64, program: &Path) -> Self {
        let mut agent = Agent::prepare(Setup::default());
        let network = LifeNetwork::new(agent.home.path().join("plugins"));
        agent.set_config(&network.config());
        agent.set_shell(&network.enter());
        let folder = agent.home.manifests().display().to_string();
        agent.set_arguments(vec!["--manifests".to_owned(), folder]);
        agent.launch();
        let journal = Journal::new(agent.home.path().join("journal"));
        let instance = agent.home.instance().expect("an instance has a name");
        let bare = oracle::traces(&agent, &instance);
        Self {
            agent,
            instance,
            journal,
            network,
            wanted: ExpectedState { networks: Networks::All, ..ExpectedState::default() },
            bereaved: 0,
            restarts: BTreeMap::new(),
            disturbed: BTreeSet::new(),
            known: BTreeMap::new(),
            bare,
            program: program.to_owned(),
            rng: Rng::new(seed),
            versions: 0,
        }
    }

    /// Runs a number of points with checks.
    pub fn live(&mut self, points: u64) -> LifeReport {
        let mut report = LifeReport::default();
        for number in 1..=points {
            match self.point() {
                Ok(point) => report.points.push(point),
                Err(broken) => report.broken.push(broken),
            }
            if number % POINTS_JUDGED_TOGETHER == 0 || number == points {
                report.broken.extend(self.judge());
            }
            if !report.broken.is_empty() {
                break;
            }
        }
        report.pids.extend(self.journal.begun().into_iter().map(|line| line.pid));
        report
    }

    /// Deletes everything, and checks that nothing remains.
    pub fn end(&mut self) -> Vec<String> {
        for name in std::mem::take(&mut self.wanted.laid).into_keys() {
            std::fs::remove_file(operation::file(&self.agent, &name))
                .expect("removal of a file from the folder");
        }
        for name in std::mem::take(&mut self.wanted.asked).into_keys() {
            self.agent.cli(&["delete", &name]).success();
        }
        let mut broken = self.judge();
        broken.extend(oracle::delete_volumes(&self.agent));
        broken.extend(oracle::until_bare(&self.agent, &self.instance, &self.bare));
        broken
    }

    /// Returns the end of the agent's log.
    pub fn log_tail(&self) -> String {
        self.agent.log_tail()
    }

    /// Ends the agent, and checks that nothing of it is left. Returns the violations.
    pub fn finish(self) -> Vec<String> {
        self.agent.finish();
        self.network.until_empty()
    }

    fn point(&mut self) -> Result<Point, String> {
        self.versions += 1;
        let operation = self.wanted.next(&mut self.rng, format!("w{}", self.versions));
        let moment = self.pick_moment();
        let victim = match self.rng.below(10) {
            _ if moment == Moment::Starting => Victim::Agent,
            0 => Victim::Supervisor,
            1 => Victim::Both,
            _ => Victim::Agent,
        };
        let name = operation.as_str();
        let sight = Snapshot::of(moment, &self.agent.home.state(), &self.instance, self.journal.dir());
        let begun = Begun::begin(operation, &self.wanted, &self.agent, &self.program, self.journal.dir());
        for name in begun.restarted() {
            self.disturbed.insert(format!("{name}/"));
            let (job, _) = name.split_once('.').unwrap_or_default();
            if let Some(work) = self.wanted.asked.get(job) {
                *self.restarts.entry((name.clone(), work.word.clone())).or_default() += 1;
            }
        }
        let seen = sight.wait(moment, &mut self.rng, || begun.is_answered());
        self.kill(victim);
        let (operation, fate) = begun.end();
        if victim != Victim::Supervisor {
            if moment == Moment::Starting {
                drop(self.agent.launch_unready());
                wait::pause(Duration::from_micros(self.rng.below(50_000)));
                self.agent.kill();
            }
            if self.rng.one_in(4) {
                wait::pause(Duration::from_micros(self.rng.below(20_000)));
            }
            self.agent.launch();
        }
        operation::settle(&mut self.wanted, &operation, &fate, &self.agent.peer())?;
        Ok(Point { operation: name, moment: seen, victim })
    }

    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Agent => self.agent.kill(),
            Victim::Supervisor => self.bereave(),
            Victim::Both if self.rng.one_in(2) => {
                self.agent.kill();
                self.bereave();
            }
            Victim::Both => {
                self.bereave();
                self.agent.kill();
            }
        }
    }

    /// Kills one supervisor, or all of them.
    fn bereave(&mut self) {
        let supervisors = host::held_supervisors(&self.instance);
        let all = self.rng.one_in(4);
        let chosen = usize::try_from(self.rng.below(supervisors.len() as u64)).unwrap_or(0);
        for (index, (pid, process)) in supervisors.into_iter().enumerate() {
            if all || index == chosen {
                let children =
                    oracle::running(&self.instance).into_iter().filter(|task| task.parent == Some(pid));
                self.disturbed.extend(children.map(|task| task.place));
                // Until its end, neither the agent nor the oracle can see that it was killed.
                host::kill_held(&process);
            }
        }
        self.bereaved = self.versions;
    }

    /// Checks the tasks that run now, and what has become of those of the last check.
    fn judge(&mut self) -> Vec<String> {
        let mut broken = oracle::until_reached(&self.agent, &self.instance, &self.wanted, &self.journal);
        broken.extend(self.network.until_right(&self.agent, &self.instance, &self.wanted));
        let running = oracle::running(&self.instance);
        let now: BTreeMap<_, _> =
            running.into_iter().map(|task| ((task.place, task.word), task.who)).collect();
        for (key, was) in &self.known {
            let touched = self.disturbed.iter().any(|place| key.0.starts_with(place));
            if let Some(is) = now.get(key)
                && is != was
                && !touched
            {
                broken.push(format!("{key:?} changed from {was:?} to {is:?} without an operation"));
            }
        }
        self.known = now;
        self.disturbed.clear();
        broken.extend(self.surplus_starts());
        broken.extend(oracle::unexpected_lines(&self.agent.log(), &[networks::LEAK]));
        broken
    }

    /// Returns violations in the numbers of starts of each task.
    fn surplus_starts(&self) -> Vec<String> {
        let twice = self.journal.twice();
        let mut broken: Vec<String> =
            twice.iter().map(|line| format!("two processes at the same time: {line:?}")).collect();
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for line in self.journal.begun() {
            *counts.entry((line.place, line.word)).or_default() += 1;
        }
        for ((place, word), times) in counts {
            let version = word.trim_start_matches('w').parse().unwrap_or(0_u64);
            let name = place.split('/').next().unwrap_or_default().to_owned();
            let asked = self.restarts.get(&(name, word.clone())).copied().unwrap_or(0);
            if version > self.bereaved && times > 1 + asked {
                broken.push(format!(
                    "{place} of {word} has started {times} times; {asked} restarts were requested"
                ));
            }
        }
        broken
    }

    fn pick_moment(&mut self) -> Moment {
        // Random moments are as frequent as all others together.
        let at = usize::try_from(self.rng.below(2 * (MOMENTS.len() as u64 - 1))).unwrap_or(0);
        MOMENTS.get(at + 1).copied().unwrap_or(Moment::Random)
    }
}
