//! A machine of a test's own: a thread in new network and mount namespaces, with a directory.
//!
//! The kernel removes what a test has made with the last thread and descriptor that uses it.

#![expect(clippy::unwrap_used, reason = "only tests see this")]

use std::{fs::File, os::fd::AsFd as _, path::PathBuf, thread};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

/// A machine.
#[derive(Debug)]
pub struct Machine {
    dir: tempfile::TempDir,
    mounts: File,
}

/// Runs a test on a machine of its own. Without root there is none: then the test does nothing, except in CI, where it fails.
pub fn on_machine(test: impl FnOnce(&Machine) + Send) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("HERDLET_TEST_REQUIRE").is_none(), "this test needs root");
        return;
    }
    in_thread(|| {
        unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS);
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mounts = File::open("/proc/thread-self/ns/mnt").unwrap();
        test(&Machine { dir, mounts });
    });
}

impl Machine {
    /// A directory of its own.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Runs something in a copy of the machine's mounts, as a service with mounts of its own has.
    pub fn in_copy_of_mounts(&self, work: impl FnOnce() + Send) {
        in_thread(|| {
            unshare(UnshareFlags::NEWNS);
            work();
        });
    }

    /// Runs something in the machine's mounts.
    pub fn in_own_mounts(&self, work: impl FnOnce() + Send) {
        in_thread(|| {
            // A thread that shares its root with others can't change its mounts.
            unshare(UnshareFlags::FS);
            move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount)).unwrap();
            work();
        });
    }
}

fn in_thread(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let running = scope.spawn(work);
        if let Err(panic) = running.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn unshare(flags: UnshareFlags) {
    #[expect(unsafe_code, reason = "the other threads keep their namespaces")]
    // SAFETY: descriptors stay shared, and only this thread changes.
    unsafe {
        unshare_unsafe(flags).unwrap();
    }
}
