//! The open sockets of the Task API, and the port to their server.
//!
//! In: sockets that the executor has opened, and the API once it runs. Out: each socket to the API, until it is closed.
//! Sockets opened before that wait: their clients are answered as soon as the API runs. This module does no IO and knows
//! no request.

use std::{
    collections::BTreeMap,
    os::unix::net::UnixListener,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::AllocId;
use herdlet_storage::api_socket::SocketId;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Serves the sockets of tasks.
pub trait TaskApi: Send + Sync {
    /// Serves a socket until it is closed. Called within the async runtime; does not wait.
    fn open(&self, socket: TaskSocket);
}

/// Closes each socket: the agent has no API. Clients are refused at once instead of waiting.
pub struct NoApi;

impl TaskApi for NoApi {
    fn open(&self, _: TaskSocket) {}
}

/// A listening socket of a task.
#[derive(Debug)]
pub struct TaskSocket {
    pub alloc: AllocId,
    /// The task's name.
    pub task: String,
    pub listener: UnixListener,
    /// Cancelled when it is to be closed.
    pub closed: CancellationToken,
}

/// The open sockets of all tasks.
#[derive(Default)]
pub struct TaskSockets(Mutex<Sockets>);

#[derive(Default)]
struct Sockets {
    api: Option<Arc<dyn TaskApi>>,
    open: BTreeMap<SocketKey, OpenSocket>,
    /// Those that wait for the API.
    waiting: BTreeMap<SocketKey, TaskSocket>,
}

/// An allocation and the name of its task.
type SocketKey = (AllocId, String);

struct OpenSocket {
    id: SocketId,
    /// Closes it.
    _guard: DropGuard,
}

impl TaskSockets {
    /// Has the API serve all sockets, present and future.
    pub fn serve_by(&self, api: Arc<dyn TaskApi>) {
        let waiting = {
            let mut sockets = self.lock();
            sockets.api = Some(Arc::clone(&api));
            std::mem::take(&mut sockets.waiting)
        };
        waiting.into_values().for_each(|socket| api.open(socket));
    }

    /// Adds a socket that has just been opened. Closes the task's earlier one.
    pub(crate) fn add(&self, key: SocketKey, (listener, id): (UnixListener, SocketId)) {
        let closed = CancellationToken::new();
        let socket = TaskSocket { alloc: key.0, task: key.1.clone(), listener, closed: closed.clone() };
        let mut sockets = self.lock();
        sockets.open.insert(key.clone(), OpenSocket { id, _guard: closed.drop_guard() });
        match sockets.api.clone() {
            Some(api) => {
                drop(sockets);
                api.open(socket);
            }
            None => {
                sockets.waiting.insert(key, socket);
            }
        }
    }

    /// The file of the task's open socket.
    pub(crate) fn id(&self, key: &SocketKey) -> Option<SocketId> {
        self.lock().open.get(key).map(|socket| socket.id)
    }

    /// Closes the task's socket, if it is open.
    pub(crate) fn close(&self, key: &SocketKey) {
        let mut sockets = self.lock();
        sockets.waiting.remove(key);
        sockets.open.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use herdlet_base::{paths::Paths, privileges::Privileges};
    use herdlet_storage::{api_socket::ApiSocket, file_access::FileAccess, task_dir::TaskDir};

    use super::*;

    #[derive(Default)]
    struct Served(Mutex<Vec<TaskSocket>>);

    impl TaskApi for Served {
        fn open(&self, socket: TaskSocket) {
            self.0.lock().unwrap().push(socket);
        }
    }

    #[test]
    fn sockets_wait_for_the_api_and_close_when_they_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let key = (AllocId::from_hash([1; 16]), "t".to_owned());
        let path = paths.task(&key.0, &key.1);
        std::fs::create_dir_all(path.join("secrets")).unwrap();
        let task_dir = TaskDir::new(path.clone(), Privileges::none());
        let socket = ApiSocket { task_dir: &task_dir, task: "t", access: FileAccess::Owner(None) };
        let (sockets, api) = (TaskSockets::default(), Arc::new(Served::default()));
        let first = socket.bind().unwrap();
        let first_id = first.1;
        sockets.add(key.clone(), first);
        assert_eq!(sockets.id(&key), Some(first_id));
        // A client of the time before the API runs waits.
        let _client = UnixStream::connect(path.join("secrets/api.sock")).unwrap();
        sockets.serve_by(Arc::clone(&api) as Arc<dyn TaskApi>);
        sockets.add(key.clone(), socket.bind().unwrap());
        let closed =
            || -> Vec<bool> { api.0.lock().unwrap().iter().map(|s| s.closed.is_cancelled()).collect() };
        assert_eq!(closed(), [true, false]);
        assert_ne!(sockets.id(&key), Some(first_id));
        sockets.close(&key);
        assert_eq!((closed(), sockets.id(&key)), (vec![true, true], None));
    }
}
