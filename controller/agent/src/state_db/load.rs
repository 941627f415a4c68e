//! Reads the database back: every readable record, and the unreadable ones with their bytes.
//!
//! In: an open database. Out: [`Loaded`], which is made consistent (versions attached, records without their
//! counterpart taken out) before it is used. It must not know how lost records are restored.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{AllocId, JobKey, alloc::Allocation, job::Job};
use herdlet_plan::{
    job::JobState,
    record::{Meta, RecordKey, RecordValue},
    shared::volume::VolumeState,
    state::Durable,
};
use redb::Database;
use serde::de::DeserializeOwned;

use super::{
    code::{self, FORMAT, Table, Unreadable},
    file::{self, Broken, META_FORMAT, META_INDEX, META_INSTANCE},
    forgotten::Names,
};

/// The content of a database.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Whether the database was ever written completely.
    pub finished: bool,
    /// Number of the last commit.
    pub(crate) index: u64,
    pub(crate) instance: Option<String>,
    pub(crate) meta: Meta,
    pub(crate) jobs: BTreeMap<JobKey, JobState>,
    pub(crate) versions: BTreeMap<(JobKey, u64), Arc<Job>>,
    pub(crate) volumes: BTreeMap<String, VolumeState>,
    pub(crate) specs: BTreeMap<AllocId, Allocation>,
    pub(crate) states: BTreeMap<AllocId, Durable>,
    /// The objects that it lists as forgotten.
    pub(crate) forgotten: Names,
    /// Records that are not among the above.
    pub(crate) aside: Vec<Aside>,
}

/// A record that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Aside {
    pub(crate) table: Table,
    pub(crate) place: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) why: String,
}

impl Aside {
    /// Its key, if its place is known.
    pub(crate) fn key(&self) -> Option<RecordKey> {
        code::key_at(self.table, &self.place)
    }

    /// Whether it belonged to an allocation, or to an unknown object.
    pub(crate) fn is_of_an_allocation(&self) -> bool {
        match self.key() {
            Some(RecordKey::AllocSpec(_) | RecordKey::AllocState(_)) | None => true,
            Some(RecordKey::Meta | RecordKey::Job(_) | RecordKey::JobVersion(..) | RecordKey::Volume(_)) => {
                false
            }
        }
    }
}

impl Loaded {
    pub(crate) fn read(db: &Database) -> Result<Self, Broken> {
        let mut loaded = Self::default();
        for table in Table::ALL {
            for (place, bytes) in file::entries(db, table)? {
                loaded.take(table, &place, bytes)?;
            }
        }
        Ok(loaded)
    }

    /// Adds a record.
    pub fn take(&mut self, table: Table, place: &str, bytes: Vec<u8>) -> Result<(), Broken> {
        match (table, place) {
            (Table::Meta, META_FORMAT) => {
                self.finished = true;
                let format = file::number(&bytes).unwrap_or(0);
                return if format > u64::from(FORMAT) { Err(Broken::Newer(format)) } else { Ok(()) };
            }
            (Table::Meta, META_INDEX) => {
                self.index = file::number(&bytes).unwrap_or(0);
                return Ok(());
            }
            (Table::Meta, META_INSTANCE) => {
                self.instance = String::from_utf8(bytes).ok();
                return Ok(());
            }
            (Table::Meta | Table::Spec | Table::State | Table::Acks | Table::Forgotten, _) => {}
        }
        if table == Table::Forgotten
            && let (Some(key), Some(commit)) = (code::key_at(Table::State, place), file::number(&bytes))
        {
            self.forgotten.insert(key, commit);
            return Ok(());
        }
        let read = match code::key_at(table, place) {
            Some(RecordKey::Meta) => code::decode(&bytes).map(|meta| self.meta = meta),
            Some(RecordKey::Job(key)) => keep(&mut self.jobs, key, &bytes, |key, job| job.key == *key),
            Some(RecordKey::JobVersion(key, version)) => {
                keep(&mut self.versions, (key, version), &bytes, |(key, _), job: &Arc<Job>| job.key() == *key)
            }
            Some(RecordKey::Volume(name)) => {
                keep(&mut self.volumes, name, &bytes, |name, volume| volume.spec.name == *name)
            }
            Some(RecordKey::AllocSpec(id)) => keep(&mut self.specs, id, &bytes, |id, spec| spec.id == *id),
            // The value does not contain its id.
            Some(RecordKey::AllocState(id)) => keep(&mut self.states, id, &bytes, |_, _| true),
            None => Err(Unreadable::Damaged("unknown kind of record".to_owned())),
        };
        match read {
            Ok(()) => Ok(()),
            Err(Unreadable::Newer(format)) => Err(Broken::Newer(u64::from(format))),
            Err(Unreadable::Damaged(why)) => {
                self.aside.push(Aside { table, place: place.to_owned(), bytes, why });
                Ok(())
            }
        }
    }

    /// Takes out records whose counterpart is missing, converts those of earlier releases, and attaches the jobs. Returns the keys of the records that
    /// were taken out.
    pub fn put_in_order(&mut self) -> Vec<RecordKey> {
        let mut out: Vec<RecordKey> = Vec::new();
        let versions = &self.versions;
        self.jobs.retain(|key, state| {
            let usable = versions.contains_key(&(key.clone(), state.version));
            if !usable {
                out.push(RecordKey::Job(key.clone()));
            }
            usable
        });
        self.specs.retain(|id, spec| {
            spec.take_over_old_record();
            let job = match &spec.server {
                Some(server) => Some(&server.job),
                None => versions.get(&(spec.job_key.clone(), spec.job_version)),
            };
            match job.filter(|job| job.group(&spec.group).is_some()).cloned() {
                Some(job) => {
                    spec.job = job;
                    true
                }
                None => {
                    out.push(RecordKey::AllocSpec(*id));
                    false
                }
            }
        });
        let specs: BTreeSet<AllocId> = self.specs.keys().copied().collect();
        self.states.retain(|id, _| {
            let usable = specs.contains(id);
            if !usable {
                out.push(RecordKey::AllocState(*id));
            }
            usable
        });
        out
    }

    /// All records, in key order.
    pub fn into_records(self) -> BTreeMap<RecordKey, RecordValue> {
        // The planner continues numbering from the last commit, so that its next change is newer than everything
        // published.
        let meta = Meta { index: self.meta.index.max(self.index), ..self.meta };
        let meta = [(RecordKey::Meta, RecordValue::Meta(meta))];
        let jobs =
            self.jobs.into_iter().map(|(key, job)| (RecordKey::Job(key), RecordValue::Job(job.into())));
        let versions = self.versions.into_iter();
        let versions = versions
            .map(|((key, version), job)| (RecordKey::JobVersion(key, version), RecordValue::JobVersion(job)));
        let volumes = self.volumes.into_iter();
        let volumes =
            volumes.map(|(name, state)| (RecordKey::Volume(name), RecordValue::Volume(state.into())));
        let specs = self.specs.into_iter();
        let specs = specs.map(|(id, spec)| (RecordKey::AllocSpec(id), RecordValue::AllocSpec(spec.into())));
        let states = self.states.into_iter();
        let states =
            states.map(|(id, state)| (RecordKey::AllocState(id), RecordValue::AllocState(state.into())));
        meta.into_iter().chain(jobs).chain(versions).chain(volumes).chain(specs).chain(states).collect()
    }
}

/// Adds a value that matches its place; otherwise one part of the agent would use the value's key and another its
/// place.
fn keep<K: Ord, V: DeserializeOwned>(
    into: &mut BTreeMap<K, V>,
    key: K,
    bytes: &[u8],
    is_of: impl Fn(&K, &V) -> bool,
) -> Result<(), Unreadable> {
    let value = code::decode(bytes)?;
    if !is_of(&key, &value) {
        return Err(Unreadable::Damaged("its content belongs to another object than its place".to_owned()));
    }
    into.insert(key, value);
    Ok(())
}
