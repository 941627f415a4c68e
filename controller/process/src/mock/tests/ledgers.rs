//! Ledgers without records: the names in a container engine, and a plugin.

use super::*;

/// A simulated container engine: a container's name is unique, and a fence is a container that never runs.
#[derive(Clone, Default)]
pub(super) struct Engine(Arc<Mutex<BTreeMap<String, Entry>>>);

/// A simulated plugin: its tasks outlive the agent, and only a handle identifies them.
#[derive(Clone, Default)]
pub(super) struct Plugin(Arc<Mutex<BTreeMap<AttemptId, Entry>>>);

/// One agent's knowledge of a plugin's tasks.
pub(super) struct Client {
    plugin: Plugin,
    own: Mutex<Own>,
    earlier: Earlier,
}

#[derive(Default)]
struct Own {
    attached: BTreeSet<AttemptId>,
    fenced: BTreeSet<AttemptId>,
}

fn lock<T>(what: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    what.lock().unwrap()
}

impl Notes for Engine {
    fn claim(&self, id: &AttemptId, entry: &Entry) -> std::io::Result<Claim<Entry>> {
        let mut containers = lock(&self.0);
        match containers.get(&id.name()) {
            Some(known) => Ok(known.clone().claim()),
            None => {
                containers.insert(id.name(), entry.clone());
                Ok(Claim::Free)
            }
        }
    }

    fn read(&self, id: &AttemptId) -> std::io::Result<Option<Entry>> {
        Ok(lock(&self.0).get(&id.name()).cloned())
    }

    fn set_exit(&self, id: &AttemptId, exit: &ExitResult) -> std::io::Result<()> {
        if let Some(entry) = lock(&self.0).get_mut(&id.name()) {
            entry.exit = Some(exit.clone());
        }
        Ok(())
    }

    fn list(&self) -> std::io::Result<Vec<AttemptId>> {
        let containers = lock(&self.0);
        Ok(containers
            .iter()
            .filter(|(_, entry)| !entry.fenced)
            .filter_map(|(name, _)| AttemptId::parse(name))
            .collect())
    }

    fn remove(&self, id: &AttemptId) -> std::io::Result<()> {
        lock(&self.0).remove(&id.name());
        Ok(())
    }
}

impl Plugin {
    pub(super) fn client(&self) -> Client {
        Client { plugin: self.clone(), own: Mutex::default(), earlier: Earlier::default() }
    }
}

impl Notes for Client {
    fn claim(&self, id: &AttemptId, entry: &Entry) -> std::io::Result<Claim<Entry>> {
        if let Some(known) = self.read(id)? {
            return Ok(known.claim());
        }
        let (mut own, mut tasks) = (lock(&self.own), lock(&self.plugin.0));
        if entry.fenced {
            // End the task that an earlier agent started under this id.
            tasks.remove(id);
            own.fenced.insert(id.clone());
        } else {
            tasks.insert(id.clone(), entry.clone());
            own.attached.insert(id.clone());
        }
        Ok(Claim::Free)
    }

    fn read(&self, id: &AttemptId) -> std::io::Result<Option<Entry>> {
        let own = lock(&self.own);
        if own.fenced.contains(id) {
            return Ok(Some(Entry::fence()));
        }
        Ok(lock(&self.plugin.0).get(id).filter(|_| own.attached.contains(id)).cloned())
    }

    fn set_exit(&self, id: &AttemptId, exit: &ExitResult) -> std::io::Result<()> {
        if let Some(entry) = lock(&self.plugin.0).get_mut(id) {
            entry.exit = Some(exit.clone());
        }
        Ok(())
    }

    fn list(&self) -> std::io::Result<Vec<AttemptId>> {
        Ok(lock(&self.own).attached.iter().cloned().collect())
    }

    fn remove(&self, id: &AttemptId) -> std::io::Result<()> {
        let mut own = lock(&self.own);
        own.attached.remove(id);
        own.fenced.remove(id);
        lock(&self.plugin.0).remove(id);
        Ok(())
    }

    fn handle(&self, id: &AttemptId) -> Option<Handle> {
        Some(Handle { version: 1, state: id.name().into_bytes() })
    }

    fn recall(&self, id: &AttemptId, handle: &Handle) {
        let is_there = lock(&self.plugin.0).contains_key(id);
        if is_there && handle.state == id.name().into_bytes() {
            lock(&self.own).attached.insert(id.clone());
        }
    }

    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.earlier.set(known);
    }

    fn may_have_begun(&self, id: &AttemptId) -> bool {
        self.earlier.has(id)
    }
}

/// A plugin's task without a handle: the agent that started it crashed before it stored the handle.
#[tokio::test(start_paused = true)]
async fn a_plugins_task_without_a_handle_is_destroyed_and_lost() {
    let (bench, plugin) = (Bench::new(), Plugin::default());
    let open = || Mock::with(Box::new(plugin.client()), bench.clock());
    let first = open();
    let started = first.start(bench.task(json!({"run_for": "1h"}))).await.unwrap();
    assert!(started.handle.is_some());
    drop(first);
    let second = open();
    second.set_earlier(&[id()].into());
    assert!(matches!(second.recover(recovery()).await.unwrap(), Recovered::Lost { .. }));
    assert!(lock(&plugin.0).is_empty(), "the driver destroys it by its id");
    // Passed in too late, the handle identifies nothing.
    let late = Recovery { handle: started.handle, ..recovery() };
    assert!(matches!(second.recover(late).await.unwrap(), Recovered::Lost { .. }));
}
