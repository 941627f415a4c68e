//! Where the unix socket lies: whether it still does, and making it again where somebody has deleted it, or its directory.
//!
//! In: the socket's path. Out: word that it is gone, by the kernel's; a new listener. A socket that has lost its name is open
//! still, and nobody can reach it.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_base::{
    directory::{DirectoryWatch, Interests, identity},
    error::in_full,
};

use super::Listener;

/// Between tries to make it again: of what keeps it from being made, nobody tells that it is over.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The place of a listener's socket.
pub(super) struct Place {
    path: PathBuf,
    socket: Option<(u64, u64)>,
    watch: Option<DirectoryWatch>,
    /// Why it could not be made again, as last told.
    told: String,
}

impl Place {
    /// The place of the unix socket at `path`.
    pub(super) fn new(path: &Path) -> Self {
        let mut place = Self { path: path.to_owned(), socket: None, watch: None, told: String::new() };
        place.learn();
        place
    }

    /// Whether our socket is there.
    pub(super) fn is_ours(&self) -> bool {
        self.socket.is_some() && identity(&self.path) == self.socket
    }

    /// Resolves when it is not there any more. May be dropped while waiting.
    pub(super) async fn lost(&self) {
        while self.is_ours() {
            let told = match &self.watch {
                Some(watch) => watch.changed().await.is_ok(),
                None => false,
            };
            if !told && self.is_ours() {
                // The directory's own end, which takes the socket with it, or nothing that can be watched.
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }

    /// Makes the socket again, with its directory; none where that can't be, after a moment.
    pub(super) async fn make_again(&mut self) -> Option<Listener> {
        let dir = self.path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let made = match dir {
            Ok(()) => Listener::unix(&self.path).await.map_err(|error| in_full(&error)),
            Err(error) => Err(format!("make its directory: {error}")),
        };
        match made {
            Ok(listener) => {
                tracing::warn!(path = %self.path.display(), "the API's socket was gone and is made again");
                self.learn();
                Some(listener)
            }
            Err(why) => {
                if self.told != why {
                    tracing::error!(path = %self.path.display(), why, "the API's socket is gone and can't be made again");
                    self.told = why;
                }
                tokio::time::sleep(TRY_AGAIN).await;
                None
            }
        }
    }

    /// Watches first, then looks: a socket that goes in between is missed by neither.
    fn learn(&mut self) {
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.watch = DirectoryWatch::open(dir, Interests::Names).ok();
        self.socket = identity(&self.path);
        self.told.clear();
    }
}
