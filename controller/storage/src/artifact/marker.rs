//! Records which of a task's artifacts have been fetched, in a file beside them.
//!
//! In: the directory on whose file system the artifacts are, so that the record disappears with them. Out: the digests
//! of their specifications. A file that another user owns is ignored. All calls block.

use std::{collections::BTreeSet, ffi::OsStr};

use herdlet_base::safe_fs::{Dir, FsError, Outlives, Rights};

/// The file's name.
pub const FILE: &str = ".artifacts";

/// 64 KiB: a thousand artifacts.
const BYTES_MAX: u64 = 64 * 1024;

/// The digests of the fetched artifacts.
///
/// # Errors
/// If the file can't be read.
pub fn read(dir: &Dir) -> Result<BTreeSet<String>, FsError> {
    let name = OsStr::new(FILE);
    let us = rustix::process::geteuid().as_raw();
    if dir.stat_name(name)?.is_none_or(|stat| stat.st_uid != us) {
        return Ok(BTreeSet::new());
    }
    let bytes = match dir.read_file(name, BYTES_MAX) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(FsError::Link { .. } | FsError::NotAFile { .. } | FsError::TooLarge { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}

/// Records another fetched artifact, surviving power cuts.
///
/// # Errors
/// If it can't be written, for instance because a non-empty directory has its name.
pub fn add(dir: &Dir, digest: &str) -> Result<(), FsError> {
    let mut known = read(dir)?;
    known.insert(digest.to_owned());
    let text: String = known.iter().flat_map(|digest| [digest, "\n"]).collect();
    if dir.find(OsStr::new(FILE)).is_ok_and(|found| found.is_some()) {
        // Tasks may put a directory here whose contents belong to other users.
        dir.remove_empty(OsStr::new(FILE))?;
    }
    let rights = Rights::Exact { mode: 0o600, owner: None };
    dir.write_file(OsStr::new(FILE), text.as_bytes(), rights, Outlives::PowerCuts)
}
