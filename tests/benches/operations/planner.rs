//! Operations of the planner, with an executor that completes every action at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    hint::black_box,
};

use herdlet_api_types::{
    Duration, InstanceId, UnixNanos,
    job::{Job, JobType, MountPropagation, VolumeMount, VolumeRequest},
};
use herdlet_plan::{
    action::{Action, Outcome, Recovered, Started, Verb},
    alloc,
    context::Settings,
    env::NodeFacts,
    event::{Command, DesiredChange, Event},
    facts::Facts,
    job::{capacity::Room, cores::OfferedCores},
    launch::Launch,
    op::{Key, Subject},
    record::{Record, RecordKey, RecordValue},
    time::{BootId, Now},
    turn::Turn,
    world::World,
};
use herdlet_tests::sim::{
    jobs::{group, job, service, task},
    life::{Faults, Life},
};

/// The time of all operations.
const NOW: Now = Now { boot: BootId(1), boot_ns: 1_000_000_000, wall: UnixNanos(1_700_000_000_000_000_000) };

/// A converged allocation with two tasks, a volume and a service with a check.
pub(super) fn converged() -> Box<dyn FnMut()> {
    let mut httpd = task("httpd", None, 0);
    httpd.volume_mounts.push(VolumeMount {
        volume: "data".to_owned(),
        destination: "local/data".to_owned(),
        read_only: true,
        propagation: MountPropagation::Private,
    });
    let mut web = group("g", 1, vec![httpd, task("side", None, 0)]);
    web.services.push(service("web"));
    let request = VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: false };
    web.volumes.insert("data".to_owned(), request);
    let mut life = Life::new(1, Faults::default());
    life.want_volume();
    life.apply(vec![job("web", JobType::Service, vec![web])]);
    life.pass(30).expect("a life without violations");
    Box::new(move || {
        let world = life.world();
        let (spec, state) = world.alloc_specs().next().expect("an allocation");
        let plan = alloc::plan(life.now(), world.context(), spec, state);
        assert!(plan.changes.is_empty() && plan.waits.is_empty());
        black_box(plan);
    })
}

pub(super) fn inspect() -> Box<dyn FnMut()> {
    let (mut world, _) = started(&sleepers(1_000));
    let keys = world.keys();
    Box::new(move || {
        let (mut dirty, mut turn) = (BTreeSet::new(), Turn::default());
        for key in &keys {
            world.reconcile(NOW, key, &mut dirty, &mut turn);
        }
        assert!(turn.records.is_empty() && turn.actions.is_empty() && turn.views.is_empty());
        black_box(turn);
    })
}

pub(super) fn start_one() -> Box<dyn FnMut()> {
    let job = sleepers(1);
    Box::new(move || drop(black_box(started(&job))))
}

pub(super) fn start_many() -> Box<dyn FnMut()> {
    let job = sleepers(200);
    Box::new(move || drop(black_box(started(&job))))
}

pub(super) fn adopt() -> Box<dyn FnMut()> {
    let (_, records) = started(&sleepers(1_000));
    Box::new(move || {
        let (mut world, unusable) = World::restore(settings(), NOW, records.iter().cloned());
        assert!(unusable.is_empty());
        let mut dirty = world.keys();
        settle(&mut world, &mut dirty, Event::Desired(DesiredChange::Complete));
        black_box(world);
    })
}

/// The records of one running task.
pub(super) fn records_of_one() -> Vec<(RecordKey, RecordValue)> {
    started(&sleepers(1)).1
}

fn sleepers(count: u32) -> Job {
    job("sleepers", JobType::Service, vec![group("g", count, vec![task("sleep", None, 0)])])
}

fn settings() -> Settings {
    Settings {
        instance: InstanceId("0123456789abcdef".to_owned()),
        max_kill_timeout: Duration::from_secs(30),
        dynamic_ports: 20_000..=32_000,
        host_ip: "127.0.0.1".to_owned(),
        host_networks: BTreeMap::new(),
        node: NodeFacts::default(),
        room: Room::ENDLESS,
        cores: OfferedCores::OfServers,
        reserved_ports: BTreeSet::new(),
        start_offline: false,
    }
}

/// A world in which the job's tasks run, and its stored records.
fn started(job: &Job) -> (World, Vec<(RecordKey, RecordValue)>) {
    let (mut world, mut dirty) = (World::new(settings()), BTreeSet::new());
    let command = Command::Apply { jobs: vec![job.clone()], volumes: Vec::new() };
    let records = settle(&mut world, &mut dirty, Event::Command { request: 1, command });
    let mut stored = BTreeMap::new();
    for record in records {
        match record {
            Record::Put(key, value) => stored.insert(key, value),
            Record::Delete(key) => stored.remove(&key),
        };
    }
    (world, stored.into_iter().collect())
}

/// Runs turns until the world has converged. As in the agent's runtime, a key is planned once in a turn, and again in the next turn
/// if necessary.
fn settle(world: &mut World, dirty: &mut BTreeSet<Key>, event: Event) -> Vec<Record> {
    let (mut turn, mut records) = (Turn::default(), Vec::new());
    world.apply(NOW, event, dirty, &mut turn);
    loop {
        let (mut planned, mut again) = (BTreeSet::new(), BTreeSet::new());
        while let Some(key) = dirty.pop_first() {
            if planned.contains(&key) {
                again.insert(key);
                continue;
            }
            world.reconcile(NOW, &key, dirty, &mut turn);
            planned.insert(key);
        }
        *dirty = again;
        records.append(&mut turn.records);
        if turn.actions.is_empty() && dirty.is_empty() {
            return records;
        }
        for action in std::mem::take(&mut turn.actions) {
            let outcome = done(&action);
            world.apply(NOW, Event::Outcome(action.op, outcome), dirty, &mut turn);
        }
    }
}

fn done(action: &Action) -> Outcome {
    match (&action.subject, &action.verb) {
        (Subject::Volume(volume), Verb::Up | Verb::Inspect) => {
            Outcome::Done(Some(Facts::rooted(format!("/volumes/{}", volume.name))))
        }
        (_, Verb::Inspect) => Outcome::Present(None),
        (_, Verb::Ask) => Outcome::Absent,
        (_, Verb::Start { attempt }) => Outcome::Started(Launch::of(*attempt)),
        (_, Verb::Recover { .. }) => Outcome::Recovered(Recovered::Running(Started::default())),
        (
            _,
            Verb::Up
            | Verb::Down
            | Verb::Withdraw
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. },
        ) => Outcome::Done(None),
    }
}
