//! What may still run of a start in another PID namespace, as in a container or beside one. From here its processes are not seen, and the
//! pids in its records are other processes, or none.
//!
//! In: where that start was. Out: what runs, or that it can't be found out. Its cgroups are asked, where they are seen; otherwise its
//! records: a supervisor has its record open for writing until it ends, which the kernel reports across namespaces.

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

/// Whether the recorded start was in another one. Older releases did not record it.
pub(super) fn is_another(recorded: &Location) -> bool {
    matches!((recorded.pid_namespace, own()), (Some(recorded), Some(own)) if recorded != own)
}

/// What runs of a start in another namespace, or may run.
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
        // Cgroups that are gone had no processes, as far as it can be seen.
        return Ok(recorded.cgroups.is_none().then_some(Running::Unknown));
    };
    let attempts = recorded.runtime.join(ATTEMPTS);
    let (mut held, mut is_unknown) = (0, false);
    for listed in records {
        match is_written(&attempts.join(&listed.name)) {
            Ok(true) => held += 1,
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A file system without leases.
            Err(_) => is_unknown |= listed.record.is_ok_and(|record| !record.is_final()),
        }
    }
    Ok(match held {
        0 => is_unknown.then_some(Running::Unknown),
        count => Some(Running::Records(count)),
    })
}

/// The same on all machines (fcntl(2)); the libc crate has it for some only.
const F_SETSIG: libc::c_int = 10;

/// Whether a process, of any namespace, has the file open for writing: no lease for reading is given then (fcntl(2), `F_SETLEASE`).
#[expect(unsafe_code, reason = "rustix has no leases")]
fn is_written(path: &Path) -> io::Result<bool> {
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let set = |command: libc::c_int, value: libc::c_int| {
        // SAFETY: a descriptor that is held, and numbers.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // If another process opens it for writing now, the kernel ends the lease and sends a signal: SIGIO, which would end this process, unless
    // another is named. SIGURG is ignored.
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => set(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}
