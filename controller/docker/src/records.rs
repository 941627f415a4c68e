//! The record of each attempt, in a directory of the agent's state: a small file by the attempt's name.
//!
//! In: attempts. Out: records. A record is created before its container, so that an attempt without record was never started. A
//! fence is a record that says that the attempt never starts: it needs no engine. The container itself is found by its name.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    io::Write as _,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_api_types::AllocId;
use herdlet_driver::{AttemptId, TaskConfig};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{engine::Place, names, pins};

/// What is recorded of an attempt. Newer releases add fields, each with a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Whether it may start.
    pub(crate) claim: RecordClaim,
    /// The engine that has its container.
    pub(crate) engine: Option<Place>,
    /// The name of its container.
    #[serde(default)]
    pub(crate) container: String,
    /// Where its output is copied to; none if it has no logs.
    #[serde(default)]
    pub(crate) logs: Option<LogTarget>,
    /// The image, as the task names it.
    #[serde(default)]
    pub(crate) image: String,
    /// Ports inside the container, by label.
    #[serde(default)]
    pub(crate) port_map: std::collections::BTreeMap<String, u16>,
    /// Whether services use the container's IPv6 address.
    #[serde(default)]
    pub(crate) advertise_ipv6: bool,
    /// The hash of the request that creates its container; empty if it is unknown.
    #[serde(default)]
    pub(crate) request: String,
    /// Whether the engine was asked to start its container.
    #[serde(default)]
    pub(crate) launch: Launch,
}

/// What the engine was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Launch {
    /// At most to create the container: without one the attempt has not started.
    Unrequested,
    /// To start it, or it is unknown: without a container the attempt may have run.
    #[default]
    Requested,
}

/// The claim of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordClaim {
    /// It may have started.
    Taken,
    /// It never starts.
    Fenced,
}

/// Where an attempt's output is copied to, and how much of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogTarget {
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) max_files: u32,
    pub(crate) max_file_size_mib: u64,
}

impl LogTarget {
    pub(crate) fn of(task: &TaskConfig) -> Self {
        Self {
            dir: task.dirs.logs.clone(),
            name: task.dirs.log_name.clone(),
            max_files: task.logs.max_files,
            max_file_size_mib: task.logs.max_file_size_mib,
        }
    }
}

impl Record {
    /// Whether a container was created by this record's request.
    pub(crate) fn is_of(&self, request: Option<&str>) -> bool {
        self.request.is_empty() || request == Some(&self.request)
    }

    fn fence() -> Self {
        Self {
            claim: RecordClaim::Fenced,
            engine: None,
            container: String::new(),
            logs: None,
            image: String::new(),
            port_map: Default::default(),
            advertise_ipv6: false,
            request: String::new(),
            launch: Launch::Requested,
        }
    }
}

/// The directory of seccomp profiles in the directory of the records. Its name is no attempt's.
const PROFILES: &str = "profiles";

/// The directory of mounts for engines, in the directory of the records. Its name is no attempt's.
const PINS: &str = "pins";

/// Begin of the names of notes about pause containers. No attempt has such a name.
const PAUSE: &str = "pause-";

/// The directory of the records.
#[derive(Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    /// Opens the directory, creating it if it is missing. Removes the partial files of an agent that was killed.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                fs::remove_file(entry.path())?;
            }
        }
        let records = Self { dir: dir.to_owned() };
        records.remove_stray_profiles()?;
        records.remove_stray_pins()?;
        Ok(records)
    }

    fn path(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(id.name())
    }

    /// The file that identifies the daemon at a socket. Its name is no attempt's.
    pub(crate) fn daemon(&self, socket: &Path) -> PathBuf {
        let hash = Sha256::digest(socket.as_os_str().as_encoded_bytes());
        self.dir.join(format!("daemon-{}", names::hex(&hash).chars().take(16).collect::<String>()))
    }

    /// The directory with an attempt's files for its engine.
    fn profiles(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(PROFILES).join(id.name())
    }

    /// Stores a file of an attempt for its engine under a name that only its content has. It is removed with the attempt's record.
    pub(crate) fn store_file(&self, id: &AttemptId, content: &str) -> io::Result<PathBuf> {
        let name = names::hex(&Sha256::digest(content.as_bytes())).chars().take(32).collect::<String>();
        let path = self.profiles(id).join(name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.profiles(id))?;
        let partial = self.partial();
        fs::write(&partial, content)?;
        fs::set_permissions(&partial, fs::Permissions::from_mode(0o644))?;
        fs::rename(&partial, &path)?;
        Ok(path)
    }

    /// The directory of the mounts that an attempt's start needs.
    pub(crate) fn pins(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(PINS).join(id.name())
    }

    /// Removes the mounts of an attempt, which it does not need any more.
    pub(crate) fn unpin(&self, id: &AttemptId) -> io::Result<()> {
        pins::unmount(&self.pins(id))
    }

    /// Removes the mounts of attempts without a record. The engine may be about to use those of others.
    fn remove_stray_pins(&self) -> io::Result<()> {
        for name in entries(&self.dir.join(PINS))? {
            if !self.dir.join(&name).exists() {
                pins::unmount(&self.dir.join(PINS).join(name))?;
            }
        }
        Ok(())
    }

    /// Removes the profiles of attempts without a record: an agent was killed before it claimed one.
    fn remove_stray_profiles(&self) -> io::Result<()> {
        for name in entries(&self.dir.join(PROFILES))? {
            if !self.dir.join(&name).exists() {
                fs::remove_dir_all(self.dir.join(PROFILES).join(name))?;
            }
        }
        Ok(())
    }

    /// The path of a file that is not complete yet.
    fn partial(&self) -> PathBuf {
        self.dir.join(format!(".{}", uuid::Uuid::new_v4()))
    }

    /// The file with the position of an attempt's logs.
    pub(crate) fn position(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(format!("{}.position", id.name()))
    }

    /// A record that can't be read, after a power cut or of another release, is replaced by one with which the container is found by
    /// its name.
    pub(crate) fn read(&self, id: &AttemptId) -> io::Result<Option<Record>> {
        match fs::read(self.path(id)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes).or_else(|error| {
                tracing::warn!(%id, %error, "the record of an attempt is damaged; its container is looked for by its name");
                let unknown = Record { claim: RecordClaim::Taken, ..Record::fence() };
                self.write(id, &unknown).map(|()| unknown)
            })?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Claims an attempt. Returns the record that it has from then on: a fence stays, and so does an earlier request to start it.
    pub(crate) fn claim(&self, id: &AttemptId, record: &Record) -> io::Result<Record> {
        let launch = match self.read(id)? {
            Some(known) if known.claim == RecordClaim::Fenced => return Ok(known),
            Some(known) => known.launch,
            None => record.launch,
        };
        let record = Record { launch, ..record.clone() };
        self.write(id, &record)?;
        Ok(record)
    }

    /// Notes what the engine is asked for from now on.
    pub(crate) fn note_launch(&self, id: &AttemptId, record: &Record, launch: Launch) -> io::Result<()> {
        self.write(id, &Record { launch, ..record.clone() })
    }

    /// Fences an attempt, whose container does not exist.
    pub(crate) fn fence(&self, id: &AttemptId) -> io::Result<()> {
        self.write(id, &Record::fence())
    }

    /// Writes atomically: no reader sees a partial record.
    fn write(&self, id: &AttemptId, record: &Record) -> io::Result<()> {
        let partial = self.partial();
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(&partial, self.path(id))
    }

    pub(crate) fn remove(&self, id: &AttemptId) -> io::Result<()> {
        let unless_missing = |result: io::Result<()>| match result {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        self.unpin(id)?;
        unless_missing(fs::remove_dir_all(self.profiles(id)))?;
        unless_missing(fs::remove_file(self.position(id)))?;
        unless_missing(fs::remove_file(self.path(id)))
    }

    /// All attempts with a record.
    pub(crate) fn list(&self) -> io::Result<Vec<AttemptId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(AttemptId::parse));
        }
        found.sort();
        Ok(found)
    }

    fn place(&self, alloc: AllocId) -> PathBuf {
        self.dir.join(format!("engine-{alloc}"))
    }

    /// Notes the engine of an allocation: its later attempts use it too, also if none has a record between two.
    pub(crate) fn note_engine(&self, alloc: AllocId, engine: &Place) -> io::Result<()> {
        let partial = self.partial();
        fs::write(&partial, serde_json::to_vec(engine)?)?;
        fs::rename(&partial, self.place(alloc))
    }

    fn pause(&self, alloc: AllocId) -> PathBuf {
        self.dir.join(format!("{PAUSE}{alloc}"))
    }

    /// Notes that an allocation may have a pause container from now on, and its engine.
    pub(crate) fn note_pause(&self, alloc: AllocId, engine: &Place) -> io::Result<()> {
        let partial = self.partial();
        fs::write(&partial, serde_json::to_vec(engine)?)?;
        fs::rename(&partial, self.pause(alloc))
    }

    /// The engine with the pause container that an allocation may have. A note that can't be read names none.
    pub(crate) fn pause_of(&self, alloc: AllocId) -> io::Result<Option<Place>> {
        match fs::read(self.pause(alloc)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Notes that an allocation has no pause container any more.
    pub(crate) fn forget_pause(&self, alloc: AllocId) -> io::Result<()> {
        match fs::remove_file(self.pause(alloc)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The allocations that may have pause containers.
    pub(crate) fn pauses(&self) -> io::Result<Vec<AllocId>> {
        let names = entries(&self.dir)?;
        let ids = names.iter().filter_map(|name| name.to_str()?.strip_prefix(PAUSE)?.parse().ok());
        Ok(ids.map(AllocId).collect())
    }

    /// Forgets the engines of allocations that started nothing for this long and have no record.
    pub(crate) fn forget_engines(&self, age: Duration) -> io::Result<()> {
        let known: BTreeSet<String> =
            self.list()?.iter().map(|id| self.place(id.alloc).display().to_string()).collect();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let is_place = entry.file_name().as_encoded_bytes().starts_with(b"engine-");
            let is_old =
                || entry.metadata()?.modified().map(|at| at.elapsed().is_ok_and(|since| since >= age));
            if is_place && is_old()? && !known.contains(&entry.path().display().to_string()) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The engine of an allocation.
    pub(crate) fn engine_of(&self, id: &AttemptId) -> io::Result<Option<Place>> {
        let noted = fs::read(self.place(id.alloc)).ok();
        if let Some(place) = noted.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return Ok(Some(place));
        }
        let mut known = self.list()?;
        known.retain(|other| other.alloc == id.alloc);
        for other in known.iter().rev() {
            if let Some(place) = self.read(other)?.and_then(|record| record.engine) {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

/// The names in a directory, which may be missing.
fn entries(dir: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.map(|entry| entry.map(|entry| entry.file_name())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    #[test]
    fn a_damaged_record_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt: 1 };
        for text in ["", "{\"claim\": \"later\", \"engine\": null}", "{\"claim\": \"taken\""] {
            fs::write(records.path(&id), text).unwrap();
            let read = records.read(&id).unwrap().unwrap();
            assert_eq!((read.claim, read.engine), (RecordClaim::Taken, None), "{text}");
            assert_eq!(records.list().unwrap(), std::slice::from_ref(&id));
        }
    }

    /// Profiles stayed for ever.
    #[test]
    fn profiles_are_removed_with_the_record_or_by_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = |attempt| AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt };
        let record = Record { claim: RecordClaim::Taken, ..Record::fence() };
        records.claim(&id(1), &record).unwrap();
        records.claim(&id(2), &record).unwrap();
        let kept: Vec<PathBuf> =
            [1, 1, 2, 3].map(|attempt| records.store_file(&id(attempt), "{}").unwrap()).to_vec();
        assert_eq!(kept[0], kept[1]);
        assert_ne!(records.store_file(&id(1), "[]").unwrap(), kept[0]);
        let there = || [&kept[0], &kept[2], &kept[3]].map(|path| path.exists());
        records.remove(&id(1)).unwrap();
        assert_eq!(there(), [false, true, true]);
        let records = Records::open(dir.path()).unwrap();
        assert_eq!(there(), [false, true, false]);
        assert_eq!(records.list().unwrap(), [id(2)]);
        records.remove(&id(2)).unwrap();
        assert_eq!(fs::read_dir(dir.path().join(PROFILES)).unwrap().count(), 0);
    }

    /// An agent that was killed during a start left its mounts for ever.
    #[test]
    fn mounts_are_removed_with_the_record_or_by_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = |attempt| AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt };
        let record = Record { claim: RecordClaim::Taken, ..Record::fence() };
        records.claim(&id(1), &record).unwrap();
        records.claim(&id(2), &record).unwrap();
        for attempt in [1, 2, 3] {
            fs::create_dir_all(records.pins(&id(attempt)).join("0")).unwrap();
        }
        let there = |records: &Records| [1, 2, 3].map(|attempt| records.pins(&id(attempt)).exists());
        records.remove(&id(1)).unwrap();
        assert_eq!(there(&records), [false, true, true]);
        // Of the second one the engine may be about to start the container.
        let records = Records::open(dir.path()).unwrap();
        assert_eq!(there(&records), [false, true, false]);
        assert_eq!(records.list().unwrap(), [id(2)]);
        records.remove(&id(2)).unwrap();
        assert_eq!(there(&records), [false; 3]);
    }

    #[test]
    fn a_fence_stays_and_an_allocation_keeps_its_engine() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path()).unwrap();
        let id = |attempt| AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt };
        let place = Place { kind: Kind::Podman, socket: "/x".into() };
        let record = Record { claim: RecordClaim::Taken, engine: Some(place.clone()), ..Record::fence() };
        assert_eq!(records.claim(&id(1), &record).unwrap(), record);
        assert_eq!(records.engine_of(&id(2)).unwrap(), Some(place));
        records.fence(&id(2)).unwrap();
        assert_eq!(records.claim(&id(2), &record).unwrap().claim, RecordClaim::Fenced);
        fs::write(records.position(&id(1)), "x").unwrap();
        assert_eq!(records.list().unwrap(), [id(1), id(2)]);
        for attempt in [1, 2] {
            records.remove(&id(attempt)).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // An allocation between two attempts has no record.
        let place = Place { kind: Kind::Docker, socket: "/y".into() };
        records.note_engine(id(1).alloc, &place).unwrap();
        records.forget_engines(Duration::from_secs(60)).unwrap();
        assert_eq!(records.engine_of(&id(2)).unwrap(), Some(place));
        records.claim(&id(3), &record).unwrap();
        records.forget_engines(Duration::ZERO).unwrap();
        assert!(records.engine_of(&id(2)).unwrap().is_some_and(|place| place.socket == Path::new("/y")));
        records.remove(&id(3)).unwrap();
        records.forget_engines(Duration::ZERO).unwrap();
        assert_eq!(records.engine_of(&id(2)).unwrap(), None);
    }
}
