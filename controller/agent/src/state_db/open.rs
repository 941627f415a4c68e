//! Opens a state directory: checks it, reads it, repairs it, and brings files and database to the same state.
//!
//! In: a claimed directory. Out: [`Opened`]. Nothing is changed before it is certain that this release may do so.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use herdlet_api_types::{AllocId, JobKey, UnixNanos};
use herdlet_base::{
    durable::{self, Steps},
    paths::Paths,
};
use herdlet_plan::{
    record::{Record, RecordKey, RecordValue},
    time::Now,
};
use redb::Database;
use thiserror::Error;

use super::{
    StateDb, Write,
    code::{self, FORMAT, Table},
    damage_text,
    file::{self, Broken},
    forgotten::{Forgotten, Names},
    load::{Aside, Loaded},
    mark::{self, Mark},
    reserve::Reserve,
    write,
};
use crate::state_db::{
    StateDir,
    accepted::{
        Accepted, JobFile, Read, ReadError, VolumeFile,
        files::{self, UnreadableFile},
        forward,
        rebuild::{self, Scope, Sources},
    },
};

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

/// The differences from the content of the database.
#[derive(Default)]
struct Mended {
    aside: Vec<Aside>,
    /// Records that were rebuilt, changed or dropped.
    rewritten: BTreeSet<RecordKey>,
    /// The database was behind the last commit.
    fell_back: bool,
    /// The number of the last commit; `None` if nothing beside the database confirms that there was no later one.
    last: Option<u64>,
}

/// What is known about files whose objects the database does not contain.
struct Past<'a> {
    /// [`Mended::last`].
    last: Option<u64>,
    /// The objects that it lists as forgotten.
    forgotten: &'a Names,
}

impl Mended {
    fn any(&self) -> bool {
        !self.aside.is_empty() || !self.rewritten.is_empty()
    }
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

    /// Rebuilds missing records.
    fn mend(&mut self, loaded: &mut Loaded, read: &Read, lost: bool) -> Mended {
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

    /// Keeps the bytes of removed records, each in a file of its own.
    fn keep_aside(&mut self, aside: &[Aside]) -> Result<(), OpenError> {
        let dir = self.paths.state.join("damaged");
        if !aside.is_empty() {
            durable::make_dir(&dir).map_err(io_error("create", &dir))?;
        }
        for Aside { table, place, bytes, why } in aside {
            let name = format!("{}.{}.{}", table.name(), herdlet_base::paths::file_name(place), self.time());
            let path = unused(&dir.join(name));
            durable::write(&path, bytes).map_err(io_error("write", &path))?;
            let what = format!("{}/{place}", table.name());
            tracing::error!(record = what, path = %path.display(), why, "a record was set aside");
            self.damaged.push(SetAside { what, path, why: why.clone() });
        }
        Ok(())
    }

    /// Moves unreadable accepted files out of the way of their replacements. A file that cannot be moved stays where
    /// it is, so that the others can be used.
    fn set_aside(&mut self, unreadable: &[UnreadableFile]) {
        let dir = self.paths.state.join("damaged");
        for UnreadableFile { path, why, .. } in unreadable {
            // A power cut leaves a new file like this; there is nothing to keep.
            let is_empty =
                std::fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.len() == 0);
            if is_empty && durable::remove(path).is_ok() {
                tracing::info!(path = %path.display(), "an accepted file was empty, as after a power cut");
                continue;
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let to = unused(&dir.join(format!("{name}.{}", self.time())));
            let moved = durable::make_dir(&dir).and_then(|()| durable::rename(path, &to));
            let (path, why) = match moved {
                Ok(()) => (to, why.clone()),
                Err(error) => (path.clone(), format!("{why}; and it cannot be moved aside: {error}")),
            };
            self.damaged.push(SetAside { what: "accepted file".to_owned(), path, why });
        }
    }

    /// Updates the accepted files to match the records. A file whose object the database does not know is removed if
    /// its commit is after the last one: a kill before a commit leaves such a file, and no request was answered. It
    /// is also removed if the database lists the object as forgotten: the power failed just after the removal. Any
    /// other such file is set aside.
    fn align(
        &mut self,
        read: &Read,
        records: &BTreeMap<RecordKey, RecordValue>,
        index: u64,
        past: &Past<'_>,
    ) -> Result<Accepted, OpenError> {
        let dir = self.paths.accepted();
        let failed = || io_error("write", &dir);
        let mut accepted = Accepted::open(dir.clone()).map_err(failed())?;
        files::remove_leftovers(&dir).map_err(failed())?;
        accepted.load(read);
        for (key, path, commit) in files_of(read, &dir) {
            if records.contains_key(&key) {
                continue;
            }
            if past.last.is_some_and(|last| commit > last) {
                tracing::info!(path = %path.display(), commit, "an accepted file is removed: its commit never happened");
            } else if past.forgotten.get(&key).is_some_and(|forgotten| commit <= *forgotten) {
                tracing::info!(path = %path.display(), commit, "an accepted file is removed: it was forgotten");
            } else {
                let aside = self.paths.state.join("damaged");
                let name =
                    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let to = unused(&aside.join(format!("{name}.{}", self.time())));
                // A hard link needs no space: the disk may be full, and no request that created this file was
                // answered.
                let kept = durable::make_dir(&aside).and_then(|()| std::fs::hard_link(&path, &to));
                let why = "the database does not know it".to_owned();
                match kept {
                    Ok(()) => self.damaged.push(SetAside { what: "accepted file".to_owned(), path: to, why }),
                    Err(error) => {
                        tracing::warn!(path = %path.display(), %error, why, "an accepted file is removed")
                    }
                }
            }
        }
        let puts = records.iter().map(|(key, value)| Record::Put(key.clone(), value.clone()));
        let gone = accepted.keys().filter(|key| !records.contains_key(key)).map(Record::Delete);
        let aligned: Vec<Record> = puts.chain(gone.collect::<Vec<_>>()).collect();
        accepted.take(&aligned, index).map_err(failed())?;
        Ok(accepted)
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

    /// The current time, as part of a file name.
    fn time(&self) -> String {
        let UnixNanos(nanos) = self.now.wall;
        jiff::Timestamp::from_nanosecond(i128::from(nanos))
            .map_or_else(|_| nanos.to_string(), |time| time.strftime("%Y%m%dT%H%M%SZ").to_string())
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

/// The files of jobs and volumes: the key of the object, the path, the commit in the file.
fn files_of(read: &Read, dir: &Path) -> Vec<(RecordKey, PathBuf, u64)> {
    let job = |(key, file): (&JobKey, &JobFile)| {
        (RecordKey::Job(key.clone()), files::job_path(dir, key), file.commit)
    };
    let volume = |(name, file): (&String, &VolumeFile)| {
        (RecordKey::Volume(name.clone()), files::volume_path(dir, name), file.commit)
    };
    read.jobs.iter().map(job).chain(read.volumes.iter().map(volume)).collect()
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

/// The path, or a numbered variant that is not in use.
fn unused(path: &Path) -> PathBuf {
    let numbered = (2..).map(|n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{n}"));
        PathBuf::from(name)
    });
    std::iter::once(path.to_owned()).chain(numbered).find(|path| !path.exists()).unwrap_or_default()
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
