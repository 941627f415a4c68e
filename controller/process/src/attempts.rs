//! The attempts directory, watched: one inotify watch tells of every change of every record of the instance.
//!
//! In: records, written by supervisors and by ourselves. Out: whoever waits for an attempt is woken when its record
//! changes; drift of attempts, and what of it was put right, goes to the agent as events of the driver. It knows no cgroup and
//! starts nothing.
//!
//! - `events`: what the kernel tells.
//! - `place`: the directory, made again when it was deleted.
//! - `lost`: records that were deleted under a supervisor that lives, put back.
//! - `proc_dir`: processes that supervise attempts, and what they hold.

mod events;
mod lost;
mod place;
mod proc_dir;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use herdlet_base::durable;
use herdlet_base::ready;
use herdlet_driver::{AttemptId, Earlier, Outlet, TaskEvent};
use rustix::fs::inotify;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

use super::supervisor::{
    Listed, PidFd, Process, ProcessError, Record, RecordsError, RuntimeDir, State, TombstoneOutcome,
};
use lost::Mirror;
pub use lost::Supervised;
use place::Place;

/// Why attempts can't be followed. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum AttemptsError {
    /// The directory can't be prepared.
    #[error("prepare {}", path.display())]
    Prepare {
        /// The directory, or a file in it.
        path: PathBuf,
        source: io::Error,
    },
    /// It can't be watched.
    #[error("watch {}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    /// It can't be told which boot this is, or which one the records are of.
    #[error("tell the present boot from earlier ones: read {}", path.display())]
    Boot {
        /// What can't be read.
        path: PathBuf,
        source: io::Error,
    },
    /// A record can't be had.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// It can't be told whether its supervisor lives.
    #[error(transparent)]
    Supervisor(#[from] ProcessError),
    /// A record that has lost its name can't be put back, so it can't be told whether the attempt is over.
    #[error("put the record {name} back")]
    PutBack { name: String, source: io::Error },
}

/// How an attempt's supervision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// With a final record.
    Record(Record),
    /// The supervisor died and left the record as it was.
    SupervisorDied(Record),
    /// The record was removed.
    Removed,
}

/// The kernel's id of the present boot (proc(5), random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How long a tombstone outlives the attempt's removal: until then, a supervisor that was started before it may still come
/// and must find it. It needs less than a millisecond, a stalled machine a bit more.
const TOMBSTONE_TIME: Duration = Duration::from_secs(60);
/// How long a record may stay without the pid of its supervisor, which writes it right after creating the file.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(5);

/// How long until a supervisor is waited for again that could not be.
const WAIT_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watched attempts directory of one instance.
#[derive(Debug)]
pub struct Attempts {
    path: PathBuf,
    opened: Instant,
    memory: Memory,
    /// What the stored state knew to have begun when this agent started.
    earlier: Earlier,
    place: Mutex<Place>,
    inotify: Arc<AsyncFd<OwnedFd>>,
    /// Supervisors that may live, by the names of their records.
    shims: Mutex<BTreeMap<String, Process>>,
    /// Records that their supervisors write where nobody sees it, by watch.
    mirrors: Mutex<BTreeMap<i32, Mirror>>,
    /// The watch of the cgroups' directory; 0 is none.
    cgroups: AtomicI32,
    waiting: Mutex<BTreeMap<String, watch::Sender<()>>>,
    events: Outlet<TaskEvent>,
    watching: OnceLock<AbortOnDropHandle<()>>,
}

impl Attempts {
    /// Makes the directory if it isn't there, removes what an earlier boot left in it, and begins to watch it.
    ///
    /// # Errors
    /// When it can't be made or watched. Must be called within a tokio runtime.
    pub fn open(path: &Path) -> Result<Arc<Self>, AttemptsError> {
        let watch = |source| AttemptsError::Watch { path: path.to_owned(), source };
        let inotify = events::queue().map_err(|errno| watch(errno.into()))?;
        let place = Place::open(path, &inotify)?;
        place.records().remove_unfinished()?;
        let memory = forget_earlier_boot(path, place.records(), Path::new(BOOT_ID))?;
        let inotify = Arc::new(ready::register(inotify, Interest::READABLE).map_err(watch)?);
        let tombstones: Vec<String> =
            place.records().list()?.into_iter().filter(is_tombstone).map(|listed| listed.name).collect();
        let attempts = Arc::new(Self {
            path: path.to_owned(),
            opened: Instant::now(),
            memory,
            earlier: Earlier::default(),
            place: Mutex::new(place),
            inotify: Arc::clone(&inotify),
            shims: Mutex::default(),
            mirrors: Mutex::default(),
            cgroups: AtomicI32::new(0),
            waiting: Mutex::new(BTreeMap::new()),
            events: Outlet::default(),
            watching: OnceLock::new(),
        });
        // Only now: there may be events already, and the reader ends when it finds nobody to tell.
        let reading = tokio::spawn(events::read_events(inotify, Arc::downgrade(&attempts)));
        let _ = attempts.watching.set(AbortOnDropHandle::new(reading));
        attempts.find_lost()?;
        if !tombstones.is_empty() {
            attempts.remove_later(tombstones);
        }
        Ok(attempts)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The records in it. Where the directory was deleted or replaced behind our back, it is made again first.
    ///
    /// # Errors
    /// When it can't be made again.
    pub fn present(&self) -> Result<Arc<RuntimeDir>, AttemptsError> {
        if !self.place().is_at(&self.path) {
            self.make_again()?;
        }
        Ok(self.records())
    }

    fn records(&self) -> Arc<RuntimeDir> {
        Arc::clone(self.place().records())
    }

    /// An attempt's record; none if nobody has claimed it. A damaged one is set aside and a tombstone laid in its place:
    /// the attempt is lost, and what can still be found of it is to be ended.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn record(&self, id: &AttemptId) -> Result<Option<Record>, AttemptsError> {
        match self.records().read(&id.name()) {
            Err(error @ RecordsError::Damaged { .. }) => {
                tracing::warn!(%id, error = herdlet_base::error::in_full(&error), "a damaged record is set aside");
                let name = id.name();
                let (from, to) = (self.path.join(&name), self.path.join(format!(".damaged-{name}")));
                fs::rename(&from, to).map_err(|source| AttemptsError::Prepare { path: from, source })?;
                self.records().tombstone(&name)?;
                Ok(self.records().read(&name)?)
            }
            record => Ok(record?),
        }
    }

    /// The attempts that have begun and have a record still.
    ///
    /// # Errors
    /// When the directory can't be listed.
    pub fn found(&self) -> Result<Vec<AttemptId>, AttemptsError> {
        let listed = self.records().list()?;
        let begun = listed.iter().filter(|listed| !is_tombstone(listed));
        Ok(begun.filter_map(|listed| AttemptId::parse(&listed.name)).collect())
    }

    /// Makes sure that an attempt which has not begun never will.
    ///
    /// # Errors
    /// When no tombstone can be laid.
    pub fn fence(&self, id: &AttemptId) -> Result<TombstoneOutcome, AttemptsError> {
        // Most attempts that are stopped have begun: the read saves making a file.
        match self.record(id)? {
            Some(record) => Ok(TombstoneOutcome::TooLate(record)),
            None => Ok(self.records().tombstone(&id.name())?),
        }
    }

    /// Waits until `pick` finds what it looks for in the record; asked at once and after each change.
    ///
    /// # Errors
    /// When the record can't be read.
    pub async fn until<T>(
        &self,
        id: &AttemptId,
        mut pick: impl FnMut(Option<Record>) -> Option<T>,
    ) -> Result<T, AttemptsError> {
        // First listen, then read: a change in between is not missed.
        let mut changes = self.listen(&id.name());
        loop {
            changes.mark_unchanged();
            if let Some(found) = pick(self.record(id)?) {
                return Ok(found);
            }
            if changes.changed().await.is_err() {
                changes = self.listen(&id.name());
            }
        }
    }

    /// Waits until the attempt's record is final, or its supervisor is gone. Without a supervisor it already is, unless the
    /// record names one by now.
    ///
    /// # Errors
    /// When the record can't be read or put back, or it can't be told whether the supervisor lives: nothing has ended then.
    pub async fn ended(&self, id: &AttemptId, shim: Option<&PidFd>) -> Result<Ended, AttemptsError> {
        let named = match shim {
            Some(_) => None,
            None => match self.record(id)?.filter(|record| record.shim.pid != 0 && !record.is_final()) {
                Some(record) => PidFd::open(record.shim)?,
                None => None,
            },
        };
        let by_record = async {
            loop {
                let ended = self
                    .until(id, |record| match record {
                        None => Some(Ended::Removed),
                        Some(record) => record.is_final().then_some(Ended::Record(record)),
                    })
                    .await?;
                // The word that it lost its name may be on its way still.
                if ended != Ended::Removed || !self.put_back(&id.name())? {
                    return Ok::<Ended, AttemptsError>(ended);
                }
            }
        };
        let shim_gone = async {
            let Some(shim) = shim.or(named.as_ref()) else { return };
            // That it can't be waited for is no end of it.
            while shim.ended().await.is_err() {
                tokio::time::sleep(WAIT_AGAIN_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            ended = by_record => ended,
            () = shim_gone => Ok(match self.last_record(id)? {
                None => Ended::Removed,
                // It writes the record before it ends.
                Some(record) if record.is_final() => Ended::Record(record),
                Some(record) => Ended::SupervisorDied(record),
            }),
        }
    }

    /// The supervisor named in an attempt's record, if it still lives; waits a moment for one that has just been started
    /// to write its name.
    ///
    /// # Errors
    /// When that can't be found out.
    pub async fn supervisor(&self, id: &AttemptId) -> Result<Option<PidFd>, AttemptsError> {
        let named = self.until(id, |record| match record {
            None => Some(None),
            Some(record) if record.is_final() || record.shim.pid != 0 => Some(Some(record)),
            Some(_) => None,
        });
        let record = match tokio::time::timeout(CLAIM_TIME_MAX, named).await {
            Ok(record) => record?,
            // On a machine that stood still for so long the word that it has a name may come after our patience has ended.
            Err(_) => self.record(id)?,
        };
        let Some(record) = record.filter(|record| record.shim.pid != 0) else { return Ok(None) };
        let shim = PidFd::open(record.shim)?;
        if shim.is_some() {
            lock(&self.shims).insert(id.name(), record.shim);
        }
        Ok(shim)
    }

    /// Names the attempts that an earlier agent may have begun, as the stored state says. An attempt that is not among them is
    /// this agent's own. To be called once, before any of them is recovered.
    pub fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        self.earlier.set(known);
    }

    /// Whether an attempt without a record may have begun. Where the directory was made anew, that is so for attempts of an earlier
    /// agent; one of this agent has a record if it has begun.
    pub fn may_have_begun(&self, id: &AttemptId) -> bool {
        match self.memory {
            Memory::OfThisBoot => false,
            Memory::None => self.earlier.has(id),
        }
    }

    /// Forgets an ended attempt: removes its record, a tombstone only later. While supervisors may still come that an agent
    /// before this one has spawned, the record becomes a tombstone first.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove(self: &Arc<Self>, id: &AttemptId) -> Result<(), AttemptsError> {
        let name = id.name();
        self.let_go(&name);
        match self.records().read(&name) {
            Ok(Some(Record { state: State::Tombstone, .. })) => self.remove_later(vec![name]),
            Ok(None) => {}
            Ok(Some(_)) | Err(_) if self.opened.elapsed() < TOMBSTONE_TIME => {
                self.records()
                    .put(&name, &Record::tombstone())
                    .map_err(|source| AttemptsError::Prepare { path: self.path.join(&name), source })?;
                self.remove_later(vec![name]);
            }
            Ok(Some(_)) | Err(_) => self.records().remove(&name)?,
        }
        self.waiting().remove(&id.name());
        Ok(())
    }

    /// Forgets that an attempt was tried whose program never began, so that the same one can be started again. A supervisor
    /// that comes late claims the record as any other, and only one of them runs the task.
    ///
    /// # Errors
    /// When its record can't be removed.
    pub fn retract(&self, id: &AttemptId) -> Result<(), AttemptsError> {
        self.let_go(&id.name());
        Ok(self.records().remove(&id.name())?)
    }

    /// Watches the directory of the attempts' cgroups too: where one goes whose attempt runs, that is drift.
    ///
    /// # Errors
    /// When it can't be watched.
    pub fn watch_cgroups(&self, tree: &Path) -> Result<(), AttemptsError> {
        inotify::add_watch(
            self.inotify.get_ref(),
            tree,
            inotify::WatchFlags::DELETE | inotify::WatchFlags::ONLYDIR,
        )
        .map(|watch| self.cgroups.store(watch, Ordering::Relaxed))
        .map_err(|source| AttemptsError::Watch { path: tree.to_owned(), source: source.into() })
    }

    /// Drift of attempts, and what of it was put right.
    pub fn events(&self) -> &Outlet<TaskEvent> {
        &self.events
    }

    fn remove_later(self: &Arc<Self>, tombstones: Vec<String>) {
        let attempts = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(TOMBSTONE_TIME).await;
            let Some(attempts) = attempts.upgrade() else { return };
            for name in tombstones {
                if let Err(error) = attempts.records().remove(&name) {
                    tracing::debug!(error = herdlet_base::error::in_full(&error), "a tombstone stays");
                }
            }
        });
    }

    fn listen(&self, name: &str) -> watch::Receiver<()> {
        let mut waiting = self.waiting();
        waiting.entry(name.to_owned()).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    fn wake(&self, name: &str) {
        let mut waiting = self.waiting();
        if let Some(sender) = waiting.get(name)
            && sender.send(()).is_err()
        {
            waiting.remove(name);
        }
    }

    fn wake_all(&self) {
        self.waiting().retain(|_, sender| sender.send(()).is_ok());
    }

    /// A cgroup was removed; by us only when its attempt is over.
    fn cgroup_gone(&self, name: &str) {
        let Some(id) = AttemptId::parse(name) else { return };
        if !self.record(&id).is_ok_and(|record| record.is_some_and(|record| record.state == State::Running)) {
            return;
        }
        // The reader of the kernel's events never waits: what doesn't fit is found by the next look.
        if !self.events.try_send(TaskEvent::Drift { id }) {
            tracing::debug!(name, "too busy to report that a cgroup is gone");
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<()>>> {
        lock(&self.waiting)
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        lock(&self.place)
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_tombstone(listed: &Listed) -> bool {
    listed.record.as_ref().is_ok_and(|record| record.state == State::Tombstone)
}

/// Which boot a file names. One that says nothing is no boot: taken for another one, it would cost the records of what runs.
fn read_boot(file: &Path) -> Result<String, AttemptsError> {
    let failed = |source| AttemptsError::Boot { path: file.to_owned(), source };
    let boot = fs::read_to_string(file).map_err(failed)?;
    if boot.trim().is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
    }
    Ok(boot)
}

/// What the directory knew when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Whatever was begun in this boot has a record.
    OfThisBoot,
    /// Nothing: the machine was started since, or somebody has deleted the directory. That an attempt has no record doesn't say
    /// that it never began.
    None,
}

/// Records of an earlier boot name processes that are gone; their pids and start times may be somebody else's now. Only
/// a directory that is on disk sees this.
fn forget_earlier_boot(path: &Path, records: &RuntimeDir, boot_file: &Path) -> Result<Memory, AttemptsError> {
    let boot = read_boot(boot_file)?;
    let marker = path.join(place::BOOT);
    let write = || durable::write(&marker, boot.as_bytes());
    let written = |source| AttemptsError::Prepare { path: marker.clone(), source };
    match read_boot(&marker) {
        Ok(known) if known == boot => return Ok(Memory::OfThisBoot),
        Ok(_) => {}
        // Nothing says that they are of another boot, and what runs must not be forgotten: a pid that is somebody else's now is
        // told by its start time.
        Err(error) => {
            if records.list()?.is_empty() {
                return write().map_err(written).map(|()| Memory::None);
            }
            tracing::error!(
                error = herdlet_base::error::in_full(&error),
                "it is not known of which boot the records of attempts are: all are kept"
            );
            return write().map_err(written).map(|()| Memory::OfThisBoot);
        }
    }
    for listed in records.list()? {
        let is_over = match listed.record {
            Ok(record) => record.is_final() && record.state != State::Tombstone,
            Err(RecordsError::Damaged { .. }) => false,
            // It may say how a task ended, and is read again.
            Err(_) => true,
        };
        if !is_over {
            records.remove(&listed.name)?;
        }
    }
    write().map_err(written).map(|()| Memory::OfThisBoot)
}
