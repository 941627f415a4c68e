//! The network and mount namespaces of the tests.
//!
//! Before `main`, while there is one thread, the process enters new namespaces. No other process of the machine sees its
//! ports, abstract sockets and mounts; the kernel removes them with the last process of the test. A runner that starts a
//! process for each test thereby isolates each test from all others. Without root, or if a container forbids it, the tests
//! run in the namespaces of the machine; in CI that is a failure.
//!
//! Tests of the shared container engines enter the namespaces in which these publish ports and see mounts.

use std::{fs, io, os::fd::AsFd as _};

use herdlet_e2e::{engine, namespaces::isolate};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

#[used]
#[expect(unsafe_code, reason = "the loader calls the functions of this section before `main`")]
// SAFETY: the section holds pointers to C functions, and the loader passes arguments that a function may ignore.
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

extern "C" fn enter() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let entered = match engine::shared_machine() {
        Some(pid) => join(pid),
        None => isolate(),
    };
    let Err(error) = entered else { return };
    eprintln!("cannot create namespaces for the tests: {error}");
    let is_required = std::env::var_os("HERDLET_TEST_REQUIRE").is_some();
    if is_required || error.kind() != io::ErrorKind::PermissionDenied {
        std::process::abort();
    }
}

/// Enters the namespaces of a process.
fn join(pid: u32) -> io::Result<()> {
    let place = std::env::current_dir()?;
    let open = |kind: &str| fs::File::open(format!("/proc/{pid}/ns/{kind}"));
    let (mounts, network) = (open("mnt")?, open("net")?);
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "there is one thread, and another mount namespace has another root"
    )]
    std::env::set_current_dir(place)
}
