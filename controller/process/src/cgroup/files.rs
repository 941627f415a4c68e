//! Reads and writes the small files of cgroup directories.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use super::CgroupError;

/// Makes a directory and its parents.
pub(super) fn make_dirs(path: &Path) -> Result<(), CgroupError> {
    fs::create_dir_all(path).map_err(failed("make cgroup", path))
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    fs::read_to_string(path).map_err(failed("read", path))
}

/// Reads a file that may not exist.
pub(super) fn read_if_there(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Reads one number from a file that may not exist; `max` is `None`.
pub(super) fn number(path: &Path) -> Option<u64> {
    read_if_there(path)?.trim().parse().ok()
}

/// The number after a name, in a file of lines `name number`.
pub(super) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Writes a value into an existing file.
pub(super) fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    // Not `fs::write`: in a directory that isn't a cgroup it would create a plain file, which looks like success.
    fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(failed("write", path))
}

/// The directories in a directory; empty if it doesn't exist.
pub(super) fn child_dirs(path: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", path)(error)),
    };
    let mut dirs: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    dirs.sort();
    Ok(dirs)
}

/// Whether an error means that the cgroup has been removed.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

pub(super) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    let path = path.to_owned();
    move |source| CgroupError::File { operation, path, source }
}
