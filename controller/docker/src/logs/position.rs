//! How far a container's output is copied: a small file, replaced in place by one write.
//!
//! In: a position. Out: its text. A kill of the agent leaves the old or the new one: the text is shorter than a page.

use std::{
    fs::{File, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    time::UNIX_EPOCH,
};

/// Identifies a file. A removed file's inode is soon that of another one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FileId {
    /// 0: none yet.
    pub(super) inode: u64,
    /// When it was created, in nanoseconds since 1970; 0 if the file system does not know it.
    pub(super) born: u64,
}

impl FileId {
    pub(super) fn of(about: &Metadata) -> Self {
        let born = about.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let born = born.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0);
        Self { inode: about.ino(), born }
    }
}

impl PartialEq for FileId {
    fn eq(&self, other: &Self) -> bool {
        let is_born_then = self.born == other.born || self.born == 0 || other.born == 0;
        self.inode == other.inode && is_born_then
    }
}

/// The end of one of the task's log files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct End {
    pub(super) index: u32,
    pub(super) len: u64,
}

/// A position in the engine's file, and what the task's files then have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Position {
    /// The engine's file.
    pub(super) file: FileId,
    pub(super) offset: u64,
    pub(super) stdout: End,
    pub(super) stderr: End,
}

/// The length of the text, with spaces at its end.
const TEXT_LEN: usize = 160;

impl Position {
    /// Reads a position; none if there is none yet.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
    }

    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(self.text().as_bytes(), 0)
    }

    fn text(&self) -> String {
        let Self { file: FileId { inode, born }, offset, stdout, stderr } = self;
        let numbers = format!(
            "{inode} {offset} {} {} {} {} {born}",
            stdout.index, stdout.len, stderr.index, stderr.len
        );
        format!("{numbers:<width$}\n", width = TEXT_LEN - 1)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (inode, offset) = (next()?, next()?);
        let mut end = || Some(End { index: u32::try_from(next()?).ok()?, len: next()? });
        let (stdout, stderr) = (end()?, end()?);
        // Earlier releases wrote no time.
        Some(Self { file: FileId { inode, born: next().unwrap_or(0) }, offset, stdout, stderr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_replaced_in_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p");
        assert_eq!(Position::read(&path).unwrap(), None);
        let long = Position {
            file: FileId { inode: u64::MAX, born: u64::MAX },
            offset: u64::MAX,
            stdout: End { index: 7, len: 9 },
            ..Position::default()
        };
        let file = Position::open(&path).unwrap();
        for position in [long, Position { file: FileId { inode: 1, born: 0 }, ..Position::default() }] {
            position.write(&file).unwrap();
            assert_eq!(Position::read(&path).unwrap(), Some(position));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), TEXT_LEN as u64);
        }
    }
}
