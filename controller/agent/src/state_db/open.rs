//! Opening a state directory: refuse, read, mend, and bring files and database to the same state.
//!
//! In: a claimed directory. Out: [`Opened`]. Nothing is changed before it is certain that this release may.

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
    file::{self, Broken},
    forgotten::{Forgotten, Names},
    load::{Aside, Loaded},
    mark::{self, Mark},
    reserve::Reserve,
    said, write,
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

/// A database that is open, and what was in it.
#[derive(Debug)]
pub struct Opened {
    pub store: StateDb,
    /// All records, with a [`RecordKey::Meta`] among them; allocations have their job attached.
    pub records: Vec<(RecordKey, RecordValue)>,
    /// What could not be read. Most of it was made anew from other files.
    pub damaged: Vec<SetAside>,
    /// The database was lost; the records were made anew.
    pub rebuilt: bool,
    /// Something that was stored may be missing: the database was lost or fell back, or an allocation could not be read. What
    /// is found to run and is not among the records may be wanted, so nobody but an operator may remove it.
    pub incomplete: bool,
    /// Allocations that were forgotten of late: what is found of them is a leak, also where something else was lost.
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

/// Why a database can't be opened. The sentences read after "failed to".
#[derive(Debug, Error)]
pub enum OpenError {
    /// A newer release wrote it; nothing was touched.
    #[error(
        "read {}: it has format {found}, this release knows {FORMAT} at most; nothing was changed: start the newer release \
         again, or move the state directory away", path.display()
    )]
    Newer {
        /// What has the newer format.
        path: PathBuf,
        found: u64,
    },
    /// It is another instance's; nothing was touched.
    #[error("use {}: it is of instance {found}, the file `instance` beside it says otherwise", path.display())]
    OtherInstance { path: PathBuf, found: String },
    /// The machine or another process keeps us from it.
    #[error("open {}: {why}", path.display())]
    Refused { path: PathBuf, why: String },
    /// The file system refused.
    #[error("{operation} {}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

impl StateDb {
    /// Opens the database of a claimed directory, or makes one; `paths.runtime` is only read, to find attempts again.
    ///
    /// # Errors
    /// [`OpenError`]; damage is none: it is mended as far as possible and reported.
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
        // What was made anew is a commit of its own.
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

/// A database on its way to being open.
struct Opening<'a> {
    paths: &'a Paths,
    now: Now,
    path: PathBuf,
    damaged: Vec<SetAside>,
}

/// What differs from what the database says.
#[derive(Default)]
struct Mended {
    aside: Vec<Aside>,
    /// Records that were made anew, changed or dropped.
    anew: BTreeSet<RecordKey>,
    /// The database was behind the last commit.
    fell_back: bool,
    /// The last commit that happened; none where nothing beside the database says that there was no later one.
    last: Option<u64>,
}

/// What the database says of files whose objects it does not know.
struct Past<'a> {
    /// [`Mended::last`].
    last: Option<u64>,
    /// What it names as forgotten.
    forgotten: &'a Names,
}

impl Mended {
    fn any(&self) -> bool {
        !self.aside.is_empty() || !self.anew.is_empty()
    }
}

impl Opening<'_> {
    /// The database and what is in it; none where there is none that can be used.
    ///
    /// What is in it is read from a copy in memory: opening the file itself writes to it where it was not closed, and one
    /// that a newer release has written must not be touched.
    fn open(&mut self) -> Result<Option<(Database, Loaded)>, OpenError> {
        let read = || {
            let loaded = Loaded::read(&file::open_copy(&self.path)?)?;
            Ok((file::open(&self.path)?, loaded))
        };
        match read() {
            // It was being made when the agent died.
            Ok((db, loaded)) if !loaded.finished => {
                drop(db);
                durable::remove(&self.path).map_err(io_error("remove", &self.path))?;
                Ok(None)
            }
            Ok(open) => Ok(Some(open)),
            Err(Broken::Missing) => Ok(None),
            Err(Broken::Newer(found)) => Err(OpenError::Newer { path: self.path.clone(), found }),
            Err(broken @ Broken::Refused(_)) => {
                Err(OpenError::Refused { path: self.path.clone(), why: said(broken) })
            }
            Err(broken @ Broken::Damaged(_)) => {
                let to = unused(&self.path.with_file_name(format!("state.db.damaged-{}", self.time())));
                durable::rename(&self.path, &to).map_err(io_error("move aside", &self.path))?;
                tracing::error!(path = %to.display(), "the state database is damaged: it was moved aside");
                self.damaged.push(SetAside { what: "database".to_owned(), path: to, why: said(broken) });
                Ok(None)
            }
        }
    }

    /// Makes anew what is missing.
    fn mend(&mut self, loaded: &mut Loaded, read: &Read, lost: bool) -> Mended {
        let mut mended = Mended { aside: std::mem::take(&mut loaded.aside), ..Mended::default() };
        let before = if lost { BTreeSet::new() } else { keys(loaded) };
        let committed = mark::read(&self.paths.state);
        let scope = if lost {
            Scope::All
        } else {
            mended.fell_back = committed.is_some_and(|committed| committed > loaded.index);
            mended.anew.extend(forward::roll(loaded, read, committed.unwrap_or(0)));
            mended.last = committed.map(|committed| committed.max(loaded.index));
            let mut keys = missing(loaded, &mended.aside);
            if mended.fell_back {
                keys.extend(forgotten(loaded, read));
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
            let why = "what it belongs to is missing".to_owned();
            mended.aside.push(Aside { table, place, bytes, why });
        }
        mended.anew.extend(keys(loaded).difference(&before).cloned());
        mended
    }

    /// Keeps the bytes of records that go, each in a file of its own.
    fn keep_aside(&mut self, aside: &[Aside]) -> Result<(), OpenError> {
        let dir = self.paths.state.join("damaged");
        if !aside.is_empty() {
            durable::make_dir(&dir).map_err(io_error("make", &dir))?;
        }
        for Aside { table, place, bytes, why } in aside {
            let name = format!("{}.{}.{}", table.name(), herdlet_base::paths::encode(place), self.time());
            let path = unused(&dir.join(name));
            durable::write(&path, bytes).map_err(io_error("write", &path))?;
            let what = format!("{}/{place}", table.name());
            tracing::error!(record = what, path = %path.display(), why, "a record was set aside");
            self.damaged.push(SetAside { what, path, why: why.clone() });
        }
        Ok(())
    }

    /// Moves accepted files that can't be read out of the way of those that take their place. One that resists stays where it
    /// is: the others are worth a start.
    fn set_aside(&mut self, unreadable: &[UnreadableFile]) {
        let dir = self.paths.state.join("damaged");
        for UnreadableFile { path, why, .. } in unreadable {
            // As a power cut leaves a file that was new: there is nothing to keep.
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
                Err(error) => (path.clone(), format!("{why}; and it can't be moved away: {error}")),
            };
            self.damaged.push(SetAside { what: "accepted file".to_owned(), path, why });
        }
    }

    /// Makes the accepted files say what the records say. A file of what the database does not know is removed where it is of a
    /// commit after the last one, as a kill before a commit leaves it: nobody was told that it was accepted. So is one of what the
    /// database names as forgotten: the power failed just after it was removed. Any other is kept aside.
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
        accepted.learn(read);
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
                // A second name needs no space: the disk may be full, and nobody was told that this was accepted.
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

    /// Writes what was mended; all there is into a database that has to be made.
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
        for key in mended.anew.iter().filter(|key| !records.contains_key(key)) {
            writes.insert(code::place(key), Write::Delete);
        }
        for (key, value) in records.iter().filter(|(key, _)| new || mended.anew.contains(key)) {
            let bytes = code::encode_value(value).map_err(|error| refused(error.to_string()))?;
            writes.insert(code::place(key), Write::Put(bytes));
        }
        let db = match db {
            Some(db) if writes.is_empty() => return Ok(db),
            Some(db) => db,
            None => file::create(&self.path).map_err(|broken| refused(said(broken)))?,
        };
        file::guard(move || write(&db, &writes, index, &dir.instance().0, &Steps::default()).map(|()| db))
            .map_err(|broken| refused(said(broken)))?
            .map_err(refused)
    }

    /// The present, as part of a file name.
    fn time(&self) -> String {
        let UnixNanos(nanos) = self.now.wall;
        jiff::Timestamp::from_nanosecond(i128::from(nanos))
            .map_or_else(|_| nanos.to_string(), |time| time.strftime("%Y%m%dT%H%M%SZ").to_string())
    }
}

/// Keys of what was accepted in commits that the database has lost.
fn forgotten(loaded: &Loaded, read: &Read) -> BTreeSet<RecordKey> {
    let jobs =
        read.jobs.iter().filter(|(key, file)| !loaded.jobs.contains_key(key) && file.commit <= loaded.index);
    let volumes = read
        .volumes
        .iter()
        .filter(|(name, file)| !loaded.volumes.contains_key(*name) && file.commit <= loaded.index);
    let jobs = jobs.map(|(key, _)| RecordKey::Job(key.clone()));
    jobs.chain(volumes.map(|(name, _)| RecordKey::Volume(name.clone()))).collect()
}

/// Keys of records that the database should have and has not: damaged ones, and those of which a half is missing.
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

/// The files of jobs and volumes: what each stands for, where it is, the commit that it names.
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

/// Bytes of the records that might lack their other half.
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

/// The path, or one like it that is free.
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
