//! The stored state of a folder: which of its files owns which jobs, and which directory it was.
//!
//! In: bytes on disk. Out: ownership. It must not know the folder's current content.

use std::{collections::BTreeSet, io, path::Path};

use herdlet_api_types::JobKey;
use herdlet_manifest::owners::Owned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The stored state of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Which file owns which jobs.
    pub(super) files: Vec<(String, BTreeSet<JobKey>)>,
    /// The device number of the file system that the folder was on.
    pub(super) device: Option<u64>,
    /// The inode of the folder.
    #[serde(default)]
    pub(super) inode: Option<u64>,
}

impl Memory {
    /// Reads the stored state; empty if there is no file yet.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is damaged.
    pub(super) fn read(file: &Path) -> io::Result<Self> {
        let bytes = match std::fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        // Release 0.1 and earlier stored only the list of files.
        let files: Option<Vec<(String, BTreeSet<JobKey>)>> = serde_json::from_slice(&bytes).ok();
        match files {
            Some(files) => Ok(Self { files, device: None, inode: None }),
            None => Ok(serde_json::from_slice(&bytes)?),
        }
    }

    pub(super) fn owned(&self) -> Owned {
        self.files.iter().cloned().collect()
    }

    /// Device and inode of the directory; `None` if an older release wrote the file.
    pub(super) fn place(&self) -> Option<(u64, u64)> {
        self.device.zip(self.inode)
    }
}

/// The name of the file that stores a folder's state: a hash, because paths can be longer than file names.
pub(super) fn file_name(dir: &Path) -> String {
    let digest = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.json")
}
