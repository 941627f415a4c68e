//! Mounts of the agent for an engine: paths of an allocation that are safe from its tasks between a check and the engine's mount.
//!
//! In: pins of a request. Out: each path opened, verified to be in the allocation, and mounted in a directory that only root enters. They
//! last from before the container is created until it has started. An agent that dies in between leaves them to the next one, which
//! does not remove them before the fate of the attempt is known: the engine may be about to use them.

use std::{
    fs, io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use herdlet_base::{
    mounts::{
        kernel::{self, Access, Target},
        table,
    },
    safe_fs::Dir,
};
use herdlet_driver::{DriverError, DriverResult};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, openat},
    io::Errno,
};

use crate::{
    config::FieldError,
    create::{Missing, Pin},
};

/// Mounts all of a request's pins.
///
/// # Errors
/// The field whose path is not in the allocation, or can't be mounted.
pub(crate) fn mount(pins: &[Pin]) -> DriverResult<()> {
    pins.iter().try_for_each(|pin| {
        let opened = open(pin)?;
        let failed = |error: io::Error| field(pin, format!("mount {} for the engine: {error}", named(pin)));
        let is_dir = kind(&opened).map_err(failed)? == FileType::Directory;
        let target = target(&pin.point, is_dir).map_err(failed)?;
        let target = Target { fd: target.as_fd(), path: &pin.point };
        let mounted = kernel::bind_open(opened.as_fd(), target, Access::ReadWrite);
        mounted.map_err(|error| DriverError::from(field(pin, format!("failed to {error}"))))
    })
}

/// Removes the mounts of an attempt, in this directory, and the directory.
///
/// # Errors
/// If something can't be unmounted or removed. Nothing in what is mounted is ever removed.
pub(crate) fn unmount(dir: &Path) -> io::Result<()> {
    let opened = match Dir::open(dir) {
        Ok(opened) => opened,
        Err(error) if error.is_missing() => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        kernel::unmount_at_name(&opened, &name).map_err(io::Error::other)?;
        // A mount point: an empty directory, or an empty file.
        let point = dir.join(&name);
        match fs::remove_dir(&point) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(&point)?,
            removed => removed?,
        }
    }
    fs::remove_dir(dir)
}

/// Whether a process sees all that is mounted in this directory. An engine that does not would mount empty directories.
///
/// # Errors
/// If its mounts can't be read.
pub(crate) fn sees(process: i32, dir: &Path) -> io::Result<bool> {
    let dir = fs::canonicalize(dir)?;
    let mounts = table::MountList::of(process)?.below(&dir);
    for entry in fs::read_dir(&dir)? {
        let point = entry?.path();
        if !mounts.iter().any(|mount| mount.point == point) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Opens what a pin names, and verifies where it is: from now on nobody can exchange it.
fn open(pin: &Pin) -> Result<OwnedFd, FieldError> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = match openat(CWD, &pin.source, flags, Mode::empty()) {
        Err(Errno::NOENT) if pin.missing == Missing::Create => create(pin)?,
        Err(errno) => return Err(field(pin, format!("open {}: {errno}", named(pin)))),
        Ok(opened) => opened,
    };
    verify(pin, &opened, Path::new(""))?;
    Ok(opened)
}

/// Creates the missing directories of a source, below the last one that exists.
fn create(pin: &Pin) -> Result<OwnedFd, FieldError> {
    let failed = |errno: Errno| field(pin, format!("create {}: {errno}", named(pin)));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for above in pin.source.ancestors().skip(1) {
        let mut opened = match openat(CWD, above, flags, Mode::empty()) {
            Err(Errno::NOENT) => continue,
            opened => opened.map_err(failed)?,
        };
        let below = pin.source.strip_prefix(above).unwrap_or(Path::new(""));
        verify(pin, &opened, below)?;
        for name in below {
            match mkdirat(&opened, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            opened = openat(&opened, name, flags | OFlags::NOFOLLOW, Mode::empty()).map_err(failed)?;
        }
        return Ok(opened);
    }
    Err(failed(Errno::NOENT))
}

/// Verifies that what is open, or what is to be created below it, is in the allocation.
fn verify(pin: &Pin, opened: &OwnedFd, below: &Path) -> Result<(), FieldError> {
    let real = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    let real = real.map_err(|error| field(pin, format!("locate {}: {error}", named(pin))))?;
    if pin.bounds.has_real(&real.join(below)) {
        return Ok(());
    }
    Err(field(pin, format!("{}: a link leads out of the allocation since the task was prepared", named(pin))))
}

/// Opens the mount point. On a repeated start it has a mount, which stays below the new one.
fn target(point: &Path, is_dir: bool) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let make = || match is_dir {
        true => fs::DirBuilder::new().recursive(true).mode(0o700).create(point),
        false => {
            if let Some(parent) = point.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
            }
            fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(point).map(drop)
        }
    };
    make()?;
    Ok(openat(CWD, point, flags, Mode::empty())?)
}

fn kind(opened: &OwnedFd) -> io::Result<FileType> {
    Ok(FileType::from_raw_mode(fstat(opened)?.st_mode))
}

fn field(pin: &Pin, why: String) -> FieldError {
    FieldError::new(pin.field.clone(), why)
}

fn named(pin: &Pin) -> std::path::Display<'_> {
    pin.source.display()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, path::PathBuf};

    use herdlet_base::{
        privileges::{Mounting, Privileges},
        test_env::leave_out,
    };

    use super::*;
    use crate::create::Bounds;

    struct Ground {
        dir: tempfile::TempDir,
        pins: PathBuf,
    }

    impl Ground {
        /// An allocation, and a directory of the machine with a secret; none without the right to mount.
        fn new() -> Option<Self> {
            if Privileges::probe().mounting == Mounting::Impossible {
                leave_out("the right to mount");
                return None;
            }
            let dir = tempfile::tempdir().unwrap();
            for part in ["a/t/local/dir", "a/t/private", "a/alloc/data", "machine"] {
                fs::create_dir_all(dir.path().join(part)).unwrap();
            }
            fs::write(dir.path().join("a/t/local/dir/own"), "own").unwrap();
            fs::write(dir.path().join("a/t/local/file"), "own").unwrap();
            fs::write(dir.path().join("machine/secret"), "secret").unwrap();
            let pins = dir.path().join("pins");
            Some(Self { dir, pins })
        }

        fn path(&self, path: &str) -> PathBuf {
            self.dir.path().join(path)
        }

        fn pin(&self, source: &str, missing: Missing) -> Pin {
            Pin {
                field: "volumes[0]".to_owned(),
                source: self.path(source),
                point: self.pins.join("0"),
                bounds: Bounds { alloc: self.path("a"), shared: self.path("a/alloc") },
                missing,
            }
        }

        fn mount(&self, source: &str, missing: Missing) -> Result<(), String> {
            mount(&[self.pin(source, missing)]).map_err(|error| error.to_string())
        }

        fn pinned(&self, path: &str) -> String {
            fs::read_to_string(self.pins.join("0").join(path)).unwrap_or_default()
        }
    }

    impl Drop for Ground {
        fn drop(&mut self) {
            let _ = unmount(&self.pins);
        }
    }

    /// A task exchanged its directory and a link between the check and the engine's mount, and had any directory of the machine.
    #[test]
    fn a_path_that_becomes_a_link_after_the_check_leads_nowhere() {
        let Some(ground) = Ground::new() else { return };
        let swap = |to: &str| {
            fs::rename(ground.path("a/t/local/dir"), ground.path("a/t/local/away")).unwrap();
            symlink(ground.path(to), ground.path("a/t/local/dir")).unwrap();
        };
        // After the agent has opened it: what it has opened stays.
        ground.mount("a/t/local/dir", Missing::Create).unwrap();
        swap("machine");
        assert_eq!((ground.pinned("own"), ground.pinned("secret")), ("own".into(), String::new()));
        unmount(&ground.pins).unwrap();
        // Before: it is refused, also for what is to be created below it.
        for source in ["a/t/local/dir", "a/t/local/dir/secret", "a/t/local/dir/new"] {
            for missing in [Missing::Create, Missing::Refuse] {
                let refused = ground.mount(source, missing).unwrap_err();
                assert!(refused.contains("config.volumes[0]"), "{source}: {refused}");
            }
        }
        assert!(!ground.path("machine/new").exists());
        // A link within the allocation is the task's own matter, but not one to what the agent relies on.
        for (to, is_allowed) in [("a/alloc/data", true), ("a/t/private", false), ("a/t", false), ("a", false)]
        {
            fs::remove_file(ground.path("a/t/local/dir")).unwrap();
            symlink(ground.path(to), ground.path("a/t/local/dir")).unwrap();
            assert_eq!(ground.mount("a/t/local/dir", Missing::Create).is_ok(), is_allowed, "{to}");
            unmount(&ground.pins).unwrap();
        }
    }

    #[test]
    fn files_and_missing_directories_are_mounted_and_nothing_of_them_is_removed() {
        let Some(ground) = Ground::new() else { return };
        ground.mount("a/t/local/file", Missing::Refuse).unwrap();
        assert_eq!(fs::read_to_string(ground.pins.join("0")).unwrap(), "own");
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(sees(own, &ground.pins).unwrap());
        // A repeated start: the engine may be about to use the first one.
        ground.mount("a/t/local/file", Missing::Refuse).unwrap();
        unmount(&ground.pins).unwrap();
        assert!(!ground.pins.exists());
        assert_eq!(fs::read_to_string(ground.path("a/t/local/file")).unwrap(), "own");

        ground.mount("a/t/local/new/deep", Missing::Create).unwrap();
        fs::write(ground.pins.join("0/x"), "x").unwrap();
        assert_eq!(fs::read_to_string(ground.path("a/t/local/new/deep/x")).unwrap(), "x");
        unmount(&ground.pins).unwrap();
        assert!(ground.path("a/t/local/new/deep/x").exists());
        let refused = ground.mount("a/t/local/none", Missing::Refuse).unwrap_err();
        assert!(refused.contains("a/t/local/none"), "{refused}");
        unmount(&ground.pins).unwrap();
        unmount(&ground.pins).unwrap();
    }

    /// An engine in another mount namespace would have mounted empty directories.
    #[test]
    fn a_mount_that_is_not_there_is_not_seen() {
        let Some(ground) = Ground::new() else { return };
        fs::create_dir_all(ground.pins.join("0")).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!sees(own, &ground.pins).unwrap());
    }
}
