//! The log files of one stream of a task: `NAME.STREAM.N`, from 0, of limited size and number.
//!
//! In: pieces of output. Out: files. The task can change the directory: no link is followed, and only regular files are written.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use herdlet_base::safe_fs::{self, Dir};
use herdlet_shim::rotation::{self, Name};

use super::position::End;

/// At most this many names of a directory are listed. The agent's readers of logs have the same bound.
const NAMES_MAX: usize = 65_536;

/// The log files of one stream.
pub(super) struct Output {
    dir: Dir,
    stem: String,
    len_max: u64,
    files_max: u32,
    end: End,
    file: Option<File>,
}

/// How much output is kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kept {
    pub(super) files_max: u32,
    pub(super) len_max: u64,
}

impl Output {
    /// Opens the files of a stream at their newest end.
    pub(super) fn newest(logs: &Path, stem: String, kept: Kept) -> io::Result<Self> {
        let dir = open_dir(logs)?;
        let newest = newest(&indexes(&dir, &stem)?);
        let mut output = Self::at(dir, stem, kept, End { index: newest.unwrap_or(0), len: 0 });
        let len = output.file()?.metadata()?.len();
        output.end.len = len;
        Ok(output)
    }

    /// Opens the files of a stream at an earlier end, and removes what was written after it.
    pub(super) fn cut_back(logs: &Path, stem: String, kept: Kept, end: End) -> io::Result<Self> {
        let dir = open_dir(logs)?;
        for later in indexes(&dir, &stem)?.into_iter().filter(|index| *index > end.index) {
            remove(&dir, &stem, later)?;
        }
        let mut output = Self::at(dir, stem, kept, end);
        let file = output.file()?;
        // A shorter file was changed by somebody else, and is continued.
        let len = file.metadata()?.len().min(end.len);
        file.set_len(len)?;
        output.end.len = len;
        Ok(output)
    }

    fn at(dir: Dir, stem: String, kept: Kept, end: End) -> Self {
        Self { dir, stem, len_max: kept.len_max.max(1), files_max: kept.files_max.max(1), end, file: None }
    }

    pub(super) fn end(&self) -> End {
        self.end
    }

    /// Appends a piece. A piece that does not fit begins a new file, and the oldest one is removed.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = bytes.len() as u64;
        if self.end.len > 0 && self.end.len + len > self.len_max {
            self.file = None;
            self.end = End { index: self.end.index.saturating_add(1), len: 0 };
            if let Some(oldest) = self.end.index.checked_sub(self.files_max) {
                remove(&self.dir, &self.stem, oldest)?;
            }
            // Whatever has this name is not ours.
            self.file()?.set_len(0)?;
        }
        self.file()?.write_all(bytes)?;
        self.end.len += len;
        Ok(())
    }

    fn file(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            self.file = Some(open(&self.dir, &name(&self.stem, self.end.index))?);
        }
        self.file.as_mut().ok_or_else(|| io::Error::other("no file"))
    }

    /// Whether the file that is written to still has its name.
    pub(super) fn is_in_place(&self) -> bool {
        let Some(file) = &self.file else { return true };
        let named = std::fs::symlink_metadata(self.dir.proc_path(name(&self.stem, self.end.index).as_ref()));
        match (file.metadata(), named) {
            (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
            _ => false,
        }
    }
}

fn open_dir(logs: &Path) -> io::Result<Dir> {
    safe_fs::open_logs(logs).map_err(|error| io::Error::other(herdlet_base::error::in_full(&error)))
}

fn open(dir: &Dir, name: &str) -> io::Result<File> {
    let path: PathBuf = dir.proc_path(name.as_ref());
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().append(true).create(true).mode(0o644).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    match about.is_file() && about.nlink() == 1 {
        true => Ok(file),
        false => {
            Err(io::Error::other(format!("{name} is not the task's log file: the task has replaced it")))
        }
    }
}

fn name(stem: &str, index: u32) -> String {
    format!("{stem}.{index}")
}

fn remove(dir: &Dir, stem: &str, index: u32) -> io::Result<()> {
    match std::fs::remove_file(dir.proc_path(name(stem, index).as_ref())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The indexes of the stream's files, among the first names of the directory. The task can create any name, so those of files only are
/// used, and no index that is never ours.
fn indexes(dir: &Dir, stem: &str) -> io::Result<Vec<u32>> {
    let mut names = Vec::new();
    let mut left = NAMES_MAX;
    let listed = dir.each_name(|name| {
        left -= 1;
        if let Some(Name::Log(index)) = Name::of(name.to_bytes(), stem.as_bytes()) {
            names.push(index);
        }
        left > 0
    });
    listed.map_err(|error| io::Error::other(herdlet_base::error::in_full(&error)))?;
    names.retain(|index| {
        let about = std::fs::symlink_metadata(dir.proc_path(name(stem, *index).as_ref()));
        about.is_ok_and(|about| about.is_file())
    });
    Ok(names)
}

/// The newest of the stream's own files; others with its name may be the task's.
fn newest(indexes: &[u32]) -> Option<u32> {
    let Ok(own) = rotation::own(|visit: &mut dyn FnMut(Name)| {
        indexes.iter().for_each(|index| visit(Name::Log(*index)));
        Ok::<(), std::convert::Infallible>(())
    });
    own.map(|(_, last)| last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Kept = Kept { files_max: 2, len_max: 10 };

    /// A planted file with the highest index became the newest, and the log was never rotated again.
    #[test]
    fn planted_names_are_not_the_logs_newest_file() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "t.stdout.0",
            "t.stdout.1",
            "t.stdout.2",
            "t.stdout.4294967295",
            "t.stdout.900000000",
            "t.stdout.x",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("t.stdout.3")).unwrap();
        let output = Output::newest(dir.path(), "t.stdout".to_owned(), KEPT).unwrap();
        assert_eq!((output.end().index, output.end().len), (2, 1));
    }

    /// A listing without a bound held the agent at each start.
    #[test]
    fn a_directory_full_of_names_is_listed_to_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..NAMES_MAX + 10 {
            std::fs::write(dir.path().join(format!("planted.{number}")), "").unwrap();
        }
        let mut output = Output::newest(dir.path(), "t.stdout".to_owned(), KEPT).unwrap();
        output.write(b"line\n").unwrap();
        assert_eq!(std::fs::read(dir.path().join("t.stdout.0")).unwrap(), b"line\n");
    }
}
