//! Regular files that others may replace: opening one never waits.
//!
//! In: a path. Out: an open file that can be read to its end, or none if there is something else, such as a pipe, whose other end
//! may never come.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

/// Opens a regular file; links are followed. `None` if there is something else. The check is of the open file: a pipe that takes
/// the file's place in between does not block either, nor do files of the kernel that wait for messages.
///
/// # Errors
/// The file can't be opened.
pub fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let mut options = OpenOptions::new();
    match options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or_default()).open(path) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A socket, or a device without a driver.
        Err(error)
            if [Errno::NXIO, Errno::NODEV].contains(&Errno::from_io_error(&error).unwrap_or(Errno::IO)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file was inspected, and then opened: by then it could be a pipe.
    #[test]
    fn only_regular_files_are_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let [file, pipe, socket] = ["file", "pipe", "socket"].map(|name| dir.path().join(name));
        std::fs::write(&file, "x").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(open_regular(&file).unwrap().is_some());
        for other in [&*pipe, &*socket, dir.path(), Path::new("/dev/null")] {
            assert!(open_regular(other).unwrap().is_none(), "{}", other.display());
        }
        assert_eq!(open_regular(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
