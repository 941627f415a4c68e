//! Records that were deleted under a supervisor that lives.
//!
//! A supervisor writes its record through a descriptor and never learns that the file has lost its name. So the record is
//! put back with what the supervisor holds, read through `/proc/PID/fd`, and from then on each of its writes is carried over:
//! the task runs on, its attempt can't be started a second time, and its exit is told. In: what was seen to be gone. Out:
//! records. It ends nothing and starts nothing.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
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
use rustix::fs::inotify::{self, WatchFlags as W};

use super::{Attempts, AttemptsError, Notice, lock};
use crate::{
    process_tree,
    supervisor::{Process, Record},
};

/// A record that its supervisor writes where nobody else sees it.
#[derive(Debug)]
pub(super) struct Mirror {
    name: String,
    held: File,
}

impl Attempts {
    /// Something was seen by the watch `wd`.
    pub(super) fn saw(&self, wd: i32, name: Option<&str>, is_gone: bool) {
        let (inside, around) = {
            let place = self.place();
            (place.inside, place.around)
        };
        if wd == inside {
            let Some(name) = name else { return };
            if is_gone {
                // Whoever deletes the directory deletes what is in it first; nothing could be put back in there.
                self.keep_place();
                self.try_to_put_back(name);
            }
            self.wake(name);
        } else if wd == around {
            // Of other entries there, nothing is to be known.
            let own = self.path.file_name().and_then(|own| own.to_str());
            if name.is_none() || name == own {
                self.keep_place();
            }
        } else if wd == self.cgroups.load(Ordering::Relaxed) {
            if let Some(name) = name {
                self.cgroup_gone(name);
            }
        } else {
            // Or of a directory that is no longer the one.
            self.try_to_carry_over(wd);
        }
    }

    fn keep_place(&self) {
        if let Err(error) = self.present() {
            let error = herdlet_base::error::in_full(&error);
            tracing::error!(error, "failed to make the attempts directory again; the next start tries it");
        }
    }

    /// The record of an attempt whose supervisor has just ended: what it wrote last may not have been carried over yet.
    pub(super) fn last_record(&self, id: &AttemptId) -> Result<Option<Record>, AttemptsError> {
        let name = id.name();
        let of_name = lock(&self.mirrors).iter().find(|(_, mirror)| mirror.name == name).map(|(wd, _)| *wd);
        if let Some(wd) = of_name {
            self.carry_over(wd).map_err(|source| AttemptsError::PutBack { name, source })?;
        }
        self.record(id)
    }

    /// Anything may have happened.
    pub(super) fn overflow(&self) {
        self.keep_place();
        self.put_all_back();
        let mirrors: Vec<i32> = lock(&self.mirrors).keys().copied().collect();
        for mirror in mirrors {
            self.try_to_carry_over(mirror);
        }
        self.wake_all();
    }

    /// Finds the supervisors of this directory whose records are not in it: deleted while no agent was there, or put back by
    /// an earlier one.
    ///
    /// # Errors
    /// When processes can't be listed: what runs would be taken for what has never begun.
    pub(super) fn find_lost(&self) -> Result<(), AttemptsError> {
        let proc = PathBuf::from("/proc");
        let processes = fs::read_dir(&proc).map_err(|source| AttemptsError::Watch { path: proc, source })?;
        let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let real = fs::canonicalize(&self.path)
            .map_err(|source| AttemptsError::Watch { path: self.path.clone(), source })?;
        for pid in pids {
            let supervised = Supervised::of(pid)
                .map_err(|source| AttemptsError::Watch { path: format!("/proc/{pid}").into(), source })?;
            // One that was deleted keeps its path; one that was moved keeps its mark.
            let Some(name) = supervised.filter(|it| it.is_of(&real)).map(|it| it.name) else { continue };
            let Some(stat) = process_tree::stat(pid) else { continue };
            lock(&self.shims).insert(name.clone(), Process { pid, start_ticks: stat.start_ticks });
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
            tracing::warn!(name, error, "failed to put the record of a running attempt back");
        }
    }

    /// Puts a record back that is not there, or is not what its supervisor writes. Whether one is there that a living
    /// supervisor writes.
    ///
    /// # Errors
    /// When it can't be put back, or it can't be told whether there is anything to be put back.
    pub(super) fn put_back(&self, name: &str) -> Result<bool, AttemptsError> {
        let Some(shim) = lock(&self.shims).get(name).copied() else { return Ok(false) };
        let put = || -> io::Result<bool> {
            if process_tree::look(shim.pid)?.is_none_or(|stat| stat.start_ticks != shim.start_ticks) {
                return Ok(false);
            }
            let Some(held) = held_by(shim.pid, name)? else { return Ok(false) };
            if !self.is_in_place(name, &held)? {
                self.mirror(name, held)?;
            }
            Ok(true)
        };
        put().map_err(|source| AttemptsError::PutBack { name: name.to_owned(), source })
    }

    /// Forgets a supervisor, whose attempt is over.
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
        // First watched, then copied: no write is missed between the two.
        let link = format!("/proc/self/fd/{}", held.as_raw_fd());
        let watch = inotify::add_watch(self.inotify.get_ref(), link, W::MODIFY)?;
        lock(&self.mirrors).insert(watch, Mirror { name: name.to_owned(), held });
        self.carry_over(watch)?;
        if let Some(id) = AttemptId::parse(name) {
            let what = "its record was gone".to_owned();
            // The reader of events never waits.
            if self.notices.try_send(Notice::Repaired { id, kind: "record", what }).is_err() {
                tracing::debug!(name, "too busy to tell that a record was put back");
            }
        }
        Ok(())
    }

    /// Writes what a supervisor holds to where it is read, if `wd` is the watch of such a record.
    fn carry_over(&self, wd: i32) -> io::Result<()> {
        let mirrors = lock(&self.mirrors);
        let Some(Mirror { name, held }) = mirrors.get(&wd) else { return Ok(()) };
        read(held)?.map_or(Ok(()), |record| self.place().records().put(name, &record))
    }

    fn try_to_carry_over(&self, wd: i32) {
        if let Err(error) = self.carry_over(wd) {
            tracing::warn!(%error, "failed to carry over the record of an attempt");
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
    /// The attempt's record name.
    name: String,
    /// Where the attempts directory is, or was when it was deleted.
    pub dir: PathBuf,
    /// Where it was made.
    pub made_at: Option<PathBuf>,
}

impl Supervised {
    /// None if the process is no supervisor of our user, or has ended.
    ///
    /// # Errors
    /// When that can't be found out, for instance for want of descriptors.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(arguments) = unless_gone(fs::read(format!("/proc/{pid}/cmdline")))? else { return Ok(None) };
        let name = arguments.strip_prefix(b"herdlet-shim\0run\0").and_then(|rest| rest.strip_suffix(b"\0"));
        let Some(name) = name.and_then(|name| std::str::from_utf8(name).ok()) else { return Ok(None) };
        if AttemptId::parse(name).is_none() {
            return Ok(None);
        }
        // Tasks may call themselves anything, but what is of another user is not ours.
        let own = unless_gone(fs::metadata(format!("/proc/{pid}")))?.map(|found| found.uid());
        if own != Some(rustix::process::geteuid().as_raw()) {
            return Ok(None);
        }
        let dir = format!("/proc/{pid}/fd/{}", herdlet_shim::FD_RUNTIME);
        let Some(link) = unless_gone(fs::read_link(&dir))? else { return Ok(None) };
        let made_at = fs::read(Path::new(&dir).join(MADE_AT)).ok();
        let made_at = made_at.map(|path| PathBuf::from(OsString::from_vec(path)));
        Ok(Some(Self { name: name.to_owned(), dir: without_mark(&link).to_owned(), made_at }))
    }

    /// Whether the records of the supervisor are in the directory with this path without links.
    pub fn is_of(&self, attempts: &Path) -> bool {
        self.dir == attempts || self.made_at.as_deref() == Some(attempts)
    }
}

/// A process may end at any time, and those of others are closed.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
                || error.raw_os_error() == Some(libc::ESRCH) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Names the path at which the directory was made, also after it was moved elsewhere.
const MADE_AT: &str = ".path";

/// Marks a directory that is at its place.
pub(super) fn mark(path: &Path) -> io::Result<()> {
    let real = fs::canonicalize(path)?;
    let mark = path.join(MADE_AT);
    if fs::read(&mark).is_ok_and(|known| known == real.as_os_str().as_bytes()) {
        return Ok(());
    }
    durable::write_in_steps(&mark, real.as_os_str().as_bytes(), Outlives::Processes, &Steps::default())
}

/// The record that a supervisor has open, if it still has.
fn held_by(pid: u32, name: &str) -> io::Result<Option<File>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        if without_mark(&target).file_name().is_none_or(|file| file != name) {
            continue;
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if read(&file).is_ok_and(|record| record.is_some_and(|record| record.shim.pid == pid)) {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// The kernel marks what has lost its name (proc(5), `/proc/pid/fd`).
fn without_mark(link: &Path) -> &Path {
    link.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map_or(link, Path::new)
}

/// What a record says; none while it is being written, which is followed by an event.
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
