//! Detects drift of mounts and directories that the agent has created, by kernel events and by an infrequent
//! inspection.
//!
//! In: the mount table, the directories of live allocations, and those of their volumes. Out: events that ask the
//! planner to inspect parts. It repairs nothing.

mod plugins;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::{
    AllocId,
    alloc::Desired,
    driver::has_own_root,
    job::VolumeMount,
    task::TaskPhase,
    view::{AllocView, TaskView, VolumeView},
    volume::VolumeStatus,
};
use herdlet_base::{
    acl::Acl,
    directory::{Interests, Subscription, identity},
    mounts::table::{MountChange, MountWatch},
    paths::{self, Paths},
};
use herdlet_plan::{
    event::{Event, Noticed},
    op::{Part, TaskIndex, TaskPart},
    parts::Need,
    shared::volume::volume_name,
};
use herdlet_runtime::Inbox;
use herdlet_storage::{alloc_dir, api_socket::SOCKET, mounts::Destination, task_dir};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use tokio::{
    sync::{Notify, broadcast::error::RecvError},
    task::JoinError,
    time::MissedTickBehavior,
};

use plugins::PluginTask;

use crate::{
    planner::Input,
    publish::{Object, ObjectChange, ReadModel},
};

/// One inspection serves a burst of changes.
const BURST: Duration = Duration::from_millis(20);

/// How often directories are inspected, for those that cannot be watched.
pub const INSPECTION_PERIOD: Duration = Duration::from_secs(30);

/// Follows the mount table below the state directory until the agent ends.
pub async fn watch_mounts(paths: Paths, model: Arc<ReadModel>, inbox: Inbox<Input>) {
    loop {
        let Err(error) = follow_mounts(&paths, &model, &inbox).await else { return };
        tracing::warn!(%error, "failed to watch the mount table; retrying");
        tokio::time::sleep(INSPECTION_PERIOD).await;
    }
}

/// Returns when the agent ends, or with an error when the mount table cannot be read.
async fn follow_mounts(paths: &Paths, model: &ReadModel, inbox: &Inbox<Input>) -> io::Result<()> {
    let mut watch = MountWatch::open(&paths.state)?;
    loop {
        for change in watch.changed().await? {
            let parts = match &change {
                // A mount there is the agent's own.
                MountChange::Unmounted(point) if *point == paths.csi() => plugins::mounting(model),
                MountChange::Unmounted(point) | MountChange::Mounted(point) => {
                    part_at(point, paths, model).into_iter().collect()
                }
            };
            if parts.is_empty() {
                watch.forget(change.point());
            }
            for (alloc, part) in parts {
                if inbox.send(Input::Event(Event::Drift { alloc, part, by: Noticed::Event })).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// Watches the directories of live allocations and of their volumes, and inspects all of them every [`INSPECTION_PERIOD`].
/// Reports to the planner only the parts that have changed.
pub async fn watch_directories(paths: Paths, model: Arc<ReadModel>, inbox: Inbox<Input>) {
    let mut changes = model.changes();
    let watched = Arc::new(Watched::default());
    let mut inspections = tokio::time::interval(INSPECTION_PERIOD);
    inspections.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let by = tokio::select! {
            change = changes.recv() => match change {
                Ok(ObjectChange { object: Object::Alloc(id), .. }) => {
                    watched.shown(id);
                    continue;
                }
                Ok(ObjectChange { object: Object::Job(_) | Object::Volume(_) | Object::Node, .. }) => continue,
                Err(RecvError::Lagged(_)) => {
                    watched.doubt(model.allocs().iter().map(|view| view.spec.id));
                    continue;
                }
                Err(RecvError::Closed) => return,
            },
            () = watched.changed.notified() => {
                // Deleting a tree causes many events.
                tokio::time::sleep(BURST).await;
                Noticed::Event
            }
            _ = inspections.tick() => {
                watched.doubt(model.allocs().iter().map(|view| view.spec.id));
                Noticed::Periodic
            }
        };
        let (at, shown, watching) = (paths.clone(), Arc::clone(&model), Arc::clone(&watched));
        // A disk that hangs blocks this inspection and nothing else.
        let missing = herdlet_runtime::off_thread(move || watching.inspect_due(&at, &shown)).await;
        let missing = match missing.map_err(JoinError::try_into_panic) {
            Ok(missing) => missing,
            // A panic in a watcher ends the agent.
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            // The async runtime is shutting down.
            Err(Err(_)) => return,
        };
        for (alloc, part) in missing {
            if inbox.send(Input::Event(Event::Drift { alloc, part, by })).await.is_err() {
                return;
            }
        }
    }
}

/// The watched directories, by allocation.
#[derive(Default)]
struct Watched {
    subscribed: Mutex<BTreeMap<AllocId, Subscribed>>,
    due: Arc<Mutex<BTreeMap<AllocId, Due>>>,
    changed: Arc<Notify>,
}

/// Why an allocation is to be inspected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// Its view has changed: tasks may have started or ended, so the directories to watch may have changed.
    Shown,
    /// Something of it may be missing.
    Doubted,
}

/// The watches of an allocation.
struct Subscribed {
    /// The source of `dirs`.
    view: Arc<AllocView>,
    dirs: Directories,
    subscriptions: Vec<Subscription>,
    /// The stamps of its directories when nothing was missing in them.
    whole: Option<Vec<Stamp>>,
    /// Their access rights at the last inspection.
    rights: Option<Vec<DirRights>>,
}

/// The identity of a directory, the time of its last change, and its access rights.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    links: u64,
    changed: (i64, i64),
    rights: DirRights,
}

/// The access rights of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DirRights {
    mode: u32,
    uid: u32,
    /// `None` if the file system has no access control lists.
    acl: Option<Acl>,
}

impl Watched {
    fn shown(&self, id: AllocId) {
        lock(&self.due).entry(id).or_insert(Due::Shown);
        self.changed.notify_one();
    }

    fn doubt(&self, ids: impl IntoIterator<Item = AllocId>) {
        lock(&self.due).extend(ids.into_iter().map(|id| (id, Due::Doubted)));
        self.changed.notify_one();
    }

    /// Inspects the due allocations: starts watching those with running tasks, and stops watching those without.
    fn inspect_due(&self, paths: &Paths, model: &ReadModel) -> Vec<(AllocId, Part)> {
        let due = std::mem::take(&mut *lock(&self.due));
        let volumes = sources(model);
        let mut missing = Vec::new();
        let mut subscribed = lock(&self.subscribed);
        for (id, due) in due {
            let view = model.alloc(&id);
            let Some(view) = view.as_ref().filter(|view| view.tasks.iter().any(is_running)).cloned() else {
                subscribed.remove(&id);
                if view.is_some_and(|view| view.status.is_terminal()) {
                    close_unused(paths, id);
                }
                continue;
            };
            let mut known = subscribed.remove(&id);
            let is_new = !known.as_mut().is_some_and(|known| known.is_still_of(&view, paths, &volumes));
            let mut known = match known {
                Some(known) if !is_new => known,
                // Add the new watches before removing the old ones, so that no change is missed.
                before => {
                    let known = self.subscribe(id, Directories::of(&view, paths, &volumes), view);
                    drop(before);
                    known
                }
            };
            if is_new || due == Due::Doubted {
                missing.extend(known.missing().into_iter().map(|part| (id, part)));
            }
            subscribed.insert(id, known);
        }
        missing
    }

    /// Watches the directories of an allocation. A directory that cannot be watched (it is missing, or the watches
    /// are used up) is only inspected.
    fn subscribe(&self, id: AllocId, dirs: Directories, view: Arc<AllocView>) -> Subscribed {
        let notifier = || {
            let (due, changed) = (Arc::clone(&self.due), Arc::clone(&self.changed));
            move || {
                lock(&due).insert(id, Due::Doubted);
                changed.notify_one();
            }
        };
        let entries = std::iter::once(&dirs.top)
            .chain(dirs.mounts.iter().map(|mount| &mount.source))
            .chain(dirs.sockets.iter().map(|(_, path)| path))
            .chain(dirs.plugins.iter().flat_map(|plugin| &plugin.paths));
        let entries: Vec<_> = entries.map(|path| Subscription::of_entry(path, notifier())).collect();
        let inside = [&dirs.top, &dirs.shared].into_iter().chain(dirs.tasks.iter().map(|(_, path)| path));
        let inside = inside.map(|path| Subscription::new(path, Interests::Rights, notifier()));
        let subscriptions = entries.into_iter().chain(inside).filter_map(Result::ok).collect();
        Subscribed { view, dirs, subscriptions, whole: None, rights: None }
    }
}

impl Subscribed {
    /// Whether it watches all directories that should be watched now.
    fn is_still_of(
        &mut self,
        view: &Arc<AllocView>,
        paths: &Paths,
        volumes: &BTreeMap<String, PathBuf>,
    ) -> bool {
        // The paths of volumes may change without a new view of the allocation.
        let is_same = Arc::ptr_eq(&self.view, view) && self.dirs.mounts.is_empty();
        if !is_same {
            let dirs = Directories::of(view, paths, volumes);
            if dirs.places() != self.dirs.places() {
                return false;
            }
            (self.view, self.dirs, self.whole, self.rights) = (Arc::clone(view), dirs, None, None);
        }
        !self.subscriptions.iter().any(Subscription::is_over)
    }

    /// The parts that have changed since they were created. If the stamps have not changed since nothing was missing,
    /// nothing is.
    fn missing(&mut self) -> Vec<Part> {
        // Read before the inspection, so that the next one notices changes made meanwhile.
        let stamps = self.dirs.stamps();
        if stamps.is_some() && stamps == self.whole {
            return Vec::new();
        }
        let mut missing = self.dirs.missing();
        let is_whole = missing.is_empty();
        // The rights were correct when the tasks started. The parts' own inspections know the correct rights.
        if let (Some(stamps), Some(before)) = (&stamps, &self.rights) {
            let parts = self.dirs.parts().zip(stamps.iter().zip(before));
            missing.extend(parts.filter(|(_, (now, then))| now.rights != **then).map(|(part, _)| part));
        }
        self.rights = stamps.as_ref().map(|stamps| stamps.iter().map(|stamp| stamp.rights.clone()).collect());
        let has_stamps_alone = self.dirs.mounts.is_empty() && self.dirs.plugins.is_empty();
        self.whole = stamps.filter(|_| is_whole && has_stamps_alone);
        missing
    }
}

/// The directories and mounts of an allocation with running tasks.
struct Directories {
    top: PathBuf,
    shared: PathBuf,
    tasks: Vec<(TaskIndex, PathBuf)>,
    /// Sockets of the Task API.
    sockets: Vec<(TaskIndex, PathBuf)>,
    mounts: Vec<Mounted>,
    plugins: Vec<PluginTask>,
}

struct Mounted {
    task: TaskIndex,
    source: PathBuf,
    point: PathBuf,
}

impl Directories {
    fn of(view: &AllocView, paths: &Paths, volumes: &BTreeMap<String, PathBuf>) -> Self {
        let id = view.spec.id;
        let group = view.spec.group();
        let mut dirs = Self {
            top: paths.alloc(&id),
            shared: paths.shared(&id),
            tasks: Vec::new(),
            sockets: Vec::new(),
            mounts: Vec::new(),
            plugins: Vec::new(),
        };
        for (index, task) in (0..).zip(&view.tasks).filter(|(_, task)| is_running(task)) {
            let path = paths.task(&id, &task.name);
            let wanted = group.and_then(|group| group.tasks.get(usize::from(index)));
            // Volumes in a container or another root are mounted nowhere else.
            let mounted = wanted.into_iter().filter(|wanted| !has_own_root(&wanted.driver));
            for mount in mounted.flat_map(|wanted| &wanted.volume_mounts) {
                let request = group.and_then(|group| group.volumes.get(&mount.volume));
                let source = request.and_then(|request| volumes.get(&*volume_name(&view.spec, request)));
                if let (Some(source), Ok(destination)) = (source, Destination::parse(&mount.destination)) {
                    let point = path.join(destination.path());
                    dirs.mounts.push(Mounted { task: index, source: source.clone(), point });
                }
            }
            let has_socket = |wanted| (TaskPart::ApiSocket.row().needed)(wanted) == Need::Needed;
            if wanted.is_some_and(has_socket) {
                dirs.sockets.push((index, path.join("secrets").join(SOCKET)));
            }
            if let Some(plugin) = wanted.and_then(|wanted| wanted.csi_plugin.as_ref()) {
                dirs.plugins.push(PluginTask::new(paths, index, (id, task.name.to_string()), plugin));
            }
            dirs.tasks.push((index, path));
        }
        dirs
    }

    /// All watched paths; tasks that start later add more.
    fn places(&self) -> BTreeSet<PathBuf> {
        let mounts = self.mounts.iter().map(|mount| &mount.source);
        let tasks = self.tasks.iter().chain(&self.sockets).map(|(_, path)| path);
        let of_plugins = self.plugins.iter().flat_map(|plugin| &plugin.paths);
        [&self.top, &self.shared].into_iter().chain(mounts).chain(tasks).chain(of_plugins).cloned().collect()
    }

    /// The part of each directory that has a stamp.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let tasks = self.tasks.iter().chain(&self.sockets);
        let tasks = tasks.map(|(task, _)| Part::Task(*task, TaskPart::Dir));
        [Part::Dir, Part::Dir].into_iter().chain(tasks)
    }

    /// `None` if a directory is missing.
    fn stamps(&self) -> Option<Vec<Stamp>> {
        let tasks = self.tasks.iter().map(|(_, path)| &**path);
        // The directory of a socket changes with its entries.
        let secrets = self.sockets.iter().filter_map(|(_, path)| path.parent());
        [&*self.top, &*self.shared].into_iter().chain(tasks).chain(secrets).map(Stamp::of).collect()
    }

    /// The parts that have changed since they were created. Their own inspections decide whether that matters.
    fn missing(&self) -> Vec<Part> {
        let mut missing = Vec::new();
        if !has_dirs(&self.shared, &alloc_dir::SHARED_DIRS)
            || !self.top.join(alloc_dir::SPEC).exists()
            || [&self.top, &self.shared].into_iter().any(|dir| is_open(dir))
        {
            missing.push(Part::Dir);
        }
        for (task, path) in &self.tasks {
            if !has_dirs(path, &task_dir::DIRS) || is_open(path) {
                missing.push(Part::Task(*task, TaskPart::Dir));
            }
        }
        let is_there = |path: &Path| path.symlink_metadata().is_ok_and(|about| about.file_type().is_socket());
        for (task, _) in self.sockets.iter().filter(|(_, path)| !is_there(path)) {
            missing.push(Part::Task(*task, TaskPart::ApiSocket));
        }
        // The mount table reports an unmount.
        let shows_its_source = |mount: &Mounted| {
            let source = identity(&mount.source);
            source.is_some() && source == identity(&mount.point)
        };
        for mount in self.mounts.iter().filter(|mount| !shows_its_source(mount)) {
            missing.push(Part::Task(mount.task, TaskPart::Mounts));
        }
        missing.extend(self.plugins.iter().filter(|plugin| !plugin.is_whole()).map(PluginTask::part));
        missing
    }
}

impl Stamp {
    fn of(dir: &Path) -> Option<Self> {
        let dir = std::fs::File::open(dir).ok()?;
        let about = dir.metadata().ok()?;
        let acl = Acl::read(&dir).ok();
        Some(Self {
            rights: DirRights { mode: about.mode(), uid: about.uid(), acl },
            device: about.dev(),
            inode: about.ino(),
            links: about.nlink(),
            changed: (about.ctime(), about.ctime_nsec()),
        })
    }
}

/// Whether all of these are directories in `dir`; its path is resolved only once.
fn has_dirs(dir: &Path, names: &[&str]) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(dir, flags, Mode::empty()) else { return false };
    names.iter().all(|name| {
        rustix::fs::statat(&dir, *name, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::Directory)
    })
}

/// Whether users other than the intended ones may list the directory or write to it.
fn is_open(dir: &Path) -> bool {
    std::fs::metadata(dir).is_ok_and(|about| about.mode() & 0o006 != 0)
}

/// Closes the directory of an ended allocation to other users. An allocation of an older agent may have ended before
/// this agent could close its directory around its tasks.
fn close_unused(paths: &Paths, id: AllocId) {
    if let Err(error) = alloc_dir::close_unused(paths, id) {
        tracing::warn!(alloc = %id, %error, "failed to revoke other users' access to an allocation's directory");
    }
}

fn is_running(task: &TaskView) -> bool {
    task.phase == TaskPhase::Running
}

/// The data directories of volumes that are ready.
fn sources(model: &ReadModel) -> BTreeMap<String, PathBuf> {
    let ready = |view: Arc<VolumeView>| match &view.status {
        VolumeStatus::Ready { path } => Some((view.spec.name.clone(), PathBuf::from(path))),
        VolumeStatus::Pending | VolumeStatus::Failed { .. } => None,
    };
    model.volumes().into_iter().filter_map(ready).collect()
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part that a mount point belongs to: a task's own tmpfs, or one of its volumes.
fn part_at(point: &Path, paths: &Paths, model: &ReadModel) -> Option<(AllocId, Part)> {
    let below = point.strip_prefix(paths.allocs()).ok()?;
    let mut names = below.components().map(|part| part.as_os_str().to_str());
    let id = AllocId(names.next()??.parse().ok()?);
    let task = paths::task_of(names.next()??)?;
    let entry = names.next()??;
    // A stopped allocation is unmounted by the agent itself.
    let view = model.alloc(&id).filter(|view| view.spec.desired == Desired::Run)?;
    let index = view.tasks.iter().position(|known| *known.name == *task && known.phase != TaskPhase::Dead)?;
    let wanted = view.spec.group()?.tasks.get(index)?;
    // A mount on a parent directory hides the volume.
    let is_at = |mount: &VolumeMount| {
        let destination = Destination::parse(&mount.destination);
        destination.is_ok_and(|at| paths.task(&id, &task).join(at.path()).starts_with(point))
    };
    let part = match entry {
        "secrets" | "private" => TaskPart::Dir,
        _ if wanted.volume_mounts.iter().any(is_at) => TaskPart::Mounts,
        // Mounts that a task makes itself do not concern the agent.
        _ => return None,
    };
    Some((id, Part::Task(TaskIndex::try_from(index).ok()?, part)))
}
