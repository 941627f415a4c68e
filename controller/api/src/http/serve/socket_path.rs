//! The path of the unix socket: detects that the socket or its directory was deleted, and creates it again.
//!
//! In: the socket's path. Out: a notification when it is gone; a new listener. A socket without a name is still open, but no
//! client can connect to it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_base::{
    directory::{DirectoryWatch, Interests, identity},
    error::in_full,
};

use super::Listener;

/// Delay between attempts to create it. No event reports that the obstacle is gone.
const TRY_AGAIN: Duration = Duration::from_secs(1);

pub(super) struct SocketPath {
    path: PathBuf,
    socket: Option<(u64, u64)>,
    watch: Option<DirectoryWatch>,
    /// The last logged reason why it could not be created.
    reported: String,
}

impl SocketPath {
    pub(super) fn new(path: &Path) -> Self {
        let mut place = Self { path: path.to_owned(), socket: None, watch: None, reported: String::new() };
        place.watch_socket();
        place
    }

    /// Whether our socket is there.
    pub(super) fn is_ours(&self) -> bool {
        self.socket.is_some() && identity(&self.path) == self.socket
    }

    /// Resolves when the socket is gone. Cancel-safe.
    pub(super) async fn lost(&self) {
        while self.is_ours() {
            let has_changed = match &self.watch {
                Some(watch) => watch.changed().await.is_ok(),
                None => false,
            };
            if !has_changed && self.is_ours() {
                // Either the directory itself is gone, and the socket with it, or nothing can be watched.
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }

    /// Creates the socket again, with its directory. Returns none if that fails, after a delay.
    pub(super) async fn make_again(&mut self) -> Option<Listener> {
        let dir = self.path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let made = match dir {
            Ok(()) => Listener::unix(&self.path).await.map_err(|error| in_full(&error)),
            Err(error) => Err(format!("create its directory: {error}")),
        };
        match made {
            Ok(listener) => {
                tracing::warn!(path = %self.path.display(), "the API's socket was deleted and has been created again");
                self.watch_socket();
                Some(listener)
            }
            Err(why) => {
                if self.reported != why {
                    tracing::error!(path = %self.path.display(), why, "the API's socket was deleted and can't be created again");
                    self.reported = why;
                }
                tokio::time::sleep(TRY_AGAIN).await;
                None
            }
        }
    }

    /// Opens the watch before it reads the socket's identity, so that no removal in between is missed.
    fn watch_socket(&mut self) {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.watch = DirectoryWatch::open(dir, Interests::Names).ok();
        self.socket = identity(&self.path);
        self.reported.clear();
    }
}
