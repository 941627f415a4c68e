//! A folder of manifests as a source of desired state: jobs defined in it run, jobs removed from it are stopped.
//!
//! In: a directory, and which jobs it owned when the agent last ran. Out: requests to the planner. If a file is
//! broken, the last good version of its jobs stays; a folder that cannot be read changes nothing. A small file stores
//! which file owns which job. It is written before anything is applied, so that a manifest removed while the agent
//! was down is noticed.

mod diff;
mod links;
mod memory;
mod rereads;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use herdlet_api_types::job::Job;
use herdlet_base::{
    directory::{DirectoryWatch, Interests, identity},
    durable,
    error::in_full,
    mounts::table::MountBell,
    ownership,
};
use herdlet_manifest::{
    manifests::{Drivers, Folder, read_folder},
    owners::{Owned, Owners},
    region,
    yaml::Problem,
};
use herdlet_plan::{event::Command, job::Source};
use herdlet_runtime::{Gate, GateOpener, Inbox};

pub use self::rereads::Rereads;
use self::{
    diff::{FolderDiff, union},
    links::Links,
    memory::Memory,
};
use tokio::sync::watch;

use crate::{
    agent::{accepted, request},
    planner::Input,
};

/// Editors and copies touch a file several times; one read serves all of these changes.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// A folder that keeps changing is read after this time.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);

/// The delay before retrying a folder that cannot be watched, or whose jobs could not be applied.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// A read that takes longer is logged: a file system that does not respond can block it indefinitely.
const READING_TIME_MAX: Duration = Duration::from_secs(10);

/// The most jobs or files that are named in one message.
const NAMED_MAX: usize = 5;

/// A folder of manifests.
pub struct FolderSource {
    dir: PathBuf,
    /// The file that stores the ownership.
    memory: PathBuf,
    remembered: Memory,
    owners: Arc<Owners>,
    drivers: watch::Receiver<Drivers>,
    /// The agent's region.
    region: String,
    inbox: Inbox<Input>,
    status: Arc<FolderStatus>,
    /// As last logged.
    warnings: Vec<Problem>,
    first_try: Option<GateOpener>,
    tried: Gate,
    rereads: Arc<Rereads>,
    /// The number of requests to read it again.
    asked: watch::Receiver<u64>,
}

/// The current problems of the folder, for status and metrics.
#[derive(Debug, Default)]
pub struct FolderStatus(Mutex<Vec<Problem>>);

/// Whether the folder itself could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// It could be read, though files in it may be invalid.
    Read,
    /// It could not be read; the reason is in its status.
    Unreadable,
}

impl FolderStatus {
    /// The problems; empty if all files are in force.
    pub fn problems(&self) -> Vec<Problem> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, problems: Vec<Problem>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }
}

impl FolderSource {
    /// The folder `dir`; `state` is the agent's state directory.
    pub fn new(
        dir: PathBuf,
        state: &Path,
        drivers: watch::Receiver<Drivers>,
        inbox: Inbox<Input>,
        owners: Arc<Owners>,
    ) -> Self {
        let memory = state.join("folders").join(memory::file_name(&dir));
        let remembered = Memory::read(&memory).unwrap_or_else(|error| {
            tracing::error!(path = %memory.display(), %error, "failed to read which jobs the folder owned; jobs whose \
                files are gone keep running until you delete them");
            Memory::default()
        });
        owners.set(&dir, remembered.owned());
        let (first_try, tried) = Gate::closed();
        let rereads = Arc::<Rereads>::default();
        let first_try = Some(first_try);
        Self {
            dir,
            memory,
            remembered,
            owners,
            drivers,
            region: String::new(),
            inbox,
            status: Arc::default(),
            warnings: Vec::new(),
            first_try,
            tried,
            asked: rereads.subscribe(),
            rereads,
        }
    }

    /// Warns about jobs of other regions than the agent's.
    #[must_use]
    pub fn in_region(self, region: String) -> Self {
        Self { region, ..self }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens when the folder has been read for the first time, or could not be.
    pub fn tried(&self) -> Gate {
        self.tried.clone()
    }

    /// Has the folder read again.
    pub fn rereads(&self) -> Arc<Rereads> {
        Arc::clone(&self.rereads)
    }

    /// The folder's problems, kept up to date.
    pub fn status(&self) -> Arc<FolderStatus> {
        Arc::clone(&self.status)
    }

    /// Reads the folder and applies it as desired state.
    ///
    /// # Errors
    /// When the ownership cannot be stored, or the agent is shutting down. Problems of files go into the status.
    async fn load(&mut self) -> anyhow::Result<Reading> {
        let asked = *self.asked.borrow_and_update();
        let reading = self.read_and_apply().await;
        self.rereads.answer(asked);
        reading
    }

    async fn read_and_apply(&mut self) -> anyhow::Result<Reading> {
        let (dir, drivers) = (self.dir.clone(), self.drivers.borrow_and_update().clone());
        let before = self.remembered.owned();
        let owners = owning(&before);
        let mut reading = herdlet_runtime::off_thread(move || {
            let folder = read_folder(&dir, &drivers, &owners);
            let exposed = exposed(&dir, &folder);
            (folder, exposed)
        });
        let (folder, exposed) = match tokio::time::timeout(READING_TIME_MAX, &mut reading).await {
            Ok(folder) => folder?,
            Err(_) => {
                self.log_hanging();
                reading.await?
            }
        };
        let mut wanted = FolderDiff::of(folder, &before);
        if let Some(problem) = wanted.unreadable {
            self.log_unreadable(problem);
            return Ok(Reading::Unreadable);
        }
        let place = self.keep_what_a_loss_took(&before, &mut wanted, identity(&self.dir));
        let FolderDiff { jobs, volumes, gone, owned, mut problems, mut warnings, .. } = wanted;
        warnings.extend(exposed);
        warnings.extend(jobs.iter().filter_map(|(job, source)| self.other_region(job, source)));
        // Stored first: jobs that are applied but not recorded could never be removed again.
        self.remember(&union(&before, &owned), place)?;
        let refused = accepted(request(&self.inbox, Command::ApplyFolder { jobs, volumes }).await?).err();
        if let Some(error) = &refused {
            let message =
                format!("the planner refused the folder as a whole, and nothing was changed: {error:#}");
            problems.push(self.problem(message));
        }
        self.log_problems(problems, warnings);
        if refused.is_some() {
            return Ok(Reading::Read);
        }
        for job in gone {
            // The job may already be deleted.
            let _ = request(&self.inbox, Command::Delete { job }).await?;
        }
        self.remember(&owned, place)?;
        Ok(Reading::Read)
    }

    /// Keeps jobs whose files are missing because the folder itself was lost. If the folder is on another file system
    /// than before, a mount was lost rather than files removed. If another, empty directory is in its place, the
    /// directory is being recreated. `here` is the current device and inode; the result is the pair to store.
    fn keep_what_a_loss_took(
        &self,
        before: &Owned,
        wanted: &mut FolderDiff,
        here: Option<(u64, u64)>,
    ) -> Option<(u64, u64)> {
        let Some(known) = self.remembered.place().filter(|_| !wanted.gone.is_empty()) else { return here };
        let is_elsewhere = here.is_none_or(|(device, _)| device != known.0);
        let (what, again) = match (is_elsewhere, here == Some(known), wanted.owned.is_empty()) {
            (true, _, _) => ("is on another file system than before", "Mount it again"),
            (false, false, true) => ("is another directory than before, and empty", "Fill it again"),
            (false, _, _) => return here,
        };
        let names: Vec<String> = wanted.gone.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let message = format!(
            "{what}; {} of its jobs are no longer in it, and nothing is removed. {again}, or delete the jobs: herdlet \
             delete {}",
            wanted.gone.len(),
            names.join(" ")
        );
        wanted.problems.push(self.problem(message));
        wanted.gone.clear();
        wanted.owned = union(before, &wanted.owned);
        Some(known)
    }

    /// Follows the folder until the agent ends.
    pub async fn follow(self) {
        let inbox = self.inbox.clone();
        tokio::select! {
            () = inbox.closed() => {}
            () = self.follow_on() => {}
        }
    }

    async fn follow_on(mut self) {
        // A failure is logged once, not with every attempt.
        let mut logged = None;
        loop {
            let failure = self.follow_once().await.err().map(|error| format!("{error:#}"));
            self.first_try_is_over();
            if let Some(why) = failure.as_ref().filter(|_| failure != logged) {
                // For example, the disk is full; running tasks keep running.
                tracing::error!(dir = %self.dir.display(), "failed to {why}; no job is removed; retrying");
                let message = format!("cannot be followed: failed to {why}");
                self.status.set(vec![self.problem(message)]);
            }
            logged = failure;
            let _ = tokio::time::timeout(RETRY_PERIOD, self.asked.changed()).await;
        }
    }

    /// Reads the folder after each change, until it vanishes or is replaced.
    async fn follow_once(&mut self) -> anyhow::Result<()> {
        // In this order (the path to the folder, its identity, its content), any replacement in between is noticed.
        let mut links = Links::on_the_way_to(&self.dir);
        let mounts = MountBell::open().ok();
        let watched = identity(&self.dir);
        let watch = DirectoryWatch::open(&self.dir, Interests::Entries).context("watch the folder");
        // Reads what was there before the watch; if the folder could not be watched, this reports why.
        if self.load().await? == Reading::Unreadable {
            return Ok(());
        }
        let watch = watch?;
        self.first_try_is_over();
        let dir = self.dir.clone();
        let is_another = || identity(&dir) != watched;
        let (mut drivers, mut asked) = (self.drivers.clone(), self.asked.clone());
        loop {
            tokio::select! {
                Ok(()) = asked.changed() => {}
                changed = watch.changed() => if changed.is_err() { return Ok(()) },
                // What names a driver that was not there may be right now.
                Ok(()) = drivers.changed() => {}
                () = mounted(mounts.as_ref()) => if !is_another() { continue },
                () = links.changed() => {
                    tokio::time::sleep(QUIET_TIME).await;
                    links = Links::on_the_way_to(&self.dir);
                    if !is_another() { continue }
                }
            }
            let _ = tokio::time::timeout(QUIET_WAIT_MAX, comes_to_rest(&watch)).await;
            self.load().await?;
            // A replaced folder, or a link that leads to another one, needs a new watch.
            if is_another() {
                return Ok(());
            }
        }
    }

    fn other_region(&self, job: &Job, source: &Source) -> Option<Problem> {
        let message = region::warning(job, Some(&self.region))?;
        let message = format!("job \"{}\": {message}", job.key());
        Some(Problem { source: source.file.clone(), line: 0, column: 0, path: String::new(), message })
    }

    /// Creates a problem of the folder as a whole.
    fn problem(&self, message: String) -> Problem {
        Problem { source: self.dir.display().to_string(), line: 0, column: 0, path: String::new(), message }
    }

    fn first_try_is_over(&mut self) {
        if let Some(first_try) = self.first_try.take() {
            first_try.open();
        }
    }

    /// Logs that the folder is missing or cannot be read; repeated only when the reason changes.
    fn log_unreadable(&mut self, problem: Problem) {
        let problems = vec![problem];
        if problems != self.status.problems() {
            let why = problems.first().map(|problem| problem.message.as_str()).unwrap_or_default();
            let every = RETRY_PERIOD;
            tracing::error!(
                "the folder of manifests {} {why}; the jobs that it defined stay in force; retrying every {every:?}",
                self.dir.display()
            );
            self.status.set(problems);
        }
    }

    /// Logs that a read does not return. Its result later replaces this status.
    fn log_hanging(&mut self) {
        let message = format!(
            "could not be read within {READING_TIME_MAX:?}: a file in it does not respond; the jobs that it defined \
             stay in force"
        );
        tracing::error!(dir = %self.dir.display(), "the folder of manifests {message}");
        self.status.set(vec![self.problem(message)]);
        self.first_try_is_over();
    }

    /// Logs problems and warnings when they have changed.
    fn log_problems(&mut self, problems: Vec<Problem>, warnings: Vec<Problem>) {
        if problems != self.status.problems() {
            for problem in &problems {
                tracing::error!(%problem, "a manifest is not in force");
            }
            if problems.is_empty() {
                tracing::info!(dir = %self.dir.display(), "all manifests of the folder are in force");
            }
            self.status.set(problems);
        }
        if warnings != self.warnings {
            for warning in &warnings {
                tracing::warn!("manifest {warning}");
            }
            self.warnings = warnings;
        }
    }

    fn remember(&mut self, owned: &Owned, place: Option<(u64, u64)>) -> anyhow::Result<()> {
        let (device, inode) = place.unzip();
        let memory = Memory { files: owned.clone().into_iter().collect(), device, inode };
        if memory != self.remembered || !self.memory.exists() {
            if let Some(parent) = self.memory.parent() {
                durable::make_dir(parent)
                    .with_context(|| format!("create directory {}", parent.display()))?;
            }
            durable::write(&self.memory, &serde_json::to_vec(&memory)?)
                .with_context(|| format!("write {}", self.memory.display()))?;
            self.owners.set(&self.dir, owned.clone());
            self.remembered = memory;
        }
        Ok(())
    }
}

/// The files and directories of a folder, and the files of variables, that another user could change, as one problem: such a
/// user can run any program as any user, by a variable (`LD_PRELOAD`) too.
pub(crate) fn exposed(dir: &Path, folder: &Folder) -> Option<Problem> {
    let mut found = ownership::exposed_in(dir, folder.files.iter().map(|file| &*file.path));
    let env_files = folder.files.iter().flat_map(|file| &file.env_files);
    found.extend(env_files.filter_map(|path| ownership::check_if_there(path).err()));
    found.sort_by(|one, other| one.path().cmp(other.path()));
    found.dedup_by(|one, other| one.path() == other.path());
    let first = found.first()?;
    let why = in_full(first);
    let (source, message) = match found.len() {
        1 => {
            (first.path(), format!("it is used, although another user can change it: the agent cannot {why}"))
        }
        count => {
            let names = found.iter().take(NAMED_MAX).filter_map(|error| error.path().file_name());
            let names: Vec<_> = names.map(|name| ownership::escape_path(name.as_ref())).collect();
            let more = match count.saturating_sub(names.len()) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let names = names.join(", ");
            let message = format!(
                "{count} files are used although other users can change them: {names}{more}; the first: the agent cannot {why}"
            );
            (dir, message)
        }
    };
    let message = format!("{message}; `herdlet doctor` lists all");
    Some(Problem { source: ownership::escape_path(source), line: 0, column: 0, path: String::new(), message })
}

/// The files that own jobs.
fn owning(owned: &Owned) -> BTreeSet<String> {
    owned.iter().filter(|(_, keys)| !keys.is_empty()).map(|(file, _)| file.clone()).collect()
}

/// Waits for a mount or unmount anywhere: the path may now lead to another folder, which the folder's own watch does
/// not report.
async fn mounted(mounts: Option<&MountBell>) {
    let rung = match mounts {
        Some(mounts) => mounts.rung().await.is_ok(),
        None => false,
    };
    if !rung {
        std::future::pending::<()>().await;
    }
}

/// Waits until nothing has changed for a while.
async fn comes_to_rest(watch: &DirectoryWatch) {
    while tokio::time::timeout(QUIET_TIME, watch.changed()).await.is_ok_and(|changed| changed.is_ok()) {}
}

#[cfg(test)]
mod tests;
