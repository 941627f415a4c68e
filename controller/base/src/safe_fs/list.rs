//! Listing a directory, with bounds: tasks can fill it with names.

use std::{
    ffi::{CStr, OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use rustix::io::Errno;

use super::{Dir, FsError};

/// So much of a directory is listed at a time.
const LISTED_BYTES: usize = 8 * 1024;

impl Dir {
    /// Names of what is in it, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// When it can't be listed.
    pub fn names(&self) -> Result<Vec<OsString>, FsError> {
        let mut names = Vec::new();
        self.each_name(|name| {
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
            true
        })?;
        Ok(names)
    }

    /// The same of at most `len_max` names; `None` where there are more.
    ///
    /// # Errors
    ///
    /// When it can't be listed.
    pub fn names_up_to(&self, len_max: usize) -> Result<Option<Vec<OsString>>, FsError> {
        let mut names = Vec::new();
        let mut more = false;
        self.each_name(|name| {
            more = names.len() == len_max;
            if !more {
                names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
            }
            !more
        })?;
        Ok((!more).then_some(names))
    }

    /// Calls `visit` with each name until it returns false.
    ///
    /// # Errors
    ///
    /// When it can't be listed.
    pub fn each_name(&self, mut visit: impl FnMut(&CStr) -> bool) -> Result<(), FsError> {
        let list = |errno: Errno| FsError::io("list", &self.path, errno);
        let entries = rustix::fs::Dir::read_from(&self.fd).map_err(list)?;
        for entry in entries {
            let entry = entry.map_err(list)?;
            let name = entry.file_name();
            if name.to_bytes() != b"." && name.to_bytes() != b".." && !visit(name) {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` with each name until it returns false, without a second descriptor: only once for each time that it was opened.
    ///
    /// # Errors
    ///
    /// When it can't be listed.
    pub fn each_name_once(&self, mut visit: impl FnMut(&CStr) -> bool) -> Result<(), FsError> {
        let mut buffer = Vec::with_capacity(LISTED_BYTES);
        let mut entries = rustix::fs::RawDir::new(&self.fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| FsError::io("list", &self.path, errno))?;
            let name = entry.file_name();
            if name.to_bytes() != b"." && name.to_bytes() != b".." && !visit(name) {
                break;
            }
        }
        Ok(())
    }
}
