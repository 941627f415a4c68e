//! The accepted state as plain files, from which a lost database is rebuilt.
//!
//! In: the records of each commit, before the database gets them. Out: one JSON file per job and per volume from a
//! manifest, and one per ended allocation (so that finished work is not repeated). All are 0600. It must not know how
//! the database is stored.
//!
//! ```text
//! <state>/accepted/<namespace>.<id>.json      a job: its current version, and older ones that allocations still use
//! <state>/accepted/volumes/<name>.json        a volume
//! <state>/accepted/ended/<allocation>.json    the state of an allocation that has ended
//! ```
//!
//! A commit writes the files first and the database second, both before any request is answered. Only the database
//! write waits for the disk: the database is authoritative, and the next start repairs from it whatever a crash or a
//! power cut did to the files. If an intact database has no record of a file's object, it has forgotten the object or
//! never accepted it. Each file names its commit, in case the database has fallen back to an older one.

pub mod files;
pub(crate) mod forward;
pub mod rebuild;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{AllocId, JobKey, job::Job};
use herdlet_base::durable::{self, Outlives, Steps};
use herdlet_plan::{
    job::{Definition, JobState},
    record::{Record, RecordKey, RecordValue},
    shared::volume::{Origin, VolumeState},
    state::{Durable, Run},
};

pub use rebuild::KeptAllocation;

pub use files::{EndedFile, JobFile, OlderVersion, Read, ReadError, VolumeFile};

/// A file is lost only if the power fails at the moment at which the database is lost.
const OUTLIVES: Outlives = Outlives::Processes;

/// The accepted files of one state directory.
#[derive(Debug)]
pub(crate) struct Accepted {
    dir: PathBuf,
    steps: Steps,
    /// The content of each job's file, without the jobs themselves.
    jobs: BTreeMap<JobKey, Outline>,
    /// Every stored version, shared with the planner.
    versions: BTreeMap<(JobKey, u64), Arc<Job>>,
    volumes: BTreeMap<String, VolumeState>,
    ended: BTreeSet<AllocId>,
}

/// A job's file without the jobs in it. Equal outlines mean equal files, because versions are immutable.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outline {
    version: u64,
    create_index: u64,
    submit_time: i64,
    deleting: bool,
    definition: Option<Definition>,
    older: BTreeSet<u64>,
}

/// The target state of a file.
enum FileContents<'a> {
    Job(&'a JobState),
    Volume(&'a VolumeState),
    Ended(&'a Durable),
    Nothing,
}

impl Accepted {
    /// Opens the files below `<state>/accepted`; creates the directories.
    pub(crate) fn open(dir: PathBuf) -> io::Result<Self> {
        for made in [dir.clone(), dir.join("volumes"), dir.join("ended")] {
            durable::make_dir(&made)?;
        }
        Ok(Self {
            dir,
            steps: Steps::default(),
            jobs: BTreeMap::new(),
            versions: BTreeMap::new(),
            volumes: BTreeMap::new(),
            ended: BTreeSet::new(),
        })
    }

    #[cfg(test)]
    pub(crate) fn set_steps(&mut self, steps: Steps) {
        self.steps = steps;
    }

    /// Registers the files' current content, so that only differences are written.
    pub(crate) fn load(&mut self, read: &Read) {
        self.jobs = read.jobs.iter().map(|(key, file)| (key.clone(), outline_of(file))).collect();
        self.volumes = read.volumes.iter().map(|(name, file)| (name.clone(), file.state())).collect();
        self.ended = read.ended.keys().copied().collect();
    }

    /// The keys of all objects with a file.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RecordKey> {
        let jobs = self.jobs.keys().cloned().map(RecordKey::Job);
        let volumes = self.volumes.keys().cloned().map(RecordKey::Volume);
        jobs.chain(volumes).chain(self.ended.iter().copied().map(RecordKey::AllocState))
    }

    /// Updates the files to match `records`, under the number of the commit that will contain them. Idempotent.
    pub(crate) fn take(&mut self, records: &[Record], commit: u64) -> io::Result<()> {
        let mut wanted: BTreeMap<&RecordKey, FileContents<'_>> = BTreeMap::new();
        for record in records {
            match record {
                Record::Put(RecordKey::JobVersion(key, version), RecordValue::JobVersion(job)) => {
                    self.versions.insert((key.clone(), *version), Arc::clone(job));
                }
                Record::Put(key, RecordValue::Job(state)) => {
                    wanted.insert(key, FileContents::Job(state));
                }
                Record::Put(key, RecordValue::Volume(state)) if state.origin == Origin::Manifest => {
                    wanted.insert(key, FileContents::Volume(state));
                }
                Record::Put(key @ RecordKey::AllocState(_), RecordValue::AllocState(state)) => {
                    wanted.insert(
                        key,
                        if has_ended(state) { FileContents::Ended(state) } else { FileContents::Nothing },
                    );
                }
                Record::Delete(
                    key @ (RecordKey::Job(_) | RecordKey::Volume(_) | RecordKey::AllocState(_)),
                ) => {
                    wanted.insert(key, FileContents::Nothing);
                }
                Record::Put(
                    _,
                    RecordValue::Meta(_)
                    | RecordValue::JobVersion(_)
                    | RecordValue::Volume(_)
                    | RecordValue::AllocSpec(_)
                    | RecordValue::AllocState(_),
                )
                | Record::Delete(RecordKey::Meta | RecordKey::JobVersion(..) | RecordKey::AllocSpec(_)) => {}
            }
        }
        // Write before removing: were the database lost at this moment, too much is better than too little.
        for (key, wanted) in &wanted {
            self.put(key, wanted, commit)?;
        }
        for (key, wanted) in &wanted {
            if matches!(wanted, FileContents::Nothing) {
                self.drop_file(key)?;
            }
        }
        self.forget_versions(records);
        Ok(())
    }

    fn put(&mut self, key: &RecordKey, wanted: &FileContents<'_>, commit: u64) -> io::Result<()> {
        match (key, wanted) {
            (RecordKey::Job(key), FileContents::Job(state)) => self.put_job(key, state, commit),
            (RecordKey::Volume(name), FileContents::Volume(state)) => {
                let written = self.volumes.get(name);
                if written.is_some_and(|written| written.spec == state.spec && written.fate == state.fate) {
                    return Ok(());
                }
                let file = VolumeFile::new(state, commit);
                self.write(&files::volume_path(&self.dir, name), &file)?;
                self.volumes.insert(name.clone(), VolumeState::clone(state));
                Ok(())
            }
            (RecordKey::AllocState(id), FileContents::Ended(state)) if !self.ended.contains(id) => {
                self.write(&files::ended_path(&self.dir, id), &EndedFile::new(state, commit))?;
                self.ended.insert(*id);
                Ok(())
            }
            (
                RecordKey::Meta
                | RecordKey::Job(_)
                | RecordKey::JobVersion(..)
                | RecordKey::Volume(_)
                | RecordKey::AllocSpec(_)
                | RecordKey::AllocState(_),
                _,
            ) => Ok(()),
        }
    }

    fn put_job(&mut self, key: &JobKey, state: &JobState, commit: u64) -> io::Result<()> {
        let Some(job) = self.versions.get(&(key.clone(), state.version)) else {
            // A job without its current version cannot run either; the file stays unchanged.
            tracing::error!(job = %key, version = state.version, "a job was stored without its current version");
            return Ok(());
        };
        let older: Vec<OlderVersion> = state
            .versions
            .iter()
            .filter(|version| **version != state.version)
            .filter_map(|version| {
                let job = Arc::clone(self.versions.get(&(key.clone(), *version))?);
                Some(OlderVersion { version: *version, job })
            })
            .collect();
        let file = JobFile::new(state, Arc::clone(job), older, commit);
        let outline = outline_of(&file);
        if self.jobs.get(key) == Some(&outline) {
            return Ok(());
        }
        self.write(&files::job_path(&self.dir, key), &file)?;
        self.jobs.insert(key.clone(), outline);
        Ok(())
    }

    fn drop_file(&mut self, key: &RecordKey) -> io::Result<()> {
        match key {
            RecordKey::Job(key) => {
                if self.jobs.contains_key(key) {
                    self.remove(&files::job_path(&self.dir, key))?;
                    self.jobs.remove(key);
                }
            }
            RecordKey::Volume(name) => {
                if self.volumes.contains_key(name) {
                    self.remove(&files::volume_path(&self.dir, name))?;
                    self.volumes.remove(name);
                }
            }
            RecordKey::AllocState(id) => {
                if self.ended.contains(id) {
                    self.remove(&files::ended_path(&self.dir, id))?;
                    self.ended.remove(id);
                }
            }
            RecordKey::Meta | RecordKey::JobVersion(..) | RecordKey::AllocSpec(_) => {}
        }
        Ok(())
    }

    /// Forgets deleted versions, except those that a later record of the batch writes again.
    fn forget_versions(&mut self, records: &[Record]) {
        let mut gone: BTreeSet<(JobKey, u64)> = BTreeSet::new();
        for record in records {
            match record {
                Record::Delete(RecordKey::JobVersion(key, version)) => {
                    gone.insert((key.clone(), *version));
                }
                Record::Put(RecordKey::JobVersion(key, version), _) => {
                    gone.remove(&(key.clone(), *version));
                }
                Record::Put(..) | Record::Delete(_) => {}
            }
        }
        self.versions.retain(|version, _| !gone.contains(version));
    }

    fn write(&self, path: &Path, file: &impl serde::Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(file)?;
        bytes.push(b'\n');
        durable::write_in_steps(path, &bytes, OUTLIVES, &self.steps)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        durable::remove_in_steps(path, OUTLIVES, &self.steps)
    }
}

/// Whether nothing of the allocation will run again.
fn has_ended(state: &Durable) -> bool {
    state.status.is_terminal()
        && !state.tasks.is_empty()
        && state.tasks.iter().all(|task| task.run == Run::Dead)
}

fn outline_of(file: &JobFile) -> Outline {
    Outline {
        version: file.version,
        create_index: file.create_index,
        submit_time: file.submit_time.0,
        deleting: file.deleting,
        definition: file.definition.clone(),
        older: file.older.iter().map(|older| older.version).collect(),
    }
}
