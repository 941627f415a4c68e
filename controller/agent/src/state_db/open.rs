//! Opens a state directory: checks it, reads it, repairs it ([`mend`]), and brings files and database to the same state
//! ([`align`]). What can't be used is set aside ([`aside`]).
//!
//! In: a claimed directory. Out: [`Opened`]. Nothing is changed before it is certain that this release may do so.

mod align;
mod aside;
mod mend;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    durable::{self, Steps},
    paths::Paths,
};
use herdlet_plan::{
    record::{RecordKey, RecordValue},
    time::Now,
};
use redb::Database;
use thiserror::Error;

use super::{
    StateDb, Write,
    code::{self, FORMAT, Table},
    damage_text,
    file::{self, Broken},
    forgotten::Forgotten,
    load::{Aside, Loaded},
    mark::Mark,
    reserve::Reserve,
    write,
};
use crate::state_db::{
    StateDir,
    accepted::{Read, ReadError},
};
use align::Past;
use aside::unused;
use mend::Mended;

/// An open database with its content.
#[derive(Debug)]
pub struct Opened {
    pub store: StateDb,
    /// All records, including a [`RecordKey::Meta`]; allocations have their job attached.
    pub records: Vec<(RecordKey, RecordValue)>,
    /// Everything that could not be read. Most of it was rebuilt from other files.
    pub damaged: Vec<SetAside>,
    /// Whether the database was lost and the records were rebuilt.
    pub rebuilt: bool,
    /// Whether stored records may be missing: the database was lost or fell back, or an allocation could not be read.
    /// Anything that runs without a record may then be wanted, so only an operator may remove it.
    pub incomplete: bool,
    /// Recently forgotten allocations. What remains of them is a leak, even if other records were lost.
    pub forgotten: BTreeSet<AllocId>,
}

/// Something that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// What it is, for people: `database`, or a record's key.
    pub what: String,
    /// Where its bytes are now.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// Why a database cannot be opened. The messages continue "failed to".
#[derive(Debug, Error)]
pub enum OpenError {
    /// A newer release wrote it; nothing was changed.
    #[error(
        "read {}: it has format {found}, this release knows {FORMAT} at most; nothing was changed: start the newer release \
         again, or move the state directory away", path.display()
    )]
    Newer {
        /// The file with the newer format.
        path: PathBuf,
        found: u64,
    },
    /// It belongs to another instance; nothing was changed.
    #[error("use {}: it belongs to instance {found}, but the file `instance` beside it contains another id", path.display())]
    OtherInstance { path: PathBuf, found: String },
    /// The machine or another process denies access.
    #[error("open {}: {why}", path.display())]
    Refused { path: PathBuf, why: String },
    /// The file system refused an operation.
    #[error("{operation} {}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

impl StateDb {
    /// Opens or creates the database of a claimed directory; `paths.runtime` is only read, to find attempts again.
    ///
    /// # Errors
    /// [`OpenError`]. Damage is not an error: it is repaired as far as possible and reported.
    pub fn open(dir: StateDir, paths: &Paths, now: Now) -> Result<Opened, OpenError> {
        let read = Read::all(&paths.accepted()).map_err(read_error)?;
        let path = paths.database();
        let mut opening = Opening { paths, now, path, damaged: Vec::new() };
        let (db, mut loaded) = match opening.open()? {
            Some((db, loaded)) => (Some(db), loaded),
            None => (None, Loaded::default()),
        };
        if let Some(found) = loaded.instance.take_if(|found| *found != dir.instance().0) {
            return Err(OpenError::OtherInstance { path: opening.path, found });
        }
        let mended = opening.mend(&mut loaded, &read, db.is_none());
        let incomplete =
            db.is_none() || mended.fell_back || mended.aside.iter().any(Aside::is_of_an_allocation);
        let rebuilt =
            db.is_none() && (!read.jobs.is_empty() || !read.volumes.is_empty() || !loaded.specs.is_empty());
        // The rebuilt records are a commit of their own.
        loaded.index = loaded.index.saturating_add(u64::from(mended.any()));
        let index = loaded.index;
        let forgotten = std::mem::take(&mut loaded.forgotten);
        let records = loaded.into_records();
        opening.keep_aside(&mended.aside)?;
        opening.set_aside(&read.unreadable);
        let accepted =
            opening.align(&read, &records, index, &Past { last: mended.last, forgotten: &forgotten })?;
        let db = opening.write(db, &records, &mended, index, &dir)?;
        let mark = Mark::open(&paths.state).map_err(io_error("open `committed` in", &paths.state))?;
        mark.set(index);
        let store = StateDb {
            path: opening.path,
            db: Some(db),
            accepted,
            forgotten: Forgotten::new(paths, forgotten.clone()),
            index,
            mark,
            reserve: Reserve::open(&paths.state),
            steps: Steps::default(),
            dir,
        };
        let records = records.into_iter().collect();
        let forgotten = forgotten.into_keys().filter_map(|key| alloc_of(&key)).collect();
        Ok(Opened { store, records, damaged: opening.damaged, rebuilt, incomplete, forgotten })
    }
}

/// A database that is being opened.
struct Opening<'a> {
    paths: &'a Paths,
    now: Now,
    path: PathBuf,
    damaged: Vec<SetAside>,
}

impl Opening<'_> {
    /// Opens the database and reads it; `None` if there is no usable one.
    ///
    /// The content is read from a copy in memory: opening the file itself writes to it if it was not closed properly,
    /// and a file that a newer release has written must not be changed.
    fn open(&mut self) -> Result<Option<(Database, Loaded)>, OpenError> {
        let read = || {
            let loaded = Loaded::read(&file::open_copy(&self.path)?)?;
            Ok((file::open(&self.path)?, loaded))
        };
        match read() {
            // The agent died while it created the database.
            Ok((db, loaded)) if !loaded.finished => {
                drop(db);
                durable::remove(&self.path).map_err(io_error("remove", &self.path))?;
                Ok(None)
            }
            Ok(open) => Ok(Some(open)),
            Err(Broken::Missing) => Ok(None),
            Err(Broken::Newer(found)) => Err(OpenError::Newer { path: self.path.clone(), found }),
            Err(broken @ Broken::Refused(_)) => {
                Err(OpenError::Refused { path: self.path.clone(), why: damage_text(broken) })
            }
            Err(broken @ Broken::Damaged(_)) => {
                let to = unused(&self.path.with_file_name(format!("state.db.damaged-{}", self.time())));
                durable::rename(&self.path, &to).map_err(io_error("move aside", &self.path))?;
                self.damaged.push(SetAside {
                    what: "database".to_owned(),
                    path: to,
                    why: damage_text(broken),
                });
                Ok(None)
            }
        }
    }

    /// Writes the repaired records, or all records if the database must be created.
    fn write(
        &self,
        db: Option<Database>,
        records: &BTreeMap<RecordKey, RecordValue>,
        mended: &Mended,
        index: u64,
        dir: &StateDir,
    ) -> Result<Database, OpenError> {
        let refused = |why: String| OpenError::Refused { path: self.path.clone(), why };
        let new = db.is_none();
        let mut writes: BTreeMap<(Table, String), Write> = BTreeMap::new();
        for aside in &mended.aside {
            writes.insert((aside.table, aside.place.clone()), Write::Delete);
        }
        for key in mended.rewritten.iter().filter(|key| !records.contains_key(key)) {
            writes.insert(code::place(key), Write::Delete);
        }
        for (key, value) in records.iter().filter(|(key, _)| new || mended.rewritten.contains(key)) {
            let bytes = code::encode_value(value).map_err(|error| refused(error.to_string()))?;
            writes.insert(code::place(key), Write::Put(bytes));
        }
        let db = match db {
            Some(db) if writes.is_empty() => return Ok(db),
            Some(db) => db,
            None => file::create(&self.path).map_err(|broken| refused(damage_text(broken)))?,
        };
        file::guard(move || write(&db, &writes, index, &dir.instance().0, &Steps::default()).map(|()| db))
            .map_err(|broken| refused(damage_text(broken)))?
            .map_err(refused)
    }
}

/// The allocation whose state has this key.
fn alloc_of(key: &RecordKey) -> Option<AllocId> {
    match key {
        RecordKey::AllocState(id) => Some(*id),
        RecordKey::Meta
        | RecordKey::Job(_)
        | RecordKey::JobVersion(..)
        | RecordKey::Volume(_)
        | RecordKey::AllocSpec(_) => None,
    }
}

fn read_error(error: ReadError) -> OpenError {
    match error {
        ReadError::Newer { path, found } => OpenError::Newer { path, found },
        ReadError::Io { path, source } => OpenError::Io { operation: "read", path, source },
    }
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { operation, path, source }
}
