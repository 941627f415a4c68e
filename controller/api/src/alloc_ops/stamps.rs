//! Times before the lines of a log, as far as they are known.
//!
//! In: the marks that supervisors write beside log files, and the bytes of a log. Out: the same bytes, each line after its time:
//! that of the last mark before the line, which is at most ten seconds earlier than the write; the present time for what is read
//! as it is written; `-` where an older supervisor wrote no marks.

use std::io;

use herdlet_agent::logs::{Follower, Mark};
use herdlet_api_types::{UnixNanos, rfc3339::rfc3339};
use herdlet_base::clock;

/// The width of `2026-01-02T03:04:05Z`.
const WIDTH: usize = 20;

/// The state between the pieces of a log.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// The file whose marks are loaded, with them.
    marks: Option<(u64, Vec<Mark>)>,
    is_live: bool,
    /// Whether the last piece ended within a line.
    is_within: bool,
}

impl Stamps {
    /// The existing log has been read.
    pub(super) fn go_live(&mut self) {
        self.is_live = true;
    }

    /// Reads the marks of a file, once.
    pub(super) fn load(&mut self, follower: &Follower, index: u64) -> io::Result<()> {
        if !self.is_live && self.marks.as_ref().is_none_or(|(known, _)| *known != index) {
            self.marks = Some((index, follower.marks(index)?));
        }
        Ok(())
    }

    /// The bytes, which begin at `offset` of their file, with a time before each line.
    pub(super) fn stamped(&mut self, bytes: &[u8], offset: u64) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len() * 2);
        let mut at = offset;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.is_within {
                text.extend_from_slice(self.time_at(at).as_bytes());
            }
            text.extend_from_slice(line);
            at += line.len() as u64;
            self.is_within = !line.ends_with(b"\n");
        }
        text
    }

    fn time_at(&self, offset: u64) -> String {
        const SECOND_NS: i64 = 1_000_000_000;
        let known_s = if self.is_live {
            Some(clock::wall_now().0 / SECOND_NS)
        } else {
            let marks = self.marks.as_ref().map(|(_, marks)| marks.as_slice()).unwrap_or_default();
            let mark = marks.iter().rfind(|mark| mark.offset <= offset);
            mark.and_then(|mark| i64::try_from(mark.at_s).ok())
        };
        let time = known_s.and_then(|at_s| rfc3339(UnixNanos(at_s.checked_mul(SECOND_NS)?)));
        format!("{:WIDTH$} ", time.as_deref().unwrap_or("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_time_of_its_preceding_mark() {
        let marks = vec![Mark { at_s: 1_800_000_000, offset: 4 }, Mark { at_s: 1_800_000_010, offset: 12 }];
        let mut stamps = Stamps { marks: Some((0, marks)), ..Stamps::default() };
        let pieces = [("old\none\ntw", 0), ("o\nten\n", 10), ("", 16), ("last", 16)];
        let text: Vec<u8> =
            pieces.iter().flat_map(|(bytes, offset)| stamps.stamped(bytes.as_bytes(), *offset)).collect();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "-                    old\n2027-01-15T08:00:00Z one\n2027-01-15T08:00:00Z two\n\
             2027-01-15T08:00:10Z ten\n2027-01-15T08:00:10Z last"
        );
    }
}
