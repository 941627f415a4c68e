//! The world by example. This file has the shared bench, which carries out requested operations.

mod capacity;
mod collect;
mod depends;
mod deployments;
mod drain;
mod in_place;
mod job_stop;
mod node;
mod placement;
mod poststop;
mod quarantine;
mod reschedule;
mod scaling;
mod servers;
mod services;
mod stop;
mod stored;
mod template_restarts;
mod verdicts;
mod versions;
mod volumes;

use herdlet_api_types::{
    alloc::Desired,
    fixture::{self, group, job, task},
    job::{JobType, MountPropagation, VolumeMount, VolumeRequest},
    view::AllocView,
    volume::{Volume, VolumeKind, VolumeStatus},
};
use std_alloc::{borrow::ToOwned, collections::BTreeMap, vec, vec::Vec};

use super::*;
use crate::{
    action::{Outcome, Recovered, Started, Verb},
    event::{Command, Noticed, Refusal, Reply},
    facts::Facts,
    fixture::{at, settings},
    launch::Launch,
    op::TaskIndex,
    shared::volume::VolumeState,
    turn::Note,
};

/// A world whose operations end when the test says so.
pub(super) struct Bench {
    pub(super) world: World,
    pub(super) now: Now,
    dirty: BTreeSet<Key>,
    stored: BTreeMap<RecordKey, RecordValue>,
    /// Everything emitted since the test last took it.
    pub(super) turn: Turn,
}

impl Bench {
    pub(super) fn new() -> Self {
        let mut bench = Self {
            world: World::new(settings()),
            now: at(1),
            dirty: BTreeSet::new(),
            stored: BTreeMap::new(),
            turn: Turn::default(),
        };
        bench.see(Event::Desired(DesiredChange::Complete));
        bench
    }

    /// Applies one event and plans the keys that it marks.
    pub(super) fn see(&mut self, event: Event) {
        self.world.apply(self.now, event, &mut self.dirty, &mut self.turn);
        self.plan();
    }

    fn plan(&mut self) {
        while let Some(key) = self.dirty.pop_first() {
            self.world.reconcile(self.now, &key, &mut self.dirty, &mut self.turn);
        }
        for record in self.turn.records.drain(..) {
            match record {
                Record::Put(key, value) => self.stored.insert(key, value),
                Record::Delete(key) => self.stored.remove(&key),
            };
        }
    }

    pub(super) fn apply(&mut self, jobs: Vec<Job>, volumes: Vec<Volume>) {
        self.see(Event::Command { request: 1, command: Command::Apply { jobs, volumes } });
    }

    /// Carries out all requested operations until there are none, and returns them in order.
    pub(super) fn settle(&mut self) -> Vec<Action> {
        self.settle_but(|_| None)
    }

    /// The same, with other outcomes for some of them.
    fn settle_but(&mut self, otherwise: impl Fn(&Action) -> Option<Outcome>) -> Vec<Action> {
        let mut asked = Vec::new();
        while !self.turn.actions.is_empty() {
            for action in core::mem::take(&mut self.turn.actions) {
                let ordinary = match (&action.subject, &action.verb) {
                    (Subject::Volume(volume), Verb::Up) => {
                        Outcome::Done(Some(Facts::rooted(volume.name.clone())))
                    }
                    (_, Verb::Inspect) => Outcome::Present(None),
                    (_, Verb::Ask) => Outcome::Absent,
                    (_, Verb::Recover { .. }) => Outcome::Recovered(Recovered::Running(Started::default())),
                    (_, Verb::Start { attempt }) => Outcome::Started(Launch::of(*attempt)),
                    _ => Outcome::Done(None),
                };
                let outcome = otherwise(&action).unwrap_or(ordinary);
                self.see(Event::Outcome(action.op.clone(), outcome));
                if let (Target::Alloc(alloc, Part::Task(index, _)), Verb::Stop { attempt, .. }) =
                    (&action.op.target, &action.verb)
                {
                    let (task, result) = (self.task(*alloc, *index), crate::fixture::exit(0));
                    self.see(Event::Exited { alloc: *alloc, task, attempt: *attempt, result });
                }
                asked.push(action);
            }
        }
        asked
    }

    fn task(&self, alloc: AllocId, index: TaskIndex) -> String {
        let (spec, _) = self.world.allocation(alloc).expect("a known object");
        spec.group().expect("a known group").tasks[usize::from(index)].name.clone()
    }

    fn id(&self) -> AllocId {
        self.world.allocs.iter().map(|(id, _)| id).next().expect("an allocation")
    }

    /// The results of planning allocations since the last call.
    fn results(&mut self) -> Vec<&'static str> {
        let mut results = Vec::new();
        for note in core::mem::take(&mut self.turn.notes) {
            if let Note::Reconciled { kind: "alloc", result } = note {
                results.push(result);
            }
        }
        results
    }

    /// The allocation's newest view since the last call.
    fn last_view(&mut self) -> Option<AllocView> {
        let mut shown = None;
        for view in core::mem::take(&mut self.turn.views) {
            if let View::Alloc(view) = view {
                shown = Some(AllocView::clone(&view));
            }
        }
        shown
    }
}

fn one_task() -> Vec<Job> {
    vec![job("j", JobType::Service, vec![group("g", 1, vec![task("main")])])]
}

fn running() -> Bench {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    bench.settle();
    bench
}

#[test]
fn a_plan_is_counted_by_what_came_of_it() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    assert_eq!(bench.results(), ["changed"]);
    let key = Key::Alloc(bench.id());
    bench.dirty.insert(key.clone());
    bench.plan();
    assert_eq!(bench.results(), ["waiting"]);
    bench.settle();
    bench.results();
    bench.dirty.insert(key);
    bench.plan();
    assert_eq!(bench.results(), ["unchanged"]);
}

fn data(read_only: bool) -> Volume {
    let kind = VolumeKind::Mkdir { mode: 0o755, uid: None, gid: None };
    Volume { name: "data".to_owned(), kind, read_only }
}

fn mounting() -> Vec<Job> {
    let mut jobs = one_task();
    let request = VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: false };
    jobs[0].groups[0].volumes.insert("disk".to_owned(), request);
    jobs[0].groups[0].tasks[0].volume_mounts.push(VolumeMount {
        volume: "disk".to_owned(),
        destination: "local/data".to_owned(),
        read_only: false,
        propagation: MountPropagation::Private,
    });
    jobs
}

impl Bench {
    /// Sends a request; returns the reply, and by how much the index of changes grew.
    pub(super) fn ask(&mut self, command: Command) -> (Reply, u64) {
        let before = self.world.meta.index;
        self.turn.replies.clear();
        self.world.apply(self.now, Event::Command { request: 1, command }, &mut self.dirty, &mut self.turn);
        let grown = self.world.meta.index - before;
        self.plan();
        (self.turn.replies.pop().expect("a reply").1, grown)
    }
}

#[test]
fn apply_reports_its_changes() {
    use crate::event::JobChange::{Created, Unchanged, Updated};
    let mut bench = Bench::new();
    let changes = |bench: &mut Bench, job: &Job, volume: Volume| {
        let (reply, grown) = bench.ask(Command::Apply { jobs: vec![job.clone()], volumes: vec![volume] });
        let Reply::Applied { jobs, volumes, .. } = reply else { panic!("{reply:?}") };
        (jobs[0].version, jobs[0].change, volumes.len(), grown > 0)
    };
    let mut job = one_task().remove(0);
    assert_eq!(changes(&mut bench, &job, data(false)), (0, Created, 1, true));
    assert_eq!(changes(&mut bench, &job, data(false)), (0, Unchanged, 0, false));
    job.priority += 1;
    assert_eq!(changes(&mut bench, &job, data(true)), (1, Updated, 1, true));
    job.priority += 1;
    assert_eq!(changes(&mut bench, &job, data(true)), (2, Updated, 0, true));
    // It is applied again while it is being deleted: that is a change.
    let (reply, grown) = bench.ask(Command::Delete { job: job.key() });
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    assert_eq!(grown, 1);
    let (_, again) = bench.ask(Command::Delete { job: job.key() });
    assert_eq!(again, 0, "the job was already being deleted");
    assert_eq!(changes(&mut bench, &job, data(true)), (3, Updated, 0, true));
}

impl Bench {
    /// The agent is killed, and the next one starts.
    pub(super) fn restart(&mut self, now: Now) {
        let (world, unusable) = World::restore(settings(), now, self.stored.clone());
        assert!(unusable.is_empty());
        *self =
            Self { world, now, dirty: BTreeSet::new(), turn: Turn::default(), stored: self.stored.clone() };
        self.dirty = self.world.keys();
        self.plan();
    }

    /// The job's verdict.
    pub(super) fn convergence(&self, key: &JobKey) -> Convergence {
        self.world.jobs.get(key).expect("a known object").convergence(key, &self.world.allocs)
    }

    /// The job's newest view.
    fn job(&self) -> JobView {
        let job = self.world.jobs.values().next().and_then(|job| job.shown.clone());
        JobView::clone(&job.expect("a published view"))
    }

    /// A task's process ends, and its restart begins.
    fn fail(&mut self, alloc: AllocId) {
        let (task, result) = ("main".to_owned(), crate::fixture::exit(1));
        self.see(Event::Exited { alloc, task, attempt: 1, result });
    }

    /// How long jobs took to converge since the last call, and why.
    fn converged(&mut self) -> Vec<(u64, &'static str)> {
        let mut took = Vec::new();
        for note in core::mem::take(&mut self.turn.notes) {
            if let Note::Converged { took_ns, cause, .. } = note {
                took.push((took_ns / 1_000_000_000, cause));
            }
        }
        took
    }
}

/// After a clock was set by a year, a job seemed to take a year to converge.
#[test]
fn convergence_time_ignores_the_wall_clock() {
    for set_to in [9_000_000, 0] {
        let mut bench = Bench::new();
        bench.apply(one_task(), Vec::new());
        bench.now = Now { wall: at(set_to).wall, ..at(3) };
        bench.settle();
        assert_eq!(bench.converged(), [(2, "apply")]);
    }
}
