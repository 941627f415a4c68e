//! The encoding of records in the database: their places and their bytes.
//!
//! In: records. Out: a table, a key and bytes, and back. A value is one format byte followed by msgpack with named
//! fields. Fields are only ever added; any other change needs a new format. It must not know how the database is
//! stored.

use herdlet_api_types::{AllocId, JobKey};
use herdlet_base::paths;
use herdlet_plan::record::{RecordKey, RecordValue};
use redb::TableDefinition;
use serde::{Serialize, de::DeserializeOwned};

/// The format that this release writes, of the database and of each value.
pub(crate) const FORMAT: u8 = 1;

/// Enough for all but the largest values, such as those of an allocation with many tasks; growing a buffer copies it.
const USUAL_LEN: usize = 1024;

/// The table of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Counters, and the database's description of itself.
    Meta,
    /// Immutable: job versions, allocations.
    Spec,
    /// Small states of jobs, allocations and volumes.
    State,
    /// What a server has acknowledged (node mode).
    Acks,
    /// Forgotten objects, under the key of their state, with the number of the commit: see [`super::forgotten`].
    Forgotten,
}

impl Table {
    pub const ALL: [Self; 5] = [Self::Meta, Self::Spec, Self::State, Self::Acks, Self::Forgotten];

    /// The table's name in the database.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Spec => "spec",
            Self::State => "state",
            Self::Acks => "acks",
            Self::Forgotten => "forgotten",
        }
    }

    pub(crate) fn definition(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        TableDefinition::new(self.name())
    }
}

/// Why a value cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// A newer release wrote it.
    Newer(u8),
    Damaged(String),
}

/// The place of the record with this key.
pub fn place(key: &RecordKey) -> (Table, String) {
    match key {
        RecordKey::Meta => (Table::Meta, "world".to_owned()),
        RecordKey::Job(job) => (Table::State, format!("job/{}", job_path(job))),
        RecordKey::JobVersion(job, version) => (Table::Spec, format!("job/{}/{version}", job_path(job))),
        RecordKey::Volume(name) => (Table::State, format!("volume/{}", paths::encode(name))),
        RecordKey::AllocSpec(id) => (Table::Spec, format!("alloc/{id}")),
        RecordKey::AllocState(id) => (Table::State, format!("alloc/{id}")),
    }
}

/// The key of the record at this place; `None` if it is not one of ours. Each key has exactly one place.
pub fn key_at(table: Table, place: &str) -> Option<RecordKey> {
    any_key_at(table, place).filter(|key| self::place(key) == (table, place.to_owned()))
}

fn any_key_at(table: Table, place: &str) -> Option<RecordKey> {
    let parts: Vec<&str> = place.split('/').collect();
    match (table, &parts[..]) {
        (Table::Meta, ["world"]) => Some(RecordKey::Meta),
        (Table::State, ["job", namespace, id]) => Some(RecordKey::Job(job_key(namespace, id)?)),
        (Table::Spec, ["job", namespace, id, version]) => {
            Some(RecordKey::JobVersion(job_key(namespace, id)?, version.parse().ok()?))
        }
        (Table::State, ["volume", name]) => Some(RecordKey::Volume(paths::decode(name)?)),
        (Table::Spec, ["alloc", id]) => Some(RecordKey::AllocSpec(AllocId(id.parse().ok()?))),
        (Table::State, ["alloc", id]) => Some(RecordKey::AllocState(AllocId(id.parse().ok()?))),
        (Table::Meta | Table::Spec | Table::State | Table::Acks | Table::Forgotten, _) => None,
    }
}

/// The bytes of a record's value.
pub fn encode_value(value: &RecordValue) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    match value {
        RecordValue::Meta(meta) => encode(meta),
        RecordValue::Job(job) => encode(job),
        RecordValue::JobVersion(job) => encode(job),
        RecordValue::Volume(volume) => encode(volume),
        RecordValue::AllocSpec(spec) => encode(spec),
        RecordValue::AllocState(state) => encode(state),
    }
}

pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    let mut bytes = Vec::with_capacity(USUAL_LEN);
    bytes.push(FORMAT);
    value.serialize(&mut rmp_serde::Serializer::new(&mut bytes).with_struct_map())?;
    Ok(bytes)
}

/// Decodes a value.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Unreadable> {
    match bytes.split_first() {
        None => Err(Unreadable::Damaged("the value is empty".to_owned())),
        Some((&FORMAT, rest)) => {
            rmp_serde::from_slice(rest).map_err(|error| Unreadable::Damaged(error.to_string()))
        }
        Some((&newer, _)) if newer > FORMAT => Err(Unreadable::Newer(newer)),
        Some((&format, _)) => Err(Unreadable::Damaged(format!("unknown format {format}"))),
    }
}

fn job_path(job: &JobKey) -> String {
    format!("{}/{}", paths::encode(&job.namespace), paths::encode(&job.id))
}

fn job_key(namespace: &str, id: &str) -> Option<JobKey> {
    Some(JobKey { namespace: paths::decode(namespace)?.into(), id: paths::decode(id)?.into() })
}
