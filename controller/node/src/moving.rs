//! Moving in where Nomad's client was: the node stays who it is, and nothing runs twice.
//!
//! In: the config. Out: the node's identity; or why it may not be taken: a Nomad client runs on that directory, or left tasks there.

mod bolt;
#[cfg(any(test, fuzzing, feature = "fixture"))]
mod fed;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use herdlet_base::ownership::{self, OwnershipError};
use herdlet_nomad::identity::{Identity, IdentityError};
use rustix::fs::{FlockOperation, flock};

use self::bolt::{Bolt, BoltError};
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub use self::fed::{example, feed as feed_bolt};

/// The largest state of a client that is read.
const BYTES_MAX: u64 = 256 << 20;

/// What keeps us from being the node that Nomad's client was. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// It is still there.
    #[error("take over the node of {}: a Nomad client is running there; stop it first", dir.display())]
    Running { dir: PathBuf },
    /// Its tasks are.
    #[error(
        "take over the node of {}: allocations of Nomad's client are not over, {} of them, such as {first}; with the client running, \
         drain it first (nomad node drain -self -enable), then stop it", dir.display(), count
    )]
    Live { dir: PathBuf, count: usize, first: String },
    /// Somebody else could change what it knows.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// What it knows can't be read.
    #[error("read what Nomad's client knows, {}; if nothing of it runs any more, remove that file", path.display())]
    State { path: PathBuf, source: BoltError },
    /// The file can't be opened.
    #[error("open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The identity is elsewhere than it can be taken from.
    #[error(
        "take over the node of {}: its directory is not called client; copy client-id and secret-id from it to {}",
        from.display(), to.display()
    )]
    Elsewhere { from: PathBuf, to: PathBuf },
    /// Who the node is can't be read or kept.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Nomad's client stays away as long as this is held.
#[derive(Debug)]
pub struct Moved {
    /// Who the node is.
    pub identity: Identity,
    /// The lock on what Nomad's client knows.
    lock: Option<File>,
}

impl Moved {
    /// Whether Nomad's client is kept away.
    pub fn holds_lock(&self) -> bool {
        self.lock.is_some()
    }
}

/// The node's identity, kept in `dir`; that of Nomad's client in `moved_from` (the directory with `client-id`) where there is none yet. To
/// be called before anything is started, with every start: somebody may have gone back to Nomad meanwhile.
///
/// # Errors
/// See [`MoveError`]; nothing has changed then.
pub fn identity(dir: &Path, moved_from: Option<&Path>) -> Result<Moved, MoveError> {
    let lock = match moved_from {
        Some(client) => {
            for name in ["state.db", "client-id", "secret-id"] {
                ownership::check_if_there(&client.join(name))?;
            }
            check(client)?
        }
        None => None,
    };
    let is_known = Identity::load(dir)?.is_some();
    let data_dir = match moved_from.filter(|_| !is_known) {
        Some(client) if client.ends_with("client") => client.parent(),
        Some(client) if client.join("client-id").exists() => {
            return Err(MoveError::Elsewhere { from: client.to_owned(), to: dir.to_owned() });
        }
        Some(_) | None => None,
    };
    Ok(Moved { identity: Identity::load_or_create(dir, data_dir)?, lock })
}

/// Whether nothing of Nomad's client runs, and nothing will.
fn check(client: &Path) -> Result<Option<File>, MoveError> {
    let path = client.join("state.db");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(MoveError::Open { path, source }),
    };
    // A client holds its lock as long as it runs.
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(MoveError::Running { dir: client.to_owned() }),
        Err(error) => return Err(MoveError::Open { path, source: error.into() }),
    }
    let failed = |source| MoveError::State { path: path.clone(), source };
    let bytes = bolt::bytes(&file, BYTES_MAX).map_err(failed)?;
    let live = live(&Bolt::open(&bytes).map_err(failed)?).map_err(failed)?;
    match live.first() {
        None => Ok(Some(file)),
        Some(first) => {
            Err(MoveError::Live { dir: client.to_owned(), count: live.len(), first: first.clone() })
        }
    }
}

/// Allocations of which a task is not dead. One of which no task is known has started none.
///
/// `allocations/ALLOC/task-NAME`: `task_state` is a `structs.TaskState` in msgpack (`hashicorp/nomad:client/state/db_bolt.go`).
fn live(state: &Bolt<'_>) -> Result<Vec<String>, BoltError> {
    let mut live = Vec::new();
    for (alloc, bucket) in state.buckets(&["allocations"])? {
        let mut is_live = false;
        for (name, task) in state.within(&bucket)? {
            if !name.starts_with(b"task-") {
                continue;
            }
            let told = state.value(&task, b"task_state")?;
            let told: Option<TaskState> = told.and_then(|told| herdlet_rpc::codec::decode(&told).ok());
            is_live |= told.is_none_or(|told| told.state != "dead");
        }
        if is_live {
            live.push(String::from_utf8_lossy(&alloc).chars().take(64).collect());
        }
    }
    Ok(live)
}

#[derive(serde::Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[derive(Default)]
struct TaskState {
    state: String,
}
