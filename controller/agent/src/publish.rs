//! The read model: what the agent publishes, made from committed state only.
//!
//! In: views, which the committer releases once they are durable. Out: snapshots for the API, metrics and watchers,
//! and a notification of every change. Readers hold a lock only while they copy a few pointers; the loop never waits
//! for them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock},
};

use herdlet_api_types::{
    AllocId, JobKey, UnixNanos,
    task::TaskPhase,
    view::{AllocView, Convergence, ConvergenceState, JobView, NodeView, TaskView, VolumeView},
};
use herdlet_plan::turn::View;
use herdlet_runtime::{BootClock, Clock as _, CommitIndex, Now, Publisher};
use tokio::sync::{broadcast, watch};

use crate::history::{Change, History};

/// How many changes a slow follower may lag behind before it must read everything again, and how many are kept for a
/// follower that reconnects.
const CHANGES_LEN: usize = 1_024;

/// A change to a published object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectChange {
    pub object: Object,
    /// The commit that made the change.
    pub index: u64,
}

/// A published object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    Job(JobKey),
    Alloc(AllocId),
    Volume(String),
    /// This node: whether it takes new allocations, and its drain.
    Node,
}

/// The published state.
#[derive(Debug)]
pub struct ReadModel {
    objects: RwLock<Objects>,
    reached: watch::Sender<Reached>,
    changes: broadcast::Sender<ObjectChange>,
    history: History,
    recent: Mutex<Recent>,
}

/// The progress of the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Reached {
    /// The last commit that changed anything published.
    index: u64,
    /// Grows with every change, including those that needed no commit; never below the index.
    version: u64,
}

/// The last changes, oldest first.
#[derive(Debug, Default)]
struct Recent {
    changes: VecDeque<ObjectChange>,
    /// All changes from this commit on are kept; `None` before the first.
    from: Option<u64>,
    max: usize,
}

#[derive(Debug, Default)]
struct Objects {
    jobs: BTreeMap<JobKey, Arc<JobView>>,
    allocs: BTreeMap<AllocId, Arc<AllocView>>,
    volumes: BTreeMap<String, Arc<VolumeView>>,
    node: Arc<NodeView>,
}

/// An allocation's view before and after; `None` where it is not published.
type Transition = (Option<Arc<AllocView>>, Option<Arc<AllocView>>);

/// A transition with the context at its time.
struct Scene {
    before: Option<Arc<AllocView>>,
    after: Option<Arc<AllocView>>,
    job: Option<Arc<JobView>>,
    previous: Option<Arc<AllocView>>,
}

impl Default for ReadModel {
    fn default() -> Self {
        Self::with_room_for(CHANGES_LEN)
    }
}

impl ReadModel {
    /// Creates a model whose followers may lag behind by `changes`; its history is limited to the same number.
    pub fn with_room_for(changes: usize) -> Self {
        Self {
            objects: RwLock::default(),
            reached: watch::Sender::default(),
            changes: broadcast::Sender::new(changes),
            history: History::with_room_for(changes),
            recent: Mutex::new(Recent { max: changes, ..Recent::default() }),
        }
    }

    /// The writing end, for the committer.
    pub fn publisher(self: &Arc<Self>) -> ModelPublisher {
        ModelPublisher(Arc::clone(self))
    }

    /// The last commit that changed anything published.
    pub fn index(&self) -> u64 {
        self.reached.borrow().index
    }

    /// The version of the current state: a number that grows with every change and is never below the index.
    pub fn version(&self) -> u64 {
        self.reached.borrow().version
    }

    /// Waits until something has changed after `version`.
    pub async fn changed(&self, version: u64) {
        // The wait fails only when the model is dropped.
        let _ = self.reached.subscribe().wait_for(|now| now.version > version).await;
    }

    /// The changes since commit `index`, including that commit's; `None` if some of them are no longer kept.
    pub fn since(&self, index: u64) -> Option<Vec<ObjectChange>> {
        let recent = self.recent();
        let known = recent.from.is_some_and(|from| index >= from);
        known.then(|| recent.changes.iter().filter(|change| change.index >= index).cloned().collect())
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Subscribes to all further changes. A receiver that lags must read everything again.
    pub fn changes(&self) -> broadcast::Receiver<ObjectChange> {
        self.changes.subscribe()
    }

    /// All jobs, by key.
    pub fn jobs(&self) -> Vec<Arc<JobView>> {
        self.read(|objects| objects.jobs.values().cloned().collect())
    }

    pub fn job(&self, key: &JobKey) -> Option<Arc<JobView>> {
        self.read(|objects| objects.jobs.get(key).cloned())
    }

    /// The children of a job, found by their ids, which begin with its own.
    pub fn children(&self, parent: &JobKey) -> Vec<Arc<JobView>> {
        let first = JobKey { namespace: Arc::clone(&parent.namespace), id: format!("{}/", parent.id).into() };
        self.read(|objects| {
            let below = objects
                .jobs
                .range(first.clone()..)
                .take_while(|(key, _)| key.namespace == first.namespace && key.id.starts_with(&*first.id));
            let children = below.map(|(_, view)| view);
            children.filter(|view| view.job.parent_id() == Some(&*parent.id)).cloned().collect()
        })
    }

    /// All allocations, by id.
    pub fn allocs(&self) -> Vec<Arc<AllocView>> {
        self.read(|objects| objects.allocs.values().cloned().collect())
    }

    /// The allocations of a job, sorted by group, index and age.
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

    pub fn alloc(&self, id: &AllocId) -> Option<Arc<AllocView>> {
        self.read(|objects| objects.allocs.get(id).cloned())
    }

    /// Whether this allocation exists and has not ended.
    pub fn is_live(&self, id: &AllocId) -> bool {
        self.alloc(id).is_some_and(|view| !view.status.is_terminal())
    }

    /// All volumes, by name.
    pub fn volumes(&self) -> Vec<Arc<VolumeView>> {
        self.read(|objects| objects.volumes.values().cloned().collect())
    }

    /// This node: whether it takes new allocations, and its drain.
    pub fn node(&self) -> Arc<NodeView> {
        self.read(|objects| Arc::clone(&objects.node))
    }

    fn remember(&self, objects: &Objects, view: &View, now: Now) {
        match view {
            View::Job(view) => {
                let before = objects.jobs.get(&view.key).map(|before| &**before);
                self.history.job(UnixNanos(now.wall_ns), before, view);
            }
            View::JobGone(key) => self.history.job_gone(key, now.boot_ns),
            View::Alloc(_) | View::AllocGone(_) | View::Volume(_) | View::VolumeGone(_) | View::Node(_) => {}
        }
    }

    fn log_changes(&self, at: UnixNanos, scene: &Scene) {
        let Scene { before, after, job, previous } = scene;
        match (before, after) {
            (before, Some(after)) => {
                let before = before.as_deref();
                let (job, previous) = (job.as_deref(), previous.as_deref());
                self.history.alloc(at, Change { before, after, job, previous });
                log_transitions(before, after);
            }
            (Some(last), None) => self.history.alloc_gone(at, last),
            (None, None) => {}
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Objects) -> T) -> T {
        read(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes to the read model.
#[derive(Debug)]
pub struct ModelPublisher(Arc<ReadModel>);

impl Publisher<View> for ModelPublisher {
    fn offer(&mut self, index: CommitIndex, views: Vec<View>) {
        let now = BootClock.now();
        let mut changed = Vec::with_capacity(views.len());
        let mut transitions: Vec<Transition> = Vec::new();
        let scenes: Vec<Scene> = {
            let mut objects = self.0.objects.write().unwrap_or_else(PoisonError::into_inner);
            for view in views {
                self.0.remember(&objects, &view, now);
                let (object, transition) = objects.put(view);
                changed.push(ObjectChange { object, index: index.0 });
                transitions.extend(transition);
            }
            transitions.into_iter().map(|transition| objects.scene(transition)).collect()
        };
        // Without the lock, because the log's receiver may be slow.
        for scene in scenes {
            self.0.log_changes(UnixNanos(now.wall_ns), &scene);
        }
        self.0.recent().extend(&changed, index.0);
        self.0.reached.send_modify(|reached| {
            reached.index = index.0.max(reached.index);
            reached.version = index.0.max(reached.version + 1);
        });
        for change in changed {
            // There may be no followers.
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
    /// Adds the context of a transition. All views of a turn are stored by then: an allocation may be published
    /// before its job.
    fn scene(&self, (before, after): Transition) -> Scene {
        let spec = after.as_ref().map(|view| &view.spec);
        let job = spec.and_then(|spec| self.jobs.get(&spec.job_key)).cloned();
        let previous = spec.and_then(|spec| self.allocs.get(&spec.previous?)).cloned();
        Scene { before, after, job, previous }
    }

    /// Stores a view; returns its object and, for an allocation, its views before and after.
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
                transition = Some((self.allocs.insert(view.spec.id, Arc::clone(&view)), Some(view)));
            }
            View::AllocGone(id) => {
                transition = Some((self.allocs.remove(&id), None));
            }
            View::Volume(view) => {
                self.volumes.insert(view.spec.name.clone(), Arc::from(view));
            }
            View::VolumeGone(name) => {
                self.volumes.remove(&name);
            }
            View::Node(view) => self.node = view,
        }
        (object, transition)
    }
}

impl Recent {
    fn extend(&mut self, changed: &[ObjectChange], index: u64) {
        self.from.get_or_insert(index);
        for change in changed {
            if self.changes.len() >= self.max
                && let Some(oldest) = self.changes.pop_front()
            {
                self.from = Some(oldest.index.saturating_add(1));
            }
            self.changes.push_back(change.clone());
        }
    }
}

/// Logs one line for each transition of a task or an allocation, and nothing for other changes. Failures are warnings.
fn log_transitions(before: Option<&AllocView>, after: &AllocView) {
    let (name, id) = (|| after.spec.name(), after.spec.id);
    for (index, task) in after.tasks.iter().enumerate() {
        let known = before.and_then(|before| before.tasks.get(index));
        if known.is_some_and(|known| known.phase == task.phase && known.attempt == task.attempt) {
            continue;
        }
        // An event that belongs to an earlier transition is not the cause of this one.
        let last = |task: &TaskView| task.events.last().map(|event| (event.time, event.message.clone()));
        let event = last(task).filter(|event| known.and_then(last).as_ref() != Some(event));
        let event = event.as_ref().map(|(_, message)| message.as_str());
        let (of, attempt, phase) = (&*task.name, task.attempt, task.phase);
        match phase {
            TaskPhase::BackingOff => {
                tracing::warn!(name = name(), task = of, attempt, event, alloc = %id, "task is {phase}");
            }
            TaskPhase::Dead if task.failed => {
                tracing::warn!(name = name(), task = of, attempt, event, alloc = %id, "task is {phase}: it failed");
            }
            TaskPhase::Waiting
            | TaskPhase::Starting
            | TaskPhase::Running
            | TaskPhase::Stopping
            | TaskPhase::Dead => {
                tracing::info!(name = name(), task = of, attempt, event, alloc = %id, "task is {phase}");
            }
        }
    }
    let Convergence { state, message, .. } = &after.convergence;
    if before.is_none_or(|before| before.convergence.state != *state) {
        let why = Some(message.as_str()).filter(|why| !why.is_empty());
        let shown = state.as_str();
        match state {
            ConvergenceState::Failed => {
                tracing::warn!(name = name(), why, alloc = %id, "allocation is {shown}");
            }
            ConvergenceState::Converged | ConvergenceState::Progressing | ConvergenceState::Waiting => {
                tracing::info!(name = name(), why, alloc = %id, "allocation is {shown}");
            }
        }
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
        View::Node(_) => Object::Node,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blocking_reader_wakes_at_its_commit_or_times_out() {
        let model = Arc::new(ReadModel::default());
        let patience = Duration::from_secs(5);
        assert!(tokio::time::timeout(patience, model.changed(0)).await.is_err());
        let waiting = tokio::spawn({
            let model = Arc::clone(&model);
            async move { model.changed(3).await }
        });
        tokio::task::yield_now().await;
        model.publisher().offer(CommitIndex(3), vec![View::VolumeGone("a".to_owned())]);
        assert!(!waiting.is_finished());
        model.publisher().offer(CommitIndex(7), vec![View::VolumeGone("b".to_owned())]);
        tokio::time::timeout(patience, waiting).await.unwrap().unwrap();
        // A change that needed no commit counts as well.
        model.publisher().offer(CommitIndex(7), vec![View::VolumeGone("c".to_owned())]);
        assert_eq!((model.index(), model.version()), (7, 8));
        model.publisher().offer(CommitIndex(8), vec![View::VolumeGone("d".to_owned())]);
        assert_eq!((model.index(), model.version()), (8, 9));
    }

    #[test]
    fn recent_changes_are_repeated() {
        let model = Arc::new(ReadModel::default());
        assert_eq!(model.since(0), None, "nothing was published yet");
        let change = |index: u64| {
            let view = View::VolumeGone(index.to_string());
            model.publisher().offer(CommitIndex(index), vec![view]);
        };
        (5..8).for_each(change);
        let since = |index| Some(model.since(index)?.iter().map(|change| change.index).collect::<Vec<_>>());
        assert_eq!(since(4), None);
        assert_eq!(since(5), Some(vec![5, 6, 7]));
        assert_eq!(since(9), Some(vec![]));
        (8..8 + CHANGES_LEN as u64).for_each(change);
        assert_eq!(since(7), None, "the oldest were dropped");
        assert_eq!(since(8).unwrap().len(), CHANGES_LEN);
    }

    #[test]
    fn only_the_last_view_of_an_object_is_kept() {
        let gone = |name: &str| View::VolumeGone(name.to_owned());
        let mut views = vec![gone("a"), gone("b"), gone("a")];
        ModelPublisher::compact(&mut views);
        let names: Vec<Object> = views.iter().map(object_of).collect();
        assert_eq!(names, [Object::Volume("b".to_owned()), Object::Volume("a".to_owned())]);
    }
}
