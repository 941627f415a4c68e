//! The read model: what the agent shows, made from committed state only.
//!
//! In go views, released by the committer once they are durable. Out come snapshots for the API, the metrics and the eyes,
//! and word of every change. Readers share a lock held for the copy of a few pointers; the loop never waits for them.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use herdlet_api_types::{
    AllocId, JobKey, UnixNanos,
    view::{AllocView, JobView, VolumeView},
};
use herdlet_plan::turn::View;
use herdlet_runtime::{BootClock, Clock as _, CommitIndex, Now, Publisher};
use tokio::sync::{broadcast, watch};

use crate::history::History;

/// How many changes a slow follower may lag behind before it is told to read everything anew.
const CHANGES_LEN: usize = 1_024;

/// Something that is shown has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// What.
    pub object: Object,
    /// The commit that made it so.
    pub index: u64,
}

/// An object that is shown.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A job.
    Job(JobKey),
    /// An allocation.
    Alloc(AllocId),
    /// A volume.
    Volume(String),
}

/// Everything that is shown.
#[derive(Debug)]
pub struct ReadModel {
    objects: RwLock<Objects>,
    index: watch::Sender<u64>,
    changes: broadcast::Sender<Changed>,
    history: History,
}

#[derive(Debug, Default)]
struct Objects {
    jobs: BTreeMap<JobKey, Arc<JobView>>,
    allocs: BTreeMap<AllocId, Arc<AllocView>>,
    volumes: BTreeMap<String, Arc<VolumeView>>,
}

/// An allocation's view before and after.
type Transition = (Option<Arc<AllocView>>, Arc<AllocView>);

/// Why a prefix names no allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrefixError {
    /// None begins with it.
    None,
    /// These do.
    Ambiguous(Vec<AllocId>),
}

impl Default for ReadModel {
    fn default() -> Self {
        Self {
            objects: RwLock::default(),
            index: watch::Sender::new(0),
            changes: broadcast::Sender::new(CHANGES_LEN),
            history: History::default(),
        }
    }
}

impl ReadModel {
    /// The end that the committer writes to.
    pub fn publisher(self: &Arc<Self>) -> ModelPublisher {
        ModelPublisher(Arc::clone(self))
    }

    /// The last commit that changed anything shown.
    pub fn index(&self) -> u64 {
        *self.index.borrow()
    }

    /// Waits until something was committed after `index`, at most for `timeout`; the index then.
    pub async fn wait_beyond(&self, index: u64, timeout: Duration) -> u64 {
        let _ = tokio::time::timeout(timeout, self.changed(index)).await;
        self.index()
    }

    /// Waits until something was committed after `index`.
    pub(crate) async fn changed(&self, index: u64) {
        // Ends without one only with the model.
        let _ = self.index.subscribe().wait_for(|now| *now > index).await;
    }

    /// What has happened lately.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Every change from now on. A receiver that lags must read everything anew.
    pub fn changes(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// All jobs, by key.
    pub fn jobs(&self) -> Vec<Arc<JobView>> {
        self.read(|objects| objects.jobs.values().cloned().collect())
    }

    /// A job.
    pub fn job(&self, key: &JobKey) -> Option<Arc<JobView>> {
        self.read(|objects| objects.jobs.get(key).cloned())
    }

    /// All allocations, by id.
    pub fn allocs(&self) -> Vec<Arc<AllocView>> {
        self.read(|objects| objects.allocs.values().cloned().collect())
    }

    /// The allocations of a job, by group, index and age.
    pub fn allocs_of(&self, key: &JobKey) -> Vec<Arc<AllocView>> {
        let mut allocs: Vec<_> = self.read(|objects| {
            objects.allocs.values().filter(|view| view.spec.job_key == *key).cloned().collect()
        });
        allocs.sort_by(|a, b| {
            let order = |view: &AllocView| (view.spec.index, view.spec.create_index);
            a.spec.group.cmp(&b.spec.group).then(order(a).cmp(&order(b)))
        });
        allocs
    }

    /// An allocation.
    pub fn alloc(&self, id: &AllocId) -> Option<Arc<AllocView>> {
        self.read(|objects| objects.allocs.get(id).cloned())
    }

    /// The one allocation whose id begins with `prefix` (hyphens may be left out).
    ///
    /// # Errors
    /// When none or several do.
    pub fn alloc_by_prefix(&self, prefix: &str) -> Result<Arc<AllocView>, PrefixError> {
        let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
        let wanted = plain(prefix);
        let mut found: Vec<_> = self.read(|objects| {
            objects
                .allocs
                .values()
                .filter(|view| plain(&view.spec.id.to_string()).starts_with(&wanted))
                .cloned()
                .collect()
        });
        match found.len() {
            0 => Err(PrefixError::None),
            1 => found.pop().ok_or(PrefixError::None),
            _ => Err(PrefixError::Ambiguous(found.iter().map(|view| view.spec.id).collect())),
        }
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<Arc<VolumeView>> {
        self.read(|objects| objects.volumes.values().cloned().collect())
    }

    fn remember(&self, view: &View, now: Now) {
        match view {
            View::Job(view) => self.history.job(view),
            View::JobGone(key) => self.history.job_gone(key, now.boot_ns),
            View::Alloc(_) | View::AllocGone(_) | View::Volume(_) | View::VolumeGone(_) => {}
        }
    }

    fn read<T>(&self, look: impl FnOnce(&Objects) -> T) -> T {
        look(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes to the read model.
#[derive(Debug)]
pub struct ModelPublisher(Arc<ReadModel>);

impl Publisher<View> for ModelPublisher {
    fn offer(&mut self, index: CommitIndex, views: Vec<View>) {
        let now = BootClock.now();
        let mut changed = Vec::with_capacity(views.len());
        let mut transitions = Vec::new();
        {
            let mut objects = self.0.objects.write().unwrap_or_else(PoisonError::into_inner);
            for view in views {
                self.0.remember(&view, now);
                let (object, transition) = objects.put(view);
                changed.push(Changed { object, index: index.0 });
                transitions.extend(transition);
            }
        }
        // Without the lock: whoever takes the log may be slow.
        for (before, after) in transitions {
            self.0.history.alloc(UnixNanos(now.wall_ns), before.as_deref(), &after);
            tell_transitions(before.as_deref(), &after);
        }
        self.0.index.send_if_modified(|known| {
            let newer = index.0 > *known;
            *known = index.0.max(*known);
            newer
        });
        for change in changed {
            // Nobody may be following.
            let _ = self.0.changes.send(change);
        }
    }

    fn compact(views: &mut Vec<View>) {
        let mut seen = std::collections::BTreeSet::new();
        let mut kept: Vec<View> =
            std::mem::take(views).into_iter().rev().filter(|view| seen.insert(object_of(view))).collect();
        kept.reverse();
        *views = kept;
    }
}

impl Objects {
    /// What was put; of an allocation also how it looked before, and looks now.
    fn put(&mut self, view: View) -> (Object, Option<Transition>) {
        let object = object_of(&view);
        let mut transition = None;
        match view {
            View::Job(view) => {
                self.jobs.insert(view.key.clone(), view);
            }
            View::JobGone(key) => {
                self.jobs.remove(&key);
            }
            View::Alloc(view) => {
                transition = Some((self.allocs.insert(view.spec.id, Arc::clone(&view)), view));
            }
            View::AllocGone(id) => {
                self.allocs.remove(&id);
            }
            View::Volume(view) => {
                self.volumes.insert(view.spec.name.clone(), Arc::from(view));
            }
            View::VolumeGone(name) => {
                self.volumes.remove(&name);
            }
        }
        (object, transition)
    }
}

/// One line for each transition of a task or an allocation; nothing for what only looks different.
fn tell_transitions(before: Option<&AllocView>, after: &AllocView) {
    let alloc = || after.spec.name();
    for (index, task) in after.tasks.iter().enumerate() {
        let known = before.and_then(|before| before.tasks.get(index));
        if known.is_some_and(|known| known.phase == task.phase && known.attempt == task.attempt) {
            continue;
        }
        let event = task.events.last().map(|event| event.message.as_str()).unwrap_or_default();
        tracing::info!(
            alloc = alloc(),
            task = &*task.name,
            attempt = task.attempt,
            event,
            "task is {}",
            task.phase
        );
    }
    if before.is_none_or(|before| before.convergence.state != after.convergence.state) {
        let (state, why) = (after.convergence.state.as_str(), after.convergence.message.as_str());
        tracing::info!(alloc = alloc(), why, "allocation is {state}");
    }
}

fn object_of(view: &View) -> Object {
    match view {
        View::Job(view) => Object::Job(view.key.clone()),
        View::JobGone(key) => Object::Job(key.clone()),
        View::Alloc(view) => Object::Alloc(view.spec.id),
        View::AllocGone(id) => Object::Alloc(*id),
        View::Volume(view) => Object::Volume(view.spec.name.clone()),
        View::VolumeGone(name) => Object::Volume(name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocking_reader_wakes_with_the_commit_it_waits_for_or_in_time() {
        let model = Arc::new(ReadModel::default());
        assert_eq!(model.wait_beyond(0, Duration::from_secs(5)).await, 0);
        let waiting = tokio::spawn({
            let model = Arc::clone(&model);
            async move { model.wait_beyond(3, Duration::from_secs(60)).await }
        });
        tokio::task::yield_now().await;
        model.publisher().offer(CommitIndex(3), vec![View::VolumeGone("a".to_owned())]);
        model.publisher().offer(CommitIndex(7), vec![View::VolumeGone("b".to_owned())]);
        assert_eq!(waiting.await.unwrap_or_default(), 7);
    }

    #[test]
    fn of_many_views_of_one_object_only_the_last_is_kept() {
        let gone = |name: &str| View::VolumeGone(name.to_owned());
        let mut views = vec![gone("a"), gone("b"), gone("a")];
        ModelPublisher::compact(&mut views);
        let names: Vec<Object> = views.iter().map(object_of).collect();
        assert_eq!(names, [Object::Volume("b".to_owned()), Object::Volume("a".to_owned())]);
    }
}
