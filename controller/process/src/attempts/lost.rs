//! Restores records that were deleted while their supervisor lives.
//!
//! A supervisor writes its record through a descriptor and does not notice that the file was deleted. So the record is
//! restored from the supervisor's open file, read through `/proc/PID/fd`, and each later write is copied: the task runs
//! on, its attempt can't start a second time, and its exit is reported. In: deleted records. Out: records. It ends
//! nothing and starts nothing. It takes a record from a process only if `proc_dir` verifies that the process is a
//! supervisor.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{FileExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use herdlet_base::durable::{self, Outlives, Steps};
use herdlet_driver::AttemptId;
use herdlet_shim::record::RECORD_LEN;
use rustix::{
    fs::{
        Mode, OFlags, fstat,
        inotify::{self, WatchFlags as W},
        openat,
    },
    io::Errno,
};

use super::{
    Attempts, AttemptsError, DriverNumber, lock,
    proc_dir::{PATH_LEN_MAX, ProcDir, is_closed_dir, read_closed, without_mark},
};
use crate::{
    process_tree,
    supervisor::{PidFd, Process, ProcessError, Record, RecordsError},
};

/// A deleted record that its supervisor still writes to.
#[derive(Debug)]
pub(super) struct Mirror {
    name: String,
    held: File,
}

/// What an event reports about a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was deleted or moved away.
    Gone,
    /// It exists, or was changed.
    There,
}

/// Reports a supervisor whose attempt belongs to another one. If nothing runs below it, it has come too late and ends by
/// itself once it reads the record: on a busy machine, an earlier agent may have spawned it and been replaced before that.
fn leave_alone(name: &str, pid: u32) {
    if process_tree::below(pid, |pid, _| Some(pid)).is_empty() {
        tracing::info!(pid, name, "a supervisor has come too late for its attempt; it ends by itself");
    } else {
        tracing::error!(pid, name, "the record names another living supervisor: this one is left alone");
    }
}

impl Attempts {
    /// Handles an event of the watch `wd`.
    pub(super) fn saw(&self, wd: i32, name: Option<&str>, seen: Seen) {
        let (inside, around) = {
            let place = self.place();
            (place.inside, place.around)
        };
        if wd == inside {
            let Some(name) = name else { return };
            if seen == Seen::Gone {
                // Deleting the directory deletes its contents first; in a deleted directory nothing can be restored.
                self.keep_place();
                self.try_to_put_back(name);
            }
            self.wake(name);
        } else if wd == around {
            // Other entries of the parent don't matter.
            let own = self.path.file_name().and_then(|own| own.to_str());
            if name.is_none() || name == own {
                self.keep_place();
            }
        } else if wd == self.cgroups.load(Ordering::Relaxed) {
            if let Some(name) = name {
                self.cgroup_gone(name);
            }
        } else {
            // A mirror's watch, or one of a directory that was replaced.
            self.try_to_carry_over(wd);
        }
    }

    fn keep_place(&self) {
        if let Err(error) = self.present() {
            let error = herdlet_base::error::in_full(&error);
            tracing::error!(
                error,
                "failed to recreate the attempts directory; the next start of a task retries"
            );
        }
    }

    /// The record of an attempt whose supervisor has just ended. Its last write may not have been copied yet.
    pub(super) fn last_record(&self, id: &AttemptId) -> Result<Option<Record>, AttemptsError> {
        let name = id.name();
        let of_name = lock(&self.mirrors).iter().find(|(_, mirror)| mirror.name == name).map(|(wd, _)| *wd);
        if let Some(wd) = of_name {
            self.carry_over(wd).map_err(|source| AttemptsError::PutBack { name, source })?;
        }
        self.record(id)
    }

    /// Events were lost, so anything may have happened.
    pub(super) fn overflow(&self) {
        self.keep_place();
        self.put_all_back();
        let mirrors: Vec<i32> = lock(&self.mirrors).keys().copied().collect();
        for mirror in mirrors {
            self.try_to_carry_over(mirror);
        }
        self.wake_all();
    }

    /// Finds the supervisors of this directory whose records are not in it: deleted while no agent ran, or restored by
    /// an earlier agent.
    ///
    /// # Errors
    /// When processes can't be listed: a running attempt would count as one that never began.
    pub(super) fn find_lost(&self) -> Result<(), AttemptsError> {
        let proc = PathBuf::from("/proc");
        let processes = fs::read_dir(&proc).map_err(|source| AttemptsError::Watch { path: proc, source })?;
        let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let real = fs::canonicalize(&self.path)
            .map_err(|source| AttemptsError::Watch { path: self.path.clone(), source })?;
        for pid in pids {
            let failed = |source| AttemptsError::Watch { path: format!("/proc/{pid}").into(), source };
            let supervised = Supervised::of(pid, &own_users()).map_err(failed)?;
            // A deleted directory keeps its path; a moved one keeps its mark.
            let Some(Supervised { name, process, .. }) = supervised.filter(|it| it.is_of(&real)) else {
                continue;
            };
            if self.is_of_another(&name, process)? {
                leave_alone(&name, pid);
                continue;
            }
            lock(&self.shims).insert(name.clone(), process);
            self.try_to_put_back(&name);
        }
        Ok(())
    }

    pub(super) fn put_all_back(&self) {
        let names: Vec<String> = lock(&self.shims).keys().cloned().collect();
        for name in names {
            self.try_to_put_back(&name);
        }
    }

    fn try_to_put_back(&self, name: &str) {
        if let Err(error) = self.put_back(name) {
            let error = herdlet_base::error::in_full(&error);
            tracing::warn!(name, error, "failed to restore the record of a running attempt");
        }
    }

    /// Restores a record that is missing or is not the file that its supervisor writes. Returns whether a living
    /// supervisor writes the record.
    ///
    /// # Errors
    /// When the record can't be restored, or it is unknown whether it needs to be.
    pub(super) fn put_back(&self, name: &str) -> Result<bool, AttemptsError> {
        let Some(shim) = lock(&self.shims).get(name).copied() else { return Ok(false) };
        let put = || -> io::Result<bool> {
            let Some(held) = held_by(shim, name)? else { return Ok(false) };
            if !self.is_in_place(name, &held)? && !self.is_of_another(name, shim)? {
                self.mirror(name, held)?;
            }
            Ok(true)
        };
        put().map_err(|source| AttemptsError::PutBack { name: name.to_owned(), source })
    }

    /// Forgets the supervisor of an attempt that is over.
    pub(super) fn let_go(&self, name: &str) {
        lock(&self.shims).remove(name);
        let mut mirrors = lock(&self.mirrors);
        let of_name = mirrors.iter().find(|(_, mirror)| mirror.name == name).map(|(watch, _)| *watch);
        if let Some(watch) = of_name {
            mirrors.remove(&watch);
            let _ = inotify::remove_watch(self.inotify.get_ref(), watch);
        }
    }

    fn mirror(&self, name: &str, held: File) -> io::Result<()> {
        // Watch before copying, so that no write in between is missed.
        let link = format!("/proc/self/fd/{}", held.as_raw_fd());
        let watch = inotify::add_watch(self.inotify.get_ref(), link, W::MODIFY)?;
        let record = read(&held)?;
        lock(&self.mirrors).insert(watch, Mirror { name: name.to_owned(), held });
        self.carry_over(watch)?;
        if let (Some(id), Some(record)) = (AttemptId::parse(name), record) {
            let reports = self.reports(DriverNumber::of_record(&record));
            reports.add_repair(id, "record", "its record was gone");
        }
        Ok(())
    }

    /// Copies a supervisor's open record into the directory, if `wd` is the watch of a mirror.
    fn carry_over(&self, wd: i32) -> io::Result<()> {
        let mirrors = lock(&self.mirrors);
        let Some(Mirror { name, held }) = mirrors.get(&wd) else { return Ok(()) };
        read(held)?.map_or(Ok(()), |record| self.place().records().put(name, &record))
    }

    fn try_to_carry_over(&self, wd: i32) {
        if let Err(error) = self.carry_over(wd) {
            tracing::warn!(%error, "failed to copy the record of an attempt");
        }
    }

    /// Whether the record in place names a living supervisor other than `shim`; then it must not be replaced.
    fn is_of_another(&self, name: &str, shim: Process) -> Result<bool, AttemptsError> {
        let recorded = match self.records().read(name) {
            Ok(record) => record.map(|record| record.shim).filter(|known| known.pid != 0 && *known != shim),
            Err(RecordsError::Damaged { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        match recorded.map(PidFd::open) {
            Some(Ok(found)) => Ok(found.is_some_and(|shim| !shim.has_ended().unwrap_or(false))),
            // A process with that pid lives, at least.
            Some(Err(ProcessError::Unverifiable { .. })) => Ok(true),
            Some(Err(error)) => Err(error.into()),
            None => Ok(false),
        }
    }

    fn is_in_place(&self, name: &str, held: &File) -> io::Result<bool> {
        let held = held.metadata()?;
        let seen = fs::symlink_metadata(self.path.join(name));
        Ok(seen.is_ok_and(|seen| (seen.dev(), seen.ino()) == (held.dev(), held.ino())))
    }
}

/// An attempt that a process supervises.
#[derive(Debug)]
pub struct Supervised {
    pub process: Process,
    /// The attempt's record name.
    name: String,
    /// Where the attempts directory is, or was when it was deleted.
    pub dir: PathBuf,
    /// Device and inode of that directory.
    pub held: (u64, u64),
    /// Where the directory was made.
    pub made_at: Option<PathBuf>,
}

impl Supervised {
    /// Returns `None` if the process is no supervisor of one of these users, or has ended.
    ///
    /// # Errors
    /// When the system can't report that, for instance for lack of descriptors or rights.
    pub fn of(pid: u32, users: &[u32]) -> io::Result<Option<Self>> {
        let Some(process) = ProcDir::open(pid)? else { return Ok(None) };
        let Some(supervision) = process.supervision(users)? else { return Ok(None) };
        let runtime = format!("fd/{}", herdlet_shim::FD_RUNTIME);
        let (Some(dir), Some(link)) = (process.held(&runtime)?, process.link(&runtime)?) else {
            return Ok(None);
        };
        let found = fstat(&dir)?;
        let made_at = made_at(&dir, supervision.uid)?;
        let Some(start_ticks) = process.start_ticks()? else { return Ok(None) };
        // The process may have executed another program before the directory was opened.
        if process.supervision(users)?.as_ref() != Some(&supervision) {
            return Ok(None);
        }
        Ok(Some(Self {
            process: Process { pid, start_ticks },
            name: supervision.name,
            dir: without_mark(&link).to_owned(),
            held: (found.st_dev, found.st_ino),
            made_at,
        }))
    }

    /// Whether the supervisor's records are in the directory with this canonical path.
    pub fn is_of(&self, attempts: &Path) -> bool {
        self.dir == attempts || self.made_at.as_deref() == Some(attempts)
    }

    /// The supervisor's open file with this descriptor number.
    ///
    /// # Errors
    /// When the system can't report that.
    pub fn descriptor(&self, fd: i32) -> io::Result<Option<OwnedFd>> {
        let Some(process) = ProcDir::open(self.process.pid)? else { return Ok(None) };
        let held = process.held(&format!("fd/{fd}"))?;
        // The pid may have been reused by now.
        Ok(held.filter(|_| process.start_ticks().is_ok_and(|found| found == Some(self.process.start_ticks))))
    }
}

/// Path at which a directory of `uid` was made, if nobody else can have written that path.
fn made_at(dir: &OwnedFd, uid: u32) -> io::Result<Option<PathBuf>> {
    if !is_closed_dir(dir, uid)? {
        return Ok(None);
    }
    let mark = match openat(dir, MADE_AT, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(mark) => mark,
        // As in a directory that was emptied before it was deleted.
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let Some(file) = read_closed(&mark, uid)? else { return Ok(None) };
    let mut path = Vec::new();
    file.take(PATH_LEN_MAX).read_to_end(&mut path)?;
    Ok(Some(PathBuf::from(OsString::from_vec(path))))
}

/// File that holds the path at which the directory was made; it stays valid after a move.
const MADE_AT: &str = ".path";

/// Writes the mark into a directory that is at its place.
pub(super) fn mark(path: &Path) -> io::Result<()> {
    let real = fs::canonicalize(path)?;
    let mark = path.join(MADE_AT);
    if fs::read(&mark).is_ok_and(|known| known == real.as_os_str().as_bytes()) {
        return Ok(());
    }
    durable::write_in_steps(&mark, real.as_os_str().as_bytes(), Outlives::Processes, &Steps::default())
}

/// The record that a supervisor has open, if it still has.
fn held_by(shim: Process, name: &str) -> io::Result<Option<File>> {
    let Some(process) = ProcDir::open(shim.pid)? else { return Ok(None) };
    if process.start_ticks()? != Some(shim.start_ticks) {
        return Ok(None);
    }
    let Some(supervision) = process.supervision(&own_users())? else { return Ok(None) };
    let files = process.files_named(name, supervision.uid)?;
    let is_its =
        |file: &File| read(file).is_ok_and(|record| record.is_some_and(|it| it.shim.pid == shim.pid));
    Ok(files.into_iter().find(is_its))
}

/// The agent trusts only records of supervisors that run as its own user.
fn own_users() -> [u32; 1] {
    [rustix::process::geteuid().as_raw()]
}

/// Reads a record; `None` while it is being written, after which an event follows.
fn read(file: &File) -> io::Result<Option<Record>> {
    let mut bytes = [0; RECORD_LEN];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Record::from_bytes(&bytes).ok())
}

impl From<AttemptsError> for io::Error {
    fn from(error: AttemptsError) -> Self {
        Self::other(error)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn made(dir: &Path) -> Option<PathBuf> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty()).unwrap();
        made_at(&dir, rustix::process::geteuid().as_raw()).unwrap()
    }

    #[test]
    fn directory_time_is_read_only_from_a_trusted_file() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, mark) = (temp.path(), temp.path().join(MADE_AT));
        let set_mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(made(dir), None);
        super::mark(dir).unwrap();
        let real = fs::canonicalize(dir).unwrap();
        assert_eq!(made(dir).as_ref(), Some(&real));
        for (path, mode) in [(dir, 0o720), (dir, 0o702), (&*mark, 0o620), (&mark, 0o602)] {
            let before = fs::metadata(path).unwrap().permissions();
            set_mode(path, mode);
            assert_eq!(made(dir), None, "{} {mode:o}", path.display());
            fs::set_permissions(path, before).unwrap();
        }
        assert_eq!(made(dir), Some(real));
        // A mark of any length is read only up to the limit.
        fs::write(&mark, vec![b'x'; 1 << 20]).unwrap();
        assert!(made(dir).is_some_and(|path| path.as_os_str().len() <= 4096));
        fs::remove_file(&mark).unwrap();
        symlink("/dev/zero", &mark).unwrap();
        assert_eq!(made(dir), None);
        fs::remove_file(&mark).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &mark, 0o600.into()).unwrap();
        assert_eq!(made(dir), None);
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&mark).unwrap();
            super::mark(dir).unwrap();
            std::os::unix::fs::chown(&mark, Some(65_534), None).unwrap();
            assert_eq!(made(dir), None);
            std::os::unix::fs::chown(&mark, Some(0), None).unwrap();
            std::os::unix::fs::chown(dir, Some(65_534), None).unwrap();
            assert_eq!(made(dir), None);
        }
    }
}
