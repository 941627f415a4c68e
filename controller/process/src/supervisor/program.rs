//! The embedded supervisor program, made executable for the kernel.
//!
//! In: a directory of ours. Out: a descriptor of the program. A file is better than memory: all tasks share its pages,
//! and it has a name in `ps`. So memory is the fallback where the directory forbids execution.

use super::places::Places;
use herdlet_shim::PROGRAM;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The supervisor program, ready for execution. Held open, so that nobody can replace it.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    /// See [`Self::inside`]; made when it is first needed.
    inside: OnceLock<OwnedFd>,
    places: Places,
}

/// Why the program could not be made ready. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The file could not be written.
    #[error("write the supervisor program to {path}")]
    Write {
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file could not be opened again.
    #[error("open the supervisor program {path}")]
    Open {
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The directory forbids execution, and the memfd failed as well.
    #[error("keep the supervisor program in memory")]
    Memory(#[source] std::io::Error),
    /// There are not enough descriptors to start it with.
    #[error("reserve descriptors for starting the supervisor program")]
    Descriptors(#[source] std::io::Error),
}

impl Program {
    /// Writes the program as `DIR/shim-HASH` (mode 0700) if it is not there yet. `DIR` must not be writable by anybody
    /// else.
    ///
    /// # Errors
    /// When neither the directory nor memory can hold it.
    pub fn install(dir: &Path) -> Result<Self, ProgramError> {
        let name = file_name();
        let path = dir.join(&name);
        let is_present = is_executable(&path) && std::fs::read(&path).is_ok_and(|bytes| bytes == PROGRAM);
        if !is_present {
            write_file(dir, &path, &name)
                .map_err(|source| ProgramError::Write { path: path.clone(), source })?;
        }
        let places = Places::reserve().map_err(ProgramError::Descriptors)?;
        let open = |source: Errno| ProgramError::Open { path: path.clone(), source: source.into() };
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // A task can make the kernel run the program of its supervisor, with the interpreter `/proc/self/exe` of a script, and finds
        // it there. Where the mount can't be made, no task has a root.
        let fd = match herdlet_rootfs::kernel::read_only(dir) {
            Ok(mount) => rustix::fs::openat(mount, &name, flags, Mode::empty()),
            Err(_) => rustix::fs::open(&path, flags, Mode::empty()),
        };
        let fd = fd.map_err(open)?;
        let flags = rustix::fs::fstatvfs(&fd).map_err(open)?.f_flag;
        if flags.contains(StatVfsMountFlags::NOEXEC) {
            return in_memory("herdlet-shim", PROGRAM, MemfdFlags::EXEC)
                .map(|fd| Self { fd, inside: OnceLock::new(), places })
                .map_err(|errno| ProgramError::Memory(errno.into()));
        }
        Ok(Self { fd, inside: OnceLock::new(), places })
    }

    /// The program as processes in namespaces of a task may see it, through /proc. Root there could write to a file
    /// (CVE-2019-5736), but not to sealed memory. Its name is not a supervisor's, so that the task can't pass for one.
    ///
    /// # Errors
    /// When the system does not keep programs in memory.
    pub(super) fn inside(&self) -> Result<BorrowedFd<'_>, ProgramError> {
        if self.inside.get().is_none() {
            let made = in_memory("herdlet-init", PROGRAM, MemfdFlags::EXEC);
            // Another thread may have been faster.
            let _ = self.inside.set(made.map_err(|errno| ProgramError::Memory(errno.into()))?);
        }
        let inside = self.inside.get().ok_or_else(|| ProgramError::Memory(Errno::AGAIN.into()))?;
        // Where the mode is not sealed, a task may have changed it.
        rustix::fs::fchmod(inside, Mode::from(0o755)).map_err(|errno| ProgramError::Memory(errno.into()))?;
        Ok(inside.as_fd())
    }

    /// Reserved descriptor numbers for starting it.
    pub(super) fn places(&self) -> &Places {
        &self.places
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o777 == 0o700)
}

fn file_name() -> OsString {
    let hash = Sha256::digest(PROGRAM);
    let hex: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("shim-{hex}").into()
}

fn write_file(dir: &Path, path: &Path, name: &OsString) -> std::io::Result<()> {
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!("-{}", uuid::Uuid::new_v4()));
    let temporary = dir.join(temporary);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(&temporary, flags, Mode::RWXU)?;
    let mut file = File::from(file);
    let written = file.write_all(PROGRAM).and_then(|()| {
        drop(file);
        std::fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// `F_SEAL_EXEC` (fcntl.h): whether the file can be executed stays as it is. rustix does not have it.
const SEAL_EXEC: u32 = 0x20;

/// Creates a sealed file in memory that nobody can change. `kind` sets whether it is executable (Linux 6.3); older
/// kernels ignore it.
pub(super) fn in_memory(name: &str, bytes: &[u8], kind: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | kind) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?,
        fd => fd?,
    };
    let mut rest = bytes;
    while !rest.is_empty() {
        let len = rustix::io::write(&fd, rest)?;
        rest = &rest[len..];
    }
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    // A task can find the file of its first process, which all tasks have, and so change its mode (Linux 6.3 seals that).
    match rustix::fs::fcntl_add_seals(&fd, SealFlags::from_bits_retain(SEAL_EXEC) | SealFlags::SEAL) {
        Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL)?,
        sealed => sealed?,
    }
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_written_once_and_repaired() {
        let dir = tempfile::tempdir().unwrap();
        Program::install(dir.path()).unwrap();
        let path = dir.path().join(file_name());
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        Program::install(dir.path()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
        std::fs::write(&path, "damaged").unwrap();
        Program::install(dir.path()).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), PROGRAM);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        Program::install(dir.path()).unwrap();
        assert!(is_executable(&path));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
