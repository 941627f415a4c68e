//! Reads a directory of variables, without keys and without changing anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use herdlet_api_types::variable::VariableKey;
use herdlet_base::durable;

use super::{DIR, INDEX, SET_ASIDE, name_of, read_bounded};
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
    /// Files that can't be read.
    pub(super) unreadable: Vec<(PathBuf, io::Error)>,
    /// Temporary files.
    pub(super) unfinished: Vec<PathBuf>,
    /// The index of the last change, unless it is in a file without a readable index.
    pub(super) index: u64,
    /// An index that none has exceeded, if that is known.
    pub(super) reserved: Option<u64>,
    /// Whether there is such a file.
    pub(super) is_index_lost: bool,
}

/// A higher index is not an index: programs that read JSON don't represent it exactly.
const INDEX_MAX: u64 = 1 << 53;

/// Reads all headers. A directory that does not exist is empty. A file that can't be read does not hide the others.
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
        match read_bounded(&path, HEADER_MAX as u64) {
            Ok(head) if name == INDEX => scan.add_index(path, &head),
            Ok(head) => scan.add(path, &head),
            // It was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_of_the_process(&error) => return Err(failed(&path)(error)),
            Err(error) => {
                scan.is_index_lost = true;
                scan.unreadable.push((path, error));
            }
        }
    }
    Ok(scan)
}

/// Whether an error says nothing about the file: a later attempt can succeed.
fn is_of_the_process(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR))
}

impl Scan {
    fn add(&mut self, path: PathBuf, head: &[u8]) {
        let entry = match record::decode_header(head) {
            Ok(entry) => entry,
            Err(Unreadable::Newer(_)) => {
                self.newer.insert(path);
                return;
            }
            Err(Unreadable::Damaged(why)) => return self.lose(path, why),
        };
        if entry.metadata.modify_index > INDEX_MAX {
            return self.lose(path, "its index is out of range");
        }
        self.index = self.index.max(entry.metadata.modify_index);
        if path.file_name().is_some_and(|name| *name == *name_of(&entry.metadata.key())) {
            self.entries.insert(entry.metadata.key(), entry);
        } else {
            self.damaged.push((path, "it is the file of another variable"));
        }
    }

    fn add_index(&mut self, path: PathBuf, text: &[u8]) {
        let text = std::str::from_utf8(text).unwrap_or_default();
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            Ok([last, rest @ ..]) if *last <= INDEX_MAX && rest.len() <= 1 => {
                self.index = self.index.max(*last);
                self.reserved = rest.first().copied().filter(|reserved| *reserved <= INDEX_MAX);
            }
            Ok(_) | Err(_) => self.lose(path, "it is not an index"),
        }
    }

    /// Adds a damaged file, which may have had the last index.
    fn lose(&mut self, path: PathBuf, why: &'static str) {
        self.is_index_lost = true;
        self.damaged.push((path, why));
    }
}

/// How the names of damaged files begin.
const NAME_BEFORE: &str = "variables.";

/// Moves a damaged file away, so that it can be restored or examined. A file that can't be moved stays.
pub(super) fn set_aside(path: &Path, damaged: &Path, why: &dyn std::fmt::Display) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let free = |number: u32| damaged.join(format!("{NAME_BEFORE}{name}.{number}"));
    let to = (0..1_000).map(free).find(|to| !to.exists()).unwrap_or_else(|| free(0));
    let moved = durable::make_dir(damaged).and_then(|()| durable::rename(path, &to));
    match moved {
        Ok(()) => {
            tracing::error!(path = %to.display(), %why, "a damaged variable was moved there: restore it from a backup")
        }
        Err(error) => {
            tracing::error!(path = %path.display(), %why, %error, "a damaged variable can't be moved away")
        }
    }
}

/// The state of the variables and their keys, for `doctor`.
#[derive(Debug)]
pub struct Examination {
    pub variables: usize,
    /// Files that a newer release wrote, or that are damaged.
    pub unreadable: usize,
    /// Damaged files that the agent has moved to the folder `damaged`.
    pub set_aside: usize,
    /// Why variables can't be decrypted, or could not be encrypted.
    pub problem: Option<KeyError>,
}

/// Examines the variables of the state directory `state`; changes nothing.
///
/// # Errors
/// If the directory can't be read.
pub fn examine(state: &Path, source: &KeySource) -> Result<Examination, VariableError> {
    let mut found = scan(&state.join(DIR))?;
    let is_forbidden = |(_, error): &(PathBuf, io::Error)| error.kind() == io::ErrorKind::PermissionDenied;
    if let Some(at) = found.unreadable.iter().position(is_forbidden) {
        let (path, source) = found.unreadable.swap_remove(at);
        return Err(VariableError::Read { path, source });
    }
    let is_ours =
        |file: &fs::DirEntry| file.file_name().as_encoded_bytes().starts_with(NAME_BEFORE.as_bytes());
    let set_aside =
        fs::read_dir(state.join(SET_ASIDE)).into_iter().flatten().flatten().filter(is_ours).count();
    let problem = match source.load() {
        Ok(keys) => super::keys::missing(&keys, found.entries.values(), source.path()),
        Err(error) => Some(error),
    };
    let unreadable = found.newer.len() + found.damaged.len() + found.unreadable.len();
    Ok(Examination { variables: found.entries.len(), unreadable, set_aside, problem })
}
