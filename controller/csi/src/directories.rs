//! The directories of plugins.
//!
//! `<state>/csi/TYPE/ID` has the volumes of a plugin's type and id; all such tasks share it. For those with a Node service
//! `<state>/csi` is a shared mount: what a plugin mounts in it appears on this machine. `<runtime>/csi/ALLOC.HASH` has the socket
//! of one task: the first digits of its allocation, and a hash of both. The paths are functions of ids. A socket's is short,
//! because it has a limit.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use herdlet_base::{
    durable,
    mounts::{
        kernel,
        table::{Mount, mounts_below_now},
    },
    observation::Class,
    paths::{self, Paths, SOCKET_PATH_LEN_MAX},
    safe_fs::{Dir, FsError, Rights},
};

use crate::{
    description::{PluginType, Service},
    volumes::share,
};

/// The name of a plugin's socket in its directory, as in Nomad.
pub const SOCKET: &str = "csi.sock";

/// Digits of an allocation's id in the name of a directory.
const ALLOC_LEN: usize = 8;

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
        "make the socket {}: its path has {} bytes, and at most {SOCKET_PATH_LEN_MAX} are possible; move the agent's runtime \
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub alloc: String,
    pub task: String,
}

/// All directories of plugins of one agent.
#[derive(Debug)]
pub struct Directories {
    volumes: PathBuf,
    sockets: PathBuf,
    /// The shared mount is made for the first plugin, and removed with the last.
    lock: Mutex<()>,
}

impl Directories {
    pub fn new(paths: &Paths) -> Self {
        Self { volumes: paths.csi(), sockets: paths.csi_sockets(), lock: Mutex::default() }
    }

    /// The directory of the volumes of a plugin's type and id.
    pub fn volumes(&self, kind: PluginType, id: &str) -> PathBuf {
        self.volumes.join(of_plugin(kind, id))
    }

    /// The directory of a task's socket.
    pub fn socket_dir(&self, owner: &Owner) -> PathBuf {
        self.sockets.join(name(owner))
    }

    pub fn socket(&self, owner: &Owner) -> PathBuf {
        self.socket_dir(owner).join(SOCKET)
    }

    /// Makes the directories of a task. `user` may use its socket, beside root; the agent's own user if absent. It can be
    /// repeated. No file system is entered that a plugin has mounted: it may hang.
    ///
    /// # Errors
    ///
    /// If a directory can't be made or shared, or the path of the socket is too long.
    pub fn make(
        &self,
        owner: &Owner,
        plugin: (PluginType, &str),
        user: Option<(u32, u32)>,
    ) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = self.socket(owner);
        if socket.as_os_str().as_bytes().len() > SOCKET_PATH_LEN_MAX {
            return Err(DirectoryError::LongPath { path: socket });
        }
        self.make_volumes(plugin)?;
        let sockets = Dir::open_or_make(&self.sockets, 0o700)?;
        let own = sockets.make(&name(owner), Rights::Exact { mode: 0o700, owner: None })?;
        if user.is_some() {
            // Tasks of other users pass through to their own socket, and can't list the names in between.
            let passage = Rights::Exact { mode: 0o711, owner: None };
            sockets.set_rights(passage)?;
            if let Some(runtime) = self.sockets.parent() {
                Dir::open(runtime)?.set_rights(passage)?;
            }
            own.set_rights(Rights::Exact { mode: 0o700, owner: user })?;
        }
        Ok(())
    }

    fn make_volumes(&self, (kind, id): (PluginType, &str)) -> Result<(), DirectoryError> {
        let make = |path: &Path| {
            durable::make_dir(path).map_err(|source| DirectoryError::Make { path: path.to_owned(), source })
        };
        make(&self.volumes)?;
        let path = Dir::open(&self.volumes)?.real_path()?;
        if kind.has(Service::Node) {
            share(&path).map_err(|source| DirectoryError::Share { path: path.clone(), source })?;
        }
        let of_plugin = path.join(of_plugin(kind, id));
        if is_mounted(&mounts(&path)?, &of_plugin) { Ok(()) } else { make(&of_plugin) }
    }

    /// Whether the directories of a task exist, and that of volumes is shared if the plugin mounts them.
    ///
    /// # Errors
    ///
    /// If the mount table can't be read.
    pub fn exist(&self, owner: &Owner, (kind, id): (PluginType, &str)) -> Result<bool, DirectoryError> {
        let Some(volumes) = Dir::open_if_present(&self.volumes)? else { return Ok(false) };
        let path = volumes.real_path()?;
        // A change of the propagation is not reported as a change of the table, so it is read again.
        let mounts = mounts(&path)?;
        let of_plugin = path.join(of_plugin(kind, id));
        let is_shared = mounts.iter().rfind(|mount| mount.point == path).is_some_and(|mount| mount.is_shared);
        Ok((is_shared || !kind.has(Service::Node))
            && (is_mounted(&mounts, &of_plugin) || of_plugin.is_dir())
            && self.socket_dir(owner).is_dir())
    }

    /// Removes the directory of a task's socket. What the plugin has mounted stays for the next one of its type and id. It
    /// can be repeated.
    ///
    /// # Errors
    ///
    /// If it can't be removed.
    pub fn remove(&self, owner: &Owner) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sockets) = Dir::open_if_present(&self.sockets)? {
            kernel::remove_with_mounts(&sockets, &name(owner))?;
        }
        self.remove_unused()
    }

    /// Removes directories of sockets of unknown allocations: the agent has lost its state. `is_known` gets the first
    /// digits of an id.
    ///
    /// # Errors
    ///
    /// If one can't be removed.
    pub fn sweep(&self, is_known: impl Fn(&str) -> bool) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sockets) = Dir::open_if_present(&self.sockets)? else { return Ok(()) };
        for name in sockets.names()? {
            let begin = name.to_str().and_then(|name| name.split_once('.')).map(|(begin, _)| begin);
            if begin.is_some_and(|begin| !is_known(begin)) {
                kernel::remove_with_mounts(&sockets, &name)?;
            }
        }
        self.remove_unused()
    }

    /// Removes all mounts, those of volumes too, and all sockets: the instance is removed from the machine.
    ///
    /// # Errors
    ///
    /// If a mount is left.
    pub fn remove_all(&self) -> Result<(), DirectoryError> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((runtime, name)) = in_parent(&self.sockets)? {
            kernel::remove_with_mounts(&runtime, name)?;
        }
        if let Some((state, name)) = in_parent(&self.volumes)? {
            kernel::unmount_below(&state, name)?;
        }
        self.remove_unused()
    }

    /// If no task is left and no volume is mounted: ends the shared mount, and removes the empty directories.
    fn remove_unused(&self) -> Result<(), DirectoryError> {
        if let Some(sockets) = Dir::open_if_present(&self.sockets)? {
            if !sockets.names()?.is_empty() {
                return Ok(());
            }
            if let Some((runtime, name)) = in_parent(&self.sockets)? {
                runtime.remove_empty(name)?;
            }
        }
        let Some((state, name)) = in_parent(&self.volumes)? else { return Ok(()) };
        let path = state.real_path()?.join(name);
        match mounts(&path)?.as_slice() {
            [] => {}
            [only] if only.point == path => kernel::unmount_top(&state, name)?,
            _ => return Ok(()),
        }
        let Some(volumes) = Dir::open_if_present(&self.volumes)? else { return Ok(()) };
        for kind in PluginType::ALL.map(|kind| OsStr::new(kind.name())) {
            let Some(of_kind) = volumes.find(kind)? else { continue };
            // Those with files of a plugin stay.
            of_kind.names()?.iter().for_each(|id| drop(of_kind.remove_empty(id)));
            drop(volumes.remove_empty(kind));
        }
        drop(state.remove_empty(name));
        Ok(())
    }
}

/// The directory that this one is in, and its name there; `None` if it does not exist.
fn in_parent(path: &Path) -> Result<Option<(Dir, &OsStr)>, DirectoryError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    Ok(Dir::open_if_present(parent)?.filter(|_| path.is_dir()).map(|parent| (parent, name)))
}

/// What is mounted at or below a path without links.
fn mounts(path: &Path) -> Result<Vec<Mount>, FsError> {
    mounts_below_now(path).map_err(|error| FsError::io("list the mounts below", path, error))
}

fn is_mounted(mounts: &[Mount], path: &Path) -> bool {
    mounts.iter().any(|mount| mount.point == path)
}

/// The directory of a plugin's volumes, below that of all plugins.
fn of_plugin(kind: PluginType, id: &str) -> PathBuf {
    Path::new(kind.name()).join(paths::file_name(id))
}

/// The name of a task's directory.
fn name(Owner { alloc, task }: &Owner) -> OsString {
    let begin = alloc.get(..ALLOC_LEN).unwrap_or(alloc);
    format!("{begin}.{}", paths::short_name(alloc, task)).into()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    const ALLOC: &str = "f2a1c1de-0000-4000-8000-000000000001";

    const CONTROLLER: (PluginType, &str) = (PluginType::Controller, "org/disks");

    fn owner(task: &str) -> Owner {
        Owner { alloc: ALLOC.to_owned(), task: task.to_owned() }
    }

    /// Directories below an empty one.
    fn directories() -> (tempfile::TempDir, Directories) {
        let folder = tempfile::tempdir().unwrap();
        let runtime = folder.path().join("run");
        fs::create_dir(&runtime).unwrap();
        let directories = Directories::new(&Paths { state: folder.path().to_owned(), runtime });
        (folder, directories)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_controller_needs_no_mount_and_leaves_nothing() {
        let (folder, directories) = directories();
        assert!(!directories.exist(&owner("a"), CONTROLLER).unwrap());
        for _ in 0..2 {
            directories.make(&owner("a"), CONTROLLER, None).unwrap();
        }
        directories.make(&owner("b"), CONTROLLER, None).unwrap();
        assert!(directories.exist(&owner("a"), CONTROLLER).unwrap());
        assert_ne!(directories.socket(&owner("a")), directories.socket(&owner("b")));
        assert_eq!(mode(&directories.socket_dir(&owner("a"))), 0o700);
        assert_eq!(mode(&directories.volumes(CONTROLLER.0, CONTROLLER.1)), 0o700);
        fs::write(directories.socket(&owner("a")), "").unwrap();
        for _ in 0..2 {
            directories.remove(&owner("a")).unwrap();
        }
        assert!(!directories.exist(&owner("a"), CONTROLLER).unwrap());
        assert!(directories.exist(&owner("b"), CONTROLLER).unwrap());
        directories.sweep(|begin| ALLOC.starts_with(begin)).unwrap();
        assert!(directories.exist(&owner("b"), CONTROLLER).unwrap());
        directories.sweep(|_| false).unwrap();
        assert!(!folder.path().join("csi").exists() && !folder.path().join("run/csi").exists());
        directories.remove_all().unwrap();
    }

    #[test]
    fn a_lost_directory_is_found() {
        let (_folder, directories) = directories();
        let volumes = directories.volumes(CONTROLLER.0, CONTROLLER.1);
        for lost in [directories.socket_dir(&owner("a")), volumes] {
            directories.make(&owner("a"), CONTROLLER, None).unwrap();
            assert!(directories.exist(&owner("a"), CONTROLLER).unwrap());
            fs::remove_dir(&lost).unwrap();
            assert!(!directories.exist(&owner("a"), CONTROLLER).unwrap(), "{}", lost.display());
        }
    }

    #[test]
    fn files_of_a_plugin_stay() {
        let (_folder, directories) = directories();
        directories.make(&owner("a"), CONTROLLER, None).unwrap();
        let file = directories.volumes(CONTROLLER.0, CONTROLLER.1).join("file");
        fs::write(&file, "").unwrap();
        directories.remove(&owner("a")).unwrap();
        assert!(file.exists());
    }

    #[test]
    fn another_user_passes_to_its_socket() {
        let (folder, directories) = directories();
        let user = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        directories.make(&owner("a"), CONTROLLER, Some(user)).unwrap();
        for passage in ["run", "run/csi"] {
            assert_eq!(mode(&folder.path().join(passage)), 0o711, "{passage}");
        }
        assert_eq!(mode(&directories.socket_dir(&owner("a"))), 0o700);
    }

    #[test]
    fn a_long_path_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = folder.path().join("r".repeat(80));
        let directories = Directories::new(&Paths { state: folder.path().to_owned(), runtime });
        let error = directories.make(&owner("a"), CONTROLLER, None).unwrap_err();
        assert!(matches!(error, DirectoryError::LongPath { .. }) && error.class() == Class::Fatal, "{error}");
        assert!(
            error.to_string().ends_with("move the agent's runtime directory to a shorter path"),
            "{error}"
        );
    }

    #[test]
    fn nothing_is_removed_where_nothing_was_made() {
        let (folder, directories) = directories();
        directories.remove(&owner("a")).unwrap();
        directories.sweep(|_| false).unwrap();
        directories.remove_all().unwrap();
        assert!(!folder.path().join("csi").exists());
    }
}
