//! The one inotify watch of an instance.
//!
//! In: the attempts directory, later the directory of the cgroups. Out: whoever waits for a record is woken; a removed
//! cgroup is told of.

use std::{
    ffi::CStr,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Weak},
};

use rustix::fs::inotify;
use tokio::io::unix::AsyncFd;

use super::Attempts;

/// Names of records are shorter; one event always fits.
const EVENTS_LEN: usize = 4096;

pub(super) fn watch_dir(path: &Path) -> rustix::io::Result<(OwnedFd, i32)> {
    let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    let what = inotify::WatchFlags::CREATE | inotify::WatchFlags::MODIFY | inotify::WatchFlags::DELETE;
    let watch = inotify::add_watch(&inotify, path, what)?;
    Ok((inotify, watch))
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
            Ok(event) if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) => attempts.wake_all(),
            Ok(event) => {
                let name = event.file_name().and_then(|name| CStr::to_str(name).ok());
                match name {
                    Some(name) if event.wd() == attempts.records_watch => attempts.wake(name),
                    Some(name) => attempts.cgroup_gone(name),
                    None => {}
                }
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
