//! Network namespaces, and the files that keep them.
//!
//! In: a directory, the name of an allocation. Out: a namespace that exists as long as its file does, or a process is in it.
//! A namespace is kept by a bind mount of it on a file, as `ip netns` does. Threads of this process never change their
//! namespace, except those that this module creates for it, and these end at once.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use herdlet_base::own_thread::on_own_thread;
use rustix::{
    io::Errno,
    mount::{UnmountFlags, mount_bind, unmount},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use crate::{
    message::{self, Attributes, Message},
    socket::{NetlinkError, Protocol, Socket},
};

// Requests for the number of a namespace, and their attributes (linux/net_namespace.h).
const NEW_NUMBER: u16 = 88;
const GET_NUMBER: u16 = 90;
const NUMBER: u16 = 1;
const NUMBERED_FD: u16 = 3;

/// Length of `struct rtgenmsg`, padded.
const HEADER_LEN: usize = 4;

/// No number: the kernel chooses one.
const ANY_NUMBER: i32 = -1;

/// The kind of file system that namespaces are files of (statfs(2)).
const NSFS: u64 = 0x6e73_6673;

/// Why a namespace can't be made, found or removed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", path.display())]
pub struct NamespaceError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

impl NamespaceError {
    /// The kernel's reason.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

/// An open network namespace. It exists at least as long as this does.
#[derive(Debug)]
pub struct Namespace(OwnedFd);

/// Identifies a namespace until the next boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NamespaceId {
    device: u64,
    inode: u64,
}

impl NamespaceId {
    /// A number that no other namespace has as long as this one exists.
    pub fn number(&self) -> u64 {
        self.inode
    }
}

impl Namespace {
    /// Makes a namespace, without a name.
    ///
    /// # Errors
    /// If the kernel refuses, for instance because too many exist.
    pub fn new() -> io::Result<Self> {
        on_own_thread("network", || {
            #[expect(unsafe_code, reason = "the other threads keep their namespace")]
            // SAFETY: descriptors stay shared, and only this thread changes.
            unsafe {
                unshare_unsafe(UnshareFlags::NEWNET)?;
            }
            Ok(Self::from(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// The namespace of this thread.
    ///
    /// # Errors
    /// If there is no `/proc`.
    pub fn current() -> io::Result<Self> {
        Ok(Self::from(File::open("/proc/thread-self/ns/net")?))
    }

    /// The namespace of a process.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Ok(Self::from(File::open(format!("/proc/{pid}/ns/net"))?))
    }

    /// Which namespace it is.
    ///
    /// # Errors
    /// If the descriptor can't be inspected.
    pub fn id(&self) -> io::Result<NamespaceId> {
        let stat = rustix::fs::fstat(&self.0)?;
        Ok(NamespaceId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Opens a socket in the namespace.
    ///
    /// # Errors
    /// If the namespace can't be entered, or the socket not be opened.
    pub fn socket(&self, protocol: Protocol) -> io::Result<Socket> {
        self.run(|| Socket::open(protocol))?
    }

    /// The number of this namespace in that of the socket, which must be one of rtnetlink. It gets a number if it has none: without one
    /// the kernel reports its changes only inside. The number ends with the namespace.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn number_in(&self, socket: &mut Socket) -> Result<Option<i32>, NetlinkError> {
        let what = "number a network namespace";
        let fd = self.0.as_raw_fd().unsigned_abs();
        let about = |kind: u16, attributes: Attributes| Message {
            kind,
            flags: 0,
            fixed: vec![0; HEADER_LEN],
            attributes: attributes.with_u32(NUMBERED_FD, fd),
        };
        let number = about(NEW_NUMBER, Attributes::new().with_u32(NUMBER, ANY_NUMBER.cast_unsigned()));
        match socket.request(what, vec![number]) {
            Err(error) if error.errno() != Some(Errno::EXIST) => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let found = socket.get(what, about(GET_NUMBER, Attributes::new()))?;
        let number = found.and_then(|found| {
            message::find_after(&found.body, HEADER_LEN, NUMBER).and_then(|value| message::read_u32(value, 0))
        });
        Ok(number.map(u32::cast_signed).filter(|number| *number >= 0))
    }

    /// Runs something in the namespace, on a thread of its own.
    ///
    /// # Errors
    /// If the namespace can't be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_own_thread("network", || {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(work())
        })
    }
}

impl From<File> for Namespace {
    fn from(file: File) -> Self {
        Self(file.into())
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What a file in the directory of namespaces is.
#[derive(Debug)]
pub enum Pin {
    /// It keeps this namespace.
    Kept(Namespace),
    /// It keeps none: the agent died before it could, or another program has unmounted the namespace.
    Empty,
    /// There is no file.
    Absent,
}

/// The files that keep namespaces.
#[derive(Debug, Clone)]
pub struct Pins {
    dir: PathBuf,
}

impl Pins {
    /// Those in this directory, which belongs to them alone. It is made with the first one.
    pub fn in_dir(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The path that keeps a namespace.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Inspects the file of this name.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn find(&self, name: &str) -> Result<Pin, NamespaceError> {
        let path = self.path(name);
        let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Pin::Absent),
            // A symbolic link.
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(Pin::Empty),
            Err(source) => return Err(failed("open", &path)(source)),
        };
        let system = rustix::fs::fstatfs(&file).map_err(|errno| failed("inspect", &path)(errno.into()))?;
        let is_namespace = u64::try_from(system.f_type).is_ok_and(|kind| kind == NSFS);
        Ok(if is_namespace { Pin::Kept(file.into()) } else { Pin::Empty })
    }

    /// Which namespace the file of this name keeps; `None` if it keeps none, or can't be opened.
    pub fn kept(&self, name: &str) -> Option<NamespaceId> {
        match self.find(name) {
            Ok(Pin::Kept(namespace)) => namespace.id().ok(),
            Ok(Pin::Empty | Pin::Absent) | Err(_) => None,
        }
    }

    /// Keeps a namespace under this name. One that the name keeps already is replaced.
    ///
    /// # Errors
    /// If a file or the mount can't be made.
    pub fn keep(&self, name: &str, namespace: &Namespace) -> Result<(), NamespaceError> {
        let path = self.path(name);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(failed("create", &self.dir))?;
        detach(&path)?;
        let made = OpenOptions::new().write(true).create_new(true).mode(0o000).open(&path);
        match made {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                require_plain_file(&path)?;
            }
            Err(source) => return Err(failed("create", &path)(source)),
        }
        let source = format!("/proc/self/fd/{}", namespace.0.as_raw_fd());
        mount_bind(source, &path).map_err(|errno| failed("mount a namespace on", &path)(errno.into()))
    }

    /// Removes the file. The namespace ends once no process is in it and nobody has it open.
    ///
    /// # Errors
    /// If it can't be unmounted or removed.
    pub fn remove(&self, name: &str) -> Result<(), NamespaceError> {
        let path = self.path(name);
        detach(&path)?;
        // This also unmounts it where other mount namespaces have a copy of the mount.
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(failed("remove", &path)(source)),
        }
    }

    /// The names of all files, in order.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn names(&self) -> Result<Vec<OsString>, NamespaceError> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed("read", &self.dir)(source)),
        };
        let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>();
        let mut names = names.map_err(failed("read", &self.dir))?;
        names.sort();
        Ok(names)
    }
}

/// A process that may write here is root's, but a link would lead the mount elsewhere.
fn require_plain_file(path: &Path) -> Result<(), NamespaceError> {
    let about = fs::symlink_metadata(path).map_err(failed("inspect", path))?;
    if about.is_file() && about.nlink() == 1 {
        return Ok(());
    }
    fs::remove_file(path).map_err(failed("remove", path))?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o000).open(path);
    made.map(drop).map_err(failed("create", path))
}

/// Unmounts everything on the file.
fn detach(path: &Path) -> Result<(), NamespaceError> {
    loop {
        match unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or there is no such file.
            Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(failed("unmount", path)(errno.into())),
        }
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NamespaceError {
    let path = path.to_owned();
    move |source| NamespaceError { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::on_machine;

    #[test]
    fn kept_namespace_outlives_its_descriptor() {
        on_machine(|machine| {
            let pins = Pins::in_dir(machine.dir().join("netns"));
            assert!(matches!(pins.find("a").unwrap(), Pin::Absent));
            assert_eq!(pins.names().unwrap(), Vec::<OsString>::new());
            let namespace = Namespace::new().unwrap();
            let id = namespace.id().unwrap();
            assert_ne!(id, Namespace::current().unwrap().id().unwrap());
            pins.keep("a", &namespace).unwrap();
            drop(namespace);
            assert_eq!(pins.kept("a"), Some(id));
            assert_eq!(pins.names().unwrap(), ["a"]);
            pins.remove("a").unwrap();
            pins.remove("a").unwrap();
            assert!(matches!(pins.find("a").unwrap(), Pin::Absent));
        });
    }

    #[test]
    fn half_made_files_are_completed_and_removed() {
        on_machine(|machine| {
            let pins = Pins::in_dir(machine.dir().join("netns"));
            fs::create_dir(machine.dir().join("netns")).unwrap();
            let elsewhere = machine.dir().join("elsewhere");
            fs::write(&elsewhere, "kept").unwrap();
            fs::write(pins.path("file"), "").unwrap();
            std::os::unix::fs::symlink(&elsewhere, pins.path("link")).unwrap();
            fs::hard_link(&elsewhere, pins.path("hard")).unwrap();
            assert!(matches!(pins.find("file").unwrap(), Pin::Empty));
            assert!(matches!(pins.find("link").unwrap(), Pin::Empty));
            let namespace = Namespace::new().unwrap();
            for name in ["file", "link", "hard"] {
                pins.keep(name, &namespace).unwrap();
                assert_eq!(pins.kept(name), Some(namespace.id().unwrap()), "{name}");
            }
            // A user has unmounted it, or mounted another one on it.
            detach(&pins.path("file")).unwrap();
            assert!(matches!(pins.find("file").unwrap(), Pin::Empty));
            let other = Namespace::new().unwrap();
            for _ in 0..3 {
                pins.keep("file", &other).unwrap();
            }
            assert_eq!(pins.kept("file"), Some(other.id().unwrap()));
            for name in ["file", "link", "hard"] {
                pins.remove(name).unwrap();
                assert!(!pins.path(name).exists(), "{name}");
            }
            assert_eq!(fs::read_to_string(elsewhere).unwrap(), "kept");
        });
    }

    /// A service that starts meanwhile copies the mounts, and would keep the namespace alive.
    #[test]
    fn copies_of_the_mount_end_with_the_file() {
        on_machine(|machine| {
            let pins = Pins::in_dir(machine.dir().join("netns"));
            let namespace = Namespace::new().unwrap();
            pins.keep("a", &namespace).unwrap();
            machine.in_copy_of_mounts(|| {
                assert!(matches!(pins.find("a").unwrap(), Pin::Kept(_)), "the copy has it");
                namespace_file_removed_elsewhere(machine, &pins);
                assert!(matches!(pins.find("a").unwrap(), Pin::Absent), "the copy is gone");
            });
        });
    }

    fn namespace_file_removed_elsewhere(machine: &crate::test_machine::Machine, pins: &Pins) {
        machine.in_own_mounts(|| pins.remove("a").unwrap());
    }

    #[test]
    fn numbered_namespace_reports_its_changes() {
        on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let [first, second] = [(); 2].map(|()| Namespace::new().unwrap());
            let numbers = [&first, &second, &first].map(|one| one.number_in(&mut socket).unwrap().unwrap());
            assert_eq!(numbers[0], numbers[2]);
            assert_ne!(numbers[0], numbers[1]);
            let watch = crate::watch::LinkWatch::open().unwrap();
            crate::link::set_up(&mut second.socket(Protocol::Route).unwrap(), 1).unwrap();
            let changes = watch.read().unwrap();
            assert!(changes.iter().any(|change| change.namespace == Some(numbers[1])), "{changes:?}");
            assert!(changes.iter().all(|change| change.namespace == Some(numbers[1])), "{changes:?}");
        });
    }

    #[test]
    fn work_runs_in_the_namespace_and_nowhere_else() {
        on_machine(|_| {
            let namespace = Namespace::new().unwrap();
            let before = Namespace::current().unwrap().id().unwrap();
            let inside = namespace.run(|| Namespace::current().unwrap().id().unwrap()).unwrap();
            assert_eq!(inside, namespace.id().unwrap());
            assert_eq!(Namespace::current().unwrap().id().unwrap(), before);
            let refused = Namespace::from(File::open("/dev/null").unwrap()).run(|| ());
            assert!(refused.is_err(), "no namespace");
        });
    }
}
