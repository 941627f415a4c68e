//! The watched attempts directory: one inotify watch reports every change of every record of the instance.
//!
//! In: records, written by supervisors and by the agent. Out: wakes those that wait for an attempt when its record
//! changes; drift of attempts and repairs are events of the driver. It knows no cgroup and starts nothing.
//!
//! - `events`: events from the kernel.
//! - `directory`: the directory, recreated after a deletion.
//! - `lost`: restores records that were deleted under a living supervisor.
//! - `reports`: drift and repairs, by driver.
//! - `proc_dir`: processes that supervise attempts, and their open files.

mod directory;
mod events;
mod lost;
mod proc_dir;
mod reports;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, Ordering},
    },
    time::Duration,
};

use herdlet_api_types::driver::RAW_EXEC;
use herdlet_base::durable;
use herdlet_base::ready;
use herdlet_driver::AttemptId;
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
use directory::AttemptsDir;
use lost::Mirror;
pub use lost::Supervised;
pub use reports::Reports;

/// Why attempts can't be followed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum AttemptsError {
    /// The directory can't be prepared.
    #[error("prepare {}", path.display())]
    Prepare {
        /// The directory, or a file in it.
        path: PathBuf,
        source: io::Error,
    },
    /// The directory can't be watched.
    #[error("watch {}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    /// The current boot, or the boot of the records, is unknown.
    #[error("detect the current boot: read {}", path.display())]
    Boot {
        /// The file that can't be read.
        path: PathBuf,
        source: io::Error,
    },
    /// A record is not available.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// It is unknown whether the supervisor lives.
    #[error(transparent)]
    Supervisor(#[from] ProcessError),
    /// A record that was deleted can't be restored, so it is unknown whether the attempt is over.
    #[error("restore the record {name}")]
    PutBack { name: String, source: io::Error },
}

/// How an attempt's supervision ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisionEnd {
    /// With a final record.
    Record(Record),
    /// The supervisor died and left the record as it was.
    SupervisorDied(Record),
    /// The record was removed.
    Removed,
}

/// The kernel's id of the current boot (proc(5), random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How long a tombstone stays after the attempt's removal. Until then a supervisor that was started before may still
/// arrive and must find it. It needs less than a millisecond, a stalled machine somewhat more.
const TOMBSTONE_TIME: Duration = Duration::from_secs(60);
/// How long a record may lack the pid of its supervisor, which writes it right after creating the file.
const CLAIM_TIME_MAX: Duration = Duration::from_secs(5);

/// Delay before waiting for a supervisor again after waiting for it failed.
const WAIT_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The watched attempts directory of one instance.
#[derive(Debug)]
pub struct Attempts {
    path: PathBuf,
    opened: Instant,
    memory: Memory,
    place: Mutex<AttemptsDir>,
    inotify: Arc<AsyncFd<OwnedFd>>,
    /// Supervisors that may live, by the names of their records.
    shims: Mutex<BTreeMap<String, Process>>,
    /// Deleted records that their supervisors still write, by watch descriptor.
    mirrors: Mutex<BTreeMap<i32, Mirror>>,
    /// The watch descriptor of the cgroups directory; 0 means none.
    cgroups: AtomicI32,
    waiting: Mutex<BTreeMap<String, watch::Sender<()>>>,
    /// By driver.
    reports: Mutex<BTreeMap<DriverNumber, Arc<Reports>>>,
    watching: OnceLock<AbortOnDropHandle<()>>,
}

impl Attempts {
    /// Makes the directory if it is missing, removes records of an earlier boot and starts to watch it.
    ///
    /// # Errors
    /// When it can't be created or watched. Must be called within a tokio runtime.
    pub fn open(path: &Path) -> Result<Arc<Self>, AttemptsError> {
        let watch = |source| AttemptsError::Watch { path: path.to_owned(), source };
        let inotify = events::queue().map_err(|errno| watch(errno.into()))?;
        let place = AttemptsDir::open(path, &inotify)?;
        place.records().remove_unfinished()?;
        let memory = forget_earlier_boot(path, place.records(), Path::new(BOOT_ID))?;
        let inotify = Arc::new(ready::register(inotify, Interest::READABLE).map_err(watch)?);
        let tombstones: Vec<String> =
            place.records().list()?.into_iter().filter(is_tombstone).map(|listed| listed.name).collect();
        let attempts = Arc::new(Self {
            path: path.to_owned(),
            opened: Instant::now(),
            memory,
            place: Mutex::new(place),
            inotify: Arc::clone(&inotify),
            shims: Mutex::default(),
            mirrors: Mutex::default(),
            cgroups: AtomicI32::new(0),
            waiting: Mutex::new(BTreeMap::new()),
            reports: Mutex::default(),
            watching: OnceLock::new(),
        });
        // Spawned only now: there may be events already, and the reader ends if `attempts` is not there yet.
        let reading = tokio::spawn(events::read_events(inotify, Arc::downgrade(&attempts)));
        let _ = attempts.watching.set(AbortOnDropHandle::new(reading));
        attempts.find_lost()?;
        if !tombstones.is_empty() {
            attempts.remove_later(tombstones);
        }
        Ok(attempts)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The records in the directory. If the directory was deleted or replaced, it is recreated first.
    ///
    /// # Errors
    /// When it can't be recreated.
    pub fn present(&self) -> Result<Arc<RuntimeDir>, AttemptsError> {
        if !self.place().is_at(&self.path) {
            self.make_again()?;
        }
        Ok(self.records())
    }

    fn records(&self) -> Arc<RuntimeDir> {
        Arc::clone(self.place().records())
    }

    /// An attempt's record; `None` if nobody has claimed it. A damaged record is set aside and replaced by a tombstone:
    /// the attempt is lost, and the caller must end its remains.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn record(&self, id: &AttemptId) -> Result<Option<Record>, AttemptsError> {
        match self.records().read(&id.name()) {
            Err(error @ RecordsError::Damaged { .. }) => {
                tracing::warn!(
                    %id,
                    error = herdlet_base::error::in_full(&error),
                    "the record of an attempt is damaged: it is set aside, and the attempt counts as lost"
                );
                let name = id.name();
                let (from, to) = (self.path.join(&name), self.path.join(format!(".damaged-{name}")));
                fs::rename(&from, to).map_err(|source| AttemptsError::Prepare { path: from, source })?;
                self.records().tombstone(&name)?;
                Ok(self.records().read(&name)?)
            }
            record => Ok(record?),
        }
    }

    /// Attempts that have begun and still have a record, with their drivers.
    ///
    /// # Errors
    /// When the directory can't be listed.
    pub fn recorded_attempts(&self) -> Result<BTreeMap<AttemptId, DriverNumber>, AttemptsError> {
        let listed = self.records().list()?;
        let begun = listed.iter().filter(|listed| !is_tombstone(listed));
        let recorded = begun.filter_map(|listed| {
            let driver = listed.record.as_ref().map_or(DriverNumber::RAW_EXEC, DriverNumber::of_record);
            Some((AttemptId::parse(&listed.name)?, driver))
        });
        Ok(recorded.collect())
    }

    /// Makes sure that an attempt that has not begun never will.
    ///
    /// # Errors
    /// When the tombstone can't be written.
    pub fn fence(&self, id: &AttemptId) -> Result<TombstoneOutcome, AttemptsError> {
        // Most attempts that are stopped have begun: reading first saves creating a file.
        match self.record(id)? {
            Some(record) => Ok(TombstoneOutcome::TooLate(record)),
            None => Ok(self.records().tombstone(&id.name())?),
        }
    }

    /// Waits until `pick` returns a value for the record; called immediately and after each change.
    ///
    /// # Errors
    /// When the record can't be read.
    pub async fn until<T>(
        &self,
        id: &AttemptId,
        mut pick: impl FnMut(Option<Record>) -> Option<T>,
    ) -> Result<T, AttemptsError> {
        // Subscribe before reading, so that no change in between is missed.
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

    /// Waits until the attempt's record is final or its supervisor is gone. Without `shim` the supervisor counts as
    /// gone, unless the record names one by now.
    ///
    /// # Errors
    /// When the record can't be read or restored, or it is unknown whether the supervisor lives. Then nothing has
    /// ended.
    pub async fn ended(&self, id: &AttemptId, shim: Option<&PidFd>) -> Result<SupervisionEnd, AttemptsError> {
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
                        None => Some(SupervisionEnd::Removed),
                        Some(record) => record.is_final().then_some(SupervisionEnd::Record(record)),
                    })
                    .await?;
                // The record may have been deleted, and the event may not have arrived yet.
                if ended != SupervisionEnd::Removed || !self.put_back(&id.name())? {
                    return Ok::<SupervisionEnd, AttemptsError>(ended);
                }
            }
        };
        let shim_gone = async {
            let Some(shim) = shim.or(named.as_ref()) else { return };
            // A failed wait does not mean that the supervisor has ended.
            while shim.ended().await.is_err() {
                tokio::time::sleep(WAIT_AGAIN_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            ended = by_record => ended,
            () = shim_gone => Ok(match self.last_record(id)? {
                None => SupervisionEnd::Removed,
                // It writes the record before it ends.
                Some(record) if record.is_final() => SupervisionEnd::Record(record),
                Some(record) => SupervisionEnd::SupervisorDied(record),
            }),
        }
    }

    /// The supervisor named in an attempt's record, if it still lives. Waits a few seconds for a supervisor
    /// that has just started to write its pid.
    ///
    /// # Errors
    /// When the system can't report that.
    pub async fn supervisor(&self, id: &AttemptId) -> Result<Option<PidFd>, AttemptsError> {
        let named = self.until(id, |record| match record {
            None => Some(None),
            Some(record) if record.is_final() || record.shim.pid != 0 => Some(Some(record)),
            Some(_) => None,
        });
        let record = match tokio::time::timeout(CLAIM_TIME_MAX, named).await {
            Ok(record) => record?,
            // If the machine stalled for that long, the timeout may fire before the event that the record names a
            // supervisor.
            Err(_) => self.record(id)?,
        };
        let Some(record) = record.filter(|record| record.shim.pid != 0) else { return Ok(None) };
        let shim = PidFd::open(record.shim)?;
        if shim.is_some() {
            lock(&self.shims).insert(id.name(), record.shim);
        }
        Ok(shim)
    }

    /// Whether records of earlier agents may be missing, because the directory was recreated. Then an attempt of an
    /// earlier agent may have begun although it has no record; an attempt of this agent has one if it has begun.
    pub fn may_lack_records(&self) -> bool {
        self.memory == Memory::None
    }

    /// Removes the record of an ended attempt; a tombstone is removed only later. While supervisors spawned by an
    /// earlier agent may still arrive, the record becomes a tombstone first.
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

    /// Removes the record of an attempt whose program never began, so that the same attempt can be started again. A
    /// supervisor that arrives late claims the record like any other, and only one of them runs the task.
    ///
    /// # Errors
    /// When its record can't be removed.
    pub fn retract(&self, id: &AttemptId) -> Result<(), AttemptsError> {
        self.let_go(&id.name());
        Ok(self.records().remove(&id.name())?)
    }

    /// Also watches the directory of the attempts' cgroups: if the cgroup of a running attempt disappears, that is
    /// drift.
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

    /// Reports about the attempts of a driver.
    pub fn reports(&self, driver: DriverNumber) -> Arc<Reports> {
        Arc::clone(lock(&self.reports).entry(driver).or_default())
    }

    fn remove_later(self: &Arc<Self>, tombstones: Vec<String>) {
        let attempts = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(TOMBSTONE_TIME).await;
            let Some(attempts) = attempts.upgrade() else { return };
            for name in tombstones {
                if let Err(error) = attempts.records().remove(&name) {
                    tracing::debug!(
                        error = herdlet_base::error::in_full(&error),
                        "failed to remove a tombstone"
                    );
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

    /// A cgroup was removed. The agent removes one only after its attempt is over.
    fn cgroup_gone(&self, name: &str) {
        let Some(id) = AttemptId::parse(name) else { return };
        let record = self.record(&id).ok().flatten().filter(|record| record.state == State::Running);
        if let Some(record) = record {
            self.reports(DriverNumber::of_record(&record)).mark_drift(id);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, watch::Sender<()>>> {
        lock(&self.waiting)
    }

    fn place(&self) -> MutexGuard<'_, AttemptsDir> {
        lock(&self.place)
    }
}

/// Identifies a driver in records. It is computed from the driver's name, so that no list of drivers is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverNumber(u32);

impl DriverNumber {
    /// Records of older releases name no driver: this was the only one.
    const RAW_EXEC: Self = Self(0);

    /// The number of the driver of that name.
    pub fn of(name: &str) -> Self {
        if name == RAW_EXEC {
            return Self::RAW_EXEC;
        }
        // FNV-1a, 32 bit; never 0.
        Self(
            name.bytes()
                .fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
                | 1,
        )
    }

    /// The driver that a record names.
    pub fn of_record(record: &Record) -> Self {
        Self(record.driver)
    }

    /// The value in records.
    pub fn value(self) -> u32 {
        self.0
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_tombstone(listed: &Listed) -> bool {
    listed.record.as_ref().is_ok_and(|record| record.state == State::Tombstone)
}

/// Reads a boot id. An empty file is an error: taken for another boot, it would cost the records of running attempts.
fn read_boot(file: &Path) -> Result<String, AttemptsError> {
    let failed = |source| AttemptsError::Boot { path: file.to_owned(), source };
    let boot = fs::read_to_string(file).map_err(failed)?;
    if boot.trim().is_empty() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "it is empty")));
    }
    Ok(boot)
}

/// Which attempts the directory had records of when it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Every attempt begun in this boot has a record.
    OfThisBoot,
    /// None: the machine was restarted, or the directory was deleted. An attempt without a record may still have begun.
    None,
}

/// Removes the records of an earlier boot: their processes are gone, and their pids and start times may be in use
/// again. Only a directory on disk can have such records.
fn forget_earlier_boot(path: &Path, records: &RuntimeDir, boot_file: &Path) -> Result<Memory, AttemptsError> {
    let boot = read_boot(boot_file)?;
    let marker = path.join(directory::BOOT);
    let write = || durable::write(&marker, boot.as_bytes());
    let written = |source| AttemptsError::Prepare { path: marker.clone(), source };
    match read_boot(&marker) {
        Ok(known) if known == boot => return Ok(Memory::OfThisBoot),
        Ok(_) => {}
        // Nothing proves that the records are of another boot, and running attempts must keep theirs. A reused pid is
        // recognised by its start time.
        Err(error) => {
            if records.list()?.is_empty() {
                return write().map_err(written).map(|()| Memory::None);
            }
            tracing::error!(
                error = herdlet_base::error::in_full(&error),
                "cannot determine the boot of the records of attempts: all are kept"
            );
            return write().map_err(written).map(|()| Memory::OfThisBoot);
        }
    }
    for listed in records.list()? {
        let is_over = match listed.record {
            Ok(record) => record.is_final() && record.state != State::Tombstone,
            Err(RecordsError::Damaged { .. }) => false,
            // It may hold an exit status, and is read again later.
            Err(_) => true,
        };
        if !is_over {
            records.remove(&listed.name)?;
        }
    }
    write().map_err(written).map(|()| Memory::OfThisBoot)
}
