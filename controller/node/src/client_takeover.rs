//! Takes over the node of a Nomad client: the identity stays, and nothing runs twice.
//!
//! In: the config. Out: the node's identity, or why it cannot be taken over: a Nomad client runs in that directory, or has left tasks
//! there.

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

/// Maximum size of a client's state file that is read.
const BYTES_MAX: u64 = 256 << 20;

/// Why the node of a Nomad client cannot be taken over. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The client is running.
    #[error("take over the node of {}: a Nomad client is running there; stop it first", dir.display())]
    Running { dir: PathBuf },
    /// Its tasks have not ended.
    #[error(
        "take over the node of {}: allocations of Nomad's client have not ended, {} of them, such as {first}; with the client running, \
         drain it first (nomad node drain -self -enable), then stop it", dir.display(), count
    )]
    Live { dir: PathBuf, count: usize, first: String },
    /// Another user could change its state.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// Its state cannot be read.
    #[error("read the state of Nomad's client, {}; if none of its tasks run any more, remove that file", path.display())]
    State { path: PathBuf, source: BoltError },
    /// Its state file cannot be opened.
    #[error("open {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The identity cannot be taken from this directory.
    #[error(
        "take over the node of {}: its directory is not named client; copy client-id and secret-id from it to {}",
        from.display(), to.display()
    )]
    Elsewhere { from: PathBuf, to: PathBuf },
    /// The node's identity cannot be read or stored.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// The node's identity. Keeps Nomad's client locked out while it lives.
#[derive(Debug)]
pub struct Moved {
    /// The identity itself.
    pub identity: Identity,
    /// The lock on the client's state file.
    lock: Option<File>,
}

impl Moved {
    /// Whether Nomad's client is locked out.
    pub fn holds_lock(&self) -> bool {
        self.lock.is_some()
    }
}

/// The node's identity, stored in `dir`; if there is none, copied from Nomad's client in `moved_from` (the directory with `client-id`).
/// Call it at every start, before anything else is started: the user may have gone back to Nomad in the meantime.
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

/// Locks Nomad's client out and checks that none of its tasks run.
fn check(client: &Path) -> Result<Option<File>, MoveError> {
    let path = client.join("state.db");
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(MoveError::Open { path, source }),
    };
    // A running client holds this lock.
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

/// Allocations with a task that is not dead. An allocation without known tasks has started none.
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
            let task_state = state.value(&task, b"task_state")?;
            let task_state: Option<TaskState> =
                task_state.and_then(|task_state| herdlet_rpc::codec::decode(&task_state).ok());
            is_live |= task_state.is_none_or(|task_state| task_state.state != "dead");
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
