//! Reads a directory of variables, without keys and without changing anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use herdlet_api_types::variable::VariableKey;
use herdlet_base::durable;

use super::{DIR, INDEX, name_of, read_bounded};
use crate::{
    error::{KeyError, VariableError},
    key_file::KeySource,
    record::{self, Entry, HEADER_MAX, Unreadable},
};

/// The index before the first change. Not 0, with which a query does not wait for a change.
const FIRST_INDEX: u64 = 1;

/// What a directory holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) entries: BTreeMap<VariableKey, Entry>,
    pub(super) newer: BTreeSet<PathBuf>,
    /// Files that are not variables, and why.
    pub(super) damaged: Vec<(PathBuf, &'static str)>,
    /// Temporary files.
    pub(super) unfinished: Vec<PathBuf>,
    /// The index of the last change.
    pub(super) index: u64,
}

/// Reads all headers. A directory that does not exist is empty.
pub(super) fn scan(dir: &Path) -> Result<Scan, VariableError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| VariableError::Read { path, source }
    };
    let mut scan = Scan { index: FIRST_INDEX, ..Scan::default() };
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(scan),
        Err(source) => return Err(failed(dir)(source)),
    };
    for listed in listed {
        let path = listed.map_err(failed(dir))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if durable::is_temporary(name) {
            scan.unfinished.push(path);
            continue;
        }
        let head = read_bounded(&path, HEADER_MAX as u64).map_err(failed(&path))?;
        if name == INDEX {
            let last = std::str::from_utf8(&head).ok().and_then(|text| text.trim().parse().ok());
            scan.index = scan.index.max(last.unwrap_or_default());
            continue;
        }
        match record::decode_header(&head) {
            Ok(entry) if name_of(&entry.metadata.key()) == name => {
                scan.index = scan.index.max(entry.metadata.modify_index);
                scan.entries.insert(entry.metadata.key(), entry);
            }
            Ok(_) => scan.damaged.push((path, "it is the file of another variable")),
            Err(Unreadable::Newer(_)) => {
                scan.newer.insert(path);
            }
            Err(Unreadable::Damaged(why)) => scan.damaged.push((path, why)),
        }
    }
    Ok(scan)
}

/// Moves a damaged file away, so that it can be restored or examined. A file that can't be moved stays.
pub(super) fn set_aside(path: &Path, damaged: &Path, why: &str) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let free = |number: u32| damaged.join(format!("variables.{name}.{number}"));
    let to = (0..1_000).map(free).find(|to| !to.exists()).unwrap_or_else(|| free(0));
    let moved = durable::make_dir(damaged).and_then(|()| durable::rename(path, &to));
    match moved {
        Ok(()) => {
            tracing::error!(path = %to.display(), why, "a damaged variable was moved there: restore it from a backup")
        }
        Err(error) => {
            tracing::error!(path = %path.display(), why, %error, "a damaged variable can't be moved away")
        }
    }
}

/// The state of the variables and their keys, for `doctor`.
#[derive(Debug)]
pub struct Examination {
    pub variables: usize,
    /// Files that a newer release wrote, or that are damaged.
    pub unreadable: usize,
    /// Why variables can't be decrypted, or could not be encrypted.
    pub problem: Option<KeyError>,
}

/// Examines the variables of the state directory `state`; changes nothing.
///
/// # Errors
/// If the directory can't be read.
pub fn examine(state: &Path, source: &KeySource) -> Result<Examination, VariableError> {
    let found = scan(&state.join(DIR))?;
    let problem = match source.load() {
        Ok(keys) => super::keys::missing(&keys, found.entries.values(), source.path()),
        Err(error) => Some(error),
    };
    let unreadable = found.newer.len() + found.damaged.len();
    Ok(Examination { variables: found.entries.len(), unreadable, problem })
}
