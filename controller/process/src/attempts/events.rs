//! The one inotify queue of an instance's attempts.
//!
//! In: events of the attempts directory and its parent, later of the cgroups directory and of deleted records. Out:
//! wakes those that wait for a record, reports a removed cgroup, restores what was deleted.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::{Attempts, lost::Seen};

/// Names of records are shorter; one event always fits.
const EVENTS_LEN: usize = 4096;

pub(super) fn queue() -> rustix::io::Result<OwnedFd> {
    inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)
}

pub(super) async fn read_events(inotify: Arc<AsyncFd<OwnedFd>>, attempts: Weak<Attempts>) {
    loop {
        let mut ready = match inotify.readable().await {
            Ok(ready) => ready,
            Err(error) => {
                tracing::error!(%error, "the attempts directory can't be watched any more");
                return;
            }
        };
        let Some(attempts) = attempts.upgrade() else { return };
        // A handler may panic: without this reader no exit of a task would ever be seen again.
        let drained = catch_unwind(AssertUnwindSafe(|| drain(inotify.get_ref(), &attempts)));
        // After an error wake all waiters: each reads its record again.
        match drained {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to read events of the attempts directory");
                attempts.wake_all();
            }
            Err(_) => {
                tracing::error!("handling events of the attempts directory panicked; continuing");
                attempts.wake_all();
            }
        }
        ready.clear_ready();
    }
}

fn drain(inotify: &OwnedFd, attempts: &Attempts) -> rustix::io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); EVENTS_LEN];
    let mut events = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match events.next() {
            Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => attempts.overflow(),
            // Caused by the agent, or reported by another event already.
            Ok(event) if event.events().contains(inotify::ReadFlags::IGNORED) => {}
            Ok(event) => {
                let name = event.file_name().and_then(|name| CStr::to_str(name).ok());
                let gone = inotify::ReadFlags::DELETE
                    | inotify::ReadFlags::MOVED_FROM
                    | inotify::ReadFlags::DELETE_SELF
                    | inotify::ReadFlags::MOVE_SELF;
                let seen = if event.events().intersects(gone) { Seen::Gone } else { Seen::There };
                attempts.saw(event.wd(), name, seen);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
