//! The state database: makes the planner's records durable before they take effect.
//!
//! In: batches of records, each committed atomically together with the accepted files. Out, at the next start: all
//! records, which of them were damaged, and whether they had to be rebuilt. It must not know what a record decides.
//!
//! ```text
//! <state>/format     the directory's format; a newer one is refused, untouched
//! <state>/lock       flock(2) of the agent that uses it
//! <state>/instance   the id of the instance
//! <state>/state.db   tables meta, spec, state, acks, forgotten
//! <state>/committed  number of the last commit, to detect a database that has fallen back
//! <state>/accepted/  see [`crate::state_db::accepted`]
//! <state>/reserve    space that is released once the disk is full
//! <state>/damaged/   records that could not be read
//! ```

pub mod accepted;
mod claim;
pub mod code;
mod file;
pub(crate) mod forgotten;
pub mod load;
mod mark;
mod open;
mod reserve;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
};

use herdlet_base::durable::Steps;
use herdlet_plan::record::{Record, RecordKey, RecordValue};
use herdlet_runtime::{CommitIndex, Store};
use redb::{Database, ReadableTable, Table as DbTable, WriteTransaction};
use thiserror::Error;

pub use claim::{Abandoned, Alone, ClaimError, Elsewhere, Holder, LivingError, StateDir};
pub use open::{OpenError, Opened, SetAside};

use crate::state_db::accepted::Accepted;
use code::{FORMAT, Table};
use file::{Broken, META_FORMAT, META_INDEX, META_INSTANCE};
use forgotten::Forgotten;
use mark::Mark;
use reserve::Reserve;
pub use reserve::ReserveUse;

/// The state database of one agent.
#[derive(Debug)]
pub struct StateDb {
    path: PathBuf,
    /// `None` after a failure: redb accepts no more calls after an I/O error, so the file is opened again.
    db: Option<Database>,
    accepted: Accepted,
    forgotten: Forgotten,
    index: u64,
    mark: Mark,
    reserve: Reserve,
    steps: Steps,
    dir: StateDir,
}

/// Why a batch is not durable. The messages continue "failed to".
#[derive(Debug, Error)]
pub enum CommitError {
    /// An accepted file could not be written.
    #[error("write files of accepted objects in {}", path.display())]
    Accepted { path: PathBuf, source: io::Error },
    /// The removals of directories and files could not be made durable.
    #[error("make the removal of forgotten objects below {} durable", path.display())]
    Forgotten { path: PathBuf, source: io::Error },
    /// A record could not be encoded.
    #[error("encode {key}")]
    Encode { key: String, source: rmp_serde::encode::Error },
    /// The database could not be opened again after an earlier failure.
    #[error("open {} again: {why}", path.display())]
    Reopen { path: PathBuf, why: String },
    /// The database did not accept the batch.
    #[error("write the state database {}: {why}", path.display())]
    Database { path: PathBuf, why: String },
}

/// A change that a commit makes to the database.
enum Write {
    Put(Vec<u8>),
    /// Immutable: not written again if the same bytes are stored.
    PutOnce(Vec<u8>),
    Delete,
}

impl StateDb {
    /// Size of the database file in bytes; 0 if it cannot be determined.
    pub fn size_bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// Whether the reserve of disk space is released.
    pub fn reserve_use(&self) -> ReserveUse {
        self.reserve.in_use()
    }

    /// The path of the database file.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// The instance that the records belong to.
    pub fn instance(&self) -> &herdlet_api_types::InstanceId {
        self.dir.instance()
    }

    fn try_commit(&mut self, batch: &[Record]) -> Result<u64, CommitError> {
        let index = next_index(self.index, batch);
        let state = || self.dir.path().to_owned();
        let accepted = |source| CommitError::Accepted { path: state(), source };
        self.accepted.take(batch, index).map_err(accepted)?;
        let mut writes = writes(batch)?;
        let forgotten = self
            .forgotten
            .after(batch, index)
            .map_err(|source| CommitError::Forgotten { path: state(), source })?;
        if let Some(names) = &forgotten {
            self.forgotten.write(names, &mut writes);
        }
        let db = match self.db.take() {
            Some(db) => db,
            None => file::open(&self.path).map_err(|broken| CommitError::Reopen {
                path: self.path.clone(),
                why: damage_text(broken),
            })?,
        };
        let instance = self.dir.instance().0.clone();
        let steps = &self.steps;
        let written = file::guard(move || {
            let written = write(&db, &writes, index, &instance, steps);
            // It is not kept after an error; dropping it may panic too.
            written.map(|()| db)
        });
        match written {
            Ok(Ok(db)) => self.db = Some(db),
            Ok(Err(why)) => return Err(CommitError::Database { path: self.path.clone(), why }),
            Err(broken) => {
                return Err(CommitError::Database { path: self.path.clone(), why: damage_text(broken) });
            }
        }
        if let Some(names) = forgotten {
            self.forgotten.set(names);
        }
        self.steps.pass().map_err(accepted)?;
        self.mark.set(index);
        Ok(index)
    }
}

impl Store for StateDb {
    type Record = Record;
    type Error = CommitError;

    fn commit(&mut self, batch: &[Record]) -> Result<CommitIndex, CommitError> {
        let index = match self.try_commit(batch) {
            Err(_) if self.reserve.give_up() => self.try_commit(batch)?,
            Err(error) => return Err(error),
            Ok(index) => index,
        };
        self.index = index;
        self.reserve.renew();
        Ok(self.index())
    }

    fn index(&self) -> CommitIndex {
        CommitIndex(self.index)
    }

    /// Keeps the newest record of each key.
    fn compact(records: &mut Vec<Record>) {
        let mut seen = BTreeSet::new();
        let mut newest: Vec<bool> = records.iter().rev().map(|record| seen.insert(key_of(record))).collect();
        records.retain(|_| newest.pop().unwrap_or(true));
    }
}

/// The planner numbers its changes, several in one commit; the commit's number is never below theirs.
fn next_index(index: u64, batch: &[Record]) -> u64 {
    let numbered = batch.iter().filter_map(|record| match record {
        Record::Put(_, RecordValue::Meta(meta)) => Some(meta.index),
        Record::Put(
            _,
            RecordValue::Job(_)
            | RecordValue::JobVersion(_)
            | RecordValue::Volume(_)
            | RecordValue::AllocSpec(_)
            | RecordValue::AllocState(_),
        )
        | Record::Delete(_) => None,
    });
    numbered.max().unwrap_or(0).max(index.saturating_add(1))
}

fn key_of(record: &Record) -> &RecordKey {
    match record {
        Record::Put(key, _) | Record::Delete(key) => key,
    }
}

/// Reduces a batch to the last record of each key.
fn writes(batch: &[Record]) -> Result<BTreeMap<(Table, String), Write>, CommitError> {
    let mut last: BTreeMap<&RecordKey, &Record> = BTreeMap::new();
    for record in batch {
        last.insert(key_of(record), record);
    }
    let mut writes = BTreeMap::new();
    for (key, record) in last {
        let write = match record {
            Record::Delete(_) => Write::Delete,
            Record::Put(_, value) => {
                let bytes = code::encode_value(value)
                    .map_err(|source| CommitError::Encode { key: format!("{key:?}"), source })?;
                if matches!(value, RecordValue::JobVersion(_)) {
                    Write::PutOnce(bytes)
                } else {
                    Write::Put(bytes)
                }
            }
        };
        writes.insert(code::place(key), write);
    }
    Ok(writes)
}

/// One transaction: the records, the commit's number, the instance and the format.
fn write(
    db: &Database,
    writes: &BTreeMap<(Table, String), Write>,
    index: u64,
    instance: &str,
    steps: &Steps,
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    steps.pass().map_err(|error| text(&error))?;
    let transaction = db.begin_write().map_err(|error| text(&error))?;
    for table in Table::ALL {
        let mut open = open_table(&transaction, table)?;
        for ((_, place), write) in writes.iter().filter(|((of, _), _)| *of == table) {
            apply(&mut open, place, write).map_err(|error| text(&error))?;
        }
        if table == Table::Meta {
            let own = [
                (META_FORMAT, u64::from(FORMAT).to_le_bytes().to_vec()),
                (META_INDEX, index.to_le_bytes().to_vec()),
                (META_INSTANCE, instance.as_bytes().to_vec()),
            ];
            for (place, bytes) in own {
                open.insert(place, bytes.as_slice()).map_err(|error| text(&error))?;
            }
        }
    }
    steps.pass().map_err(|error| text(&error))?;
    transaction.commit().map_err(|error| text(&error))
}

type OpenTable<'txn> = DbTable<'txn, &'static str, &'static [u8]>;

fn open_table(transaction: &WriteTransaction, table: Table) -> Result<OpenTable<'_>, String> {
    transaction.open_table(table.definition()).map_err(|error| error.to_string())
}

fn apply(table: &mut OpenTable<'_>, place: &str, write: &Write) -> Result<(), redb::StorageError> {
    match write {
        Write::Put(bytes) => drop(table.insert(place, bytes.as_slice())?),
        Write::PutOnce(bytes) => {
            let same = table.get(place)?.is_some_and(|known| known.value() == bytes.as_slice());
            if !same {
                table.insert(place, bytes.as_slice())?;
            }
        }
        Write::Delete => drop(table.remove(place)?),
    }
    Ok(())
}

/// A description of what is wrong with the file.
fn damage_text(broken: Broken) -> String {
    match broken {
        Broken::Missing => "the file is gone".to_owned(),
        Broken::Newer(format) => format!("it has format {format}"),
        Broken::Damaged(why) | Broken::Refused(why) => why,
    }
}
