//! Claims the state directory: one agent at a time, of a release that knows its format.
//!
//! In: a path. Out: a [`StateDir`], which holds the lock until the process ends. A directory of a newer format is
//! refused before anything in it is changed.
//!
//! - `alone`: claims the instance itself.
//! - `location`: checks that no tasks of the instance run where this agent would not see them.

mod alone;
mod location;

use std::{
    fs::File,
    io::{self, Seek, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_api_types::InstanceId;
use herdlet_base::{
    durable,
    ownership::{self, OwnershipError},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use thiserror::Error;

pub use alone::{Alone, Holder};
pub use location::{Abandoned, Elsewhere, LivingError};

use super::{code::FORMAT, file};

/// Why a state directory cannot be used. The messages continue "failed to".
#[derive(Debug, Error)]
pub enum ClaimError {
    /// Another agent uses it.
    #[error("use the state directory {}: another agent{} is using it", path.display(), pid_text(pid))]
    InUse {
        path: PathBuf,
        /// Its process id, if known.
        pid: Option<u32>,
    },
    /// Another agent runs the same instance with another state directory.
    #[error(
        "use the state directory {}: another agent{} is running its instance, {} ({locked} is taken); if this one is a copy, {OWN_INSTANCE}",
        path.display(), holder_text(holder), instance.0
    )]
    InstanceInUse {
        path: PathBuf,
        /// The claim that the other agent holds.
        locked: String,
        /// The instance of both.
        instance: InstanceId,
        holder: Option<Holder>,
    },
    /// Tasks of the instance run elsewhere.
    #[error("use the state directory {}: {elsewhere}", path.display())]
    Elsewhere { path: PathBuf, elsewhere: Box<Elsewhere> },
    /// The directory is new, and tasks run that were started with another directory at its path.
    #[error("use the new, empty state directory {}: {abandoned}", path.display())]
    Abandoned { path: PathBuf, abandoned: Box<Abandoned> },
    /// The agent cannot determine whether tasks of the instance run elsewhere.
    #[error(
        "use the state directory {}: it is not known whether tasks of its instance run elsewhere, because {why}; this agent would start them a \
         second time", path.display()
    )]
    Unknown { path: PathBuf, why: Box<LivingError> },
    /// A newer release wrote it; nothing was changed.
    #[error(
        "read {0}: it has format {found}, this release knows {FORMAT} at most; nothing was changed; start the newer \
         release, or, if none has run here, remove the damaged file {0}, as the database contains the format too",
        path.display()
    )]
    Newer {
        /// The file with the newer format.
        path: PathBuf,
        found: u64,
    },
    /// Another user could change it.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// There is state, but its instance is unknown.
    #[error(
        "find out which instance the state in {} belongs to: its file `instance` cannot be read ({why}), and the \
         database does not contain it; restore the file (16 hexadecimal characters), or start with a new, empty \
         --state-dir", path.display()
    )]
    NoInstance {
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
    /// The file system refused an operation.
    #[error("{operation} {}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// How to get a separate instance. The advice is never to remove anything, because volumes of the host may be mounted
/// below `alloc`.
const OWN_INSTANCE: &str = "for an instance of its own start the agent with a new, empty --state-dir";

/// The file with the id of the instance.
const INSTANCE: &str = "instance";

/// A state directory that no other agent can use while this value exists.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    instance: InstanceId,
    /// Held, never read.
    _lock: File,
}

impl StateDir {
    /// Creates the directory (0711) if it is missing, locks it, and reads or generates its instance id.
    ///
    /// # Errors
    /// [`ClaimError`]; see its variants.
    pub fn claim(path: &Path) -> Result<Self, ClaimError> {
        let format_path = path.join("format");
        // Do not touch a directory that another user has prepared.
        ownership::check_if_there(path)?;
        refuse_newer(&format_path)?;
        // Tasks of other users pass through it to their own directories.
        durable::make_passage(path).map_err(io_error("create the state directory", path))?;
        // From here on no other user can prepare it.
        ownership::check(path)?;
        ownership::check_kept(path)?;
        let lock = lock(path)?;
        let instance = instance(path)?;
        if !format_path.exists() {
            durable::write(&format_path, format!("{FORMAT}\n").as_bytes())
                .map_err(io_error("write", &format_path))?;
        }
        Ok(Self { path: path.to_owned(), instance, _lock: lock })
    }

    /// The instance of the directory `path`, according to its file; claims nothing.
    pub fn instance_in(path: &Path) -> Option<InstanceId> {
        parse_instance(std::fs::read_to_string(path.join(INSTANCE)).ok()?.trim())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }
}

/// Refuses a newer format by the plain file, because even opening a database may write to it.
fn refuse_newer(path: &Path) -> Result<(), ClaimError> {
    match std::fs::read_to_string(path) {
        Ok(text) => match text.trim().parse() {
            Ok(found) if found > u64::from(FORMAT) => Err(ClaimError::Newer { path: path.to_owned(), found }),
            // The database contains the format too, so a damaged file does not prevent a start.
            Ok(_) | Err(_) => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ClaimError::Io { operation: "read", path: path.to_owned(), source }),
    }
}

/// Locks the directory with flock(2), which ends with the process, however it ends. The number in the file is for
/// people.
fn lock(dir: &Path) -> Result<File, ClaimError> {
    let path = dir.join("lock");
    let mut file = durable::open_in_place(&path).map_err(io_error("open", &path))?;
    let take = || flock(&file, FlockOperation::NonBlockingLockExclusive);
    if let Err(error) = take() {
        if error != Errno::WOULDBLOCK {
            return Err(io_error("lock", &path)(error.into()));
        }
        let pid = holder(&path);
        // An agent that was killed a moment ago may not have exited yet.
        let ended = pid.is_none_or(ends);
        // The same holds for a process that it was starting, which shares the lock until it calls execve(2).
        let given_up = Instant::now() + BEGIN_MAX;
        while take().is_err() {
            if !ended || Instant::now() > given_up {
                return Err(ClaimError::InUse { path: dir.to_owned(), pid });
            }
            // Nothing reports the end of a lock except a wait without a timeout.
            let _ = poll(&mut [], Some(&PAUSE));
        }
    }
    if durable::has_other_names(&file).map_err(io_error("inspect", &path))? {
        return Ok(file);
    }
    let written =
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
    written.map_err(io_error("write", &path))?;
    Ok(file)
}

/// The process id in the lock file.
fn holder(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// How long an agent may take to exit after it was killed.
const END_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// How long a new process may take to call execve(2), which releases its share of the lock.
const BEGIN_MAX: Duration = Duration::from_secs(2);
/// The interval between two attempts to lock.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Whether another process has ended or ends within [`END_MAX`].
fn ends(pid: u32) -> bool {
    let other = i32::try_from(pid).ok().filter(|_| pid != std::process::id()).and_then(Pid::from_raw);
    match other.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(end)) => {
            poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&END_MAX)).is_ok_and(|ready| ready > 0)
        }
        // No such process, or the number is now our own.
        Some(Err(_)) | None => true,
    }
}

/// Reads the instance's id. If the file is lost, it reads the database; if there is no state at all, it generates an
/// id.
fn instance(dir: &Path) -> Result<InstanceId, ClaimError> {
    let path = dir.join(INSTANCE);
    // Any bytes are acceptable, because the database contains the id too.
    let why = match std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
        Ok(text) => match parse_instance(text.trim()) {
            Some(instance) => return Ok(instance),
            None => "it does not hold 16 hexadecimal characters".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => "it is missing".to_owned(),
        Err(error) => return Err(io_error("read", &path)(error)),
    };
    let known = file::peek_instance(&dir.join("state.db")).and_then(|text| parse_instance(&text));
    let instance = match known {
        Some(instance) => instance,
        None if path.exists() || dir.join("state.db").exists() || dir.join("accepted").exists() => {
            return Err(ClaimError::NoInstance { path: dir.to_owned(), why });
        }
        None => draw_instance(dir)?,
    };
    durable::write(&path, format!("{instance}\n").as_bytes()).map_err(io_error("write", &path))?;
    Ok(instance)
}

fn parse_instance(text: &str) -> Option<InstanceId> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == 16 && text.bytes().all(hex)).then(|| InstanceId(text.to_owned()))
}

fn draw_instance(dir: &Path) -> Result<InstanceId, ClaimError> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|error| io_error("generate an instance id for", dir)(io::Error::other(error.to_string())))?;
    Ok(InstanceId(format!("{:016x}", u64::from_be_bytes(bytes))))
}

fn holder_text(holder: &Option<Holder>) -> String {
    holder.as_ref().map(|holder| format!(" ({holder})")).unwrap_or_default()
}

fn pid_text(pid: &Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ClaimError {
    let path = path.to_owned();
    move |source| ClaimError::Io { operation, path, source }
}
