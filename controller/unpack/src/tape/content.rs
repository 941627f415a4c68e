//! The content of a file in a tar, with zeros for its holes.

use std::io::{self, Read};

/// A part of a file that the tar has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    /// Where it is in the file.
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The content of the current entry.
pub(crate) struct Content<'t, R> {
    reader: &'t mut R,
    /// What is left of the entry in the tar.
    left: &'t mut u64,
    segments: std::slice::Iter<'t, Segment>,
    /// What is left of the current part.
    segment: Segment,
    /// The position in the file, and its end.
    at: u64,
    end: u64,
}

impl<'t, R: Read> Content<'t, R> {
    pub(super) fn new(reader: &'t mut R, left: &'t mut u64, segments: &'t [Segment], end: u64) -> Self {
        let mut segments = segments.iter();
        let segment = segments.next().copied().unwrap_or(Segment { at: end, len: 0 });
        Self { reader, left, segments, segment, at: 0, end }
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.segment.at && self.segment.len == 0 && self.at < self.end {
            self.segment = self.segments.next().copied().unwrap_or(Segment { at: self.end, len: 0 });
        }
        let (is_hole, len) = match self.at < self.segment.at {
            true => (true, self.segment.at.saturating_sub(self.at)),
            false => (false, self.segment.len),
        };
        let len = len.min(self.end.saturating_sub(self.at));
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(buffer.len());
        let Some(part) = buffer.get_mut(..len).filter(|part| !part.is_empty()) else { return Ok(0) };
        if is_hole {
            part.fill(0);
            self.at = self.at.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
            return Ok(len);
        }
        let read = self.reader.read(part)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let taken = u64::try_from(read).unwrap_or(u64::MAX);
        *self.left = self.left.saturating_sub(taken);
        self.segment = Segment {
            at: self.segment.at.saturating_add(taken),
            len: self.segment.len.saturating_sub(taken),
        };
        self.at = self.at.saturating_add(taken);
        Ok(read)
    }
}
