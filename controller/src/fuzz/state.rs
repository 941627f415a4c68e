//! The agent's files on disk: records of the database, and accepted files. For any content, they are read or set aside,
//! mean the same when written again, and the resulting world can be planned.
//!
//! The bytes are a list of items: kind (one byte: a table, or a kind of file), place or file name (length in one byte,
//! then the text), and value (length in two bytes, then the bytes).

use std::{
    collections::BTreeSet,
    fmt::Debug,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_agent::state_db::{
    accepted::{
        EndedFile, JobFile, KeptAllocation, Read, VolumeFile, files,
        rebuild::{self, Scope, Sources},
    },
    code::{self, Table},
    load::Loaded,
};
use herdlet_api_types::{
    AllocId, Duration, InstanceId, UnixNanos,
    alloc::Allocation,
    job::{Job, JobType, Network, PortRequest},
    volume::{Volume, VolumeKind},
};
use herdlet_plan::{
    context::Settings,
    env::NodeFacts,
    event::{Command, DesiredChange, Event},
    job::{JobState, capacity::Room, cores::OfferedCores},
    op::Key,
    record::{Meta, Record, RecordKey, RecordValue},
    shared::volume::VolumeState,
    state::Durable,
    time::{BootId, Now},
    turn::Turn,
    world::World,
};
use serde::{Serialize, de::DeserializeOwned};

pub(super) const NOW: Now =
    Now { boot: BootId(7), boot_ns: 5_000_000_000, wall: UnixNanos(1_700_000_000_000_000_000) };

/// Kinds after the tables.
const JOB_FILE: u8 = 4;
const VOLUME_FILE: u8 = 5;
const ENDED_FILE: u8 = 6;
const KINDS: u8 = 8;

pub(super) fn settings() -> Settings {
    Settings {
        instance: InstanceId("0123456789abcdef".to_owned()),
        max_kill_timeout: Duration::from_secs(30),
        dynamic_ports: 20_000..=32_000,
        host_ip: "127.0.0.1".to_owned(),
        host_networks: std::collections::BTreeMap::new(),
        node: NodeFacts::default(),
        room: Room::ENDLESS,
        cores: OfferedCores::Unsupported { why: String::new() },
        reserved_ports: BTreeSet::new(),
        start_offline: false,
    }
}

pub(super) fn feed(data: &[u8]) {
    let mut loaded = Loaded::default();
    let mut read = Read::default();
    for (kind, place, value) in things(data) {
        match Table::ALL.get(usize::from(kind)) {
            Some(table) => {
                record(*table, &place, value);
                if loaded.take(*table, &place, value.to_vec()).is_err() {
                    // The record of a newer release: nothing is opened.
                    return;
                }
            }
            None => {
                file(&mut read, kind, &place, value);
            }
        }
    }
    if !loaded.finished {
        let nowhere = Path::new("/nonexistent");
        let sources = Sources {
            read: &read,
            allocs: nowhere.join("alloc"),
            attempts: nowhere.join("attempts"),
            committed: None,
            now: NOW,
        };
        rebuild::fill(&mut loaded, &sources, &Scope::All);
    }
    loaded.put_in_order();
    let (mut world, unusable) = World::restore(settings(), NOW, loaded.into_records());
    assert!(unusable.is_empty(), "unusable after the repair: {unusable:?}");
    let (mut dirty, mut turn) = (world.keys(), Turn::default());
    world.apply(NOW, Event::Desired(DesiredChange::Complete), &mut dirty, &mut turn);
    plan_all(&mut world, dirty);
}

/// Plans until nothing is left to plan, and again as time passes. Every record must be storable.
pub(super) fn plan_all(world: &mut World, mut dirty: BTreeSet<Key>) {
    let mut now = NOW;
    for _ in 0..6 {
        let mut turn = Turn::default();
        for _ in 0..3 {
            for key in std::mem::take(&mut dirty) {
                world.reconcile(now, &key, &mut dirty, &mut turn);
            }
        }
        for record in &turn.records {
            if let Record::Put(key, value) = record {
                let (table, place) = code::place(key);
                assert_eq!(code::key_at(table, &place).as_ref(), Some(key), "the key must be recoverable");
                self::record(table, &place, &code::encode_value(value).unwrap());
            }
        }
        now.boot_ns += 40_000_000_000;
        now.wall.0 += 40_000_000_000;
        dirty.extend(turn.wakes.into_iter().map(|(key, _)| key));
    }
}

/// Whether a record or a file of this input can be read: otherwise it tests nothing any more.
#[cfg(test)]
pub(super) fn decodes(data: &[u8]) -> bool {
    let mut read = Read::default();
    things(data).into_iter().any(|(kind, place, value)| match Table::ALL.get(usize::from(kind)) {
        Some(table) => record(*table, &place, value),
        None => file(&mut read, kind, &place, value),
    })
}

/// A record has one place, and means the same when written again. Returns whether it can be read.
fn record(table: Table, place: &str, bytes: &[u8]) -> bool {
    let Some(key) = code::key_at(table, place) else { return false };
    assert_eq!(code::place(&key), (table, place.to_owned()), "one place for each record");
    match key {
        RecordKey::Meta => same::<Meta>(bytes),
        RecordKey::Job(_) => same::<JobState>(bytes),
        RecordKey::JobVersion(..) => same::<Job>(bytes),
        RecordKey::Volume(_) => same::<VolumeState>(bytes),
        RecordKey::AllocSpec(_) => same::<Allocation>(bytes),
        RecordKey::AllocState(_) => same::<Durable>(bytes),
    }
}

fn same<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let decoded = code::decode::<T>(bytes);
    if let Ok(value) = &decoded {
        assert_eq!(stored(value), *value);
    }
    decoded.is_ok()
}

/// The value after a round trip through the database.
pub(super) fn stored<T: Serialize + DeserializeOwned>(value: &T) -> T {
    let bytes = code::encode(value).unwrap();
    code::decode(&bytes).unwrap_or_else(|error| panic!("the stored value can't be read: {error:?}"))
}

/// An accepted file is the same when written again. Its content is loaded as at a start. Returns whether it can be read.
fn file(read: &mut Read, kind: u8, name: &str, bytes: &[u8]) -> bool {
    fn json<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) -> Option<T> {
        let file: T = serde_json::from_slice(bytes).ok()?;
        let written = serde_json::to_vec(&file).unwrap();
        let again: T = serde_json::from_slice(&written).unwrap();
        assert_eq!(serde_json::to_vec(&again).unwrap(), written);
        Some(file)
    }
    let path = PathBuf::from(name);
    match kind {
        JOB_FILE => {
            let file = json::<JobFile>(bytes);
            let is_read = file.is_some();
            if let (Some(key), Some(file)) = (files::job_key_of(&path), file)
                && file.is_of(&key)
            {
                read.jobs.insert(key, file);
            }
            is_read
        }
        VOLUME_FILE => {
            let file = json::<VolumeFile>(bytes);
            let is_read = file.is_some();
            if let Some(file) = file.filter(|file| file.volume.name == name) {
                read.volumes.insert(name.to_owned(), file);
            }
            is_read
        }
        ENDED_FILE => {
            let id = files::stem(&path).and_then(|id| id.parse().ok()).map(AllocId);
            let file = json::<EndedFile>(bytes);
            let is_read = file.is_some();
            if let (Some(id), Some(file)) = (id, file) {
                read.ended.insert(id, file);
            }
            is_read
        }
        _ => json::<KeptAllocation>(bytes).is_some(),
    }
}

fn things(mut data: &[u8]) -> Vec<(u8, String, &[u8])> {
    let mut things = Vec::new();
    while let Some(((kind, place, value), rest)) = thing(data) {
        if let Ok(place) = std::str::from_utf8(place) {
            things.push((kind % KINDS, place.to_owned(), value));
        }
        data = rest;
    }
    things
}

/// Kind, place and value.
type Thing<'d> = (u8, &'d [u8], &'d [u8]);

fn thing(data: &[u8]) -> Option<(Thing<'_>, &[u8])> {
    let (head, rest) = data.split_first_chunk::<2>()?;
    let (place, rest) = rest.split_at_checked(usize::from(head[1]))?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
    let (value, rest) = rest.split_at(length);
    Some(((head[0], place, value), rest))
}

fn put(into: &mut Vec<u8>, kind: u8, place: &str, value: &[u8]) {
    into.extend([kind, u8::try_from(place.len()).unwrap()]);
    into.extend_from_slice(place.as_bytes());
    into.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
    into.extend_from_slice(value);
}

/// A short history with a job in two versions, a volume and a deletion, with parts that only tests have: its records one by one, and all records at each
/// stage.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut world = World::new(settings());
    let mut database = std::collections::BTreeMap::new();
    let delete = Command::Delete { job: job(1).key() };
    for command in [apply(job(1)), apply(job(2)), delete] {
        let (mut dirty, mut turn) = (BTreeSet::new(), Turn::default());
        world.apply(NOW, Event::Desired(DesiredChange::Complete), &mut dirty, &mut turn);
        world.apply(NOW, Event::Command { request: 1, command }, &mut dirty, &mut turn);
        for _ in 0..4 {
            for key in std::mem::take(&mut dirty) {
                world.reconcile(NOW, &key, &mut dirty, &mut turn);
            }
        }
        for record in turn.records {
            match record {
                Record::Put(key, value) => drop(database.insert(key, value)),
                Record::Delete(key) => drop(database.remove(&key)),
            }
        }
        let mut whole = Vec::new();
        for (key, value) in &database {
            let (table, place) = code::place(key);
            let kind = Table::ALL.iter().position(|known| *known == table).unwrap() as u8;
            let value = code::encode_value(value).unwrap();
            let mut one = Vec::new();
            put(&mut one, kind, &place, &value);
            whole.extend_from_slice(&one);
            seeds.push(one);
        }
        seeds.push(whole);
    }
    seeds.extend(accepted_files(&database));
    seeds
}

fn accepted_files(database: &std::collections::BTreeMap<RecordKey, RecordValue>) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut whole = Vec::new();
    let of_job = Arc::new(job(2));
    for (key, value) in database {
        let (kind, name, file) = match (key, value) {
            (RecordKey::Job(key), RecordValue::Job(state)) => {
                let file = serde_json::to_vec(&JobFile::new(state, Arc::clone(&of_job), Vec::new(), 7));
                (JOB_FILE, files::job_path(Path::new(""), key), file)
            }
            (RecordKey::Volume(name), RecordValue::Volume(state)) => {
                (VOLUME_FILE, PathBuf::from(name), serde_json::to_vec(&VolumeFile::new(state, 7)))
            }
            (RecordKey::AllocState(id), RecordValue::AllocState(state)) => {
                let name = files::ended_path(Path::new(""), id).file_name().unwrap().into();
                (ENDED_FILE, name, serde_json::to_vec(&EndedFile::new(state, 7)))
            }
            (RecordKey::AllocSpec(_), RecordValue::AllocSpec(spec)) => {
                (7, PathBuf::new(), KeptAllocation::bytes_of(spec))
            }
            (
                RecordKey::Meta
                | RecordKey::Job(_)
                | RecordKey::JobVersion(..)
                | RecordKey::Volume(_)
                | RecordKey::AllocSpec(_)
                | RecordKey::AllocState(_),
                _,
            ) => continue,
        };
        let mut one = Vec::new();
        put(&mut one, kind, name.to_str().unwrap(), &file.unwrap());
        whole.extend_from_slice(&one);
        seeds.push(one);
    }
    seeds.push(whole);
    seeds
}

fn apply(job: Job) -> Command {
    let kind = VolumeKind::Mkdir { mode: 0o755, uid: None, gid: Some(4) };
    Command::Apply {
        jobs: vec![job],
        volumes: vec![Volume { name: "data".to_owned(), kind, read_only: false }],
    }
}

fn job(seconds: u32) -> Job {
    use herdlet_api_types::fixture;

    let mut task = fixture::task("main");
    // The probe's parts: see `herdlet_plan::parts::probe`.
    task.config =
        serde_json::json!({"args": [seconds.to_string(), null, true], "nested": {"a": 1.5}, "probe": true});
    let ports = [("http".to_owned(), PortRequest { fixed: None, to: None })].into();
    let mut group = fixture::group("g", 2, vec![task]);
    group.network = Some(Network { ports, ..Network::default() });
    fixture::job("web", JobType::Service, vec![group])
}
