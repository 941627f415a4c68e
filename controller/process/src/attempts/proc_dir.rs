//! A process that supervises an attempt, and its open files, from its directory in /proc.
//!
//! In: a pid, and the users whose supervisors count. Out: the attempt that it supervises, and its open files. A path
//! below `/proc/PID` may refer to another process from one call to the next. An open `/proc/PID` directory can't: once
//! its process has ended, nothing is found below it.
//!
//! A user can give any name and any open files to a process, also to a set-user-id program, which the kernel shows as
//! root's, and can stop that process. So no open file of a process is opened before its four user ids and its program
//! are verified, and no file is read before its owner is.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use herdlet_shim::record::start_ticks;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};

use herdlet_driver::AttemptId;

/// The four user ids are in the first lines of `status` (proc_pid_status(5)), and names of attempts are shorter.
const TEXT_LEN_MAX: u64 = 4096;
/// PATH_MAX: the kernel accepts no longer path.
pub(super) const PATH_LEN_MAX: u64 = 4096;
/// Name prefixes of supervisor programs of all releases: files, and programs in memory.
const PROGRAMS: [&str; 2] = ["shim-", "memfd:herdlet-shim"];
/// Mode bits of files that run as another user or group.
const SET_ID: u32 = 0o6000;
/// Write permission for group and others.
const WRITE_OF_OTHERS: u32 = 0o022;

/// The directory of a process.
#[derive(Debug)]
pub(super) struct ProcDir {
    pid: u32,
    fd: OwnedFd,
}

/// What a process supervises.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Supervision {
    /// The only user of the process.
    pub(super) uid: u32,
    /// The attempt's record name.
    pub(super) name: String,
}

impl ProcDir {
    /// Returns `None` if there is no such process.
    ///
    /// # Errors
    /// When the system can't report that, for instance for lack of descriptors.
    pub(super) fn open(pid: u32) -> io::Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty());
        Ok(unless_gone(opened.map_err(io::Error::from))?.map(|fd| Self { pid, fd }))
    }

    /// Start time of the process; `None` if it has ended.
    pub(super) fn start_ticks(&self) -> io::Result<Option<u64>> {
        Ok(self.text("stat")?.and_then(|stat| start_ticks(&stat)))
    }

    /// The attempt that the process supervises; `None` if it is no supervisor of one of these users, or has ended.
    ///
    /// # Errors
    /// When it claims to be a supervisor, runs as one of these users, and the rest can't be verified.
    pub(super) fn supervision(&self, users: &[u32]) -> io::Result<Option<Supervision>> {
        // Before the arguments: they lie in the process's memory, which another user could make slow to read.
        let Some(uid) = unless_closed(self.user())?.filter(|uid| users.contains(uid)) else {
            return Ok(None);
        };
        let Some(name) = unless_closed(self.name())? else { return Ok(None) };
        Ok(self.runs_supervisor(uid)?.then_some(Supervision { uid, name }))
    }

    /// The user of the process, if all four ids are equal and it is in the agent's pid namespace.
    fn user(&self) -> io::Result<Option<u32>> {
        let Some(status) = self.text("status")? else { return Ok(None) };
        Ok(only_user(&String::from_utf8_lossy(&status)))
    }

    /// The attempt that the process claims to supervise.
    fn name(&self) -> io::Result<Option<String>> {
        let Some(arguments) = self.text("cmdline")? else { return Ok(None) };
        let name = arguments.strip_prefix(b"herdlet-shim\0run\0").and_then(|rest| rest.strip_suffix(b"\0"));
        let name = name.and_then(|name| std::str::from_utf8(name).ok());
        Ok(name.filter(|name| AttemptId::parse(name).is_some()).map(str::to_owned))
    }

    /// Whether its program is one of ours. The program file of an older release may have been removed since.
    fn runs_supervisor(&self, uid: u32) -> io::Result<bool> {
        let Some(path) = self.link("exe")? else { return Ok(false) };
        let Some(program) = self.held("exe")? else { return Ok(false) };
        let found = fstat(&program)?;
        let name = without_mark(&path).file_name().and_then(|name| name.to_str());
        let is_named = name.is_some_and(|name| PROGRAMS.iter().any(|program| name.starts_with(program)));
        Ok(is_named && is_regular(&found) && found.st_uid == uid && found.st_mode & SET_ID == 0)
    }

    /// Opens an open file of the process, or its program: `fd/2`, `exe`. Never blocks, whatever kind of file it is.
    /// `None` if there is no such file.
    ///
    /// # Errors
    /// When the system can't report that. A file that the agent may not access exists.
    pub(super) fn held(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        let held = openat(&self.fd, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        self.unless_ended(held.map_err(io::Error::from))
    }

    /// The path of an open file of the process, or of its program.
    ///
    /// # Errors
    /// As [`Self::held`].
    pub(super) fn link(&self, name: &str) -> io::Result<Option<PathBuf>> {
        use std::os::unix::ffi::OsStringExt as _;
        let link = readlinkat(&self.fd, name, Vec::new()).map_err(io::Error::from);
        Ok(self
            .unless_ended(link)?
            .map(|link| PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes()))))
    }

    /// Open files of the process with this name that belong to `uid` and that nobody else can write to.
    ///
    /// # Errors
    /// As [`Self::held`].
    pub(super) fn files_named(&self, file: &str, uid: u32) -> io::Result<Vec<File>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let list = openat(&self.fd, "fd", flags, Mode::empty()).map_err(io::Error::from);
        let Some(list) = self.unless_ended(list)? else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for entry in Dir::new(list)? {
            let Some(number) = entry?.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let name = format!("fd/{number}");
            let Some(path) = self.link(&name)? else { continue };
            if without_mark(&path).file_name().is_none_or(|found| found != file) {
                continue;
            }
            let Some(held) = self.held(&name)? else { continue };
            files.extend(read_closed(&held, uid)?);
        }
        Ok(files)
    }

    fn text(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let opened = openat(&self.fd, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let read = opened.map_err(io::Error::from).and_then(|file| {
            let mut text = Vec::new();
            File::from(file).take(TEXT_LEN_MAX).read_to_end(&mut text).map(|_| text)
        });
        unless_gone(read)
    }

    /// Returns `None` if the process has ended. A process that is exiting denies access to users without privileges
    /// before it is gone, and has no arguments any more.
    fn unless_ended<T>(&self, result: io::Result<T>) -> io::Result<Option<T>> {
        unless_gone(result).or_else(|error| {
            let is_closed = error.kind() == io::ErrorKind::PermissionDenied;
            if is_closed && self.name()?.is_none() { Ok(None) } else { Err(self.explained(error)) }
        })
    }

    /// The kernel's refusal does not say what the user has to do.
    fn explained(&self, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::PermissionDenied {
            return error;
        }
        let Self { pid, .. } = self;
        io::Error::other(format!(
            "process {pid} supervises a task, but this agent may not inspect it ({error}): start the agent with the capabilities that it had when it \
             started the task, or with CAP_SYS_PTRACE"
        ))
    }
}

/// Whether the open file is a directory of `uid` that nobody else can write to.
pub(super) fn is_closed_dir(dir: impl AsFd, uid: u32) -> io::Result<bool> {
    let found = fstat(dir)?;
    Ok(FileType::from_raw_mode(found.st_mode) == FileType::Directory && is_closed(&found, uid))
}

/// Reopens a file for reading, if it is a regular file of `uid` that nobody else can write to.
pub(super) fn read_closed(held: &OwnedFd, uid: u32) -> io::Result<Option<File>> {
    let found = fstat(held)?;
    if !is_regular(&found) || !is_closed(&found, uid) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(format!("/proc/self/fd/{}", held.as_raw_fd()), flags, Mode::empty())?;
    Ok(Some(File::from(file)))
}

fn is_regular(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn is_closed(found: &Stat, uid: u32) -> bool {
    found.st_uid == uid && found.st_mode & WRITE_OF_OTHERS == 0
}

/// The user in the text of `status`, if all four ids are equal and the process has no other pid in a namespace below. Root in
/// such a namespace can give a program any name, but every supervisor is in the agent's.
fn only_user(status: &str) -> Option<u32> {
    let numbers = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.map(|line| line.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>())
    };
    if numbers("NSpid:").is_some_and(|pids| pids.len() > 1) {
        return None;
    }
    let ids = numbers("Uid:")?;
    ids.first().copied().filter(|first| ids.len() == 4 && ids.iter().all(|id| id == first))
}

/// Removes the kernel's mark of deleted files (proc_pid_fd(5)).
pub(super) fn without_mark(link: &Path) -> &Path {
    link.to_str().and_then(|text| text.strip_suffix(" (deleted)")).map_or(link, Path::new)
}

/// Maps the errors of a process that has ended to `None`.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Maps denied access to `None`: with `hidepid` (proc(5)) the process may be hidden, and so is not known to be ours.
fn unless_closed<T>(result: io::Result<Option<T>>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    /// Root in a container could have passed for the supervisor of any attempt.
    #[test]
    fn users_of_supervisors_have_one_id_and_one_pid() {
        let status = |uids: &str, pids: &str| format!("Name:\tx\nUid:\t{uids}\nGid:\t0\nNSpid:\t{pids}\n");
        assert_eq!(only_user(&status("7\t7\t7\t7", "4321")), Some(7));
        assert_eq!(only_user(&status("7\t7\t7\t7", "4321\t1")), None, "in a pid namespace below");
        assert_eq!(only_user(&status("7\t0\t0\t0", "4321")), None, "a set-user-id program");
        assert_eq!(only_user("Uid:\t7\t7\t7\t7\n"), Some(7), "before Linux 4.1");
        assert_eq!(only_user(""), None);
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(only_user(&own), Some(rustix::process::geteuid().as_raw()));
    }

    // An agent that ran as nobody failed to start while a supervisor was just exiting.
    #[test]
    fn unreaped_process_holds_nothing() {
        let mut child = std::process::Command::new("/bin/sleep").arg("100000").spawn().unwrap();
        let process = ProcDir::open(child.id()).unwrap().unwrap();
        assert!(process.link("exe").unwrap().is_some());
        child.kill().unwrap();
        let pid = Pid::from_child(&child);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(process.link("exe").unwrap(), None);
        assert!(process.held("exe").unwrap().is_none() && process.held("fd/0").unwrap().is_none());
        assert!(process.files_named("x", rustix::process::geteuid().as_raw()).unwrap().is_empty());
        child.wait().unwrap();
    }
}
