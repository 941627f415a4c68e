//! Finds what may still run of a start in another PID namespace, such as in a container. Its processes are not
//! visible from here, and the pids in its records belong to other processes, or to none.
//!
//! In: the location of that start. Out: what runs, or that it cannot be determined. If its cgroups are visible, they
//! decide; otherwise its records do: a supervisor has its record open for writing until it ends, which the kernel
//! reports across namespaces.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
};

use super::{
    Location,
    elsewhere::Running,
    is_populated,
    living::{ATTEMPTS, LivingError, records_of},
};

/// The PID namespace of this process, if /proc shows it (pid_namespaces(7)).
pub(super) fn own() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
}

/// Whether the recorded start was in another namespace. Older releases did not record it.
pub(super) fn is_another(recorded: &Location) -> bool {
    matches!((recorded.pid_namespace, own()), (Some(recorded), Some(own)) if recorded != own)
}

/// What runs, or may run, of a start in another namespace.
pub(super) fn running(recorded: &Location) -> Result<Option<Running>, LivingError> {
    if let Some(tree) = &recorded.cgroups {
        if is_populated(tree) {
            return Ok(Some(Running::Cgroups(tree.clone())));
        }
        if tree.join("cgroup.events").exists() {
            return Ok(None);
        }
    }
    let Some(records) = records_of(&recorded.runtime)? else {
        // If its cgroups are gone, they had no processes, as far as we can tell.
        return Ok(recorded.cgroups.is_none().then_some(Running::Unknown));
    };
    let attempts = recorded.runtime.join(ATTEMPTS);
    let (mut held, mut is_unknown) = (0, false);
    for listed in records {
        match is_written(&attempts.join(&listed.name)) {
            Ok(true) => held += 1,
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The file system has no leases.
            Err(_) => is_unknown |= listed.record.is_ok_and(|record| !record.is_final()),
        }
    }
    Ok(match held {
        0 => is_unknown.then_some(Running::Unknown),
        count => Some(Running::Records(count)),
    })
}

/// The same number on all architectures (fcntl(2)); the libc crate defines it only for some.
const F_SETSIG: libc::c_int = 10;

/// Whether a process of any namespace has the file open for writing: the kernel then refuses a read lease (fcntl(2),
/// `F_SETLEASE`).
#[expect(unsafe_code, reason = "rustix has no leases")]
fn is_written(path: &Path) -> io::Result<bool> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let set = |command: libc::c_int, value: libc::c_int| {
        // SAFETY: passes an open descriptor and numbers.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // If another process opens the file for writing now, the kernel breaks the lease and sends a signal. The default,
    // SIGIO, would end this process, so another one is set: SIGURG, which is ignored.
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}
