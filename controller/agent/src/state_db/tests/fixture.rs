//! A planner's world whose records go into a database, and the stored state in a comparable form.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
};

use herdlet_api_types::{
    AllocId, Duration, JobKey, UnixNanos,
    alloc::{ClientStatus, Desired},
    fixture,
    job::{Group, Job, JobType, Network, PortRequest, Task},
    volume::{Volume, VolumeKind},
};
use herdlet_base::paths::Paths;
use herdlet_plan::{
    context::Settings,
    env::NodeFacts,
    event::{Command, Event, VolumeData},
    job::{capacity::Room, cores::OfferedCores},
    op::Key,
    record::{Record, RecordKey, RecordValue},
    shared::volume::VolumeIntent,
    state::{Durable, Run, TaskState},
    time::{BootId, Now},
    turn::Turn,
    world::World,
};
use herdlet_runtime::Store;
use herdlet_storage::alloc_dir::AllocDir;

use crate::state_db::{OpenError, Opened, StateDb, StateDir, accepted::KeptAllocation, code};

pub(super) const NOW: Now =
    Now { boot: BootId(7), boot_ns: 5_000_000_000, wall: UnixNanos(1_700_000_000_000_000_000) };

/// A directory in memory if possible: these tests wait for the disk thousands of times.
pub(super) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

pub(super) fn paths(dir: &Path) -> Paths {
    Paths { state: dir.join("state"), runtime: dir.join("run") }
}

pub(super) fn try_open(dir: &Path) -> Result<Opened, OpenError> {
    let paths = paths(dir);
    StateDb::open(StateDir::claim(&paths.state).unwrap(), &paths, NOW)
}

pub(super) fn open(dir: &Path) -> Opened {
    try_open(dir).unwrap()
}

/// The stored values by place, each as a hash of its bytes.
pub(super) type Content = BTreeMap<String, u64>;

pub(super) fn content(records: &[(RecordKey, RecordValue)]) -> Content {
    let entry = |(key, value): &(RecordKey, RecordValue)| {
        let (table, place) = code::place(key);
        let mut hasher = DefaultHasher::new();
        code::encode_value(value).unwrap().hash(&mut hasher);
        (format!("{}/{place}", table.name()), hasher.finish())
    };
    records.iter().map(entry).collect()
}

/// The jobs among the records: their version and whether they are being deleted.
pub(super) fn jobs(records: &[(RecordKey, RecordValue)]) -> BTreeMap<String, (u64, bool)> {
    let job = |(key, value): &(RecordKey, RecordValue)| match (key, value) {
        (RecordKey::Job(key), RecordValue::Job(state)) => {
            Some((key.to_string(), (state.version, state.deleting)))
        }
        (
            RecordKey::Meta
            | RecordKey::Job(_)
            | RecordKey::JobVersion(..)
            | RecordKey::Volume(_)
            | RecordKey::AllocSpec(_)
            | RecordKey::AllocState(_),
            _,
        ) => None,
    };
    records.iter().filter_map(job).collect()
}

pub(super) fn allocs(
    records: &[(RecordKey, RecordValue)],
) -> Vec<std::sync::Arc<herdlet_api_types::alloc::Allocation>> {
    let spec = |(_, value): &(RecordKey, RecordValue)| match value {
        RecordValue::AllocSpec(spec) => Some(spec.clone()),
        RecordValue::Meta(_)
        | RecordValue::Job(_)
        | RecordValue::JobVersion(_)
        | RecordValue::Volume(_)
        | RecordValue::AllocState(_) => None,
    };
    records.iter().filter_map(spec).collect()
}

pub(super) fn states(records: &[(RecordKey, RecordValue)]) -> BTreeMap<AllocId, Durable> {
    let state = |(key, value): &(RecordKey, RecordValue)| match (key, value) {
        (RecordKey::AllocState(id), RecordValue::AllocState(state)) => Some((*id, (**state).clone())),
        (
            RecordKey::Meta
            | RecordKey::Job(_)
            | RecordKey::JobVersion(..)
            | RecordKey::Volume(_)
            | RecordKey::AllocSpec(_)
            | RecordKey::AllocState(_),
            _,
        ) => None,
    };
    records.iter().filter_map(state).collect()
}

/// The fate of each volume.
pub(super) fn fates(records: &[(RecordKey, RecordValue)]) -> BTreeMap<String, VolumeIntent> {
    let fate = |(_, value): &(RecordKey, RecordValue)| match value {
        RecordValue::Volume(state) => Some((state.spec.name.clone(), state.fate)),
        RecordValue::Meta(_)
        | RecordValue::Job(_)
        | RecordValue::JobVersion(_)
        | RecordValue::AllocSpec(_)
        | RecordValue::AllocState(_) => None,
    };
    records.iter().filter_map(fate).collect()
}

pub(super) fn job_key(id: &str) -> JobKey {
    JobKey { namespace: "default".into(), id: id.into() }
}

/// A service with one group `g` and one task `main`.
pub(super) fn job(id: &str, count: u32, arg: &str) -> Job {
    let task = Task {
        config: serde_json::json!({"args": [arg, 1, null, true], "nested": {"a": 1.5}}),
        env: [("PORT".to_owned(), "${NOMAD_PORT_http}".to_owned())].into(),
        ..fixture::task("main")
    };
    let port = PortRequest { fixed: None, to: None };
    let group = Group {
        network: Some(Network { ports: [("http".to_owned(), port)].into(), ..Network::default() }),
        ..fixture::group("g", count, vec![task])
    };
    fixture::job(id, JobType::Service, vec![group])
}

pub(super) fn volume(name: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        kind: VolumeKind::Mkdir { mode: 0o755, uid: None, gid: Some(4) },
        read_only: false,
    }
}

/// A planner and its database. Operations are never carried out, so allocations stay as they were decided.
pub(super) struct Life {
    pub(super) world: World,
    pub(super) store: StateDb,
}

impl Life {
    pub(super) fn begin(dir: &Path) -> Self {
        Self::of(open(dir))
    }

    pub(super) fn of(opened: Opened) -> Self {
        let settings = Settings {
            instance: opened.store.instance().clone(),
            max_kill_timeout: Duration::from_secs(30),
            dynamic_ports: 20_000..=32_000,
            host_ip: "127.0.0.1".to_owned(),
            host_networks: BTreeMap::new(),
            node: NodeFacts::default(),
            room: Room::ENDLESS,
            cores: OfferedCores::Unsupported { why: String::new() },
            reserved_ports: BTreeSet::new(),
            start_offline: false,
        };
        let (mut world, unusable) = World::restore(settings, NOW, opened.records);
        assert!(unusable.is_empty(), "{unusable:?}");
        let complete = Event::Desired(herdlet_plan::event::DesiredChange::Complete);
        world.apply(NOW, complete, &mut BTreeSet::new(), &mut Turn::default());
        Self { world, store: opened.store }
    }

    /// The records that result from a request.
    pub(super) fn records(&mut self, command: Command) -> Vec<Record> {
        let (mut dirty, mut turn) = (BTreeSet::new(), Turn::default());
        self.world.apply(NOW, Event::Command { request: 1, command }, &mut dirty, &mut turn);
        while let Some(key) = dirty.first().cloned() {
            dirty.remove(&key);
            self.world.reconcile(NOW, &key, &mut dirty, &mut turn);
            if matches!(key, Key::Alloc(_)) {
                dirty.remove(&key);
            }
        }
        turn.records
    }

    pub(super) fn apply(&mut self, jobs: Vec<Job>, volumes: Vec<Volume>) {
        let records = self.records(Command::Apply { jobs, volumes });
        self.store.commit(&records).unwrap();
    }

    pub(super) fn delete(&mut self, id: &str) {
        let records = self.records(Command::Delete { job: job_key(id) });
        self.store.commit(&records).unwrap();
    }

    pub(super) fn delete_volume(&mut self, name: &str) {
        let command = Command::DeleteVolume { name: name.to_owned(), data: VolumeData::Keep };
        let records = self.records(command);
        self.store.commit(&records).unwrap();
    }

    /// Creates each allocation's directory, as the executor does.
    pub(super) fn make_alloc_dirs(&self, dir: &Path) {
        for (spec, _) in self.world.allocations() {
            let bytes = KeptAllocation::bytes_of(spec).unwrap();
            AllocDir::new(&paths(dir), spec.id).up(&bytes).unwrap();
        }
    }
}

/// The records that the planner writes once the last part of a job is gone.
pub(super) fn forget(id: &str, versions: &[u64], allocs: &[AllocId]) -> Vec<Record> {
    let key = job_key(id);
    let specs = allocs.iter().flat_map(|id| [RecordKey::AllocSpec(*id), RecordKey::AllocState(*id)]);
    let versions = versions.iter().map(|version| RecordKey::JobVersion(key.clone(), *version));
    specs.chain(versions).chain([RecordKey::Job(key.clone())]).map(Record::Delete).collect()
}

/// The state of an allocation whose only task has succeeded.
pub(super) fn ended() -> Durable {
    let task = TaskState { name: "main".into(), run: Run::Dead, attempt: 3, ..TaskState::default() };
    Durable { adopted: true, tasks: vec![task], status: ClientStatus::Complete, ..Durable::default() }
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let Ok(entries) = fs::read_dir(from) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Every file below a directory with its bytes.
pub(super) fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(
                files(&entry.path()).into_iter().map(|(below, bytes)| (format!("{name}/{below}"), bytes)),
            );
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

pub(super) fn wants(spec: &herdlet_api_types::alloc::Allocation) -> bool {
    spec.desired == Desired::Run
}
