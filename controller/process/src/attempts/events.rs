//! The one inotify queue of an instance's attempts.
//!
//! In: the attempts directory and the one it lies in, later the directory of the cgroups, and records that lost their names.
//! Out: whoever waits for a record is woken; a removed cgroup is told of; what was deleted is put back.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::Attempts;

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
        // Whoever looks at what changed may have a defect: without this reader no end of a task would ever be seen again.
        let drained = catch_unwind(AssertUnwindSafe(|| drain(inotify.get_ref(), &attempts)));
        // Waiters are woken all the same: each of them reads its record anew.
        match drained {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to read events of the attempts directory");
                attempts.wake_all();
            }
            Err(_) => {
                tracing::error!("reading events of the attempts directory panicked; it goes on");
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
            // Our own doing, or the end of what was told of otherwise.
            Ok(event) if event.events().contains(inotify::ReadFlags::IGNORED) => {}
            Ok(event) => {
                let name = event.file_name().and_then(|name| CStr::to_str(name).ok());
                let gone = inotify::ReadFlags::DELETE
                    | inotify::ReadFlags::MOVED_FROM
                    | inotify::ReadFlags::DELETE_SELF
                    | inotify::ReadFlags::MOVE_SELF;
                attempts.saw(event.wd(), name, event.events().intersects(gone));
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
