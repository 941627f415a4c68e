//! What a turn of the world hands out: records, views, notes, mounts.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, vec, vec::Vec};

use herdlet_api_types::{
    alloc::Desired,
    fixture::{group, job, task},
    job::{JobType, VolumeMount, VolumeRequest},
    view::AllocView,
    volume::{Volume, VolumeKind, VolumeStatus},
};

use super::*;
use crate::{
    action::{Outcome, Recovered, Verb},
    event::{Command, Noticed, Refusal, Reply},
    fixture::{at, settings},
    shared::volume::VolumeState,
    turn::Note,
};

/// A world whose hands do what they are told when the test says so.
struct Bench {
    world: World,
    now: Now,
    dirty: BTreeSet<Key>,
    stored: BTreeMap<RecordKey, RecordValue>,
    /// What was handed out since the test last looked.
    turn: Turn,
}

impl Bench {
    fn new() -> Self {
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

    /// One event and what is planned because of it.
    fn see(&mut self, event: Event) {
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

    fn apply(&mut self, jobs: Vec<Job>, volumes: Vec<Volume>) {
        self.see(Event::Command { request: 1, command: Command::Apply { jobs, volumes } });
    }

    /// Does everything that is asked for, until nothing is. What was asked, in order.
    fn settle(&mut self) -> Vec<Action> {
        let mut asked = Vec::new();
        while !self.turn.actions.is_empty() {
            for action in core::mem::take(&mut self.turn.actions) {
                let outcome = match (&action.subject, &action.verb) {
                    (Subject::Volume(volume), Verb::Up) => Outcome::Volume { path: volume.name.clone() },
                    (_, Verb::Look) => Outcome::Present,
                    (_, Verb::Recover { .. }) => Outcome::Recovered(Recovered::Running),
                    _ => Outcome::Done,
                };
                self.see(Event::Outcome(action.op.clone(), outcome));
                if let (Target::Alloc(alloc, _), Verb::Stop { attempt, .. }) =
                    (&action.op.target, &action.verb)
                {
                    let (task, result) = ("main".to_owned(), crate::fixture::exit(0));
                    self.see(Event::Exited { alloc: *alloc, task, attempt: *attempt, result });
                }
                asked.push(action);
            }
        }
        asked
    }

    fn id(&self) -> AllocId {
        self.world.allocs.iter().map(|(id, _)| id).next().expect("an allocation")
    }

    /// The results that planning allocations came to since the last call.
    fn results(&mut self) -> Vec<&'static str> {
        let mut results = Vec::new();
        for note in core::mem::take(&mut self.turn.notes) {
            if let Note::Reconciled { kind: "alloc", result } = note {
                results.push(result);
            }
        }
        results
    }

    /// The allocation as it was last shown since the last call.
    fn shown(&mut self) -> Option<AllocView> {
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

#[test]
fn an_allocation_tells_since_when_it_has_converged_or_has_not() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    bench.now = at(2);
    bench.settle();
    let shown = bench.shown().expect("it was shown").convergence;
    assert_eq!((shown.state, shown.since), (ConvergenceState::Converged, at(2).moment()));
    let job = |bench: &Bench| bench.world.jobs.values().next().and_then(|job| job.shown.clone());
    assert_eq!(job(&bench).map(|job| job.convergence.state), Some(ConvergenceState::Converged));
    // Something is told that does not change how it is.
    bench.now = at(3);
    let alloc = bench.id();
    bench.see(Event::Driver { alloc, task: "main".to_owned(), message: "hello".to_owned() });
    assert_eq!(bench.shown().map(|view| view.convergence.since), Some(at(2).moment()));
    // Its process is looked at, and found.
    bench.now = at(4);
    let process = Part::Task(0, TaskPart::Process);
    bench.see(Event::Drift { alloc, part: Part::Dir, by: Noticed::Look });
    bench.see(Event::Drift { alloc, part: process, by: Noticed::Look });
    bench.settle();
    assert_eq!(bench.shown().map(|view| view.convergence.since), Some(at(2).moment()));
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert!(bench.shown().is_none(), "nothing has changed that is shown");
    // Its process ends: from now on it has not converged, whatever it is waiting for.
    bench.now = at(5);
    let result = crate::fixture::exit(1);
    bench.see(Event::Exited { alloc, task: "main".to_owned(), attempt: 1, result });
    assert_eq!(bench.shown().map(|view| view.convergence.since), Some(at(5).moment()));
    bench.now = at(6);
    let action = bench.turn.actions.remove(0);
    bench.see(Event::Outcome(action.op, Outcome::Done));
    let shown = bench.shown().expect("it was shown").convergence;
    assert_ne!(shown.state, ConvergenceState::Converged);
    assert_eq!(shown.since, at(5).moment());
}

#[test]
fn the_index_of_the_last_change_is_stored_with_it() {
    let bench = running();
    let Some(RecordValue::Meta(meta)) = bench.stored.get(&RecordKey::Meta) else { panic!("no counters") };
    assert_eq!(*meta, *bench.world.meta);
    let Some(RecordValue::AllocState(state)) = bench.stored.get(&RecordKey::AllocState(bench.id())) else {
        panic!("no state")
    };
    assert!(state.modify_index > 0 && state.modify_index <= meta.index);
}

/// Planning an allocation panicked. It was left alone, and nobody was told before the agent's next start.
#[test]
fn what_made_the_planner_panic_is_left_alone_and_shown_also_by_the_next_agent() {
    let mut bench = running();
    let alloc = bench.id();
    bench.shown();
    for again in [false, true] {
        if again {
            let (world, unusable) = World::restore(settings(), bench.now, bench.stored.clone());
            assert!(unusable.is_empty());
            (bench.world, bench.dirty) = (world, bench.world.keys());
        } else {
            let (dirty, turn) = (&mut bench.dirty, &mut bench.turn);
            bench.world.quarantine(bench.now, &Key::Alloc(alloc), "index out of bounds", dirty, turn);
        }
        bench.plan();
        let shown = bench.shown().expect("it was shown").convergence;
        assert_eq!(shown.state, ConvergenceState::Failed);
        assert!(shown.message.ends_with("index out of bounds"), "{}", shown.message);
        let job = bench.world.jobs.values().next().and_then(|job| job.shown.clone());
        assert_eq!(job.map(|job| job.convergence.state), Some(ConvergenceState::Failed));
        bench.see(Event::Drift { alloc, part: Part::Dir, by: Noticed::Event });
        assert!(bench.turn.actions.is_empty(), "{again}: {:?}", bench.turn.actions);
    }
}

/// Only the metric and the log told of a job or a volume that was left alone.
#[test]
fn a_job_and_a_volume_that_made_the_planner_panic_are_shown_until_somebody_acts() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let job = bench.job().key;
    bench.turn.views.clear();
    for key in [Key::Job(job.clone()), Key::Volume("data".to_owned())] {
        let (dirty, turn) = (&mut bench.dirty, &mut bench.turn);
        bench.world.quarantine(bench.now, &key, "index out of bounds", dirty, turn);
    }
    let shown = bench.job().convergence;
    assert_eq!(shown.state, ConvergenceState::Failed);
    assert!(shown.message.ends_with("it is left alone: index out of bounds"), "{}", shown.message);
    let is_told = |view: &View| match view {
        View::Job(view) => view.convergence.state == ConvergenceState::Failed,
        View::Volume(view) => {
            matches!(&view.status, VolumeStatus::Failed { why } if why.ends_with("index out of bounds"))
        }
        View::Alloc(_) | View::AllocGone(_) | View::JobGone(_) | View::VolumeGone(_) => false,
    };
    assert_eq!(bench.turn.views.iter().map(is_told).collect::<Vec<_>>(), [true, true]);
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
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
    });
    jobs
}

/// While a volume is not there, a task keeps what it has mounted of it.
#[test]
fn mounts_are_left_alone_until_their_volume_is_there() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let alloc = bench.id();
    let volume = |bench: &mut Bench, part| {
        bench.world.ctx.volumes.get_mut("data").expect("the volume").part = part;
    };
    volume(&mut bench, PartState::Absent);
    let mounts = Part::Task(0, TaskPart::Mounts);
    bench.see(Event::Drift { alloc, part: mounts, by: Noticed::Event });
    assert!(bench.turn.actions.is_empty(), "{:?}", bench.turn.actions);
    volume(&mut bench, PartState::Up);
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert_eq!(bench.turn.actions.len(), 1);
    assert_eq!(bench.turn.actions[0].verb, Verb::Look);
}

#[test]
fn a_mount_may_be_written_to_where_task_group_and_volume_allow_it() {
    for case in 0..8u8 {
        let [by_mount, by_group, by_volume] = [1, 2, 4].map(|bit| case & bit != 0);
        let mut jobs = mounting();
        jobs[0].groups[0].volumes.values_mut().for_each(|request| request.read_only = by_group);
        jobs[0].groups[0].tasks[0].volume_mounts[0].read_only = by_mount;
        let mut bench = Bench::new();
        bench.apply(jobs, vec![data(by_volume)]);
        let mounts: Vec<_> = bench.settle().into_iter().flat_map(|action| action.mounts).collect();
        let expected = MountSource {
            volume: "data".to_owned(),
            path: "data".to_owned(),
            destination: "local/data".to_owned(),
            read_only: case != 0,
        };
        assert_eq!(mounts, [expected]);
    }
}

#[test]
fn a_volume_has_a_path_for_others_while_it_is_there_and_wanted() {
    let gone = PartState::Absent;
    for (part, fate, usable) in [
        (PartState::Up, Fate::Wanted, true),
        (PartState::Up, Fate::Dropped, false),
        (PartState::Up, Fate::Purged, false),
        (gone, Fate::Wanted, false),
        (PartState::Unknown, Fate::Wanted, false),
    ] {
        let path = Some("/data".to_owned());
        let state = VolumeState { spec: data(false), origin: Origin::Manifest, fate, path };
        let entry = VolumeEntry { state: Tracked::stored(state), part, failures: 0 };
        let mut world = World::new(settings());
        world.ctx.volumes.insert("data".to_owned(), entry);
        assert_eq!(world.ctx.volume_path("data").is_some(), usable, "{fate:?}");
    }
}

#[test]
fn a_volume_is_defined_in_one_place_and_keeps_its_data_where_it_is() {
    let moved = |read_only| {
        let kind = VolumeKind::HostPath { path: "/srv".to_owned() };
        Volume { kind, ..data(read_only) }
    };
    for (known, used, asked, accepted) in [
        (Origin::Manifest, false, data(true), true),
        (Origin::Manifest, true, data(true), true),
        (Origin::Manifest, false, moved(false), true),
        (Origin::Manifest, true, moved(false), false),
        (Origin::Config, false, data(true), false),
        (Origin::Config, true, data(false), false),
    ] {
        let mut bench = Bench::new();
        match known {
            Origin::Manifest => bench.apply(Vec::new(), vec![data(false)]),
            Origin::Config => bench.see(Event::Desired(DesiredChange::Volume(data(false).into()))),
        }
        if used {
            bench.apply(mounting(), Vec::new());
        }
        bench.settle();
        bench.turn.replies.clear();
        bench.apply(Vec::new(), vec![asked.clone()]);
        let (_, reply) = bench.turn.replies.pop().expect("an answer");
        assert_eq!(matches!(reply, Reply::Applied { .. }), accepted, "{known:?}, {used}: {reply:?}");
        let now = &bench.world.ctx.volumes["data"].state.spec;
        assert_eq!(*now == asked, accepted || asked == data(false));
    }
}

impl Bench {
    /// Asks for something; the answer, and by how much the index of changes grew.
    fn ask(&mut self, command: Command) -> (Reply, u64) {
        let before = self.world.meta.index;
        self.turn.replies.clear();
        self.world.apply(self.now, Event::Command { request: 1, command }, &mut self.dirty, &mut self.turn);
        let grown = self.world.meta.index - before;
        self.plan();
        (self.turn.replies.pop().expect("an answer").1, grown)
    }
}

#[test]
fn a_volume_goes_when_nobody_uses_it() {
    use crate::event::VolumeData::{Keep, Purge};
    for (known, used, asked, expected) in [
        (None, false, Keep, Err(Refusal::NotFound("there is no volume \"data\"".to_owned()))),
        // Its data may be left from before.
        (None, false, Purge, Ok(1)),
        (Some(Origin::Manifest), false, Keep, Ok(0)),
        (Some(Origin::Manifest), false, Purge, Ok(1)),
        (
            Some(Origin::Manifest),
            true,
            Purge,
            Err(Refusal::Conflict("volume \"data\" is in use by j.g[0]".to_owned())),
        ),
        (
            Some(Origin::Config),
            false,
            Keep,
            Err(Refusal::Conflict("volume \"data\" is defined in the agent's config".to_owned())),
        ),
    ] {
        let mut bench = Bench::new();
        match known {
            Some(Origin::Manifest) => bench.apply(Vec::new(), vec![data(false)]),
            Some(Origin::Config) => bench.see(Event::Desired(DesiredChange::Volume(data(false).into()))),
            None => {}
        }
        if used {
            bench.apply(mounting(), Vec::new());
        }
        bench.settle();
        let (reply, grown) = bench.ask(Command::DeleteVolume { name: "data".to_owned(), data: asked });
        let removed = bench.turn.actions.iter().filter(|action| action.verb == Verb::Down).count();
        bench.settle();
        let gone = !bench.world.ctx.volumes.contains_key("data");
        match expected {
            Ok(removals) => {
                assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
                assert_eq!((removed, grown, gone), (removals, 1, true), "{known:?} {asked:?}");
                assert!(!bench.stored.contains_key(&RecordKey::Volume("data".to_owned())));
            }
            Err(refusal) => {
                assert!(matches!(reply, Reply::Refused(why) if why == refusal));
                assert_eq!((removed, grown, gone), (0, 0, known.is_none()), "{known:?} {asked:?}");
            }
        }
    }
}

#[test]
fn an_apply_tells_what_it_changed() {
    use crate::event::JobChange::{Created, Unchanged, Updated};
    let mut bench = Bench::new();
    let told = |bench: &mut Bench, job: &Job, volume: Volume| {
        let (reply, grown) = bench.ask(Command::Apply { jobs: vec![job.clone()], volumes: vec![volume] });
        let Reply::Applied { jobs, volumes, .. } = reply else { panic!("{reply:?}") };
        (jobs[0].version, jobs[0].change, volumes.len(), grown > 0)
    };
    let mut job = one_task().remove(0);
    assert_eq!(told(&mut bench, &job, data(false)), (0, Created, 1, true));
    assert_eq!(told(&mut bench, &job, data(false)), (0, Unchanged, 0, false));
    job.priority += 1;
    assert_eq!(told(&mut bench, &job, data(true)), (1, Updated, 1, true));
    job.priority += 1;
    assert_eq!(told(&mut bench, &job, data(true)), (2, Updated, 0, true));
    // It comes back while it is being deleted: that is a change.
    let (reply, grown) = bench.ask(Command::Delete { job: job.key() });
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    assert_eq!(grown, 1);
    let (_, again) = bench.ask(Command::Delete { job: job.key() });
    assert_eq!(again, 0, "it was being deleted already");
    assert_eq!(told(&mut bench, &job, data(true)), (3, Updated, 0, true));
}

#[test]
fn every_allocation_has_an_index_of_its_own() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].count = 3;
    bench.apply(jobs, Vec::new());
    let job = bench.world.jobs.values().next().expect("the job").state.create_index;
    let mut made: Vec<u64> = bench.world.allocs.iter().map(|(_, entry)| entry.spec.create_index).collect();
    made.sort_unstable();
    assert_eq!(made, [job + 1, job + 2, job + 3]);
}

impl Bench {
    /// The agent is killed, and the next one begins.
    fn restart(&mut self, now: Now) {
        let (world, unusable) = World::restore(settings(), now, self.stored.clone());
        assert!(unusable.is_empty());
        *self =
            Self { world, now, dirty: BTreeSet::new(), turn: Turn::default(), stored: self.stored.clone() };
        self.dirty = self.world.keys();
        self.plan();
    }

    /// The job's verdict.
    fn convergence(&self, key: &JobKey) -> Convergence {
        self.world.jobs.get(key).expect("it is known").convergence(key, &self.world.allocs)
    }

    /// The job as it was last shown.
    fn job(&self) -> JobView {
        let job = self.world.jobs.values().next().and_then(|job| job.shown.clone());
        JobView::clone(&job.expect("it was shown"))
    }

    /// A task's process ends, and its restart begins.
    fn fail(&mut self, alloc: AllocId) {
        let (task, result) = ("main".to_owned(), crate::fixture::exit(1));
        self.see(Event::Exited { alloc, task, attempt: 1, result });
    }

    /// How long it took until jobs had converged since the last call, and why.
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

#[test]
fn a_job_tells_since_when_it_has_converged_or_has_not() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    let since = |bench: &Bench| (bench.job().convergence.state, bench.job().convergence.since);
    assert_eq!(since(&bench), (ConvergenceState::Progressing, at(1).moment()));
    bench.now = at(3);
    bench.settle();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(3).moment()));
    assert_eq!(bench.converged(), [(2, "apply")]);
    bench.now = at(5);
    bench.fail(bench.id());
    assert_eq!(since(&bench), (ConvergenceState::Waiting, at(5).moment()));
    bench.now = at(9);
    bench.settle();
    bench.dirty.insert(Key::Alloc(bench.id()));
    bench.plan();
    bench.settle();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(9).moment()));
    assert_eq!(bench.converged(), [(4, "exit")]);
    bench.see(Event::Drift { alloc: bench.id(), part: Part::Dir, by: Noticed::Look });
    let look = bench.turn.actions.remove(0);
    assert_eq!(since(&bench).0, ConvergenceState::Converged, "a look is no change");
    bench.see(Event::Outcome(look.op, Outcome::Foreign { why: "a file".to_owned() }));
    bench.settle();
    assert_eq!(since(&bench).0, ConvergenceState::Converged);
    assert_eq!(bench.converged(), [(0, "drift")]);
    bench.restart(at(20));
    assert_ne!(since(&bench).0, ConvergenceState::Converged);
    bench.now = at(21);
    bench.settle();
    assert_eq!(since(&bench), (ConvergenceState::Converged, at(21).moment()));
    assert_eq!(bench.converged(), [(1, "boot")]);
}

/// A clock that was set by a year made a job take a year to converge.
#[test]
fn how_long_a_job_took_to_converge_is_no_matter_of_the_wall_clock() {
    for set_to in [9_000_000, 0] {
        let mut bench = Bench::new();
        bench.apply(one_task(), Vec::new());
        bench.now = Now { wall: at(set_to).wall, ..at(3) };
        bench.settle();
        assert_eq!(bench.converged(), [(2, "apply")]);
    }
}

#[test]
fn a_job_is_shown_when_it_looks_different() {
    let mut bench = running();
    let key = Key::Job(one_task()[0].key());
    let shown = |bench: &mut Bench| {
        let views = core::mem::take(&mut bench.turn.views);
        views.iter().filter(|view| matches!(view, View::Job(_))).count()
    };
    shown(&mut bench);
    for stale in [false, true] {
        bench.world.jobs.values_mut().for_each(|job| job.stale = stale);
        bench.dirty.insert(key.clone());
        bench.plan();
        assert_eq!(shown(&mut bench), 0, "nothing has changed");
    }
    // A new version that no task could notice.
    let mut jobs = one_task();
    jobs[0].priority += 1;
    bench.apply(jobs, Vec::new());
    assert_eq!(shown(&mut bench), 1);
    assert_eq!(bench.job().version, 1);
    // One of its allocations is forgotten.
    let mut jobs = one_task();
    jobs[0].groups[0].tasks[0].leader = true;
    bench.apply(jobs, Vec::new());
    bench.settle();
    let old = bench.world.allocs.iter().find(|(_, entry)| entry.spec.desired != Desired::Run);
    let (old, _) = old.expect("the replaced one is kept for its logs");
    assert_eq!(bench.job().allocs.len(), 2);
    shown(&mut bench);
    bench.world.forget_alloc(old, &mut bench.dirty, &mut bench.turn);
    bench.plan();
    assert_eq!(shown(&mut bench), 1);
    assert_eq!(bench.job().allocs, [bench.id()]);
}

#[test]
fn versions_are_kept_while_an_allocation_was_made_from_them() {
    let mut bench = running();
    let mut jobs = one_task();
    for color in ["red", "green", "blue"] {
        jobs[0].groups[0].tasks[0].env.insert("COLOR".to_owned(), color.to_owned());
        bench.apply(jobs.clone(), Vec::new());
        bench.settle();
    }
    let mut versions = Vec::new();
    for key in bench.stored.keys() {
        if let RecordKey::JobVersion(_, version) = key {
            versions.push(*version);
        }
    }
    assert_eq!(versions, [2, 3], "the newest's and its predecessor's");
}

#[test]
fn a_job_says_which_of_its_allocations_has_not_converged() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].count = 2;
    jobs[0].groups.push(group("h", 2, vec![task("main")]));
    bench.apply(jobs, Vec::new());
    bench.settle();
    assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
    let named = |bench: &Bench, name: &str| {
        let found = bench.world.allocs.iter().find(|(_, entry)| entry.spec.name() == name);
        found.expect("an allocation").0
    };
    for name in ["j.h[1]", "j.g[1]"] {
        bench.fail(named(&bench, name));
        let Convergence { state, message, .. } = bench.job().convergence;
        assert_eq!(state, ConvergenceState::Waiting);
        assert!(message.starts_with(name), "{message}");
        bench.now.boot_ns += 60_000_000_000;
        bench.settle();
        bench.dirty.insert(Key::Alloc(named(&bench, name)));
        bench.plan();
        bench.settle();
        assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
    }
    // One that did not become healthy in time has failed, although its tasks run.
    let id = named(&bench, "j.h[0]");
    let verdict = crate::state::Health { healthy: false, at: bench.now.wall };
    let (now, message) = (bench.now, "too late".to_owned());
    bench.world.write(now, id, &mut bench.dirty, &mut bench.turn, |writer| {
        writer.change(Change::Verdict(verdict, message));
    });
    bench.plan();
    let Convergence { state, reason, message, .. } = bench.job().convergence;
    assert_eq!(state, ConvergenceState::Failed);
    assert_eq!(reason, Some(herdlet_api_types::view::Reason::Error));
    assert_eq!(message, "j.h[0]: did not become healthy in time");
}

#[test]
fn a_start_finds_what_was_stored_and_writes_nothing() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let (meta, stored) = (*bench.world.meta, bench.stored.clone());
    bench.stored.clear();
    let (world, _) = World::restore(settings(), at(9), stored.clone());
    bench.world = world;
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
    assert!(bench.stored.is_empty(), "{:?}", bench.stored);
    assert_eq!(*bench.world.meta, meta);
    assert_eq!(bench.world.ctx.volume_path("data"), Some("data"));
    // The counters were lost: what is made next is newer than all that was kept.
    let kept = stored.into_iter().filter(|(key, _)| *key != RecordKey::Meta);
    let (world, _) = World::restore(settings(), at(9), kept);
    assert_eq!(*world.meta, meta);
}

/// A deadline of an earlier boot keeps what was left of it by the wall clock, and does not slide with the present.
#[test]
fn deadlines_are_bound_to_the_boot_that_they_are_read_in() {
    let mut bench = running();
    bench.now = at(5);
    bench.fail(bench.id());
    let later = Now { boot: crate::time::BootId(2), boot_ns: 1_000_000_000, wall: at(5).wall };
    bench.restart(later);
    let (_, state) = bench.world.allocation(bench.id()).expect("the allocation");
    let crate::state::Run::BackingOff { until } = state.durable.tasks[0].run else { panic!("{state:?}") };
    let left = until.remaining(later);
    assert!(left > Duration::ZERO);
    assert_eq!(until.due_ns(later), later.boot_ns + left.as_nanos().unsigned_abs());
    let much_later = Now { boot_ns: later.boot_ns + 3_600_000_000_000, ..later };
    assert!(until.is_due(much_later));
}

#[test]
fn a_volume_is_made_again_when_something_else_is_wanted_of_it() {
    let mut bench = Bench::new();
    bench.apply(Vec::new(), vec![data(false)]);
    assert_eq!(bench.settle().len(), 1);
    bench.apply(Vec::new(), vec![data(false)]);
    assert_eq!(bench.settle().len(), 0);
    bench.apply(Vec::new(), vec![data(true)]);
    assert_eq!(bench.settle().len(), 1);
    // It comes back while it is being removed.
    let purge = crate::event::VolumeData::Purge;
    bench.ask(Command::DeleteVolume { name: "data".to_owned(), data: purge });
    bench.apply(Vec::new(), vec![data(true)]);
    let asked: Vec<Verb> = bench.settle().into_iter().map(|action| action.verb).collect();
    assert_eq!(asked, [Verb::Down, Verb::Up]);
    assert_eq!(bench.world.ctx.volume_path("data"), Some("data"));
}

#[test]
fn volumes_of_the_config_are_read_anew_and_go_with_it() {
    for (of_config, stored) in [(true, false), (false, true)] {
        let mut bench = Bench::new();
        if of_config {
            bench.see(Event::Desired(DesiredChange::Volume(data(false).into())));
        } else {
            bench.apply(Vec::new(), vec![data(false)]);
        }
        bench.settle();
        let key = RecordKey::Volume("data".to_owned());
        assert_eq!(bench.stored.contains_key(&key), stored);
        bench.stored.clear();
        bench.dirty.insert(Key::Volume("data".to_owned()));
        bench.plan();
        assert!(bench.stored.is_empty(), "nothing has changed");
        bench.see(Event::Desired(DesiredChange::VolumeGone("data".to_owned())));
        assert_eq!(bench.world.ctx.volumes.contains_key("data"), !of_config);
    }
}

#[test]
fn no_two_operations_have_the_same_number() {
    let mut bench = Bench::new();
    let second = Volume { name: "second".to_owned(), ..data(false) };
    bench.apply(mounting(), vec![data(false), second]);
    let mut numbers: Vec<u64> = bench.settle().iter().map(|action| action.op.generation).collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}

#[test]
fn what_is_outdated_has_not_converged_also_while_it_waits_for_its_turn() {
    let mut bench = running();
    let mut jobs = one_task();
    jobs[0].groups[0].tasks[0].leader = true;
    bench.apply(jobs, Vec::new());
    // As it was wanted before; the roll-out would let it be for now.
    let id = bench.id();
    let entry = bench.world.allocs.get_mut(id).expect("the allocation");
    Arc::make_mut(&mut entry.spec).desired = Desired::Run;
    let (_, job) = bench.world.jobs.first_key_value().expect("the job");
    let open = Open::of(&one_task()[0].key(), job, &bench.world.allocs);
    bench.world.jobs.values_mut().next().expect("the job").open = open;
    let Convergence { state, message, .. } = bench.convergence(&one_task()[0].key());
    assert_eq!((state, &*message), (ConvergenceState::Progressing, "j.g[0] is being replaced"));
}

#[test]
fn a_source_may_name_allocations_itself() {
    let mut bench = Bench::new();
    let mut spec = (*crate::fixture::alloc(vec![task("main")])).clone();
    for desired in [Desired::Run, Desired::Stop] {
        spec.desired = desired;
        bench.see(Event::Desired(DesiredChange::Alloc(spec.clone().into())));
        bench.settle();
        assert_eq!(bench.world.allocation(spec.id).map(|(known, _)| known.desired), Some(desired));
    }
}
