//! What was begun for an allocation.
//!
//! In: an allocation. Out: a file for each network that plugins have set up, or have begun to. Plugins keep addresses and rules of
//! their own, so the file is written before the first one is called and removed after the last one has undone its part. It survives a
//! reboot, as the files of plugins do. It has the settings of the plugins: what was begun with them is undone with them, even
//! if the config has changed or gone since.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use herdlet_base::durable;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{chain::PortMapping, config::NetworkConfig};

/// The longest record: a config, a result, and their allocation.
const BYTES_MAX: u64 = 8 << 20;

/// Ends the names of records.
const ENDING: &str = ".json";

/// What is known of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The boot of the machine in which it was begun: no namespace outlasts it.
    pub boot: u64,
    pub network: NetworkConfig,
    /// The directories of its plugins.
    pub plugins: Vec<PathBuf>,
    /// The name of the interface in the namespace.
    pub interface: String,
    /// Further arguments of the plugins.
    pub args: String,
    pub ports: Vec<PortMapping>,
    pub phase: Phase,
    /// The result of the last plugin, once all have attached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// How often its removal has failed.
    #[serde(default)]
    pub failures: u32,
    /// Why it could not be attached, if what was begun could not be detached either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// How far a network is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Plugins attach it, or have been interrupted.
    Begun,
    Attached,
    /// Plugins detach it, or have been interrupted.
    Ending,
}

/// Why a record can't be read or written. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", path.display())]
pub struct RecordError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl RecordError {
    /// Whether the file is there, and is no record.
    pub fn is_damaged(&self) -> bool {
        self.source.kind() == io::ErrorKind::InvalidData || self.source.kind() == io::ErrorKind::UnexpectedEof
    }
}

/// The records of an agent.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
}

impl Records {
    /// Those in this directory, which is made with the first one.
    pub fn in_dir(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The path of a record.
    pub fn path(&self, owner: &str) -> PathBuf {
        self.dir.join(format!("{owner}{ENDING}"))
    }

    /// The record of an allocation.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn find(&self, owner: &str) -> Result<Option<Record>, RecordError> {
        let path = self.path(owner);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(failed("read", &path)(source)),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| failed("read", &path)(error.into()))
    }

    /// Writes the record of an allocation; it is on disk before this returns.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn write(&self, owner: &str, record: &Record) -> Result<(), RecordError> {
        let path = self.path(owner);
        let bytes = serde_json::to_vec(record).map_err(|error| failed("write", &path)(error.into()))?;
        durable::make_dir(&self.dir)
            .and_then(|()| durable::write(&path, &bytes))
            .map_err(failed("write", &path))
    }

    /// Removes the record of an allocation; without effect if there is none.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(&self, owner: &str) -> Result<(), RecordError> {
        let path = self.path(owner);
        if !self.dir.exists() {
            return Ok(());
        }
        durable::remove(&path).map_err(failed("remove", &path))
    }

    /// Removes the parts of records that a crash has left.
    pub fn remove_parts(&self) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| durable::is_temporary(&entry.file_name().to_string_lossy())) {
            let _ = fs::remove_file(entry.path());
        }
    }

    /// All allocations with a record, in order.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn owners(&self) -> Result<Vec<String>, RecordError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed("read", &self.dir)(source)),
        };
        let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>();
        let names = names.map_err(failed("read", &self.dir))?;
        let owner = |name: std::ffi::OsString| Some(name.to_str()?.strip_suffix(ENDING)?.to_owned());
        let mut owners: Vec<String> = names.into_iter().filter_map(owner).collect();
        owners.sort();
        Ok(owners)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RecordError {
    let path = path.to_owned();
    move |source| RecordError { what, path, source }
}
