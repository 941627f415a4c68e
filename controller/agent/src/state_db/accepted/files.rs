//! The accepted files themselves: names, shapes, reading all of them back.
//!
//! A file that can't be read is reported, with what it stood for, and keeps nobody from the others; one of a newer format is no
//! damage and stops everything.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{AllocId, JobKey, UnixNanos, job::Job, volume::Volume};
use herdlet_base::{durable, paths};
use herdlet_plan::{
    job::JobState,
    record::RecordKey,
    shared::volume::{Fate, Origin, VolumeState},
    state::Durable,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

/// The format of the files.
pub(crate) const FORMAT: u64 = 1;

/// `<namespace>.<id>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobFile {
    /// [`FORMAT`].
    pub(crate) format: u64,
    /// The commit that accepted what the file says.
    pub(crate) commit: u64,
    /// Number of the current version.
    pub(crate) version: u64,
    /// Commit in which the job was made.
    pub(crate) create_index: u64,
    /// When the current version was accepted.
    pub(crate) submit_time: UnixNanos,
    /// It is being stopped and will be forgotten.
    pub(crate) deleting: bool,
    pub(crate) job: Arc<Job>,
    /// Older versions that allocations are made from.
    #[serde(default)]
    pub(crate) older: Vec<OlderVersion>,
}

/// A version that is not the current one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OlderVersion {
    pub(crate) version: u64,
    pub(crate) job: Arc<Job>,
}

/// `volumes/<name>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VolumeFile {
    /// [`FORMAT`].
    pub(crate) format: u64,
    /// The commit that accepted what the file says.
    pub(crate) commit: u64,
    pub volume: Volume,
    /// What becomes of it.
    pub(crate) fate: Fate,
}

/// `ended/<allocation>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndedFile {
    /// [`FORMAT`].
    pub(crate) format: u64,
    /// The commit in which it ended.
    pub(crate) commit: u64,
    /// What is remembered of it.
    pub(crate) state: Durable,
}

/// All that the files say.
#[derive(Debug, Clone, Default)]
pub struct Read {
    pub jobs: BTreeMap<JobKey, JobFile>,
    pub volumes: BTreeMap<String, VolumeFile>,
    pub ended: BTreeMap<AllocId, EndedFile>,
    /// Files that say nothing.
    pub(crate) unreadable: Vec<UnreadableFile>,
}

/// A file that says nothing. What it stands for was accepted all the same: it must not count as gone.
#[derive(Debug, Clone)]
pub(crate) struct UnreadableFile {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
    /// What it stands for.
    pub(crate) key: RecordKey,
}

/// Why the files can't be read as a whole.
#[derive(Debug, Error)]
pub enum ReadError {
    /// A newer release wrote one.
    #[error("read {}: it has format {found}", path.display())]
    Newer { path: PathBuf, found: u64 },
    /// A directory can't be read.
    #[error("read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl JobFile {
    pub fn new(state: &JobState, job: Arc<Job>, older: Vec<OlderVersion>, commit: u64) -> Self {
        Self {
            format: FORMAT,
            commit,
            version: state.version,
            create_index: state.create_index,
            submit_time: state.submit_time,
            deleting: state.deleting,
            job,
            older,
        }
    }

    /// Whether all it holds is of that job.
    pub fn is_of(&self, key: &JobKey) -> bool {
        self.versions().all(|(_, job)| job.key() == *key)
    }

    /// Every version the file holds.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (u64, &Arc<Job>)> {
        let older = self.older.iter().map(|older| (older.version, &older.job));
        older.chain([(self.version, &self.job)])
    }
}

impl VolumeFile {
    pub fn new(state: &VolumeState, commit: u64) -> Self {
        Self { format: FORMAT, commit, volume: state.spec.clone(), fate: state.fate }
    }

    /// What it says, as a state.
    pub(crate) fn state(&self) -> VolumeState {
        VolumeState { spec: self.volume.clone(), origin: Origin::Manifest, fate: self.fate, path: None }
    }
}

impl EndedFile {
    pub fn new(state: &Durable, commit: u64) -> Self {
        Self { format: FORMAT, commit, state: state.clone() }
    }
}

/// Where a job's file is.
pub fn job_path(dir: &Path, key: &JobKey) -> PathBuf {
    dir.join(format!("{}.{}.json", paths::encode(&key.namespace), paths::encode(&key.id)))
}

/// Where a volume's file is.
pub(crate) fn volume_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("volumes").join(format!("{}.json", paths::encode(name)))
}

/// Where the file of an ended allocation is.
pub fn ended_path(dir: &Path, id: &AllocId) -> PathBuf {
    dir.join("ended").join(format!("{id}.json"))
}

impl Read {
    /// Reads every file below `<state>/accepted`; changes nothing.
    pub(crate) fn all(dir: &Path) -> Result<Self, ReadError> {
        let mut read = Self::default();
        for path in json_files(dir)? {
            let Some(key) = job_key_of(&path) else { continue };
            let is_of = |file: &JobFile| file.is_of(&key);
            if let Some(file) = read.one(&path, || RecordKey::Job(key.clone()), is_of)? {
                read.jobs.insert(key, file);
            }
        }
        for path in json_files(&dir.join("volumes"))? {
            let Some(name) = stem(&path).and_then(paths::decode) else { continue };
            let is_of = |file: &VolumeFile| file.volume.name == name;
            if let Some(file) = read.one(&path, || RecordKey::Volume(name.clone()), is_of)? {
                read.volumes.insert(name, file);
            }
        }
        for path in json_files(&dir.join("ended"))? {
            let Some(id) = stem(&path).and_then(|id| id.parse().ok()).map(AllocId) else { continue };
            // It doesn't say whose it is.
            if let Some(file) = read.one(&path, || RecordKey::AllocState(id), |_: &EndedFile| true)? {
                read.ended.insert(id, file);
            }
        }
        Ok(read)
    }

    /// Whether a file stands for the object, readable or not.
    pub(crate) fn names(&self, key: &RecordKey) -> bool {
        let readable = match key {
            RecordKey::Job(key) => self.jobs.contains_key(key),
            RecordKey::Volume(name) => self.volumes.contains_key(name),
            RecordKey::AllocState(id) => self.ended.contains_key(id),
            RecordKey::Meta | RecordKey::JobVersion(..) | RecordKey::AllocSpec(_) => false,
        };
        readable || self.unreadable.iter().any(|file| file.key == *key)
    }

    fn one<T: DeserializeOwned>(
        &mut self,
        path: &Path,
        key: impl FnOnce() -> RecordKey,
        is_of: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, ReadError> {
        let bytes = match read_regular(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.unreadable.push(UnreadableFile {
                    path: path.to_owned(),
                    why: error.to_string(),
                    key: key(),
                });
                return Ok(None);
            }
        };
        match serde_json::from_slice::<Format>(&bytes) {
            Ok(Format { format: found }) if found > FORMAT => {
                return Err(ReadError::Newer { path: path.to_owned(), found });
            }
            Ok(_) | Err(_) => {}
        }
        let why = match serde_json::from_slice(&bytes) {
            Ok(file) if is_of(&file) => return Ok(Some(file)),
            Ok(_) => "it says that it is something else than its name says".to_owned(),
            Err(error) => error.to_string(),
        };
        self.unreadable.push(UnreadableFile { path: path.to_owned(), why, key: key() });
        Ok(None)
    }
}

/// Reads a file; anything else, a fifo for instance, could hold up the agent for ever.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read(path)
}

/// Removes what a crash left of files that were being written.
pub(crate) fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for dir in [dir.to_owned(), dir.join("volumes"), dir.join("ended")] {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if durable::is_temporary(&entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// What every format has.
#[derive(Deserialize)]
struct Format {
    format: u64,
}

fn json_files(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let io_error = |source| ReadError::Io { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(io_error)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".json") && !name.starts_with('.') {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

pub fn stem(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(".json")
}

pub fn job_key_of(path: &Path) -> Option<JobKey> {
    let (namespace, id) = stem(path)?.split_once('.')?;
    Some(JobKey { namespace: paths::decode(namespace)?.into(), id: paths::decode(id)?.into() })
}
