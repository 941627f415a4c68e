//! Files of a task, which the task may replace at any moment.
//!
//! In: the task's directory, a path in it. Out: an open file. No link is followed, and neither a fifo nor a device is opened.

use std::{ffi::OsStr, fs::File, path::Path};

use herdlet_base::safe_fs::{Crossing, Dir, FsError};

/// Opens a plain file by its relative path; none if it does not exist.
pub(crate) fn open(task: &Path, path: &Path) -> Result<Option<File>, FsError> {
    let dir = Dir::open(task)?;
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let name = path.file_name().unwrap_or(OsStr::new("."));
    let opened = match parent {
        Some(parent) => dir.open_below(parent, Crossing::Mounts).and_then(|dir| dir.open_file(name)),
        None => dir.open_file(name),
    };
    match opened {
        Err(error) if error.is_missing() => Ok(None),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    /// A fifo in place of an archive blocked a thread for ever, and through a link the engine got a file of the machine.
    #[test]
    fn only_plain_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &str| open(dir.path(), Path::new(path));
        fs::create_dir(dir.path().join("local")).unwrap();
        fs::write(dir.path().join("local/a.tar"), "x").unwrap();
        symlink("/etc/passwd", dir.path().join("local/link")).unwrap();
        symlink("/etc", dir.path().join("outside")).unwrap();
        rustix::fs::mknodat(CWD, dir.path().join("local/fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(of("local/a.tar").unwrap().is_some());
        assert!(of("a.tar").unwrap().is_none() && of("none/a.tar").unwrap().is_none());
        for path in
            ["local/link", "outside/passwd", "local/fifo", "local", "../x/passwd", "/etc/passwd", ".."]
        {
            assert!(of(path).is_err(), "{path}");
        }
    }
}
