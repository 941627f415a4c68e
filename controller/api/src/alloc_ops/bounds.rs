//! Limits on what callers may occupy at the same time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, ApiResult};

/// Exec sessions: each has a process, a terminal and buffers.
const SESSIONS_MAX: usize = 128;

/// Subscribers of the log: each line is copied for each of them.
const LISTENERS_MAX: usize = 16;

/// Files that are followed: each takes a connection and an open file. A process usually may have 1,024 of these,
/// and every task needs one too.
const FOLLOWED_MAX: usize = 256;

/// The limits of one agent; cheap to clone.
#[derive(Debug, Clone)]
pub struct Bounds {
    sessions: Arc<Semaphore>,
    listeners: Arc<Semaphore>,
    followed: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        let bound = |max| Arc::new(Semaphore::new(max));
        Self { sessions: bound(SESSIONS_MAX), listeners: bound(LISTENERS_MAX), followed: bound(FOLLOWED_MAX) }
    }
}

impl Bounds {
    /// Admits a session while the permit is held.
    pub(super) fn session(&self) -> ApiResult<OwnedSemaphorePermit> {
        admit(&self.sessions, || format!("{SESSIONS_MAX} exec sessions are already open; try again later"))
    }

    /// Admits a subscriber of the log.
    pub(super) fn listener(&self) -> ApiResult<OwnedSemaphorePermit> {
        admit(&self.listeners, || format!("{LISTENERS_MAX} clients already follow the log"))
    }

    /// Admits a reader that follows a file.
    pub(super) fn follower(&self) -> ApiResult<OwnedSemaphorePermit> {
        admit(&self.followed, || format!("{FOLLOWED_MAX} files are already being followed; try again later"))
    }
}

fn admit(bound: &Arc<Semaphore>, full: impl Fn() -> String) -> ApiResult<OwnedSemaphorePermit> {
    Arc::clone(bound).try_acquire_owned().map_err(|_| ApiError::Unavailable(full()))
}
