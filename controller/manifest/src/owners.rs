//! Which file of which folder owns a job. An owned job can be changed and deleted only in its file.
//!
//! In: the jobs that each folder defines. Out: whether a command conflicts with an owner. A file that does
//! not exist (any more, or because its mount is lost) owns nothing, so its jobs may be deleted by hand.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use herdlet_api_types::JobKey;
use herdlet_plan::event::Command;

/// File names, each with the jobs that the file defined when it was last valid.
pub type Owned = BTreeMap<String, BTreeSet<JobKey>>;

/// All folders with their owned jobs.
#[derive(Debug, Default)]
pub struct Owners(Mutex<BTreeMap<PathBuf, Owned>>);

/// The error for a command on a job that a folder owns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "job \"{job}\" is defined in {}, in a folder of manifests that owns it: change or remove that file instead; nothing was changed",
    file.display()
)]
pub struct Owner {
    pub job: JobKey,
    /// The file that defines the job.
    pub file: PathBuf,
}

impl Owners {
    /// Sets the jobs that a folder owns.
    pub fn set(&self, folder: &Path, owned: Owned) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), owned);
    }

    /// Checks whether the owners allow a command. Reads the directory entry of the owning file.
    ///
    /// # Errors
    /// The first job that a folder owns.
    pub fn allow(&self, command: &Command) -> Result<(), Owner> {
        let jobs: Vec<JobKey> = match command {
            Command::Apply { jobs, .. } => jobs.iter().map(|job| job.key()).collect(),
            Command::ApplyFolder { jobs, .. } => jobs.iter().map(|(job, _)| job.key()).collect(),
            Command::Register { job, .. } => vec![job.key()],
            Command::Collect { jobs, .. } => jobs.clone(),
            Command::StopFast { stop, .. } => return self.allow(stop),
            Command::Stop { job }
            | Command::Start { job }
            | Command::Delete { job }
            | Command::DeleteVersion { job, .. }
            | Command::Scale { job, .. } => vec![job.clone()],
            // These leave the job's definition unchanged.
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
            | Command::SetEligibility { .. }
            | Command::Drain { .. }
            | Command::PauseDeployment { .. }
            | Command::TagVersion { .. }
            | Command::UntagVersion { .. }
            | Command::PromoteDeployment { .. }
            | Command::SetAllocHealth { .. }
            | Command::FailDeployment { .. } => return Ok(()),
        };
        let found = jobs.into_iter().find_map(|job| self.file_of(&job).map(|file| Owner { job, file }));
        found.filter(|owner| owner.file.exists()).map_or(Ok(()), Err)
    }

    /// Returns whether a folder defines the job, or did so when its file was last valid.
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
        // If the file or its mount is missing, nothing but a command can delete the job.
        assert_eq!(owners.allow(&delete), Ok(()));
        let file = folder.path().join("web.yaml");
        std::fs::write(&file, "").unwrap();
        assert_eq!(owners.allow(&delete), Err(Owner { job: job.clone(), file: file.clone() }));
        let message = owners.allow(&delete).unwrap_err().to_string();
        assert!(message.contains(&file.display().to_string()), "{message}");
        let other = JobKey { id: "other".into(), ..job };
        assert_eq!(owners.allow(&Command::Delete { job: other }), Ok(()));
    }
}
