//! A folder of manifests as a source of desired state: what lies in it runs, what is taken out of it is stopped.
//!
//! In: a directory, and which jobs it owned when the agent last ran. Out: requests to the planner. A broken file keeps the
//! last good version of its jobs; a folder that can't be read changes nothing. Which file owns which job is kept in a small
//! file, written before anything is applied, so that a file removed while the agent was down is noticed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use herdlet_api_types::{JobKey, job::Job, volume::Volume};
use herdlet_plan::event::Command;
use herdlet_runtime::{Gate, GateOpener, Inbox};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    agent::{accepted, request},
    desired::{
        manifests::{Drivers, Folder, read_folder},
        owners::{Owned, Owners},
        yaml::Problem,
    },
    durable,
    planner::Input,
    watch::directory::{DirectoryWatch, Interests, identity},
};

/// Editors and copies touch a file several times; one reading serves them all.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// A folder that never comes to rest is read all the same after so long.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long to wait before a folder that can't be watched, or could not be taken over, is tried again.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// So many jobs are named in one sentence.
const NAMED_MAX: usize = 5;

/// A folder of manifests.
pub struct FolderSource {
    dir: PathBuf,
    /// Where ownership is kept.
    memory: PathBuf,
    remembered: Memory,
    owners: Arc<Owners>,
    drivers: Drivers,
    inbox: Inbox<Input>,
    status: Arc<FolderStatus>,
    /// As last told.
    warnings: Vec<Problem>,
    first_try: Option<GateOpener>,
    tried: Gate,
}

/// What is kept of a folder while no agent runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// Which file owns which jobs.
    files: Vec<(String, BTreeSet<JobKey>)>,
    /// The file system that the folder was on, by the device's number.
    device: Option<u64>,
}

impl Memory {
    fn owned(&self) -> Owned {
        self.files.iter().cloned().collect()
    }
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

/// What the folder asks for after a reading.
#[derive(Debug, Default)]
struct Wanted {
    jobs: Vec<Job>,
    volumes: Vec<Volume>,
    gone: BTreeSet<JobKey>,
    owned: Owned,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    unreadable: Option<Problem>,
}

impl FolderSource {
    /// The folder `dir`; `state` is the agent's state directory.
    pub fn new(
        dir: PathBuf,
        state: &Path,
        drivers: Drivers,
        inbox: Inbox<Input>,
        owners: Arc<Owners>,
    ) -> Self {
        let memory = state.join("folders").join(memory_name(&dir));
        let remembered = recall(&memory).unwrap_or_else(|error| {
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
        let (dir, drivers) = (self.dir.clone(), self.drivers.clone());
        let folder = herdlet_runtime::off_thread(move || read_folder(&dir, &drivers)).await?;
        let before = self.remembered.owned();
        let mut wanted = decide(&before, folder);
        if let Some(problem) = wanted.unreadable {
            self.tell_unreadable(problem);
            return Ok(Reading::Unreadable);
        }
        let device = identity(&self.dir).map(|(device, _)| device);
        let device = self.keep_what_a_lost_mount_took(&before, &mut wanted, device);
        let Wanted { jobs, volumes, gone, owned, mut problems, warnings, .. } = wanted;
        // Remembered first: what is applied and then forgotten could never be taken away again.
        self.remember(&union(&before, &owned), device)?;
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
        self.remember(&owned, device)?;
        Ok(Reading::Read)
    }

    /// Where files are missing and the folder is on another file system than before, a mount is lost rather than the files
    /// removed: their jobs stay. The answer is the device to remember.
    fn keep_what_a_lost_mount_took(
        &self,
        before: &Owned,
        wanted: &mut Wanted,
        device: Option<u64>,
    ) -> Option<u64> {
        let known = self.remembered.device;
        if wanted.gone.is_empty() || known.is_none() || device == known {
            return device;
        }
        let names: Vec<String> = wanted.gone.iter().take(NAMED_MAX).map(ToString::to_string).collect();
        let message = format!(
            "is on another file system than before, and {} jobs are not in it any more: nothing is removed. Mount it again; or, if \
             they are to go: herdlet delete {}",
            wanted.gone.len(),
            names.join(" ")
        );
        wanted.problems.push(self.problem(message));
        wanted.gone.clear();
        wanted.owned = union(before, &wanted.owned);
        known
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
        let watched = identity(&self.dir);
        let watch = DirectoryWatch::open(&self.dir, Interests::Entries).context("watch the folder");
        // What is there before the watch is; and where there is nothing to be watched, this says why.
        if self.load().await? == Reading::Unreadable {
            return Ok(());
        }
        let watch = watch?;
        self.first_try_is_over();
        while watch.changed().await.is_ok() {
            let _ = tokio::time::timeout(QUIET_WAIT_MAX, comes_to_rest(&watch)).await;
            self.load().await?;
            // Another folder in its place, or another one that a link leads to, is to be watched in its stead.
            if identity(&self.dir) != watched {
                break;
            }
        }
        Ok(())
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

    fn remember(&mut self, owned: &Owned, device: Option<u64>) -> anyhow::Result<()> {
        let memory = Memory { files: owned.clone().into_iter().collect(), device };
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

/// What was remembered of the folder; nothing where there is no file yet.
fn recall(memory: &Path) -> std::io::Result<Memory> {
    let bytes = match std::fs::read(memory) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Memory::default()),
        Err(error) => return Err(error),
    };
    // Up to release 0.1 it was the list of files alone.
    let files: Option<Vec<(String, BTreeSet<JobKey>)>> = serde_json::from_slice(&bytes).ok();
    match files {
        Some(files) => Ok(Memory { files, device: None }),
        None => Ok(serde_json::from_slice(&bytes)?),
    }
}

/// Waits until nothing has changed for a while.
async fn comes_to_rest(watch: &DirectoryWatch) {
    while tokio::time::timeout(QUIET_TIME, watch.changed()).await.is_ok_and(|changed| changed.is_ok()) {}
}

/// A file name that stands for the folder: paths can be longer than names.
fn memory_name(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.json")
}

/// Compares what the folder says with what it owned.
fn decide(owned: &Owned, folder: Folder) -> Wanted {
    let mut wanted = Wanted::default();
    if let Some(problem) = folder.problem {
        wanted.owned.clone_from(owned);
        wanted.unreadable = Some(problem);
        return wanted;
    }
    let mut places: BTreeMap<JobKey, String> = BTreeMap::new();
    for file in folder.files {
        let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match file.content {
            Ok(set) => {
                let mut keys = BTreeSet::new();
                wanted.warnings.extend(set.warnings);
                for loaded in set.jobs {
                    let key = loaded.object.key();
                    if let Some(other) = places.get(&key) {
                        let message =
                            format!("job \"{key}\" is defined in {other} already; this one is left out");
                        wanted.problems.push(Problem {
                            source: loaded.source.to_string(),
                            line: loaded.position.line,
                            column: loaded.position.column,
                            path: String::from("metadata.name"),
                            message,
                        });
                        continue;
                    }
                    places.insert(key.clone(), name.clone());
                    keys.insert(key);
                    wanted.jobs.push(loaded.object);
                }
                wanted.volumes.extend(set.volumes.into_iter().map(|loaded| loaded.object));
                wanted.owned.insert(name, keys);
            }
            Err(problems) => {
                // The last good version stays in force.
                let keys = owned.get(&name).cloned().unwrap_or_default();
                places.extend(keys.iter().map(|key| (key.clone(), name.clone())));
                wanted.owned.insert(name, keys);
                wanted.problems.extend(problems.into_vec());
            }
        }
    }
    let kept: BTreeSet<&JobKey> = wanted.owned.values().flatten().collect();
    wanted.gone = owned.values().flatten().filter(|key| !kept.contains(key)).cloned().collect();
    wanted
}

/// What either of them owns: true while one is being replaced by the other.
fn union(old: &Owned, new: &Owned) -> Owned {
    let mut union = old.clone();
    for (file, keys) in new {
        union.entry(file.clone()).or_default().extend(keys.iter().cloned());
    }
    union
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: NAME}\nspec:\n  type: batch\n  groups:\n    \
                       - name: g\n      tasks:\n        - name: t\n          driver: raw_exec\n          config: {command: /bin/true}\n";

    fn write(dir: &Path, file: &str, job: &str) {
        std::fs::write(dir.join(file), JOB.replace("NAME", job)).unwrap();
    }

    fn key(id: &str) -> JobKey {
        JobKey { namespace: "default".into(), id: id.into() }
    }

    fn read(owned: &Owned, dir: &Path) -> Wanted {
        decide(owned, read_folder(dir, &Drivers::built_in()))
    }

    #[test]
    fn a_removed_file_takes_its_jobs_with_it_and_a_broken_one_keeps_them() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.yaml", "a");
        write(dir.path(), "b.yaml", "b");
        let first = read(&Owned::new(), dir.path());
        assert_eq!(first.jobs.len(), 2);
        assert!(first.gone.is_empty());
        std::fs::remove_file(dir.path().join("a.yaml")).unwrap();
        std::fs::write(dir.path().join("b.yaml"), "kind: [").unwrap();
        let second = read(&first.owned, dir.path());
        assert!(second.jobs.is_empty());
        assert_eq!(second.gone, [key("a")].into());
        assert!(!second.problems.is_empty());
        assert_eq!(second.owned["b.yaml"], [key("b")].into());
    }

    #[test]
    fn a_folder_on_another_file_system_removes_nothing() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (inbox, _) = Inbox::with_capacity(1);
        let owners = Arc::<Owners>::default();
        let new = || {
            FolderSource::new(
                dir.path().into(),
                state.path(),
                Drivers::built_in(),
                inbox.clone(),
                Arc::clone(&owners),
            )
        };
        let before: Owned = [("a.yaml".to_owned(), [key("a")].into())].into();
        new().remember(&before, Some(7)).unwrap();
        // Also after a restart of the agent.
        let source = new();
        assert_eq!((source.remembered.owned(), source.remembered.device), (before.clone(), Some(7)));
        let mut lost = read(&before, dir.path());
        assert_eq!(source.keep_what_a_lost_mount_took(&before, &mut lost, Some(8)), Some(7));
        assert!(lost.gone.is_empty() && lost.owned == before);
        assert!(
            lost.problems[0].message.contains("another file system")
                && lost.problems[0].message.contains("delete a")
        );
        // Removed on the same file system they go, and a folder that moved with all its files has moved.
        let mut removed = read(&before, dir.path());
        assert_eq!(source.keep_what_a_lost_mount_took(&before, &mut removed, Some(7)), Some(7));
        assert_eq!(removed.gone, [key("a")].into());
        write(dir.path(), "a.yaml", "a");
        let mut moved = read(&before, dir.path());
        assert_eq!(source.keep_what_a_lost_mount_took(&before, &mut moved, Some(8)), Some(8));
    }

    #[test]
    fn what_an_older_release_remembered_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let memory = dir.path().join("m.json");
        std::fs::write(&memory, serde_json::to_vec(&[("a.yaml", [key("a")])]).unwrap()).unwrap();
        let recalled = recall(&memory).unwrap();
        assert_eq!(
            (recalled.owned(), recalled.device),
            ([("a.yaml".to_owned(), [key("a")].into())].into(), None)
        );
    }

    #[test]
    fn a_vanished_folder_removes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.yaml", "a");
        let first = read(&Owned::new(), dir.path());
        let second = read(&first.owned, &dir.path().join("gone"));
        assert!(second.gone.is_empty());
        assert_eq!(second.owned, first.owned);
        assert!(second.unreadable.is_some());
    }

    #[test]
    fn a_job_moves_between_files_without_being_stopped_and_is_taken_from_one_only() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.yaml", "a");
        let first = read(&Owned::new(), dir.path());
        std::fs::rename(dir.path().join("a.yaml"), dir.path().join("z.yaml")).unwrap();
        let second = read(&first.owned, dir.path());
        assert!(second.gone.is_empty());
        write(dir.path(), "b.yaml", "a");
        let third = read(&second.owned, dir.path());
        assert_eq!(third.jobs.len(), 1);
        assert_eq!(third.problems.len(), 1);
    }
}
