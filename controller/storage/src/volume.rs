//! Host volumes: an existing directory of the host, or one that we create below the state directory (Nomad's plugin
//! `mkdir`).
//!
//! In: the directory of all volumes, a volume, privileges. Out: the path of its data. A new directory gets its final
//! name only when its mode and owner are right, and loses it before its data is removed. The remains of a crash have a
//! name that begins with a dot; [`HostVolumes::sweep`] removes them. An existing directory is never changed, because
//! the task may have set its mode. All calls block.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use herdlet_api_types::volume::{Volume, VolumeKind};
use herdlet_base::{
    mounts::kernel,
    observation::{Class, Observation},
    ownership,
    paths::Paths,
    privileges::{Ownership, Privileges},
    safe_fs::{Dir, FsError, Rights},
};

/// The volumes of this machine.
#[derive(Debug, Clone)]
pub struct HostVolumes {
    paths: Paths,
    privileges: Privileges,
}

/// Errors of volumes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// `host_path` does not exist.
    #[error("use {path} for volume {name}: the directory does not exist")]
    Missing { name: String, path: PathBuf },
    /// `host_path` is not a directory.
    #[error("use {path} for volume {name}: it is not a directory")]
    NotADirectory { name: String, path: PathBuf },
    /// `host_path` is relative.
    #[error("use {path} for volume {name}: host_path must be absolute")]
    Relative { name: String, path: PathBuf },
    /// Only root can set the wanted owner.
    #[error("create volume {name}: only root can create a directory that belongs to user {uid}, group {gid}")]
    Owner { name: String, uid: u32, gid: u32 },
    #[error("create, inspect or remove volume {name}: {source}")]
    Fs { name: String, source: FsError },
}

impl VolumeError {
    /// Whether a retry can help. A missing directory may appear.
    pub fn class(&self) -> Class {
        match self {
            Self::Missing { .. } | Self::NotADirectory { .. } => Class::Retry,
            Self::Relative { .. } | Self::Owner { .. } => Class::Fatal,
            Self::Fs { source, .. } => source.class(),
        }
    }
}

impl HostVolumes {
    pub fn new(paths: Paths, privileges: Privileges) -> Self {
        Self { paths, privileges }
    }

    /// Creates the volume if it is missing, and returns its path.
    ///
    /// # Errors
    ///
    /// If a host path is missing, or a directory can't be created.
    pub fn up(&self, volume: &Volume) -> Result<PathBuf, VolumeError> {
        match &volume.kind {
            VolumeKind::HostPath { path } => {
                let found = check_host_path(&volume.name, Path::new(path))?;
                // Mounted anyway: the operator chooses whose directories are on the way.
                if let Err(error) = ownership::check_way(&found) {
                    let error = herdlet_base::error::in_full(&error);
                    tracing::warn!(
                        volume = volume.name,
                        error,
                        "another user can redirect the path of a host volume, which is mounted anyway; `herdlet doctor` lists all such paths"
                    );
                }
                Ok(found)
            }
            VolumeKind::Mkdir { mode, uid, gid } => {
                let owner = self.owner(&volume.name, *uid, *gid)?;
                self.make(&volume.name, Rights::Exact { mode: mode & 0o7777, owner })
                    .map_err(|source| VolumeError::Fs { name: volume.name.clone(), source })
            }
        }
    }

    /// Whether the volume exists.
    ///
    /// # Errors
    ///
    /// If it can't be inspected.
    pub fn inspect(&self, volume: &Volume) -> Result<Observation, VolumeError> {
        match &volume.kind {
            VolumeKind::HostPath { path } => match check_host_path(&volume.name, Path::new(path)) {
                Ok(_) => Ok(Observation::Present),
                Err(VolumeError::Missing { .. }) => Ok(Observation::Absent),
                Err(error @ (VolumeError::NotADirectory { .. } | VolumeError::Relative { .. })) => {
                    Ok(Observation::foreign(error.to_string()))
                }
                Err(error) => Err(error),
            },
            VolumeKind::Mkdir { .. } => {
                self.see(&volume.name).map_err(|source| VolumeError::Fs { name: volume.name.clone(), source })
            }
        }
    }

    /// The path of a volume's data, even if it does not exist now.
    pub fn path(&self, volume: &Volume) -> PathBuf {
        match &volume.kind {
            VolumeKind::HostPath { path } => PathBuf::from(path),
            VolumeKind::Mkdir { .. } => self.paths.volume(&volume.name),
        }
    }

    /// Removes the data of a directory that we created. Leaves host paths unchanged. Succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// If something can't be removed; a repeated call continues.
    pub fn purge(&self, volume: &Volume) -> Result<(), VolumeError> {
        match &volume.kind {
            VolumeKind::HostPath { .. } => Ok(()),
            VolumeKind::Mkdir { .. } => self
                .remove(&volume.name)
                .map_err(|source| VolumeError::Fs { name: volume.name.clone(), source }),
        }
    }

    /// Removes the remains of interrupted operations. Must be called before the first operation.
    ///
    /// # Errors
    ///
    /// If something can't be removed.
    pub fn sweep(&self) -> Result<(), FsError> {
        let Some(volumes) = self.open()? else { return Ok(()) };
        for name in volumes.names()? {
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(NEW.as_bytes()) || bytes.starts_with(GONE.as_bytes()) {
                volumes.remove_tree(&name)?;
            }
        }
        Ok(())
    }

    fn make(&self, name: &str, rights: Rights) -> Result<PathBuf, FsError> {
        let path = self.paths.volume(name);
        let volumes = Dir::open_or_make(&self.root(), 0o711)?;
        let own = part(&path);
        if volumes.find(own)?.is_none() {
            let draft = marked(NEW, own);
            volumes.remove_tree(&draft)?;
            let made = volumes.make(&draft, rights).and_then(|dir| {
                dir.sync()?;
                volumes.rename(&draft, own)
            });
            if let Err(error) = made {
                volumes.remove_tree(&draft)?;
                return Err(error);
            }
            volumes.sync()?;
        }
        Ok(path)
    }

    fn see(&self, name: &str) -> Result<Observation, FsError> {
        let path = self.paths.volume(name);
        let Some(volumes) = self.open()? else { return Ok(Observation::Absent) };
        match volumes.find(part(&path)) {
            Ok(Some(_)) => Ok(Observation::Present),
            Ok(None) if volumes.stat_name(&marked(GONE, part(&path)))?.is_some() => {
                Ok(Observation::foreign(format!("{} is partly removed", path.display())))
            }
            Ok(None) => Ok(Observation::Absent),
            Err(error) => error.into_observation(),
        }
    }

    fn remove(&self, name: &str) -> Result<(), FsError> {
        let path = self.paths.volume(name);
        let own = part(&path);
        let Some(volumes) = self.open()? else { return Ok(()) };
        let gone = marked(GONE, own);
        volumes.remove_tree(&gone)?;
        if volumes.stat_name(own)?.is_some() {
            kernel::unmount_below(&volumes, own)?;
            volumes.rename(own, &gone)?;
            volumes.remove_tree(&gone)?;
        }
        // A power cut must not restore it: a new volume with the same name would get the old data.
        volumes.sync()
    }

    fn open(&self) -> Result<Option<Dir>, FsError> {
        match Dir::open(&self.root()) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn root(&self) -> PathBuf {
        self.paths.state.join("volumes")
    }

    fn owner(
        &self,
        name: &str,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<Option<(u32, u32)>, VolumeError> {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let wanted = (uid.unwrap_or(own.0), gid.unwrap_or(own.1));
        if wanted == own {
            return Ok(None);
        }
        match self.privileges.ownership {
            Ownership::Anybody => Ok(Some(wanted)),
            Ownership::OwnOnly => {
                Err(VolumeError::Owner { name: name.to_owned(), uid: wanted.0, gid: wanted.1 })
            }
        }
    }
}

const NEW: &str = ".new-";
const GONE: &str = ".gone-";

fn check_host_path(name: &str, path: &Path) -> Result<PathBuf, VolumeError> {
    let name = || name.to_owned();
    if !path.is_absolute() {
        return Err(VolumeError::Relative { name: name(), path: path.to_owned() });
    }
    match kernel::open_source(path) {
        Ok(_) => Ok(path.to_owned()),
        Err(FsError::NotADirectory { path }) => Err(VolumeError::NotADirectory { name: name(), path }),
        Err(error) if error.is_missing() => Err(VolumeError::Missing { name: name(), path: path.to_owned() }),
        Err(source) => Err(VolumeError::Fs { name: name(), source }),
    }
}

fn part(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

fn marked(mark: &str, name: &OsStr) -> OsString {
    let mut marked = OsString::from(mark);
    marked.push(name);
    marked
}

#[cfg(test)]
mod tests;
