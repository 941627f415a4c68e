//! The directory of each container: what it runs, what it changes, files about its network. A small record makes the attempt one of
//! this engine, whichever engine the agent's config names later.
//!
//! In: attempts. Out: directories by their names. A directory is made before its attempt is claimed, and removed when that is destroyed.
//! All calls block.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    durable,
    safe_fs::{Crossing, Dir, FsError},
};
use herdlet_driver::AttemptId;
use herdlet_images::config::ImageConfig;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use super::network_plan::NetworkPlan;
use crate::pins;

const RECORD: &str = "container.json";
const PINS: &str = "pins";
const CHANGES: &str = "changes";
/// The size of a container with more files than this is not measured.
pub(super) const MEASURED_MAX: usize = 1_000_000;

/// What a container has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// Bytes on the disk.
    Bytes(u64),
    /// More than [`MEASURED_MAX`].
    TooManyFiles,
}

/// What is recorded of a container. Newer releases add fields, each with a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerRecord {
    /// The image, as the task names it.
    pub(super) name: String,
    /// The digest of its config.
    pub(super) image: String,
    #[serde(default)]
    pub(super) user: String,
    #[serde(default)]
    pub(super) env: Vec<String>,
    #[serde(default)]
    pub(super) entrypoint: Vec<String>,
    #[serde(default)]
    pub(super) cmd: Vec<String>,
    #[serde(default)]
    pub(super) working_dir: String,
    #[serde(default)]
    pub(super) stop_signal: String,
    /// The network that is made for it.
    #[serde(default)]
    pub(super) network: NetworkPlan,
    /// How much it may change.
    #[serde(default)]
    pub(super) changes_bytes_max: Option<u64>,
}

impl ContainerRecord {
    pub(super) fn new(name: &str, image: &str, config: &ImageConfig) -> Self {
        Self {
            name: name.to_owned(),
            image: image.to_owned(),
            user: config.user.clone(),
            env: config.env.clone(),
            entrypoint: config.entrypoint.clone(),
            cmd: config.cmd.clone(),
            working_dir: config.working_dir.clone(),
            stop_signal: config.stop_signal.clone(),
            network: NetworkPlan::default(),
            changes_bytes_max: None,
        }
    }
}

/// The directory that has one for each container.
#[derive(Debug)]
pub(super) struct ContainerDirs {
    dir: PathBuf,
}

impl ContainerDirs {
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        durable::make_dir(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, id: &AttemptId) -> PathBuf {
        self.dir.join(id.name())
    }

    pub(super) fn pins(&self, id: &AttemptId) -> PathBuf {
        self.path(id).join(PINS)
    }

    pub(super) fn exists(&self, id: &AttemptId) -> bool {
        self.path(id).exists()
    }

    /// A record that can't be read, after a power cut, is none: what was begun is begun afresh, unless the attempt was claimed.
    pub(super) fn read(&self, id: &AttemptId) -> io::Result<Option<ContainerRecord>> {
        match fs::read(self.path(id).join(RECORD)) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write(&self, id: &AttemptId, record: &ContainerRecord) -> io::Result<()> {
        durable::make_dir(&self.path(id))?;
        durable::write(&self.path(id).join(RECORD), &serde_json::to_vec(record)?)
    }

    /// An empty directory for what the container changes. A start that was interrupted may have used it; none of its processes has run.
    pub(super) fn fresh_changes(&self, id: &AttemptId) -> io::Result<PathBuf> {
        let path = self.path(id);
        let dir = Dir::open(&path).map_err(io::Error::other)?;
        dir.remove_tree(CHANGES.as_ref()).map_err(io::Error::other)?;
        let changes = path.join(CHANGES);
        fs::DirBuilder::new().mode(0o700).create(&changes)?;
        Ok(changes)
    }

    /// Whether the files about a container's network are written: the directory of its changes is made after them.
    pub(super) fn has_network_files(&self, id: &AttemptId) -> bool {
        self.path(id).join(CHANGES).exists()
    }

    /// A file about a container's network, by the attempt's name.
    pub(super) fn file(&self, attempt: &str, name: &str) -> PathBuf {
        self.dir.join(attempt).join(name)
    }

    /// What a container has written outside of its mounts, in bytes on the disk; none if that can't be measured.
    pub(super) fn written_bytes(&self, id: &AttemptId) -> Option<u64> {
        match self.written(id) {
            Ok(Written::Bytes(bytes)) => Some(bytes),
            Ok(Written::TooManyFiles) | Err(_) => None,
        }
    }

    /// Measures what a container has written outside of its mounts. The container may change its files meanwhile: none of its links is
    /// followed.
    ///
    /// # Errors
    /// If the directory can't be opened.
    pub(super) fn written(&self, id: &AttemptId) -> Result<Written, FsError> {
        let changes = Dir::open(&self.path(id).join(CHANGES))?;
        let (mut bytes, mut left) = (0_u64, MEASURED_MAX);
        let mut rest = vec![PathBuf::new()];
        while let Some(below) = rest.pop() {
            // A directory may have gone.
            let Ok(dir) = changes.open_below(&below, Crossing::Nothing) else { continue };
            let Ok(names) = dir.names_up_to(left) else { continue };
            let Some(names) = names else { return Ok(Written::TooManyFiles) };
            left = left.saturating_sub(names.len());
            for name in names {
                let Ok(Some(stat)) = dir.stat_name(&name) else { continue };
                bytes = bytes
                    .saturating_add(u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512));
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    rest.push(below.join(&name));
                }
            }
        }
        Ok(Written::Bytes(bytes))
    }

    /// Writes a file about the container's network.
    pub(super) fn write_file(&self, id: &AttemptId, name: &str, text: &str) -> io::Result<PathBuf> {
        let path = self.path(id).join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    pub(super) fn unpin(&self, id: &AttemptId) -> io::Result<()> {
        pins::unmount(&self.pins(id))
    }

    /// Removes the directory of a container none of whose processes runs.
    pub(super) fn remove(&self, id: &AttemptId) -> io::Result<()> {
        self.unpin(id)?;
        let dir = Dir::open(&self.dir).map_err(io::Error::other)?;
        dir.remove_tree(id.name().as_ref()).map_err(io::Error::other)
    }

    pub(super) fn list(&self) -> io::Result<Vec<AttemptId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            found.extend(entry?.file_name().to_str().and_then(AttemptId::parse));
        }
        found.sort();
        Ok(found)
    }

    /// Whether an allocation has a container here.
    pub(super) fn has_alloc(&self, alloc: AllocId) -> io::Result<bool> {
        Ok(self.list()?.iter().any(|id| id.alloc == alloc))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_lasts_from_its_record_to_its_removal() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ContainerDirs::open(&dir.path().join("x")).unwrap();
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "web".into(), attempt: 2 };
        assert!(!dirs.exists(&id) && dirs.read(&id).unwrap().is_none());
        let config = ImageConfig { user: "7".into(), cmd: vec!["sh".into()], ..ImageConfig::default() };
        let record = ContainerRecord::new("busybox", "sha256:1", &config);
        dirs.write(&id, &record).unwrap();
        assert_eq!(dirs.read(&id).unwrap(), Some(record));
        assert_eq!(dirs.list().unwrap(), std::slice::from_ref(&id));
        assert!(dirs.has_alloc(id.alloc).unwrap() && !dirs.has_alloc(AllocId::from_hash([2; 16])).unwrap());
        assert_eq!(dirs.written_bytes(&id), None);
        let changes = dirs.fresh_changes(&id).unwrap();
        fs::write(changes.join("old"), "x").unwrap();
        std::os::unix::fs::symlink("/", changes.join("root")).unwrap();
        fs::create_dir(changes.join("deep")).unwrap();
        fs::write(changes.join("deep/file"), vec![1; 100_000]).unwrap();
        let written = dirs.written_bytes(&id).unwrap();
        assert!((100_000..1_000_000).contains(&written), "{written}");
        assert_eq!(fs::read_dir(dirs.fresh_changes(&id).unwrap()).unwrap().count(), 0);
        // A power cut.
        fs::write(dirs.path(&id).join(RECORD), "{").unwrap();
        assert!(dirs.read(&id).unwrap().is_none() && dirs.exists(&id));
        dirs.remove(&id).unwrap();
        dirs.remove(&id).unwrap();
        assert!(dirs.list().unwrap().is_empty());
    }
}
