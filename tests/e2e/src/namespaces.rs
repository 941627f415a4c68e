//! Namespaces of tests.
//!
//! In: none. Out: networks whose loopback interface is up, and mounts of a process, which the kernel removes with the last process and
//! descriptor in them.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    thread,
};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    net::{AddressFamily, SocketType, socket},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// A network of its own.
#[derive(Debug)]
pub struct NetworkNamespace(File);

impl NetworkNamespace {
    /// Makes one.
    ///
    /// # Errors
    /// If the kernel refuses, for instance without root.
    pub fn new() -> io::Result<Self> {
        in_thread(|| {
            #[expect(unsafe_code, reason = "only this thread changes its namespace, and it ends then")]
            // SAFETY: no namespace of file descriptors is changed.
            unsafe {
                unshare_unsafe(UnshareFlags::NEWNET)?;
            }
            bring_up_loopback()?;
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// A shell command that continues in the namespace with the command that it is given.
    pub fn enter(&self) -> String {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.0);
        format!("exec nsenter --net=/proc/{}/fd/{fd} -- \"$0\" \"$@\"", std::process::id())
    }

    /// The names of its interfaces.
    ///
    /// # Errors
    /// If they can't be listed.
    pub fn interfaces(&self) -> io::Result<BTreeSet<String>> {
        self.run(|| {
            let text = fs::read_to_string("/proc/thread-self/net/dev")?;
            Ok(text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect())
        })
    }

    /// Runs something in it, on a thread of its own.
    ///
    /// # Errors
    /// If it can't be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        in_thread(|| {
            move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        })
    }
}

fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(work).join().expect("the thread does not panic"))
}

/// Gives this process, which has one thread, a network and mounts of its own.
///
/// # Errors
/// If the kernel refuses, for instance without root.
pub fn isolate() -> io::Result<()> {
    #[expect(unsafe_code, reason = "other threads would keep their namespaces")]
    // SAFETY: there is one thread, and no namespace of file descriptors is changed.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS)?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    bring_up_loopback()
}

/// Identifies the namespace that a file is or keeps; `None` if there is no such file.
pub fn identity(path: &std::path::Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

/// Brings up the loopback interface of this thread's namespace.
///
/// # Errors
/// If the kernel refuses.
pub fn bring_up_loopback() -> io::Result<()> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    let flags = libc::c_short::try_from(libc::IFF_UP).map_err(io::Error::other)?;
    let mut name = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(b"lo") {
        *to = libc::c_char::try_from(*from).map_err(io::Error::other)?;
    }
    let request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    #[expect(unsafe_code, reason = "the flags of a device are set by an ioctl")]
    // SAFETY: the request is an `ifreq`, as the kernel expects, and lives until the call returns.
    let code: libc::c_int = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &raw const request)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
