//! The values of a task's `secret` blocks.
//!
//! In: values by their name in `${…}`. Out: the same, kept in a file of the task's `private`, which the task cannot see: in
//! memory, gone with the allocation and with the machine's memory. With it a new agent fetches nothing again, and the
//! task's services have the same names as before.

use std::{collections::BTreeMap, ffi::OsStr};

use herdlet_base::{
    artifact::destination::Dirs,
    safe_fs::{FsError, Outlives, Rights},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::place;

/// Its name in `private`.
const FILE: &str = "secrets.json";

/// Larger than everything that fits into `private`.
const BYTES_MAX: u64 = 8 << 20;

/// The values. Has no `Debug`: they are secrets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretValues {
    /// By `secret.NAME.KEY`.
    pub values: BTreeMap<String, String>,
}

impl SecretValues {
    /// Reads them; `None` if they were not fetched, or the file is damaged: then they are fetched again.
    ///
    /// # Errors
    /// If they can't be read.
    pub fn read(dirs: &Dirs) -> Result<Option<Self>, FsError> {
        let Some(private) = place::private(dirs)? else { return Ok(None) };
        let bytes = private.read_file(OsStr::new(FILE), BYTES_MAX)?.map(Zeroizing::new);
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Writes them.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn write(&self, dirs: &Dirs) -> Result<(), FsError> {
        let missing = || FsError::io("open", dirs.task.join("private"), rustix::io::Errno::NOENT);
        let private = place::private(dirs)?.ok_or_else(missing)?;
        let bytes = Zeroizing::new(serde_json::to_vec(self).unwrap_or_default());
        let rights = Rights::Exact { mode: 0o600, owner: None };
        private.write_file(OsStr::new(FILE), &bytes, rights, Outlives::Processes)
    }
}
