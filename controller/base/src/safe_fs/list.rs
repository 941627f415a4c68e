//! Lists directories with limits: tasks can fill them with names.

use std::{
    ffi::{CStr, OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

use rustix::io::Errno;

use super::{Dir, FsError};

/// Size of the buffer for one reading.
const LISTED_BYTES: usize = 8 * 1024;

impl Dir {
    /// The names of its entries, without `.` and `..`.
    ///
    /// # Errors
    ///
    /// If it can't be listed.
    pub fn names(&self) -> Result<Vec<OsString>, FsError> {
        let mut names = Vec::new();
        self.each_name(|name| {
            names.push(OsStr::from_bytes(name.to_bytes()).to_owned());
            true
        })?;
        Ok(names)
    }

    /// As [`Self::names`] for at most `len_max` names; `None` if there are more.
    ///
    /// # Errors
    ///
    /// If it can't be listed.
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
    /// If it can't be listed.
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

    /// Calls `visit` with each name until it returns false, without a second descriptor. Works only once per opened
    /// directory.
    ///
    /// # Errors
    ///
    /// If it can't be listed.
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
