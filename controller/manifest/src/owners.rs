//! Which file of which folder owns a job: such a job is changed and deleted there, and nowhere else.
//!
//! In: what the folders say of themselves. Out: whether a command would go against one of them. A file that is not there
//! (any more, or with a mount that is lost) owns nothing: its jobs may be deleted by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use herdlet_api_types::JobKey;
use herdlet_plan::event::Command;

/// The files' names, each with the jobs that it defined when it was last good.
pub type Owned = BTreeMap<String, BTreeSet<JobKey>>;

/// All folders with what they own.
#[derive(Debug, Default)]
pub struct Owners(Mutex<BTreeMap<PathBuf, Owned>>);

/// A command is about a job that a folder owns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "job \"{job}\" is defined in {}, in a folder of manifests that owns it: change or remove that file instead; nothing was changed",
    file.display()
)]
pub struct Owner {
    pub job: JobKey,
    /// Where it is defined.
    pub file: PathBuf,
}

impl Owners {
    /// A folder owns these from now on.
    pub fn set(&self, folder: &Path, owned: Owned) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), owned);
    }

    /// Whether a command may be carried out, as far as folders are concerned. Reads the directory entry of the file that
    /// would be named.
    ///
    /// # Errors
    /// The first job that a folder owns.
    pub fn allow(&self, command: &Command) -> Result<(), Owner> {
        let jobs: Vec<JobKey> = match command {
            Command::Apply { jobs, .. } => jobs.iter().map(|job| job.key()).collect(),
            Command::ApplyWithCounts { job } => vec![job.key()],
            Command::Collect { jobs, .. } => jobs.clone(),
            Command::Stop { job }
            | Command::Start { job }
            | Command::Delete { job }
            | Command::DeleteVersion { job, .. }
            | Command::Scale { job, .. } => vec![job.clone()],
            // What is done to a job that stays as it is defined.
            Command::Explain { .. }
            | Command::Dispatch { .. }
            | Command::ForceLaunch { .. }
            | Command::Revert { .. }
            | Command::DeleteVolume { .. }
            | Command::StopAlloc { .. }
            | Command::SkipShutdownDelay { .. }
            | Command::EndPoststop { .. }
            | Command::Restart { .. }
            | Command::Signal { .. }
            | Command::PromoteDeployment { .. }
            | Command::SetAllocHealth { .. }
            | Command::FailDeployment { .. } => return Ok(()),
        };
        let found = jobs.into_iter().find_map(|job| self.file_of(&job).map(|file| Owner { job, file }));
        found.filter(|owner| owner.file.exists()).map_or(Ok(()), Err)
    }

    /// Whether a folder says that the job is wanted, or did so when it was last read.
    pub fn owns(&self, job: &JobKey) -> bool {
        self.file_of(job).is_some()
    }

    fn file_of(&self, job: &JobKey) -> Option<PathBuf> {
        let folders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        folders.iter().find_map(|(folder, owned)| {
            let (file, _) = owned.iter().find(|(_, keys)| keys.contains(job))?;
            Some(folder.join(file))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_refused_as_long_as_its_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let job = JobKey { namespace: "default".into(), id: "web".into() };
        let owners = Owners::default();
        let delete = Command::Delete { job: job.clone() };
        assert_eq!(owners.allow(&delete), Ok(()));
        owners.set(folder.path(), [("web.yaml".to_owned(), [job.clone()].into())].into());
        // With the file gone, or with the mount that it lay on, nobody else can delete the job.
        assert_eq!(owners.allow(&delete), Ok(()));
        let file = folder.path().join("web.yaml");
        std::fs::write(&file, "").unwrap();
        assert_eq!(owners.allow(&delete), Err(Owner { job: job.clone(), file: file.clone() }));
        let told = owners.allow(&delete).unwrap_err().to_string();
        assert!(told.contains(&file.display().to_string()), "{told}");
        let other = JobKey { id: "other".into(), ..job };
        assert_eq!(owners.allow(&Command::Delete { job: other }), Ok(()));
    }
}
