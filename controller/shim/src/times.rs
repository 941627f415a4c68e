//! Times of log output: beside each log file is a file of marks, each a time and the log's length at that time.
//!
//! In: the time, and the length of a log file. Out: whether a mark is needed, and a mark's bytes. Opens no files.

/// The suffix of a marks file after its log file's name: `web.stdout.3.times`.
pub const SUFFIX: &str = ".times";
/// The size of a mark in bytes: two little-endian 8-byte numbers.
pub const MARK_LEN: usize = 16;
/// Output this many seconds after the last mark gets a new one.
pub const SPAN_S: u64 = 10;
/// After this many bytes since the last mark, the next second gets a new one.
const DENSE_LEN: u64 = 256;

/// Output from `offset` on was written at `at_s` or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Seconds since 1970.
    pub at_s: u64,
    /// In bytes.
    pub offset: u64,
}

impl Mark {
    /// Whether output written now, to a file of `size` bytes, needs a new mark.
    #[must_use]
    pub fn is_over(&self, now_s: u64, size: u64) -> bool {
        // A clock that was set back needs a new one.
        now_s.checked_sub(self.at_s).is_none_or(|passed| {
            passed >= SPAN_S || (passed > 0 && size.saturating_sub(self.offset) >= DENSE_LEN)
        })
    }

    /// Encodes the mark.
    #[must_use]
    pub fn to_bytes(self) -> [u8; MARK_LEN] {
        let mut bytes = [0; MARK_LEN];
        let (at, offset) = bytes.split_at_mut(MARK_LEN / 2);
        at.copy_from_slice(&self.at_s.to_le_bytes());
        offset.copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    /// Decodes a mark; `None` if there are too few bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk()?;
        let offset = rest.first_chunk()?;
        Some(Self { at_s: u64::from_le_bytes(*at), offset: u64::from_le_bytes(*offset) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_stored_and_read() {
        let mark = Mark { at_s: 1_800_000_000, offset: 77 };
        assert_eq!(Mark::from_bytes(&mark.to_bytes()), Some(mark));
        assert_eq!(Mark::from_bytes(&mark.to_bytes()[1..]), None);
    }

    #[test]
    fn much_is_marked_each_second_and_little_every_ten() {
        let mark = Mark { at_s: 100, offset: 1000 };
        for (now_s, size, over) in [
            (100, 1_000_000, false),
            (101, 1255, false),
            (101, 1256, true),
            (109, 1001, false),
            (110, 1001, true),
            (99, 1001, true),
            // The file was truncated.
            (101, 10, false),
        ] {
            assert_eq!(mark.is_over(now_s, size), over, "{now_s} {size}");
        }
    }
}
