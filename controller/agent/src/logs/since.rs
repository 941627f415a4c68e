//! Finds where the lines written since a given time begin, by the marks beside the log files and the files' mtimes.
//!
//! In: the files of one stream. Out: a position in them. The task can write to the directory, so offsets in marks are
//! limited to the length of the file.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt},
};

use herdlet_shim::times::{MARK_LEN, Mark, SPAN_S, SUFFIX};

use super::{CHUNK_BYTES_MAX, LogFiles, is_no_log};

/// The most bytes of marks that are read, each file from its end: a week of one write per second. Older logs count as
/// having no times.
pub(super) const MARKS_BYTES_MAX: u64 = 10 * 1024 * 1024;

impl LogFiles {
    /// Where the lines written since `at_s` begin: file number and offset. They may include lines that are older by
    /// up to ten seconds, and all lines of a file without times. `None` if there are no files.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn since(&self, at_s: u64) -> io::Result<Option<(u64, u64)>> {
        let mut begin = None;
        let mut left = MARKS_BYTES_MAX;
        for index in self.indexes()?.into_iter().rev() {
            let file = match self.open(index) {
                Ok(file) => file,
                Err(error) if is_no_log(&error) => continue,
                Err(error) => return Err(error),
            };
            let about = file.metadata()?;
            if u64::try_from(about.mtime()).is_ok_and(|written_s| written_s < at_s) {
                return Ok(begin.or(Some((index, about.len()))));
            }
            if let Some(offset) = offset_at(&self.marks(index, &mut left)?, at_s) {
                return Ok(Some((index, line_start(&file, offset.min(about.len()))?)));
            }
            begin = Some((index, 0));
        }
        Ok(begin)
    }

    /// Reads the marks of a file; empty if an older supervisor wrote the log. `left` is how many bytes may still be
    /// read.
    pub(super) fn marks(&self, index: u64, left: &mut u64) -> io::Result<Vec<Mark>> {
        let name = format!("{}.{index}{SUFFIX}", self.stem);
        let mut file = match self.open_named(&name) {
            Ok(file) => file,
            Err(error) if is_no_log(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let len = file.metadata()?.len();
        let skipped = len.saturating_sub(*left).next_multiple_of(MARK_LEN as u64);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        let read = file.take(*left).read_to_end(&mut bytes)?;
        *left = left.saturating_sub(read as u64);
        Ok(bytes.chunks_exact(MARK_LEN).filter_map(Mark::from_bytes).collect())
    }
}

/// An offset at or before the bytes written at `at_s` or later; `None` if all marks are later, since earlier bytes
/// may be later too.
fn offset_at(marks: &[Mark], at_s: u64) -> Option<u64> {
    let last = marks.iter().rposition(|mark| mark.at_s <= at_s)?;
    let mark = marks.get(last)?;
    let next = marks.get(last + 1).filter(|_| at_s - mark.at_s >= SPAN_S);
    Some(next.unwrap_or(mark).offset)
}

/// The start of the line that contains `offset`; `offset` itself if the line is very long.
fn line_start(file: &File, offset: u64) -> io::Result<u64> {
    let from = offset.saturating_sub(CHUNK_BYTES_MAX as u64);
    let mut before = vec![0; usize::try_from(offset - from).unwrap_or(CHUNK_BYTES_MAX)];
    let read = file.read_at(&mut before, from)?;
    let end = before.iter().take(read).rposition(|byte| *byte == b'\n');
    Ok(match end {
        Some(end) => from + end as u64 + 1,
        None if from == 0 => 0,
        None => offset,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        path::Path,
        time::{Duration, SystemTime},
    };

    use super::*;
    use crate::logs::Stream;

    /// Writes a log file with its marks, last modified at this second.
    fn write(dir: &Path, index: u64, text: &str, marks: &[(u64, u64)], written_s: u64) {
        let path = dir.join(format!("t.stdout.{index}"));
        std::fs::write(&path, text).unwrap();
        let times = SystemTime::UNIX_EPOCH + Duration::from_secs(written_s);
        File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
        let marks: Vec<u8> = marks
            .iter()
            .flat_map(|(at_s, offset)| Mark { at_s: *at_s, offset: *offset }.to_bytes())
            .collect();
        if !marks.is_empty() {
            std::fs::write(dir.join(format!("t.stdout.{index}.times")), marks).unwrap();
        }
    }

    fn files(dir: &Path) -> LogFiles {
        LogFiles::new(dir.to_owned(), "t", Stream::Stdout)
    }

    #[test]
    fn logs_since_a_time_begin_at_a_mark() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 3, "a\nb\nc\nd\n", &[(100, 0), (105, 2), (140, 4)], 141);
        write(dir.path(), 4, "e\nf\n", &[(150, 0), (200, 2)], 205);
        let files = files(dir.path());
        for (at_s, place) in [
            (50, (3, 0)),
            (100, (3, 0)),
            (104, (3, 0)),
            (105, (3, 2)),
            // Nothing was written from ten seconds after a mark until the next one.
            (114, (3, 2)),
            (115, (3, 4)),
            (141, (3, 4)),
            (142, (4, 0)),
            (160, (4, 2)),
            (205, (4, 2)),
            (206, (4, 4)),
        ] {
            assert_eq!(files.since(at_s).unwrap(), Some(place), "{at_s}");
        }
    }

    #[test]
    fn logs_without_marks_are_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(files(dir.path()).since(1).unwrap(), None);
        write(dir.path(), 0, "a\n", &[], 100);
        write(dir.path(), 1, "b\nc\n", &[], 200);
        // A new supervisor continued in the file of an old one.
        write(dir.path(), 2, "d\ne\n", &[(300, 2)], 301);
        let files = files(dir.path());
        assert_eq!(files.since(150).unwrap(), Some((1, 0)));
        assert_eq!(files.since(250).unwrap(), Some((2, 0)));
        assert_eq!(files.since(300).unwrap(), Some((2, 2)));
    }

    #[test]
    fn a_line_is_not_torn_and_marks_that_lie_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, "long line\nnext\n", &[(100, 4), (101, u64::MAX)], 101);
        let files = files(dir.path());
        assert_eq!(files.since(100).unwrap(), Some((0, 0)));
        assert_eq!(files.since(101).unwrap(), Some((0, 15)));
        let many = [0xff; MARK_LEN + 3];
        std::fs::write(dir.path().join("t.stdout.0.times"), many).unwrap();
        assert_eq!(files.since(101).unwrap(), Some((0, 0)));
        std::fs::remove_file(dir.path().join("t.stdout.0.times")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("t.stdout.0.times")).unwrap();
        assert_eq!(files.since(101).unwrap(), Some((0, 0)));
    }
}
