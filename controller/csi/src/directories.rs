//! The directories of plugins below one directory of the agent, which is a shared mount: what a plugin mounts in it appears on
//! this machine.
//!
//! `TYPE/ID` has the volumes of a plugin id; all its tasks share it. `plugins/ALLOC.HASH` has the socket of one task: the first
//! digits of its allocation, and a hash of both. Paths are functions of ids, and short: that of a socket has a limit.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use herdlet_base::{
    durable,
    mounts::{kernel, table::mounts_below_now},
    observation::Class,
    paths,
    safe_fs::{Dir, FsError, Rights},
};

use crate::{
    description::{PluginType, Service},
    volumes::share,
};

/// The name of a plugin's socket in its directory, as in Nomad.
pub const SOCKET: &str = "csi.sock";

/// The longest path of a socket: `sun_path` has 108 bytes, one of them for the end (unix(7)).
const SOCKET_PATH_LEN_MAX: usize = 107;

/// Has the directories of sockets.
const SOCKETS: &str = "plugins";

/// Digits of an allocation's id in the name of a directory.
const ALLOC_LEN: usize = 8;

/// Digits of a hash that distinguishes the tasks of a machine.
const HASH_LEN: usize = 12;

/// Why the directories of a plugin can't be made. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    #[error(transparent)]
    Files(#[from] FsError),
    #[error("create {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("mount {} as a shared mount: {source}; an agent with CSI plugins of the type node or monolith must run as root", path.display())]
    Share { path: PathBuf, source: io::Error },
    #[error(
        "make the socket {}: its path has {} bytes, and at most {SOCKET_PATH_LEN_MAX} are possible; move the agent's state \
         directory to a shorter path",
        path.display(),
        path.as_os_str().len()
    )]
    LongPath { path: PathBuf },
}

impl DirectoryError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Files(error) => error.class(),
            Self::Make { .. } => Class::Retry,
            Self::Share { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => Class::Fatal,
            Self::Share { .. } => Class::Retry,
            Self::LongPath { .. } => Class::Fatal,
        }
    }
}

/// The task of an allocation that is a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner<'a> {
    pub alloc: &'a str,
    pub task: &'a str,
}

/// All directories of plugins of one agent.
#[derive(Debug)]
pub struct Directories {
    base: PathBuf,
    /// The shared mount is made for the first plugin, and removed with the last.
    lock: Mutex<()>,
}

impl Directories {
    pub fn new(base: PathBuf) -> Self {
        Self { base, lock: Mutex::default() }
    }

    /// The directory of the volumes of a plugin id.
    pub fn volumes(&self, kind: PluginType, id: &str) -> PathBuf {
        self.base.join(kind.name()).join(paths::file_name(id))
    }

    /// The directory of a task's socket.
    pub fn socket_dir(&self, owner: Owner<'_>) -> PathBuf {
        self.base.join(SOCKETS).join(name(owner))
    }

    pub fn socket(&self, owner: Owner<'_>) -> PathBuf {
        self.socket_dir(owner).join(SOCKET)
    }

    /// Makes the directories of a task. `user` may use its socket, beside root; the agent's own user if absent. It can be
    /// repeated.
    ///
    /// # Errors
    ///
    /// If a directory can't be made or shared, or the path of the socket is too long.
    pub fn make(
        &self,
        owner: Owner<'_>,
        (kind, id): (PluginType, &str),
        user: Option<(u32, u32)>,
    ) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = self.socket(owner);
        if socket.as_os_str().as_bytes().len() > SOCKET_PATH_LEN_MAX {
            return Err(DirectoryError::LongPath { path: socket });
        }
        let made = |path: &Path, made: io::Result<()>| {
            made.map_err(|source| DirectoryError::Make { path: path.to_owned(), source })
        };
        // Tasks of other users pass to their own socket. Nobody else lists names.
        made(&self.base, durable::make_passage(&self.base))?;
        if kind.has(Service::Node) {
            let path = Dir::open(&self.base)?.real_path()?;
            share(&path).map_err(|source| DirectoryError::Share { path, source })?;
        }
        let sockets = self.base.join(SOCKETS);
        made(&sockets, durable::make_passage(&sockets))?;
        let own = Dir::open(&sockets)?.make(&name(owner), Rights::Exact { mode: 0o700, owner: None })?;
        if user.is_some() {
            own.set_rights(Rights::Exact { mode: 0o700, owner: user })?;
        }
        let volumes = self.volumes(kind, id);
        made(&volumes, durable::make_dir(&volumes))
    }

    /// Whether the directories of a task exist.
    ///
    /// # Errors
    ///
    /// If the mount table can't be read.
    pub fn exist(&self, owner: Owner<'_>, (kind, id): (PluginType, &str)) -> Result<bool, DirectoryError> {
        let are_made = self.socket_dir(owner).is_dir() && self.volumes(kind, id).is_dir();
        Ok(are_made && (!kind.has(Service::Node) || self.is_mounted()?))
    }

    /// Removes the directory of a task's socket. What the plugin has mounted stays for the next one of its id. It can be
    /// repeated.
    ///
    /// # Errors
    ///
    /// If it can't be removed.
    pub fn remove(&self, owner: Owner<'_>) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sockets) = opened(&self.base.join(SOCKETS))? else { return Ok(()) };
        kernel::remove_with_mounts(&sockets, &name(owner))?;
        self.unshare_unused(&sockets)
    }

    /// Removes directories of sockets without an allocation whose id begins so: the agent has lost its state.
    ///
    /// # Errors
    ///
    /// If one can't be removed.
    pub fn sweep(&self, is_known: impl Fn(&str) -> bool) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sockets) = opened(&self.base.join(SOCKETS))? else { return Ok(()) };
        for name in sockets.names()? {
            let begin = name.to_str().and_then(|name| name.split_once('.')).map(|(begin, _)| begin);
            if begin.is_some_and(|begin| !is_known(begin)) {
                kernel::remove_with_mounts(&sockets, &name)?;
            }
        }
        self.unshare_unused(&sockets)
    }

    /// Removes all mounts, those of volumes too, and all sockets: the instance is removed from the machine.
    ///
    /// # Errors
    ///
    /// If a mount is left.
    pub fn remove_all(&self) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((parent, name)) = self.in_parent()? else { return Ok(()) };
        kernel::unmount_below(&parent, name)?;
        let Some(base) = opened(&self.base)? else { return Ok(()) };
        Ok(base.remove_tree(OsStr::new(SOCKETS))?)
    }

    /// Ends the shared mount if no task is left, and no volume is mounted.
    fn unshare_unused(&self, sockets: &Dir) -> Result<(), DirectoryError> {
        if !sockets.names()?.is_empty() {
            return Ok(());
        }
        let Some((parent, name)) = self.in_parent()? else { return Ok(()) };
        if mounts(&parent.real_path()?.join(name))?.len() == 1 {
            kernel::unmount_top(&parent, name)?;
        }
        Ok(())
    }

    fn is_mounted(&self) -> Result<bool, DirectoryError> {
        let Some(base) = opened(&self.base)? else { return Ok(false) };
        let path = base.real_path()?;
        Ok(mounts(&path)?.contains(&path))
    }

    /// The directory that it is in, and its name there; `None` if there is no such directory.
    fn in_parent(&self) -> Result<Option<(Dir, &OsStr)>, DirectoryError> {
        let (Some(parent), Some(name)) = (self.base.parent(), self.base.file_name()) else { return Ok(None) };
        Ok(opened(parent)?.filter(|_| self.base.is_dir()).map(|parent| (parent, name)))
    }
}

/// Where something is mounted at or below a path without links.
fn mounts(path: &Path) -> Result<Vec<PathBuf>, FsError> {
    let found = mounts_below_now(path).map_err(|error| FsError::io("list the mounts below", path, error))?;
    Ok(found.into_iter().map(|mount| mount.point).collect())
}

fn opened(path: &Path) -> Result<Option<Dir>, FsError> {
    match Dir::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The name of a task's directory.
fn name(owner: Owner<'_>) -> OsString {
    let Owner { alloc, task } = owner;
    let mut hash = paths::hashed(&format!("{alloc}/{task}")).trim_start_matches('~').to_owned();
    hash.truncate(HASH_LEN);
    format!("{}.{hash}", alloc.get(..ALLOC_LEN).unwrap_or(alloc)).into()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const ALLOC: &str = "f2a1c1de-0000-4000-8000-000000000001";

    fn owner(task: &str) -> Owner<'_> {
        Owner { alloc: ALLOC, task }
    }

    #[test]
    fn a_controller_needs_no_mount_and_leaves_no_socket() {
        let state = tempfile::tempdir().unwrap();
        let directories = Directories::new(state.path().join("csi"));
        let plugin = (PluginType::Controller, "org/disks");
        assert!(!directories.exist(owner("a"), plugin).unwrap());
        for _ in 0..2 {
            directories.make(owner("a"), plugin, None).unwrap();
        }
        directories.make(owner("b"), plugin, None).unwrap();
        assert!(directories.exist(owner("a"), plugin).unwrap());
        assert_ne!(directories.socket(owner("a")), directories.socket(owner("b")));
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(directories.socket_dir(owner("a"))), 0o700);
        assert_eq!(mode(directories.volumes(plugin.0, plugin.1)), 0o700);
        fs::write(directories.socket(owner("a")), "").unwrap();
        for _ in 0..2 {
            directories.remove(owner("a")).unwrap();
        }
        assert!(!directories.socket_dir(owner("a")).exists());
        assert!(directories.exist(owner("b"), plugin).unwrap());
        directories.sweep(|begin| ALLOC.starts_with(begin)).unwrap();
        assert!(directories.exist(owner("b"), plugin).unwrap());
        directories.sweep(|_| false).unwrap();
        assert!(!directories.exist(owner("b"), plugin).unwrap());
        directories.remove_all().unwrap();
    }

    #[test]
    fn a_long_path_is_refused() {
        let state = tempfile::tempdir().unwrap();
        let directories = Directories::new(state.path().join("s".repeat(80)).join("csi"));
        let error = directories.make(owner("a"), (PluginType::Controller, "p"), None).unwrap_err();
        assert!(matches!(error, DirectoryError::LongPath { .. }) && error.class() == Class::Fatal, "{error}");
        assert!(error.to_string().ends_with("move the agent's state directory to a shorter path"), "{error}");
    }

    #[test]
    fn nothing_is_removed_where_nothing_was_made() {
        let state = tempfile::tempdir().unwrap();
        let directories = Directories::new(state.path().join("csi"));
        directories.remove(owner("a")).unwrap();
        directories.sweep(|_| false).unwrap();
        directories.remove_all().unwrap();
        assert!(!state.path().join("csi").exists());
    }
}
