//! Which daemon answers at a socket: whether it is the one of the last connection, also of an earlier agent.
//!
//! In: the socket, a file of the agent's. Out: whether the daemon was restarted meanwhile.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The daemon of the last connection.
pub(super) struct Last {
    /// Identifies it; none if there was no connection.
    daemon: Option<String>,
    /// Whether it closed the connection. Its socket may be a service manager's, and stays over restarts.
    pub(super) is_cut: bool,
    memory: PathBuf,
}

impl Last {
    pub(super) fn read(memory: PathBuf) -> Self {
        Self { daemon: std::fs::read_to_string(&memory).ok(), is_cut: false, memory }
    }

    /// Whether the daemon at a socket is not the last one. From now on it is the last one.
    pub(super) fn is_another(&mut self, socket: &Path) -> bool {
        let now = daemon_id(socket);
        let is_another = self.daemon.is_some() && (self.is_cut || self.daemon != now);
        if self.daemon != now
            && let Some(now) = &now
            && let Err(error) = std::fs::write(&self.memory, now)
        {
            tracing::debug!(%error, "failed to note which daemon is running");
        }
        (self.daemon, self.is_cut) = (now, false);
        is_another
    }
}

/// Identifies a running daemon: it creates its socket and its pidfile when it starts.
fn daemon_id(socket: &Path) -> Option<String> {
    let of = |path: &Path| {
        let about = std::fs::metadata(path).ok()?;
        Some(format!("{} {} {} {}", about.dev(), about.ino(), about.ctime(), about.ctime_nsec()))
    };
    let is_default = DEFAULT_SOCKETS.iter().any(|path| Path::new(path) == socket);
    let pidfile = is_default.then(|| of(Path::new(DEFAULT_PIDFILE))).flatten().unwrap_or_default();
    Some(format!("{} {pidfile}", of(socket)?))
}

const DEFAULT_SOCKETS: [&str; 2] = ["/var/run/docker.sock", "/run/docker.sock"];
const DEFAULT_PIDFILE: &str = "/var/run/docker.pid";
