//! The network and mount namespaces of the tests.
//!
//! Before `main`, while there is one thread, the process enters new namespaces. No other process of the machine sees its
//! ports, abstract sockets and mounts; the kernel removes them with the last process of the test. A runner that starts a
//! process for each test thereby isolates each test from all others. Without root, or if a container forbids it, the tests
//! run in the namespaces of the machine; in CI that is a failure.

use std::{ffi::c_int, io};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    net::{AddressFamily, SocketType, socket},
    thread::{UnshareFlags, unshare_unsafe},
};

#[used]
#[expect(unsafe_code, reason = "the loader calls the functions of this section before `main`")]
// SAFETY: the section holds pointers to C functions, and the loader passes arguments that a function may ignore.
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

extern "C" fn enter() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Err(error) = isolate() else { return };
    eprintln!("cannot create namespaces for the tests: {error}");
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some();
    if is_required || error.kind() != io::ErrorKind::PermissionDenied {
        std::process::abort();
    }
}

fn isolate() -> io::Result<()> {
    #[expect(unsafe_code, reason = "other threads would keep their namespaces")]
    // SAFETY: there is one thread, and no namespace of file descriptors is changed.
    unsafe {
        unshare_unsafe(UnshareFlags::NEWNET | UnshareFlags::NEWNS)?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    bring_up_loopback()
}

fn bring_up_loopback() -> io::Result<()> {
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
    let code: c_int = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS, &raw const request)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
