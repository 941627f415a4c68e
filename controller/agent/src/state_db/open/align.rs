//! Brings the accepted files to the state of the records.
//!
//! In: the files as they were read, and all records. Out: files that match the records; others are removed or set aside.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use herdlet_api_types::JobKey;
use herdlet_plan::record::{Record, RecordKey, RecordValue};

use super::{OpenError, Opening, io_error};
use crate::state_db::{
    accepted::{Accepted, JobFile, Read, VolumeFile, files},
    forgotten::Names,
};

/// What is known about files whose objects the database does not contain.
pub(super) struct Past<'a> {
    /// [`super::Mended::last`].
    pub(super) last: Option<u64>,
    /// The objects that it lists as forgotten.
    pub(super) forgotten: &'a Names,
}

impl Opening<'_> {
    /// Updates the accepted files to match the records. A file whose object the database does not know is removed if
    /// its commit is after the last one: a kill before a commit leaves such a file, and no request was answered. It
    /// is also removed if the database lists the object as forgotten: the power failed just after the removal. Any
    /// other such file is set aside.
    pub(super) fn align(
        &mut self,
        read: &Read,
        records: &BTreeMap<RecordKey, RecordValue>,
        index: u64,
        past: &Past<'_>,
    ) -> Result<Accepted, OpenError> {
        let dir = self.paths.accepted();
        let failed = || io_error("write", &dir);
        let mut accepted = Accepted::open(dir.clone()).map_err(failed())?;
        files::remove_leftovers(&dir).map_err(failed())?;
        accepted.load(read);
        for (key, path, commit) in files_of(read, &dir) {
            if records.contains_key(&key) {
                continue;
            }
            if past.last.is_some_and(|last| commit > last) {
                tracing::info!(path = %path.display(), commit, "an accepted file is removed: its commit never happened");
            } else if past.forgotten.get(&key).is_some_and(|forgotten| commit <= *forgotten) {
                tracing::info!(path = %path.display(), commit, "an accepted file is removed: it was forgotten");
            } else {
                self.keep_unknown(&path);
            }
        }
        let puts = records.iter().map(|(key, value)| Record::Put(key.clone(), value.clone()));
        let gone = accepted.keys().filter(|key| !records.contains_key(key)).map(Record::Delete);
        let aligned: Vec<Record> = puts.chain(gone.collect::<Vec<_>>()).collect();
        accepted.take(&aligned, index).map_err(failed())?;
        Ok(accepted)
    }
}

/// The files of jobs and volumes: the key of the object, the path, the commit in the file.
fn files_of(read: &Read, dir: &Path) -> Vec<(RecordKey, PathBuf, u64)> {
    let job = |(key, file): (&JobKey, &JobFile)| {
        (RecordKey::Job(key.clone()), files::job_path(dir, key), file.commit)
    };
    let volume = |(name, file): (&String, &VolumeFile)| {
        (RecordKey::Volume(name.clone()), files::volume_path(dir, name), file.commit)
    };
    read.jobs.iter().map(job).chain(read.volumes.iter().map(volume)).collect()
}
