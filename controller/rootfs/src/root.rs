//! The description of a root.
//!
//! In: decisions made elsewhere. Out: data, and the errors of making a root.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

/// A root. Paths in it are relative to it.
#[derive(Debug, Clone, Default)]
pub struct Root {
    /// The allocation's directory on the machine.
    pub alloc: PathBuf,
    /// The task's directory, relative to `alloc`: it becomes the root.
    pub task: PathBuf,
    /// A directory for the kernel's use, relative to `alloc`, outside of the task's directory. It is made if it is missing;
    /// the next root of the same task uses it again.
    pub work: PathBuf,
    /// Parts of the machine.
    pub entries: Vec<Entry>,
    /// Directories and files that are shared with the machine.
    pub binds: Vec<Bind>,
    /// Devices besides those that every root has.
    pub devices: Vec<DeviceFile>,
    /// Paths of the machine that must not be seen through an entry. An entry in one of them is left out.
    pub hidden: Vec<PathBuf>,
    /// Paths in the root that must not be seen.
    pub masked: Vec<PathBuf>,
    /// The file that keeps the network namespace whose devices /sys shows; the machine's if absent.
    pub network: Option<PathBuf>,
}

/// A root that begins with the layers of an image. Paths in it are relative to it.
#[derive(Debug, Clone)]
pub struct ImageRoot {
    /// Directories of the layers on the machine, the lowest one first; at most [`LAYERS_MAX`].
    pub layers: Vec<PathBuf>,
    /// A directory of the agent on the machine, for this root alone: it gets what the task changes.
    pub changes: PathBuf,
    /// Whether the task may change the image's files; directories that are shared and in memory have rights of their own.
    pub access: Access,
    /// What it may do with the machine.
    pub rights: Rights,
    /// Directories that are made if they are missing.
    pub directories: Vec<PathBuf>,
    /// Directories and files that are shared with the machine.
    pub binds: Vec<Bind>,
    /// Directories in memory.
    pub memory: Vec<MemoryDir>,
    /// Devices besides those that every root has.
    pub devices: Vec<DeviceFile>,
    /// The size of /dev/shm; 64 MiB if absent.
    pub shm_bytes: Option<u64>,
    /// Paths of the machine that must not be seen through a shared directory.
    pub hidden: Vec<PathBuf>,
    /// Paths in the root that must not be seen.
    pub masked: Vec<PathBuf>,
    /// The file that keeps the network namespace whose devices /sys shows; the machine's if absent.
    pub network: Option<PathBuf>,
}

/// The most layers of an overlay (`OVL_MAX_STACK`).
pub const LAYERS_MAX: usize = 500;

/// A directory in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryDir {
    /// In the root.
    pub target: PathBuf,
    /// Half of the machine's memory if absent.
    pub bytes: Option<u64>,
    pub mode: u32,
    pub access: Access,
}

/// A device of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// On the machine.
    pub source: PathBuf,
    /// In the root.
    pub target: PathBuf,
}

/// A part of the machine. A directory is shown with all mounts below it, a file read-only, and a link as the same link. A
/// missing one is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// On the machine.
    pub source: PathBuf,
    /// In the root.
    pub target: PathBuf,
}

/// A directory or file that is shared with the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bind {
    /// On the machine.
    pub source: PathBuf,
    /// In the root. Missing directories are made.
    pub target: PathBuf,
    pub access: Access,
    pub propagation: Propagation,
}

/// What a task may do with the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rights {
    /// It can't make devices, and /sys is read-only, without what the firmware shows.
    #[default]
    Confined,
    /// It has the rights of its user: root may make devices, and change /sys.
    Privileged,
}

/// Whether mounts that are made below a shared directory later appear on the other side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Private,
    /// Those of the machine appear in the root.
    FromMachine,
    /// In both directions, if the mount on the machine is shared.
    Shared,
}

/// What a task may do in a shared directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    ReadWrite,
    ReadOnly,
}

/// A root that was made.
#[derive(Debug)]
pub struct Built {
    /// The mount namespace. Its root is the task's directory.
    pub mounts: OwnedFd,
    /// Its root, to find files in it from outside.
    pub root: OwnedFd,
    /// Its /dev/null, open for reading and writing.
    pub null: OwnedFd,
    /// Entries whose changes are not kept in the task's directory, in the order of their targets.
    pub limited: Vec<LimitedEntry>,
}

/// An entry whose changes are not kept in the task's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedEntry {
    /// In the root.
    pub target: PathBuf,
    pub changes: Changes,
    /// The kernel's reason against an overlay in the task's directory.
    pub reason: String,
}

/// What happens to changes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// They are in memory, and end with the root.
    Temporary,
    /// They are refused.
    Refused,
}

/// Why a root can't be made. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A process of an earlier root of this task still runs: try again when it has ended.
    #[error("mount {} of the task: an earlier process of the task still uses it", target.display())]
    Busy {
        /// In the root.
        target: PathBuf,
    },
    /// A volume with mounts for the machine shows paths that must be hidden. What covers them would cover them there.
    #[error(
        "mount the volume {} with propagation to the machine: it contains files of the agent, which are hidden from tasks; use \
         another directory, or the propagation private",
        volume.display()
    )]
    Exposed {
        /// On the machine.
        volume: PathBuf,
    },
    #[error("mount the layers of the image: it has {layers} layers, the kernel mounts 1 to {LAYERS_MAX}")]
    Layers { layers: usize },
    #[error("{what} {}", path.display())]
    System {
        what: &'static str,
        /// On the machine or in the root.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// For `map_err`.
pub(crate) fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> RootError {
    move |source| RootError::System { what, path: path.to_owned(), source: source.into() }
}
