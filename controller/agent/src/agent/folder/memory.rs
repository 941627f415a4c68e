//! What is kept of a folder while no agent runs: which of its files owns which jobs, and which directory it was.
//!
//! In: bytes on disk. Out: ownership. It must not know what the folder says now.

use std::{collections::BTreeSet, io, path::Path};

use herdlet_api_types::JobKey;
use herdlet_manifest::owners::Owned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What is kept of a folder while no agent runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Which file owns which jobs.
    pub(super) files: Vec<(String, BTreeSet<JobKey>)>,
    /// The file system that the folder was on, by the device's number.
    pub(super) device: Option<u64>,
    /// Which directory of it the folder was.
    #[serde(default)]
    pub(super) inode: Option<u64>,
}

impl Memory {
    /// What was kept; nothing where there is no file yet.
    ///
    /// # Errors
    ///
    /// When the file can't be read or is damaged.
    pub(super) fn read(file: &Path) -> io::Result<Self> {
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        // Up to release 0.1 it was the list of files alone.
        let files: Option<Vec<(String, BTreeSet<JobKey>)>> = serde_json::from_slice(&bytes).ok();
        match files {
            Some(files) => Ok(Self { files, device: None, inode: None }),
            None => Ok(serde_json::from_slice(&bytes)?),
        }
    }

    pub(super) fn owned(&self) -> Owned {
        self.files.iter().cloned().collect()
    }

    /// Device and inode of the directory that it was; none where an older release has written this.
    pub(super) fn place(&self) -> Option<(u64, u64)> {
        self.device.zip(self.inode)
    }
}

/// A file name that stands for the folder: paths can be longer than names.
pub(super) fn file_name(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.json")
}
