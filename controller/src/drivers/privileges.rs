//! What this process may do: mount file systems, give files away. Asked once at start; without it the places below the
//! state directory are made in a plainer form that needs nothing.

use rustix::mount::{FsOpenFlags, fsopen};

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Privileges {
    /// Mounting file systems.
    pub mounting: Mounting,
    /// Changing the owner of files.
    pub ownership: Ownership,
}

/// Whether file systems can be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounting {
    /// Secrets lie on tmpfs, volumes are bind mounts.
    Possible,
    /// Secrets lie in plain directories only their owner may enter, volumes are symbolic links.
    Impossible,
}

/// Whose files this process may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// Anybody's.
    Anybody,
    /// Its own only.
    OwnOnly,
}

impl Privileges {
    /// Asks the kernel, without leaving a trace.
    pub fn probe() -> Self {
        // Opening a file system context needs just the capability that mounting needs, in the namespace that owns our
        // mounts, and makes nothing by itself (fsopen(2)).
        let mounting = match fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC) {
            Ok(_context) => Mounting::Possible,
            Err(_) => Mounting::Impossible,
        };
        let ownership =
            if rustix::process::geteuid().is_root() { Ownership::Anybody } else { Ownership::OwnOnly };
        Self { mounting, ownership }
    }

    /// Those of a plain user.
    pub const fn none() -> Self {
        Self { mounting: Mounting::Impossible, ownership: Ownership::OwnOnly }
    }
}
