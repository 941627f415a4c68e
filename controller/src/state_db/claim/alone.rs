//! One agent for one instance on this machine: a copy of a state directory is the same instance, and two agents of it would end each
//! other's tasks and take back each other's services.
//!
//! In: the instance, its runtime directory and its cgroups. Out: a claim on each, held until the process ends, however it ends.
//!
//! | claim | holds against agents | cannot be held by others, since |
//! | --- | --- | --- |
//! | lock on the runtime directory | with the same one | they may not open it |
//! | abstract socket with the instance's name | in the same network namespace, also without cgroups | a holder of another user is passed over |
//! | lock on `cgroup.kill` of the instance | that see its cgroups, in any container | they may not open it for writing |

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_api_types::InstanceId;
use rustix::{
    event::poll,
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
};
use tokio_util::task::AbortOnDropHandle;

use super::{BEGIN_MAX, ClaimError, PAUSE, StateDir, io_error};
use crate::{durable, ownership};

/// All claims of an agent on its instance.
#[derive(Debug)]
pub struct Alone {
    _runtime: File,
    _name: Option<Name>,
    _cgroups: Option<File>,
}

/// The agent that has the instance, as far as it can be seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: u32,
    /// Its state directory.
    pub state: Option<PathBuf>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.pid)?;
        self.state.as_ref().map_or(Ok(()), |state| write!(f, ", state directory {}", state.display()))
    }
}

impl StateDir {
    /// Claims the instance's runtime directory, which is made unless it is there, and its name. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`ClaimError::InstanceInUse`], or that the directory can't be made, trusted or locked.
    pub fn claim_runtime(&self, runtime: &Path) -> Result<Alone, ClaimError> {
        ownership::check_if_there(runtime)?;
        durable::make_dir(runtime).map_err(io_error("make the runtime directory", runtime))?;
        ownership::check(runtime)?;
        ownership::check_entries(runtime)?;
        let dir = File::open(runtime).map_err(io_error("open", runtime))?;
        self.lock(&dir, runtime)?;
        Ok(Alone { _runtime: dir, _name: self.take_name()?, _cgroups: None })
    }

    /// Claims the instance's cgroups too, whose directory is `tree`. To be called before anything in it is looked at.
    ///
    /// # Errors
    /// [`ClaimError::InstanceInUse`], or that they can't be locked.
    pub fn claim_cgroups(&self, alone: &mut Alone, tree: &Path) -> Result<(), ClaimError> {
        // Anybody may read the directory, and so could lock it. This file only its owner may open, and to open it kills nothing.
        let path = tree.join("cgroup.kill");
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let file = match OpenOptions::new().write(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            // Before Linux 5.14.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        self.lock(&file, &path)?;
        alone._cgroups = Some(file);
        Ok(())
    }

    /// The state directory's lock is ours, but an agent that has just been killed lets go of one after the other.
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

    /// None where somebody else has the name who is no agent of ours.
    fn take_name(&self) -> Result<Option<Name>, ClaimError> {
        let failed = |errno: Errno| io_error("claim the instance of", &self.path)(errno.into());
        let address =
            SocketAddrUnix::new_abstract_name(format!("herdlet-instance-{}", self.instance).as_bytes());
        let address = address.map_err(failed)?;
        let given_up = Instant::now() + BEGIN_MAX;
        let mut asked = None;
        loop {
            match Name::take(&address) {
                Ok(name) => return Ok(Some(name)),
                Err(Errno::ADDRINUSE) => {}
                Err(errno) => return Err(failed(errno)),
            }
            // Whoever had it may have just ended: it is tried again before anybody is believed to have it.
            let asked = *asked.get_or_insert_with(|| name_holder(&address));
            if Instant::now() > given_up {
                return match asked {
                    Some(pid) => Err(self.in_use("its name".to_owned(), pid)),
                    None => {
                        tracing::warn!(instance = %self.instance, "another user holds the socket with the name of this instance; it is passed over");
                        Ok(None)
                    }
                };
            }
            let _ = poll(&mut [], Some(&PAUSE));
        }
    }

    fn in_use(&self, locked: String, pid: Option<u32>) -> ClaimError {
        let holder = pid.map(|pid| Holder { pid, state: state_of(pid, &self.instance) });
        ClaimError::InstanceInUse { path: self.path.clone(), locked, instance: self.instance.clone(), holder }
    }
}

/// An abstract name, which goes with its last socket (unix(7)).
#[derive(Debug)]
struct Name {
    _answering: AbortOnDropHandle<()>,
}

/// Between two answers: enough for agents, and little work for anybody who asks without end.
const ANSWER_INTERVAL: Duration = Duration::from_millis(10);
/// How many may wait for theirs.
const ASKING_MAX: i32 = 128;

impl Name {
    fn take(address: &SocketAddrUnix) -> Result<Self, Errno> {
        let socket = stream_socket()?;
        bind(&socket, address)?;
        // The kernel tells whose process it is that listens; nothing else is answered.
        listen(&socket, ASKING_MAX)?;
        let listener = tokio::net::UnixListener::from_std(socket.into());
        let listener = listener.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let answering = tokio::spawn(async move {
            loop {
                let _ = listener.accept().await;
                tokio::time::sleep(ANSWER_INTERVAL).await;
            }
        });
        Ok(Self { _answering: AbortOnDropHandle::new(answering) })
    }
}

/// The process of root or of our user that has a name, without a number where it is in another pid namespace; none where it is anybody
/// else's. One that refuses, or is full of others' questions, can't prove that it is an agent.
fn name_holder(address: &SocketAddrUnix) -> Option<Option<u32>> {
    let asking = stream_socket().ok()?;
    connect(&asking, address).ok()?;
    let peer = tokio::net::UnixStream::from_std(asking.into()).ok()?.peer_cred().ok()?;
    let is_ours = peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw();
    is_ours.then(|| peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0))
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// The process that has locked a file, as far as `/proc/locks` shows it (proc(5)): `1: FLOCK ADVISORY WRITE 42 00:1b:77 0 EOF`.
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

/// Where an agent keeps the state of this instance: it holds the lock there.
fn state_of(pid: u32, instance: &InstanceId) -> Option<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let paths = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let locks =
        paths.filter(|path| path.is_absolute() && path.file_name().is_some_and(|name| name == "lock"));
    let dirs: Vec<PathBuf> = locks.filter_map(|lock| lock.parent().map(Path::to_owned)).collect();
    let is_it = |dir: &&PathBuf| StateDir::instance_in(dir).as_ref() == Some(instance);
    // In another mount namespace its files are not seen from here, only their names.
    let only = || dirs.first().filter(|_| dirs.len() == 1);
    dirs.iter().find(is_it).or_else(only).cloned()
}
