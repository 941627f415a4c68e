//! Ensures one agent per instance on this machine. A copy of a state directory is the same instance, and two agents
//! of it would end each other's tasks and deregister each other's services.
//!
//! In: the instance, its runtime directory and its cgroups. Out: a claim on each, held until the process ends,
//! however it ends.
//!
//! | claim | holds against agents | protection against other users |
//! | --- | --- | --- |
//! | lock on the runtime directory | with the same directory | they cannot open it |
//! | abstract socket with the instance's name | in the same network namespace, also without cgroups | a holder that runs as another user is ignored |
//! | lock on `cgroup.kill` of the instance | that see its cgroups, in any container | they cannot open it for writing |

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_api_types::InstanceId;
use herdlet_base::{durable, ownership};
use rustix::{
    event::poll,
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
};
use tokio::{io::AsyncWriteExt as _, net::unix::UCred};
use tokio_util::task::AbortOnDropHandle;

use super::{BEGIN_MAX, ClaimError, PAUSE, StateDir, io_error};

/// All claims of an agent on its instance.
#[derive(Debug)]
pub struct Alone {
    _runtime: File,
    _name: Option<Name>,
    _cgroups: Option<File>,
}

/// The agent that runs the instance, as far as this process can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub pid: u32,
    pub state: Option<PathBuf>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.pid)?;
        self.state.as_ref().map_or(Ok(()), |state| write!(f, ", state directory {}", state.display()))
    }
}

impl StateDir {
    /// Claims the instance's runtime directory, which is created if it is missing, and its name, and checks that none
    /// of its tasks run elsewhere. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClaimError::InstanceInUse`], [`ClaimError::Elsewhere`], or when the directory cannot be created, trusted or
    /// locked.
    pub fn claim_runtime(&self, runtime: &Path) -> Result<Alone, ClaimError> {
        ownership::check_if_there(runtime)?;
        durable::make_dir_in_passages(runtime).map_err(io_error("create the runtime directory", runtime))?;
        ownership::check(runtime)?;
        ownership::check_entries(runtime)?;
        let dir = File::open(runtime).map_err(io_error("open", runtime))?;
        self.lock(&dir, runtime)?;
        let name = self.take_name(&self.name()?, ask)?;
        self.check_location(runtime)?;
        Ok(Alone { _runtime: dir, _name: name, _cgroups: None })
    }

    /// Checks whether an agent of the instance of the state directory `state` runs in this network namespace. Claims
    /// nothing; must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClaimError::InstanceInUse`].
    pub fn inspect_instance(state: &Path) -> Result<(), ClaimError> {
        let Some(instance) = Self::instance_in(state) else { return Ok(()) };
        let name =
            name_of(&instance).map_err(|errno| io_error("inspect the instance of", state)(errno.into()))?;
        match ask(&name) {
            Answer::Ours { pid, stream } => {
                let holder = pid.map(|pid| Holder { pid, state: read_state_dir(stream) });
                let locked = "its name".to_owned();
                Err(ClaimError::InstanceInUse { path: state.to_owned(), locked, instance, holder })
            }
            Answer::Strangers | Answer::Refused | Answer::Full => Ok(()),
        }
    }

    /// Claims the instance's cgroups too; `tree` is their directory, which must exist. Must be called before anything
    /// in it is adopted or ended.
    ///
    /// # Errors
    /// [`ClaimError::InstanceInUse`], or when they cannot be locked.
    pub fn claim_cgroups(&self, alone: &mut Alone, tree: &Path) -> Result<(), ClaimError> {
        alone._cgroups = self.lock_cgroups(tree)?;
        Ok(())
    }

    /// Returns `None` if the kernel has no such file or there is no such cgroup.
    pub(super) fn lock_cgroups(&self, tree: &Path) -> Result<Option<File>, ClaimError> {
        // Anybody may read the directory, and so could lock it. Only its owner may open this file for writing, and
        // opening it kills nothing.
        let path = tree.join("cgroup.kill");
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let file = match OpenOptions::new().write(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            // Before Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        self.lock(&file, &path)?;
        Ok(Some(file))
    }

    /// Locks a file, retrying for a while: the state directory is locked already, but an agent that was just killed
    /// releases its locks one after the other.
    fn lock(&self, file: &File, path: &Path) -> Result<(), ClaimError> {
        let given_up = Instant::now() + BEGIN_MAX;
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK) if Instant::now() < given_up => {
                    let _ = poll(&mut [], Some(&PAUSE));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(self.in_use(path.display().to_string(), lock_holder(file)));
                }
                Err(errno) => return Err(io_error("lock", path)(errno.into())),
            }
        }
    }

    fn name(&self) -> Result<SocketAddrUnix, ClaimError> {
        name_of(&self.instance).map_err(|errno| self.no_name(errno))
    }

    fn no_name(&self, errno: Errno) -> ClaimError {
        io_error("claim the instance of", &self.path)(errno.into())
    }

    /// Returns `None` if a process of another user holds the name.
    fn take_name(
        &self,
        name: &SocketAddrUnix,
        ask: impl Fn(&SocketAddrUnix) -> Answer,
    ) -> Result<Option<Name>, ClaimError> {
        let given_up = Instant::now() + BEGIN_MAX;
        let mut known = None;
        loop {
            match Name::take(name, &self.path) {
                Ok(name) => return Ok(Some(name)),
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(self.no_name(errno)),
            }
            let is_over = Instant::now() > given_up;
            // An agent refuses connections until it listens; and at the end of the wait another process may hold the
            // name.
            if is_over || !matches!(known, Some(Answer::Ours { .. } | Answer::Strangers)) {
                known = match ask(name) {
                    Answer::Full => known,
                    answer @ (Answer::Ours { .. } | Answer::Strangers | Answer::Refused) => Some(answer),
                };
            }
            // The holder may have just ended: try again before reporting it.
            if !is_over {
                let _ = poll(&mut [], Some(&PAUSE));
                continue;
            }
            return match known {
                Some(Answer::Ours { pid, .. }) => Err(self.in_use("its name".to_owned(), pid)),
                // The holder may be an agent whose queue others keep full.
                Some(Answer::Full) | None => {
                    Err(self.in_use("its name, whose holder does not answer,".to_owned(), None))
                }
                Some(Answer::Strangers | Answer::Refused) => {
                    tracing::warn!(
                        instance = %self.instance,
                        "another user's process holds the socket name of this instance; the agent starts without this claim"
                    );
                    Ok(None)
                }
            };
        }
    }

    fn in_use(&self, locked: String, pid: Option<u32>) -> ClaimError {
        let state = |pid| state_of(pid, &self.instance).or_else(|| self.state_dir_of(pid));
        let holder = pid.map(|pid| Holder { pid, state: state(pid) });
        ClaimError::InstanceInUse { path: self.path.clone(), locked, instance: self.instance.clone(), holder }
    }

    /// Asks the holder for its state directory: an agent that is not root cannot see another one's files.
    fn state_dir_of(&self, holder: u32) -> Option<PathBuf> {
        match ask(&self.name().ok()?) {
            Answer::Ours { pid: Some(pid), stream } if pid == holder => read_state_dir(stream),
            Answer::Ours { .. } | Answer::Strangers | Answer::Refused | Answer::Full => None,
        }
    }
}

fn name_of(instance: &InstanceId) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("herdlet-instance-{}", instance.0).as_bytes())
}

/// An abstract name, which disappears with its last socket (unix(7)).
#[derive(Debug)]
struct Name {
    _answering: AbortOnDropHandle<()>,
}

/// The pause between two answers: short enough for agents, and it limits the work that endless requests can cause.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);
/// How many connections may wait for an answer.
const ASKING_MAX: i32 = 128;
/// The longest path that the kernel accepts, including its NUL (PATH_MAX).
const PATH_BYTES_MAX: usize = 4_096;

/// How long an agent may take to report its state directory.
const TOLD_MAX: Duration = Duration::from_secs(5);

impl Name {
    /// `state` is sent to agents that ask for the holder.
    fn take(address: &SocketAddrUnix, state: &Path) -> Result<Self, Errno> {
        let socket = stream_socket()?;
        bind(&socket, address)?;
        listen(&socket, ASKING_MAX)?;
        let listener = tokio::net::UnixListener::from_std(socket.into());
        let listener = listener.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let state = state.as_os_str().as_bytes().to_owned();
        let answering = tokio::spawn(async move {
            loop {
                if let Ok((mut stream, _)) = listener.accept().await
                    && stream.peer_cred().is_ok_and(|peer| is_ours(&peer))
                {
                    // There is always room for so few bytes.
                    let _ = stream.write_all(&state).await;
                }
                tokio::time::sleep(ANSWER_INTERVAL).await;
            }
        });
        Ok(Self { _answering: AbortOnDropHandle::new(answering) })
    }
}

/// The answer of the holder of a name to a connection.
#[derive(Debug)]
enum Answer {
    /// It runs as root or as our user. Without a pid if it is in another PID namespace.
    Ours { pid: Option<u32>, stream: tokio::net::UnixStream },
    /// It runs as another user.
    Strangers,
    /// It does not listen, or there is no holder any more.
    Refused,
    /// Its queue is full.
    Full,
}

fn ask(address: &SocketAddrUnix) -> Answer {
    let asked = || {
        let asking = stream_socket()?;
        connect(&asking, address)?;
        let stream = tokio::net::UnixStream::from_std(asking.into())?;
        stream.peer_cred().map(|peer| (peer, stream))
    };
    match asked() {
        Ok((peer, stream)) if is_ours(&peer) => {
            let pid = peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
            Answer::Ours { pid, stream }
        }
        Ok(_) => Answer::Strangers,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Answer::Full,
        Err(_) => Answer::Refused,
    }
}

/// Reads the state directory that the holder of the name reports.
fn read_state_dir(stream: tokio::net::UnixStream) -> Option<PathBuf> {
    let mut stream = stream.into_std().ok()?;
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(TOLD_MAX)).ok()?;
    let mut path = vec![0; PATH_BYTES_MAX];
    let length = stream.read(&mut path).ok().filter(|length| *length > 0)?;
    path.truncate(length);
    Some(PathBuf::from(OsString::from_vec(path)))
}

fn is_ours(peer: &UCred) -> bool {
    peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw()
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The process that has locked a file, as far as `/proc/locks` shows it (proc(5)):
/// `1: FLOCK ADVISORY WRITE 42 00:1b:77 0 EOF`.
fn lock_holder(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let wanted = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = fields.iter().position(|field| *field == wanted)?;
        fields.get(at.checked_sub(1)?)?.parse().ok()
    };
    locks.lines().filter(|line| !line.contains("->")).find_map(holder)
}

/// The state directory of an agent of this instance, found by the lock that it holds there.
fn state_of(pid: u32, instance: &InstanceId) -> Option<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let locks =
        paths.filter(|path| path.is_absolute() && path.file_name().is_some_and(|name| name == "lock"));
    let dirs: Vec<PathBuf> = locks.filter_map(|lock| lock.parent().map(Path::to_owned)).collect();
    let is_it = |dir: &&PathBuf| StateDir::instance_in(dir).as_ref() == Some(instance);
    // The files of another mount namespace cannot be read from here; only their names are visible.
    let only = || dirs.first().filter(|_| dirs.len() == 1);
    dirs.iter().find(is_it).or_else(only).cloned()
}

#[cfg(test)]
mod tests;
