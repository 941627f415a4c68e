//! The devices of the machine, for containers that may use all of them.
//!
//! In: /dev. Out: devices with their places. Terminals, shared memory and queues of the machine are left out: a container has its own.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use herdlet_driver::{DriverError, DriverResult};
use herdlet_rootfs::root::DeviceFile;

const DEV: &str = "/dev";
/// What every container has of its own.
const OWN: [&str; 12] =
    ["console", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "tty", "urandom", "zero"];
/// A machine has some hundreds. Each is a mount.
const COUNT_MAX: usize = 4_096;
const DEPTH_MAX: usize = 4;

/// Lists them.
///
/// # Errors
/// If /dev can't be read, or has too many.
pub(super) fn list() -> DriverResult<Vec<DeviceFile>> {
    let mut found = Vec::new();
    let failed = |error: io::Error| DriverError::retry(format!("list the devices of the machine: {error}"));
    add(Path::new(DEV), DEPTH_MAX, &mut found).map_err(failed)?;
    found.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(found)
}

fn add(dir: &Path, depth: usize, found: &mut Vec<DeviceFile>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (kind, source) = (entry.file_type()?, entry.path());
        let is_own = dir == Path::new(DEV) && OWN.iter().any(|name| entry.file_name() == *name);
        if is_own {
            continue;
        }
        if kind.is_dir() && depth > 1 {
            add(&source, depth - 1, found)?;
        } else if kind.is_char_device() || kind.is_block_device() {
            if found.len() == COUNT_MAX {
                return Err(io::Error::other(format!("there are more than {COUNT_MAX}")));
            }
            let target: PathBuf = source.components().skip(1).collect();
            found.push(DeviceFile { source, target });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_their_place_in_the_root() {
        let found = list().unwrap();
        assert!(found.iter().all(|device| device.source == Path::new("/").join(&device.target)));
        for own in ["dev/null", "dev/tty", "dev/pts/0"] {
            assert!(!found.iter().any(|device| device.target == Path::new(own)), "{own}");
        }
    }
}
