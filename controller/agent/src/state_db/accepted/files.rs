//! The accepted files: names, formats, and reading them back.
//!
//! An unreadable file is reported with the key of its object and does not prevent reading the others. A file of a
//! newer format is not damage; it aborts the read.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{AllocId, JobKey, UnixNanos, job::Job, volume::Volume};
use herdlet_base::{durable, paths};
use herdlet_plan::{
    job::{Definition, JobState},
    record::RecordKey,
    shared::volume::{Origin, VolumeIntent, VolumeState},
    state::Durable,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

/// The format of the files.
pub(crate) const FORMAT: u64 = 1;

/// `<namespace>.<id>.json`, see [`job_path`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobFile {
    /// [`FORMAT`].
    pub(crate) format: u64,
    /// The commit that accepted the content.
    pub(crate) commit: u64,
    /// Number of the current version.
    pub(crate) version: u64,
    /// The commit that created the job.
    pub(crate) create_index: u64,
    /// When the current version was accepted.
    pub(crate) submit_time: UnixNanos,
    /// The job is being stopped and will be forgotten.
    pub(crate) deleting: bool,
    pub(crate) job: Arc<Job>,
    /// Where a folder of manifests defines the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) definition: Option<Definition>,
    /// Older versions that allocations still use.
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
    /// The commit that accepted the content.
    pub(crate) commit: u64,
    pub volume: Volume,
    /// What happens to the volume.
    pub(crate) fate: VolumeIntent,
}

/// `ended/<allocation>.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndedFile {
    /// [`FORMAT`].
    pub(crate) format: u64,
    /// The commit in which the allocation ended.
    pub(crate) commit: u64,
    /// Its stored state.
    pub(crate) state: Durable,
}

/// The content of all files.
#[derive(Debug, Clone, Default)]
pub struct Read {
    pub jobs: BTreeMap<JobKey, JobFile>,
    pub volumes: BTreeMap<String, VolumeFile>,
    pub ended: BTreeMap<AllocId, EndedFile>,
    /// Files that cannot be read.
    pub(crate) unreadable: Vec<UnreadableFile>,
}

/// An unreadable file. Its object was accepted nevertheless and must not count as gone.
#[derive(Debug, Clone)]
pub(crate) struct UnreadableFile {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
    /// The key of its object; `None` if the name is hashed.
    key: Option<RecordKey>,
}

impl UnreadableFile {
    fn is_of(&self, key: &RecordKey) -> bool {
        let expected = match (&self.key, key) {
            (Some(own), key) => return own == key,
            (None, RecordKey::Job(key)) => job_path(Path::new(""), key),
            (None, RecordKey::Volume(name)) => volume_path(Path::new(""), name),
            (
                None,
                RecordKey::Meta
                | RecordKey::JobVersion(..)
                | RecordKey::AllocSpec(_)
                | RecordKey::AllocState(_),
            ) => return false,
        };
        self.path.ends_with(expected)
    }
}

/// Why the files cannot be read as a whole.
#[derive(Debug, Error)]
pub enum ReadError {
    /// A newer release wrote one of them.
    #[error("read {}: it has format {found}", path.display())]
    Newer { path: PathBuf, found: u64 },
    /// A directory cannot be read.
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
            definition: state.definition.clone(),
            job,
            older,
        }
    }

    /// Whether all versions in the file belong to that job.
    pub fn is_of(&self, key: &JobKey) -> bool {
        self.versions().all(|(_, job)| job.key() == *key)
    }

    /// Every version in the file.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (u64, &Arc<Job>)> {
        let older = self.older.iter().map(|older| (older.version, &older.job));
        older.chain([(self.version, &self.job)])
    }
}

impl VolumeFile {
    pub fn new(state: &VolumeState, commit: u64) -> Self {
        Self { format: FORMAT, commit, volume: state.spec.clone(), fate: state.fate }
    }

    /// The content as a state.
    pub(crate) fn state(&self) -> VolumeState {
        VolumeState { spec: self.volume.clone(), origin: Origin::Manifest, fate: self.fate, path: None }
    }
}

impl EndedFile {
    pub fn new(state: &Durable, commit: u64) -> Self {
        Self { format: FORMAT, commit, state: state.clone() }
    }
}

/// The path of a job's file. The names of a namespace and an id that are too long for a file name are hashed.
pub fn job_path(dir: &Path, key: &JobKey) -> PathBuf {
    let plain = format!("{}.{}", paths::encode(&key.namespace), paths::encode(&key.id));
    let stem = if plain.len() > STEM_LEN_MAX { paths::hashed(&key.full()) } else { plain };
    dir.join(format!("{stem}.json"))
}

/// Leaves room in a file name for suffixes, also those of files that were set aside.
const STEM_LEN_MAX: usize = 200;

/// The path of a volume's file.
pub(crate) fn volume_path(dir: &Path, name: &str) -> PathBuf {
    dir.join("volumes").join(format!("{}.json", paths::file_name(name)))
}

/// The path of an ended allocation's file.
pub fn ended_path(dir: &Path, id: &AllocId) -> PathBuf {
    dir.join("ended").join(format!("{id}.json"))
}

impl Read {
    /// Reads every file below `<state>/accepted`; changes nothing.
    pub(crate) fn all(dir: &Path) -> Result<Self, ReadError> {
        let mut read = Self::default();
        for path in json_files(dir)? {
            let key = job_key_of(&path);
            if key.is_none() && !is_hashed(&path) {
                continue;
            }
            let is_of = |file: &JobFile| {
                let own = file.job.key();
                file.is_of(key.as_ref().unwrap_or(&own)) && job_path(dir, &own) == path
            };
            if let Some(file) = read.one(&path, || key.clone().map(RecordKey::Job), is_of)? {
                read.jobs.insert(file.job.key(), file);
            }
        }
        for path in json_files(&dir.join("volumes"))? {
            let name = stem(&path).and_then(paths::decode);
            if name.is_none() && !is_hashed(&path) {
                continue;
            }
            let is_of = |file: &VolumeFile| volume_path(dir, &file.volume.name) == path;
            if let Some(file) = read.one(&path, || name.clone().map(RecordKey::Volume), is_of)? {
                read.volumes.insert(file.volume.name.clone(), file);
            }
        }
        for path in json_files(&dir.join("ended"))? {
            let Some(id) = stem(&path).and_then(|id| id.parse().ok()).map(AllocId) else { continue };
            // The content does not name its allocation.
            if let Some(file) = read.one(&path, || Some(RecordKey::AllocState(id)), |_: &EndedFile| true)? {
                read.ended.insert(id, file);
            }
        }
        Ok(read)
    }

    /// Whether the object has a file, readable or not.
    pub(crate) fn names(&self, key: &RecordKey) -> bool {
        let readable = match key {
            RecordKey::Job(key) => self.jobs.contains_key(key),
            RecordKey::Volume(name) => self.volumes.contains_key(name),
            RecordKey::AllocState(id) => self.ended.contains_key(id),
            RecordKey::Meta | RecordKey::JobVersion(..) | RecordKey::AllocSpec(_) => false,
        };
        readable || self.unreadable.iter().any(|file| file.is_of(key))
    }

    fn one<T: DeserializeOwned>(
        &mut self,
        path: &Path,
        key: impl FnOnce() -> Option<RecordKey>,
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
            Ok(_) => "its content belongs to another object than its name".to_owned(),
            Err(error) => error.to_string(),
        };
        self.unreadable.push(UnreadableFile { path: path.to_owned(), why, key: key() });
        Ok(None)
    }
}

/// Reads a regular file; anything else, such as a fifo, could block the agent indefinitely.
fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    fs::read(path)
}

/// Removes temporary files that a crash has left.
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

/// The field common to all formats.
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

fn is_hashed(path: &Path) -> bool {
    stem(path).is_some_and(|stem| stem.starts_with('~'))
}

/// The job whose file this is, if its name is not hashed.
pub fn job_key_of(path: &Path) -> Option<JobKey> {
    let (namespace, id) = stem(path)?.split_once('.')?;
    Some(JobKey { namespace: paths::decode(namespace)?.into(), id: paths::decode(id)?.into() })
}
