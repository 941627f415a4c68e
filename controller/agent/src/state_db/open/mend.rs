//! Rebuilds the records that the database has lost, and drops those that nothing can complete.
//!
//! In: what was read from the database and from the accepted files. Out: [`Mended`], the differences from the database.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_plan::record::RecordKey;

use super::{Opening, SetAside};
use crate::state_db::{
    accepted::{
        Read, forward,
        rebuild::{self, Scope, Sources},
    },
    code,
    load::{Aside, Loaded},
    mark,
};

/// The differences from the content of the database.
#[derive(Default)]
pub(super) struct Mended {
    pub(super) aside: Vec<Aside>,
    /// Records that were rebuilt, changed or dropped.
    pub(super) rewritten: BTreeSet<RecordKey>,
    /// The database was behind the last commit.
    pub(super) fell_back: bool,
    /// The number of the last commit; `None` if nothing beside the database confirms that there was no later one.
    pub(super) last: Option<u64>,
}

impl Mended {
    pub(super) fn any(&self) -> bool {
        !self.aside.is_empty() || !self.rewritten.is_empty()
    }
}

impl Opening<'_> {
    /// Rebuilds missing records.
    pub(super) fn mend(&mut self, loaded: &mut Loaded, read: &Read, lost: bool) -> Mended {
        let mut mended = Mended { aside: std::mem::take(&mut loaded.aside), ..Mended::default() };
        let before = if lost { BTreeSet::new() } else { keys(loaded) };
        let committed = mark::read(&self.paths.state);
        let scope = if lost {
            Scope::All
        } else {
            mended.fell_back = committed.is_some_and(|committed| committed > loaded.index);
            mended.rewritten.extend(forward::roll(loaded, read, committed.unwrap_or(0)));
            mended.last = committed.map(|committed| committed.max(loaded.index));
            let mut keys = missing(loaded, &mended.aside);
            if mended.fell_back {
                keys.extend(keys_lost(loaded, read));
            }
            Scope::Keys(keys)
        };
        let sources = Sources {
            read,
            allocs: self.paths.allocs(),
            attempts: self.paths.attempts(),
            committed,
            now: self.now,
        };
        for (path, why) in rebuild::fill(loaded, &sources, &scope) {
            self.damaged.push(SetAside { what: "allocation".to_owned(), path, why });
        }
        let bytes: BTreeMap<RecordKey, Vec<u8>> = halves(loaded);
        for key in loaded.put_in_order() {
            let (table, place) = code::place(&key);
            let bytes = bytes.get(&key).cloned().unwrap_or_default();
            let why = "the record that it depends on is missing".to_owned();
            mended.aside.push(Aside { table, place, bytes, why });
        }
        mended.rewritten.extend(keys(loaded).difference(&before).cloned());
        mended
    }
}

/// Keys of objects accepted in commits that the database has lost.
fn keys_lost(loaded: &Loaded, read: &Read) -> BTreeSet<RecordKey> {
    let jobs =
        read.jobs.iter().filter(|(key, file)| !loaded.jobs.contains_key(key) && file.commit <= loaded.index);
    let volumes = read
        .volumes
        .iter()
        .filter(|(name, file)| !loaded.volumes.contains_key(*name) && file.commit <= loaded.index);
    let jobs = jobs.map(|(key, _)| RecordKey::Job(key.clone()));
    jobs.chain(volumes.map(|(name, _)| RecordKey::Volume(name.clone()))).collect()
}

/// Keys of records that the database should have but has not: damaged ones, and missing counterparts of others.
fn missing(loaded: &Loaded, aside: &[Aside]) -> BTreeSet<RecordKey> {
    let mut keys: BTreeSet<RecordKey> = aside.iter().filter_map(Aside::key).collect();
    for state in loaded.jobs.values() {
        if !loaded.versions.contains_key(&(state.key.clone(), state.version)) {
            keys.insert(RecordKey::JobVersion(state.key.clone(), state.version));
        }
    }
    for spec in loaded.specs.values() {
        if !loaded.versions.contains_key(&(spec.job_key.clone(), spec.job_version)) {
            keys.insert(RecordKey::JobVersion(spec.job_key.clone(), spec.job_version));
        }
    }
    for id in loaded.states.keys().filter(|id| !loaded.specs.contains_key(id)) {
        keys.insert(RecordKey::AllocSpec(*id));
    }
    keys
}

fn keys(loaded: &Loaded) -> BTreeSet<RecordKey> {
    let jobs = loaded.jobs.keys().cloned().map(RecordKey::Job);
    let versions = loaded.versions.keys().map(|(key, version)| RecordKey::JobVersion(key.clone(), *version));
    let volumes = loaded.volumes.keys().cloned().map(RecordKey::Volume);
    let specs = loaded.specs.keys().copied().map(RecordKey::AllocSpec);
    let states = loaded.states.keys().copied().map(RecordKey::AllocState);
    jobs.chain(versions).chain(volumes).chain(specs).chain(states).collect()
}

/// Bytes of the records whose counterpart may be missing.
fn halves(loaded: &Loaded) -> BTreeMap<RecordKey, Vec<u8>> {
    let bytes = |encoded: Result<Vec<u8>, _>| -> Vec<u8> {
        let encoded: Result<Vec<u8>, rmp_serde::encode::Error> = encoded;
        encoded.unwrap_or_default()
    };
    let mut halves = BTreeMap::new();
    for (key, state) in &loaded.jobs {
        if !loaded.versions.contains_key(&(key.clone(), state.version)) {
            halves.insert(RecordKey::Job(key.clone()), bytes(code::encode(state)));
        }
    }
    for (id, spec) in &loaded.specs {
        let job = loaded.versions.get(&(spec.job_key.clone(), spec.job_version));
        if job.is_none_or(|job| job.group(&spec.group).is_none()) {
            halves.insert(RecordKey::AllocSpec(*id), bytes(code::encode(spec)));
            if let Some(state) = loaded.states.get(id) {
                halves.insert(RecordKey::AllocState(*id), bytes(code::encode(state)));
            }
        }
    }
    for (id, state) in &loaded.states {
        if !loaded.specs.contains_key(id) {
            halves.insert(RecordKey::AllocState(*id), bytes(code::encode(state)));
        }
    }
    halves
}
