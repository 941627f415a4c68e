//! Many concurrent lives.
//!
//! In: the number of points, the first seed, the number of concurrent agents. Out: the points by kind, and
//! the violations, each with the seed that reproduces it.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{
    life::{Life, LifeReport, Point, Victim},
    moment::MOMENTS,
    operation::Operation,
    oracle::{self, TOMBSTONE_TIME},
    strangers,
};
use crate::wait;

/// A campaign waits for reused pids for at most this many times the lives that its points need. Where pids
/// are reused at all, each life has some.
const LIVES_FOR_PIDS: u64 = 1_000;

/// Points of one life: enough for a state with a history, few enough that many agents start from nothing.
const POINTS_OF_A_LIFE: u64 = 25;

/// How to take down an agent at the end of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Burial {
    /// Immediately. Tombstones may remain, since the next agent would remove them.
    AtOnce,
    /// After its tombstones must have expired, and with a last check.
    AfterTombstones,
}

/// The parameters of a campaign.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// Minimum number of points.
    pub points: u64,
    /// Seed of the first life; each further life has the next one.
    pub seed: u64,
    /// Number of concurrent agents.
    pub agents: usize,
    /// The program of tasks, which calls [`super::work::run`].
    pub program: PathBuf,
    /// How to take down the agents.
    pub burial: Burial,
    /// Number of concurrent unrelated processes.
    pub strangers: usize,
    /// Minimum number of pids that both a task and an unrelated process must have had: the campaign goes on
    /// until then.
    pub reused: usize,
}

/// The result of a campaign.
#[derive(Debug)]
pub struct Outcome {
    pub points: BTreeMap<Point, u64>,
    pub lives: u64,
    /// The violations: the life's seed, and a description.
    pub broken: Vec<(u64, String)>,
    /// Duration without the takedown of agents.
    pub took: Duration,
    /// Pids of tasks.
    pub pids: BTreeSet<u32>,
    /// Number of these pids that unrelated processes had too.
    pub reused: usize,
}

impl Campaign {
    /// Runs the campaign, and reports its progress on stderr.
    pub fn run(&self) -> Outcome {
        let lives = self.points.div_ceil(POINTS_OF_A_LIFE);
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let outcome = Outcome {
            points: BTreeMap::new(),
            lives: 0,
            broken: Vec::new(),
            took: Duration::ZERO,
            pids: BTreeSet::new(),
            reused: 0,
        };
        let (outcome, strangers_pids) = (Mutex::new(outcome), Mutex::new(BTreeSet::new()));
        let over = AtomicBool::new(false);
        let began = Instant::now();
        let worker = || {
            let mut graves = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let has_enough = || self.has_enough_coverage(&outcome, &strangers_pids);
                if number >= lives && (number >= lives * LIVES_FOR_PIDS || has_enough()) {
                    break;
                }
                let seed = self.seed + number;
                let points = match self.points.saturating_sub(number * POINTS_OF_A_LIFE) {
                    0 => POINTS_OF_A_LIFE,
                    left => left.min(POINTS_OF_A_LIFE),
                };
                let (report, life) = self.live(seed, points);
                graves.extend(life.map(|life| (seed, Instant::now(), life)));
                let so_far = done.fetch_add(report.points.len() as u64, Ordering::Relaxed);
                let mut all = outcome.lock().unwrap_or_else(PoisonError::into_inner);
                all.take_in(seed, report);
                all.lives += 1;
                let all_points = so_far / 500 * 500 + 500;
                if done.load(Ordering::Relaxed) >= all_points {
                    let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
                    eprintln!("{all_points} points, {} violations, {rate:.1} points/s", all.broken.len());
                }
                all.took = began.elapsed();
                drop(all);
                self.bury(&mut graves, &outcome, Haste::OnlyTheRipe);
            }
            self.bury(&mut graves, &outcome, Haste::All);
        };
        let harmed = std::thread::scope(|scope| {
            let strangers = scope.spawn(|| strangers::live(self.strangers, &over, &strangers_pids));
            let workers: Vec<_> = (0..self.agents).map(|_| scope.spawn(worker)).collect();
            // The outcome contains the panics of workers.
            workers.into_iter().for_each(|worker| drop(worker.join()));
            over.store(true, Ordering::Relaxed);
            strangers.join().unwrap_or_default()
        });
        let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        let strangers_pids = strangers_pids.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.reused = outcome.pids.intersection(&strangers_pids).count();
        outcome.broken.extend(harmed.into_iter().map(|words| (self.seed, words)));
        outcome
    }

    /// Returns whether enough pids of tasks were reused, or a violation ends the wait for more.
    fn has_enough_coverage(&self, outcome: &Mutex<Outcome>, strangers_pids: &Mutex<BTreeSet<u32>>) -> bool {
        let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let strangers_pids = strangers_pids.lock().unwrap_or_else(PoisonError::into_inner);
        !outcome.broken.is_empty() || outcome.pids.intersection(&strangers_pids).count() >= self.reused
    }

    /// Runs one life. A panic is a violation.
    fn live(&self, seed: u64, points: u64) -> (LifeReport, Option<Life>) {
        let lived = catch_unwind(AssertUnwindSafe(|| {
            let mut life = Life::begin(seed, &self.program);
            let mut report = life.live(points);
            if report.broken.is_empty() {
                report.broken = life.end();
            }
            if !report.broken.is_empty() {
                report.broken.push(format!("the agent's log ends\n{}", life.log_tail()));
            }
            (report, life)
        }));
        match lived {
            Ok((report, life)) if report.broken.is_empty() => (report, Some(life)),
            Ok((report, _)) => (report, None),
            Err(panic) => (LifeReport { broken: vec![panic_text(&*panic)], ..LifeReport::default() }, None),
        }
    }

    fn bury(&self, graves: &mut Vec<(u64, Instant, Life)>, outcome: &Mutex<Outcome>, haste: Haste) {
        let time = match self.burial {
            Burial::AtOnce => Duration::ZERO,
            Burial::AfterTombstones => TOMBSTONE_TIME,
        };
        while let Some((_, since, _)) = graves.first() {
            if haste == Haste::OnlyTheRipe && since.elapsed() < time {
                return;
            }
            wait::pause(time.saturating_sub(since.elapsed()));
            let (seed, _, life) = graves.remove(0);
            let buried = catch_unwind(AssertUnwindSafe(|| {
                let records = oracle::records(&life.instance);
                (records, life.finish())
            }));
            let broken = match buried {
                Ok((records, left)) => {
                    let ripe = records.into_iter().filter(|_| self.burial == Burial::AfterTombstones);
                    let records = ripe.map(|path| format!("a record remains: {}", path.display()));
                    records.chain(left).collect()
                }
                Err(panic) => vec![panic_text(&*panic)],
            };
            let report = LifeReport { broken, ..LifeReport::default() };
            outcome.lock().unwrap_or_else(PoisonError::into_inner).take_in(seed, report);
        }
    }
}

/// Which agents to take down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Haste {
    OnlyTheRipe,
    All,
}

impl Outcome {
    /// Returns the number of points.
    pub fn reached(&self) -> u64 {
        self.points.values().sum()
    }

    /// Formats the table for people.
    pub fn table(&self) -> String {
        let victims = [Victim::Agent, Victim::Supervisor, Victim::Both];
        let mut text = format!("{:<24}", "killed");
        victims.iter().for_each(|victim| text.push_str(&format!("{:>12}", victim.as_str())));
        let mut row = |name: &str, wanted: &dyn Fn(&Point) -> bool| {
            text.push_str(&format!("\n{name:<24}"));
            for victim in victims {
                let of_it = self.points.iter().filter(|(point, _)| wanted(point) && point.victim == victim);
                text.push_str(&format!("{:>12}", of_it.map(|(_, times)| times).sum::<u64>()));
            }
        };
        for name in Operation::names() {
            row(name, &|point| point.operation == name);
        }
        for moment in MOMENTS {
            row(moment.as_str(), &|point| point.moment == Some(moment));
        }
        row("no event in time", &|point| point.moment.is_none());
        row("all", &|_| true);
        let seeds: BTreeSet<u64> = self.broken.iter().map(|(seed, _)| *seed).collect();
        text.push_str(&format!(
            "\n{} points in {} lives, {:.0} s, {:.1} points/s; pids of tasks that unrelated processes had: {}; lives with violations: {}\n",
            self.reached(),
            self.lives,
            self.took.as_secs_f64(),
            self.reached() as f64 / self.took.as_secs_f64().max(0.001),
            self.reused,
            seeds.len()
        ));
        for (seed, words) in &self.broken {
            text.push_str(&format!("--seed {seed} --points {POINTS_OF_A_LIFE}: {words}\n"));
        }
        text
    }

    fn take_in(&mut self, seed: u64, report: LifeReport) {
        for point in report.points {
            *self.points.entry(point).or_default() += 1;
        }
        self.pids.extend(report.pids);
        for words in report.broken {
            eprintln!("seed {seed}: {words}");
            self.broken.push((seed, words));
        }
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
