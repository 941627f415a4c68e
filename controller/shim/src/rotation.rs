//! Rules for rotated log files: names, and where to split the stream between files.
//!
//! In: names in a directory, sizes, bytes to write. Out: indexes and decisions. Opens no files. The names and the rule
//! of the last 32 KiB are Nomad's (`client/lib/fifo`, `client/logmon/logging/rotator.go`), so that its readers work.
//!
//! The task can write to the directory too, and create files with any index. The log's files are identified by the
//! marks that the supervisor writes beside them ([`crate::times`]), and by consecutive indexes.

use crate::spec::STEM_LEN_MAX;
use crate::times::SUFFIX;
use core::ffi::CStr;

/// The highest index in use. A task can create any name in its log directory; higher indexes are never ours.
pub const INDEX_MAX: u32 = 999_999_999;

/// Distance from the limit, in bytes, within which a file is ended at a line end instead of being filled completely.
const WINDOW_LEN: usize = 32 * 1024;

/// A larger difference separates two logs: files are created and removed one by one, so the indexes of a log stay close
/// together.
const GAP_MAX: u32 = 1024;
/// Limits for the series of indexes, the gaps in each, and the files without marks on either side: a task can create any
/// number of names, and all of them are listed at most about a hundred times.
const SERIES_MAX: u32 = 4;
const GAPS_MAX: u32 = 8;
const UNMARKED_MAX: u32 = 64;

/// A name in the log directory that belongs to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The name of a log file, with its index.
    Log(u32),
    /// The name of a marks file, with the index of its log file.
    Marks(u32),
}

impl Name {
    /// Parses a name for the stream with this stem.
    #[must_use]
    pub fn of(name: &[u8], stem: &[u8]) -> Option<Self> {
        match name.strip_suffix(SUFFIX.as_bytes()) {
            Some(log) => index_of(log, stem).map(Self::Marks),
            None => index_of(name, stem).map(Self::Log),
        }
    }

    fn log(self) -> Option<u32> {
        match self {
            Self::Log(index) => Some(index),
            Self::Marks(_) => None,
        }
    }

    fn marks(self) -> Option<u32> {
        match self {
            Self::Marks(index) => Some(index),
            Self::Log(_) => None,
        }
    }
}

/// The oldest and the newest index of a stream's own files; others were created by somebody else.
///
/// `each` visits all names, in any order, and is called several times. Files with marks belong to the log; if they form
/// several series, the longest counts. Consecutive files without marks on either side belong to it too, because marks
/// can't always be stored. Without any marks, an older supervisor wrote the log: then the longest series of files
/// counts, the lowest of several.
///
/// # Errors
/// The errors of `each`.
pub fn own<E>(mut each: impl FnMut(&mut dyn FnMut(Name)) -> Result<(), E>) -> Result<Option<(u32, u32)>, E> {
    if let Some((mut first, mut last)) = longest(&mut each, Name::marks)? {
        for _ in 0..UNMARKED_MAX {
            let (below, above) = (first.checked_sub(1), last.checked_add(1));
            let (before, after) = (first, last);
            each(&mut |name| {
                if name.log().is_some_and(|log| Some(log) == below) {
                    first = before - 1;
                } else if name.log().is_some_and(|log| Some(log) == above) {
                    last = after + 1;
                }
            })?;
            if (first, last) == (before, after) {
                break;
            }
        }
        return Ok(Some((first, last)));
    }
    longest(&mut each, Name::log)
}

/// The series with the most indexes, the lowest of several; `None` if there is no index.
fn longest<E>(
    each: &mut impl FnMut(&mut dyn FnMut(Name)) -> Result<(), E>,
    index_of: fn(Name) -> Option<u32>,
) -> Result<Option<(u32, u32)>, E> {
    let mut best: Option<(u32, u32, u32)> = None;
    let mut from = 0;
    for _ in 0..SERIES_MAX {
        let Some(first) = lowest(each, index_of, from)? else { break };
        let mut last = first;
        for _ in 0..GAPS_MAX {
            let within = last..=last.saturating_add(GAP_MAX);
            let before = last;
            each(&mut |name| {
                if let Some(index) = index_of(name).filter(|index| within.contains(index)) {
                    last = last.max(index);
                }
            })?;
            if last == before {
                break;
            }
        }
        let mut count = 0_u32;
        each(&mut |name| {
            count += u32::from(index_of(name).is_some_and(|index| (first..=last).contains(&index)))
        })?;
        if best.is_none_or(|(_, _, most)| count > most) {
            best = Some((first, last, count));
        }
        from = last.saturating_add(1);
    }
    Ok(best.map(|(first, last, _)| (first, last)))
}

fn lowest<E>(
    each: &mut impl FnMut(&mut dyn FnMut(Name)) -> Result<(), E>,
    index_of: fn(Name) -> Option<u32>,
    from: u32,
) -> Result<Option<u32>, E> {
    let mut lowest: Option<u32> = None;
    each(&mut |name| {
        if let Some(index) = index_of(name).filter(|index| *index >= from) {
            lowest = Some(lowest.map_or(index, |lowest| lowest.min(index)));
        }
    })?;
    Ok(lowest)
}

/// Instruction for the next bytes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Write this many bytes and keep the file.
    Write(usize),
    /// Write this many bytes (possibly none), then continue in the next file.
    WriteAndRotate(usize),
}

/// Decides how much of `data` goes into a file that has `size` of at most `size_max` bytes.
///
/// Never exceeds `size_max`. Lines shorter than the window stay whole; an empty file always takes some bytes.
#[must_use]
pub fn cut(data: &[u8], size: u64, size_max: u64) -> Cut {
    if fits_whatever_it_is(data.len(), size, size_max) {
        return Cut::Write(data.len());
    }
    let room = room(size, size_max);
    let window = window(size_max);
    let reach = data.get(..room).unwrap_or(data);
    let fits = reach.len() == data.len();
    if fits && data.ends_with(b"\n") {
        return Cut::Write(data.len());
    }
    let line_end = reach.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if line_end > 0 && line_end + window >= room {
        Cut::WriteAndRotate(line_end)
    } else if fits {
        Cut::Write(data.len())
    } else if size == 0 || room > window {
        // A line too long to be kept whole.
        Cut::WriteAndRotate(room)
    } else {
        Cut::WriteAndRotate(0)
    }
}

/// Whether this many bytes fit, whatever their content: the file's limit is far enough away.
#[must_use]
pub fn fits_whatever_it_is(len: usize, size: u64, size_max: u64) -> bool {
    room(size, size_max).checked_sub(len).is_some_and(|left| left > window(size_max))
}

fn room(size: u64, size_max: u64) -> usize {
    usize::try_from(size_max.saturating_sub(size)).unwrap_or(usize::MAX)
}

fn window(size_max: u64) -> usize {
    usize::try_from(size_max / 8).unwrap_or(usize::MAX).min(WINDOW_LEN)
}

/// The index of a log file with this stem: `web.stdout.3` has index 3.
#[must_use]
pub fn index_of(name: &[u8], stem: &[u8]) -> Option<u32> {
    let digits = name.strip_prefix(stem)?.strip_prefix(b".")?;
    if digits.is_empty() || digits.len() > 9 || (digits[0] == b'0' && digits.len() > 1) {
        return None;
    }
    let mut index: u32 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        index = index * 10 + u32::from(digit - b'0');
    }
    Some(index)
}

/// A short NUL-terminated string without an allocator; longer text is truncated.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    bytes: [u8; TEXT_LEN],
    len: usize,
}

const TEXT_LEN: usize = STEM_LEN_MAX + 24;

impl Text {
    /// An empty string.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; TEXT_LEN], len: 0 }
    }

    /// Appends `more`.
    #[must_use]
    pub fn with(mut self, more: &[u8]) -> Self {
        for byte in more {
            if self.len + 1 < TEXT_LEN && *byte != 0 {
                self.bytes[self.len] = *byte;
                self.len += 1;
            }
        }
        self
    }

    /// Appends a decimal number.
    #[must_use]
    pub fn with_number(self, mut number: u64) -> Self {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.with(&digits[at..])
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// As a C string.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Writes `data` in `chunk` sized pieces; returns the files' contents.
    fn rotate(data: &[u8], chunk: usize, size_max: u64) -> Vec<Vec<u8>> {
        let mut files = vec![Vec::new()];
        for mut piece in data.chunks(chunk) {
            while !piece.is_empty() {
                let at = files.len() - 1;
                let (len, next) = match cut(piece, files[at].len() as u64, size_max) {
                    Cut::Write(len) => (len, false),
                    Cut::WriteAndRotate(len) => (len, true),
                };
                assert!(len > 0 || (next && !files[at].is_empty()), "no progress");
                files[at].extend_from_slice(&piece[..len]);
                assert!(files[at].len() as u64 <= size_max);
                if next {
                    files.push(Vec::new());
                }
                piece = &piece[len..];
            }
        }
        assert_eq!(files.concat(), data, "nothing lost, nothing doubled");
        files
    }

    #[test]
    fn short_lines_fill_the_files_and_stay_whole() {
        let mut data = Vec::new();
        let mut n = 0_u32;
        while data.len() < 5_500_000 {
            data.extend_from_slice(format!("line number {n} of the vector\n").as_bytes());
            n += 1;
        }
        for chunk in [37, 4096, 65_536, 262_144] {
            let files = rotate(&data, chunk, MIB);
            assert_eq!(files.len(), 6, "chunk {chunk}");
            for file in &files[..5] {
                assert!(file.ends_with(b"\n"));
                assert!(file.len() as u64 >= MIB - 40_000, "{} bytes", file.len());
            }
        }
    }

    #[test]
    fn a_stream_without_line_ends_is_cut_where_it_must_be() {
        let data = vec![b'x'; 3_000_000];
        for chunk in [1000, 65_536, 1_000_000] {
            let files = rotate(&data, chunk, MIB);
            assert!(files.len() <= 4, "chunk {chunk}: {} files", files.len());
        }
        rotate(&data[..10_000], 300, 100);
        rotate(&data[..1000], 300, 1);
    }

    #[test]
    fn a_line_that_fits_into_a_file_is_moved_to_the_next_one() {
        let mut data = vec![b'x'; 9_990];
        data.push(b'\n');
        data.extend_from_slice(&[b'y'; 500]);
        data.push(b'\n');
        let files = rotate(&data, data.len(), 10_000);
        assert_eq!(files.len(), 2);
        assert_eq!((files[0].len(), files[1].len()), (9_991, 501));
    }

    #[test]
    fn only_our_own_names_count() {
        assert_eq!(index_of(b"web.stdout.0", b"web.stdout"), Some(0));
        assert_eq!(index_of(b"web.stdout.12", b"web.stdout"), Some(12));
        assert_eq!(index_of(b"web.stdout.999999999", b"web.stdout"), Some(INDEX_MAX));
        for name in
            ["web.stdout", "web.stdout.", "web.stdout.01", "web.stdout.x", "web.stderr.1", "web.stdout.-1"]
        {
            assert_eq!(index_of(name.as_bytes(), b"web.stdout"), None, "{name}");
        }
        assert_eq!(index_of(b"web.stdout.1000000000", b"web.stdout"), None);
    }

    #[test]
    fn planted_log_names_are_not_log_files() {
        use Name::{Log, Marks};
        let written = |indexes: core::ops::RangeInclusive<u32>| {
            indexes.flat_map(|index| [Log(index), Marks(index)]).collect::<Vec<_>>()
        };
        for (names, expected) in [
            (vec![], None),
            (written(0..=0), Some((0, 0))),
            (written(3..=12), Some((3, 12))),
            // A number above all others, or below them.
            ([written(0..=0), vec![Log(999_999)]].concat(), Some((0, 0))),
            ([written(0..=0), vec![Log(7)]].concat(), Some((0, 0))),
            ([written(100..=109), vec![Log(0)]].concat(), Some((100, 109))),
            (
                [written(5_000..=5_009), written(0..=0), written(999_999..=999_999)].concat(),
                Some((5_000, 5_009)),
            ),
            ([written(0..=0), written(INDEX_MAX..=INDEX_MAX)].concat(), Some((0, 0))),
            // Files whose marks could not be stored, and files of an older supervisor.
            ([written(3..=4), vec![Log(5), Log(6), Log(2), Log(8)]].concat(), Some((2, 6))),
            // With a removed file.
            ([written(3..=4), written(6..=7)].concat(), Some((3, 7))),
            (vec![Log(4), Log(5), Log(6), Log(999_999)], Some((4, 6))),
            (vec![Log(0), Log(999_999)], Some((0, 0))),
            (vec![Log(0), Log(5_000), Log(5_001)], Some((5_000, 5_001))),
        ] {
            for names in [names.clone(), names.iter().rev().copied().collect()] {
                let found = own(|visit: &mut dyn FnMut(Name)| {
                    names.iter().for_each(|name| visit(*name));
                    Ok::<(), ()>(())
                });
                assert_eq!(found, Ok(expected), "{names:?}");
            }
        }
        assert_eq!(Name::of(b"t.stdout.3", b"t.stdout"), Some(Log(3)));
        assert_eq!(Name::of(b"t.stdout.3.times", b"t.stdout"), Some(Marks(3)));
        assert_eq!(Name::of(b"t.stdout.times", b"t.stdout"), None);
    }

    #[test]
    fn texts_are_put_together_and_cut() {
        let text = Text::new().with(b"web.stdout.").with_number(120);
        assert_eq!(text.as_c_str(), c"web.stdout.120");
        assert_eq!(Text::new().with_number(0).as_bytes(), b"0");
        let long = Text::new().with(&[b'x'; 1000]);
        assert_eq!(long.as_bytes().len(), TEXT_LEN - 1);
    }
}
