//! Watches directories: reports that something in one changed, but not what. Subscribers read the directory themselves.
//!
//! In: paths. Out: notifications. All of these watches share one inotify queue, because a user has only 128 of them
//! (inotify(7), `max_user_instances`), but tens of thousands of watches. When even those run out, a directory counts as
//! changed every [`SLOW_PERIOD`] instead of being refused. (The records of attempts have a queue of their own.)

mod hub;

use std::{
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{fs::inotify, io::Errno};
use tokio::sync::Notify;

pub use hub::Subscription;

/// Polling interval for directories that can't be watched: long enough for a thousand of them.
const SLOW_PERIOD: Duration = Duration::from_secs(1);

/// A watched directory.
pub struct DirectoryWatch {
    path: PathBuf,
    changes: Arc<Notify>,
    /// `None` if the directory is polled.
    kernel: Option<Subscription>,
}

/// Which changes of a directory to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interests {
    /// Entries are created, removed, renamed or written to.
    Writes,
    /// Entries are created, removed, renamed, or closed after writing; the directory itself is removed or renamed.
    Entries,
    /// Entries are created, removed or renamed; the directory itself is removed or renamed.
    Names,
    /// As `Names`, and rights of the directory or its entries change.
    Rights,
}

impl Interests {
    fn flags(self) -> inotify::WatchFlags {
        use inotify::WatchFlags as W;
        let entries = W::CREATE | W::DELETE | W::MOVED_FROM | W::MOVED_TO;
        match self {
            Self::Writes => entries | W::MODIFY,
            Self::Entries => entries | W::CLOSE_WRITE | W::DELETE_SELF | W::MOVE_SELF,
            Self::Names => entries | W::DELETE_SELF | W::MOVE_SELF,
            Self::Rights => entries | W::DELETE_SELF | W::MOVE_SELF | W::ATTRIB,
        }
    }
}

/// Device and inode of the directory at `path`; `None` if there is none.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

impl DirectoryWatch {
    /// Watches `path`, or polls it if the kernel has no watches left.
    ///
    /// # Errors
    /// If it does not exist or is not a directory.
    pub fn open(path: &Path, interests: Interests) -> io::Result<Self> {
        let changes = Arc::new(Notify::new());
        let notifier = Arc::clone(&changes);
        let kernel = match Subscription::new(path, interests, move || notifier.notify_one()) {
            Ok(subscription) => Some(subscription),
            Err(error) if is_used_up(&error) => {
                log_once(&error);
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { path: path.to_owned(), changes, kernel })
    }

    /// Waits until something has changed since the last call (or since [`DirectoryWatch::open`]).
    ///
    /// # Errors
    /// If the directory is gone. The last writes to it may not have been reported as changes.
    pub async fn changed(&self) -> io::Result<()> {
        match &self.kernel {
            Some(subscription) => {
                if subscription.is_over() {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        format!("{} is gone", self.path.display()),
                    ));
                }
                self.changes.notified().await;
                Ok(())
            }
            None => {
                tokio::time::sleep(SLOW_PERIOD).await;
                std::fs::metadata(&self.path).map(drop)
            }
        }
    }
}

/// Whether the error means that a kernel resource for watching has run out.
pub fn is_used_up(error: &io::Error) -> bool {
    let used_up = [Errno::NOSPC, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| used_up.contains(&errno))
}

fn log_once(error: &io::Error) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            %error,
            "no more directories can be watched, so some are polled every second; raise fs.inotify.max_user_watches, \
             or fs.inotify.max_user_instances and the open file limit"
        );
    });
}

#[cfg(test)]
mod tests;
