//! One directory, watched by inotify: tells that something in it changed, not what. Whoever is told looks for itself.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path};

use rustix::fs::inotify;
use tokio::io::{Interest, unix::AsyncFd};

use crate::drivers::ready;

/// Room for events of one read; more come with the next.
const EVENTS_LEN: usize = 4_096;

/// A watched directory.
pub struct DirectoryWatch {
    inotify: AsyncFd<OwnedFd>,
}

/// What about a directory is of interest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interests {
    /// Entries that come, go, or are written to.
    Writes,
    /// Entries that come, go, or were written and closed; the directory's own end.
    Entries,
}

impl DirectoryWatch {
    /// Watches `path`. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When it does not exist, or no more watches can be had.
    pub fn open(path: &Path, interests: Interests) -> io::Result<Self> {
        use inotify::WatchFlags as W;
        let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
        let entries = W::CREATE | W::DELETE | W::MOVED_FROM | W::MOVED_TO;
        let what = match interests {
            Interests::Writes => entries | W::MODIFY,
            Interests::Entries => entries | W::CLOSE_WRITE | W::DELETE_SELF | W::MOVE_SELF,
        };
        inotify::add_watch(&fd, path, what | W::ONLYDIR)?;
        Ok(Self { inotify: ready::register(fd, Interest::READABLE)? })
    }

    /// Waits until something has changed since the last call (or since [`DirectoryWatch::open`]).
    ///
    /// # Errors
    /// When the kernel's queue can't be read.
    pub async fn changed(&self) -> io::Result<()> {
        loop {
            let mut guard = self.inotify.readable().await?;
            let seen = self.drain()?;
            guard.clear_ready();
            if seen {
                return Ok(());
            }
        }
    }

    /// Takes all queued events. Whether there were any.
    fn drain(&self) -> io::Result<bool> {
        let mut buffer = [MaybeUninit::uninit(); EVENTS_LEN];
        let mut events = inotify::Reader::new(self.inotify.get_ref(), &mut buffer);
        let mut seen = false;
        loop {
            match events.next() {
                Ok(_) => seen = true,
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(seen),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
