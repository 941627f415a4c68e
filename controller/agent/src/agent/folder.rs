//! A folder of manifests as a source of desired state: what lies in it runs, what is taken out of it is stopped.
//!
//! In: a directory, and which jobs it owned when the agent last ran. Out: requests to the planner. A broken file keeps the
//! last good version of its jobs; a folder that can't be read changes nothing. Which file owns which job is kept in a small
//! file, written before anything is applied, so that a file removed while the agent was down is noticed.

mod links;
mod memory;
mod wanted;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
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
    yaml::Problem,
};
use herdlet_plan::event::Command;
use herdlet_runtime::{Gate, GateOpener, Inbox};

use self::{
    links::Links,
    memory::Memory,
    wanted::{Wanted, union},
};
use tokio::sync::watch;

use crate::{
    agent::{accepted, request},
    planner::Input,
};

/// Editors and copies touch a file several times; one reading serves them all.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// A folder that never comes to rest is read all the same after so long.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long to wait before a folder that can't be watched, or could not be taken over, is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// A reading that takes longer is told of: a file system behind it that doesn't answer blocks it for as long as it likes.
const READING_TIME_MAX: Duration = Duration::from_secs(10);

/// So many jobs or files are named in one sentence.
const NAMED_MAX: usize = 5;

/// A folder of manifests.
pub struct FolderSource {
    dir: PathBuf,
    /// Where ownership is kept.
    memory: PathBuf,
    remembered: Memory,
    owners: Arc<Owners>,
    drivers: watch::Receiver<Drivers>,
    inbox: Inbox<Input>,
    status: Arc<FolderStatus>,
    /// As last told.
    warnings: Vec<Problem>,
    first_try: Option<GateOpener>,
    tried: Gate,
}

/// What is wrong with the folder now, for status and metrics.
#[derive(Debug, Default)]
pub struct FolderStatus(Mutex<Vec<Problem>>);

/// Whether the folder itself could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// It could; files in it may be wrong all the same.
    Read,
    /// It could not, as its status says.
    Unreadable,
}

impl FolderStatus {
    /// Everything that is wrong; empty when all files are in force.
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
            tracing::error!(path = %memory.display(), %error, "failed to read which jobs the folder owned; those whose files \
                are gone run on until they are deleted by hand");
            Memory::default()
        });
        owners.set(&dir, remembered.owned());
        let (first_try, tried) = Gate::closed();
        let first_try = Some(first_try);
        Self {
            dir,
            memory,
            remembered,
            owners,
            drivers,
            inbox,
            status: Arc::default(),
            warnings: Vec::new(),
            first_try,
            tried,
        }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens when the folder was read for the first time, or could not be: from then on it changes what it said.
    pub fn tried(&self) -> Gate {
        self.tried.clone()
    }

    /// What is wrong with it, as it changes.
    pub fn status(&self) -> Arc<FolderStatus> {
        Arc::clone(&self.status)
    }

    /// Reads the folder and makes it the desired state.
    ///
    /// # Errors
    /// When ownership can't be remembered, or the agent is shutting down. What is wrong with files is in the status.
    async fn load(&mut self) -> anyhow::Result<Reading> {
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
                self.tell_hanging();
                reading.await?
            }
        };
        let mut wanted = Wanted::of(folder, &before);
        if let Some(problem) = wanted.unreadable {
            self.tell_unreadable(problem);
            return Ok(Reading::Unreadable);
        }
        let place = self.keep_what_a_loss_took(&before, &mut wanted, identity(&self.dir));
        let Wanted { jobs, volumes, gone, owned, mut problems, mut warnings, .. } = wanted;
        warnings.extend(exposed);
        // Remembered first: what is applied and then forgotten could never be taken away again.
        self.remember(&union(&before, &owned), place)?;
        let refused = accepted(request(&self.inbox, Command::Apply { jobs, volumes }).await?).err();
        if let Some(error) = &refused {
            let message = format!("the folder as a whole was refused, nothing was changed: {error:#}");
            problems.push(self.problem(message));
        }
        self.tell(problems, warnings);
        if refused.is_some() {
            return Ok(Reading::Read);
        }
        for job in gone {
            // It may be gone already.
            let _ = request(&self.inbox, Command::Delete { job }).await?;
        }
        self.remember(&owned, place)?;
        Ok(Reading::Read)
    }

    /// Where files are missing and the folder is on another file system than before, a mount is lost rather than the files
    /// removed; and where another directory is in its place that has none at all, it is being made anew. Their jobs stay. `here` is
    /// device and inode now; the answer are those to remember.
    fn keep_what_a_loss_took(
        &self,
        before: &Owned,
        wanted: &mut Wanted,
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
            "{what}; {} jobs are not in it any more, and nothing is removed. {again}; or, if they are to go: herdlet delete {}",
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
        // What is wrong is said once, not at every try.
        let mut said = None;
        loop {
            let wrong = self.follow_once().await.err().map(|error| format!("{error:#}"));
            self.first_try_is_over();
            if let Some(why) = wrong.as_ref().filter(|_| wrong != said) {
                // A full disk, for instance: what runs runs on.
                tracing::error!(dir = %self.dir.display(), "failed to {why}; nothing is removed, it is tried again");
                let message = format!("can't be followed: failed to {why}");
                self.status.set(vec![self.problem(message)]);
            }
            said = wrong;
            tokio::time::sleep(RETRY_PERIOD).await;
        }
    }

    /// Reads the folder after each change, until it vanishes or is replaced.
    async fn follow_once(&mut self) -> anyhow::Result<()> {
        // The way to it first, then which it is, then what is in it: whatever is replaced meanwhile is noticed.
        let mut links = Links::on_the_way_to(&self.dir);
        let mounts = MountBell::open().ok();
        let watched = identity(&self.dir);
        let watch = DirectoryWatch::open(&self.dir, Interests::Entries).context("watch the folder");
        // What is there before the watch is; and where there is nothing to be watched, this says why.
        if self.load().await? == Reading::Unreadable {
            return Ok(());
        }
        let watch = watch?;
        self.first_try_is_over();
        let dir = self.dir.clone();
        let is_another = || identity(&dir) != watched;
        let mut drivers = self.drivers.clone();
        loop {
            tokio::select! {
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
            // Another folder in its place, or another one that a link leads to, is to be watched in its stead.
            if is_another() {
                return Ok(());
            }
        }
    }

    /// Something is wrong with the folder as a whole.
    fn problem(&self, message: String) -> Problem {
        Problem { source: self.dir.display().to_string(), line: 0, column: 0, path: String::new(), message }
    }

    fn first_try_is_over(&mut self) {
        if let Some(first_try) = self.first_try.take() {
            first_try.open();
        }
    }

    /// Logs that the folder itself is missing or can't be read, once as long as it stays the same.
    fn tell_unreadable(&mut self, problem: Problem) {
        let problems = vec![problem];
        if problems != self.status.problems() {
            let why = problems.first().map(|problem| problem.message.as_str()).unwrap_or_default();
            let every = RETRY_PERIOD;
            tracing::error!(
                "the folder of manifests {} {why}; what it defined stays in force, and it is looked for again every {every:?}",
                self.dir.display()
            );
            self.status.set(problems);
        }
    }

    /// Logs that a reading doesn't end. What ends it tells how the folder is then.
    fn tell_hanging(&mut self) {
        let message = format!(
            "has been read for {READING_TIME_MAX:?} without an end: a file in it does not answer; what it defined stays in force"
        );
        tracing::error!(dir = %self.dir.display(), "the folder of manifests {message}");
        self.status.set(vec![self.problem(message)]);
        self.first_try_is_over();
    }

    /// Logs what is wrong, once as long as it stays the same.
    fn tell(&mut self, problems: Vec<Problem>, warnings: Vec<Problem>) {
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
                tracing::warn!(%warning, "manifest");
            }
            self.warnings = warnings;
        }
    }

    fn remember(&mut self, owned: &Owned, place: Option<(u64, u64)>) -> anyhow::Result<()> {
        let (device, inode) = place.unzip();
        let memory = Memory { files: owned.clone().into_iter().collect(), device, inode };
        if memory != self.remembered || !self.memory.exists() {
            if let Some(parent) = self.memory.parent() {
                durable::make_dir(parent).with_context(|| format!("make directory {}", parent.display()))?;
            }
            durable::write(&self.memory, &serde_json::to_vec(&memory)?)
                .with_context(|| format!("write {}", self.memory.display()))?;
            self.owners.set(&self.dir, owned.clone());
            self.remembered = memory;
        }
        Ok(())
    }
}

/// What of a folder somebody else could change, in one problem: whoever can runs any program as any user.
pub(crate) fn exposed(dir: &Path, folder: &Folder) -> Option<Problem> {
    let mut found = ownership::exposed_in(dir, folder.files.iter().map(|file| &*file.path));
    found.sort_by(|one, other| one.path().cmp(other.path()));
    let first = found.first()?;
    let why = in_full(first);
    let (source, message) = match found.len() {
        1 => (first.path(), format!("is used although another user can change it: failed to {why}")),
        count => {
            let names = found.iter().take(NAMED_MAX).filter_map(|error| error.path().file_name());
            let names: Vec<_> = names.map(|name| ownership::shown(name.as_ref())).collect();
            let more = match count.saturating_sub(names.len()) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let names = names.join(", ");
            let message = format!(
                "{count} files are used although other users can change them: {names}{more}; the first: failed to {why}"
            );
            (dir, message)
        }
    };
    let message = format!("{message}; `herdlet doctor` lists all");
    Some(Problem { source: ownership::shown(source), line: 0, column: 0, path: String::new(), message })
}

/// The files that own jobs.
fn owning(owned: &Owned) -> BTreeSet<String> {
    owned.iter().filter(|(_, keys)| !keys.is_empty()).map(|(file, _)| file.clone()).collect()
}

/// Waits until something was mounted or unmounted somewhere: what lies over the folder now may be another one, of which its own
/// watch tells nothing.
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
