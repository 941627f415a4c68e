//! What the last render of a task has left for the agent: variables of outputs with `env = true`, and its time.
//!
//! A file in the task's `private`, which the task cannot see. With it a new agent renders the same output again, although
//! a template may contain the time.

use std::{collections::BTreeMap, ffi::OsStr};

use herdlet_base::{
    artifact::destination::Dirs,
    clock::boot_id,
    safe_fs::{FsError, Outlives, Rights},
};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::place;

/// Its name in `private`.
const FILE: &str = "templates.json";

/// Larger than everything that fits into an environment.
const BYTES_MAX: u64 = 8 << 20;

/// Indexes of data by name.
pub(crate) type Indexes = BTreeMap<String, u64>;

/// The record. Has no `Debug`: variables are secrets.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// In which files were written: those of an earlier boot may be lost. Earlier releases wrote none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot: Option<u64>,
    /// Seconds since 1970.
    pub rendered_at: i64,
    /// Variables of the task.
    pub env: BTreeMap<String, String>,
    /// Files may be those of a later render, which has not ended: all are written again.
    #[serde(skip_serializing_if = "is_false")]
    pub is_unfinished: bool,
    /// When data was first missing for these outputs, by `CLOCK_BOOTTIME` of that boot; none while they are the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outdated_since_ns: Option<u64>,
    /// The indexes of data of a Consul in the outputs, by the names of the data. A Consul with older ones may have lost its data.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub indexes: Indexes,
    /// Those that the last attempt was started with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<BTreeMap<String, String>>,
}

impl Record {
    /// Reads it; `None` if there is none of this boot, or it is damaged: then everything is rendered again.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn read(dirs: &Dirs) -> Result<Option<Self>, FsError> {
        let Some(private) = place::private(dirs)? else { return Ok(None) };
        let bytes = private.read_file(OsStr::new(FILE), BYTES_MAX)?.map(Zeroizing::new);
        let record: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        Ok(record.filter(|record| record.boot.is_none_or(|boot| boot == boot_id())))
    }

    /// Writes it.
    ///
    /// # Errors
    /// If it can't be written.
    pub(crate) fn write(&self, dirs: &Dirs) -> Result<(), FsError> {
        let missing = || FsError::io("open", dirs.task.join("private"), rustix::io::Errno::NOENT);
        let private = place::private(dirs)?.ok_or_else(missing)?;
        let bytes = Zeroizing::new(serde_json::to_vec(self).unwrap_or_default());
        let rights = Rights::Exact { mode: 0o600, owner: None };
        private.write_file(OsStr::new(FILE), &bytes, rights, Outlives::Processes)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde calls")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
