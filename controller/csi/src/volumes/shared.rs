//! The directory of all plugins as a shared mount: what a plugin mounts in it appears on this machine.
//!
//! The root of many machines is a private mount, also on those with systemd if it was set so. A mount of the directory on
//! itself is shared, whatever its parent is.

use std::{io, path::Path};

use herdlet_base::mounts::table::mounts_below;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

/// Makes a directory a shared mount. It can be repeated. `path` has no links.
///
/// # Errors
///
/// If the agent may not mount.
pub fn share(path: &Path) -> io::Result<()> {
    if !mounts_below(path)?.iter().any(|mount| mount.point == path) {
        mount_bind(path, path)?;
        // A shared parent would get a copy of each later mount, hidden below this one.
        mount_change(path, MountPropagationFlags::PRIVATE)?;
    }
    Ok(mount_change(path, MountPropagationFlags::SHARED)?)
}
