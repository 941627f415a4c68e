//! Reads a tar from start to end: the formats of POSIX and GNU, with long names, extended headers and sparse files.
//!
//! In: untrusted bytes. Out: entries with the parts of a file that they describe. The crate `tar` reads fields of headers; it splits
//! extended headers at line ends, which binary values contain, so entries are read here. Where programs differ, this reader does
//! what Go's `archive/tar` does, with which images are made and checked elsewhere. Sources: POSIX.1-2017, `pax`; GNU tar's manual,
//! "Basic Tar Format".
//!
//! - [`records`]: extended headers. [`content`]: the content of a file, with its holes.

mod content;
mod records;

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

use self::{
    content::{Content, Segment},
    records::Records,
};

const BLOCK_LEN: u64 = 512;
/// The largest extended header or long name. Go refuses more than 1 MiB, too.
const EXTENSION_BYTES_MAX: u64 = 1024 * 1024;
/// The largest number of parts of a sparse file.
const SEGMENTS_MAX: usize = 65_536;

/// A tar.
pub(crate) struct TapeReader<R> {
    reader: R,
    /// What follows in the current entry.
    segments: Vec<Segment>,
    logical_len: u64,
    /// What is left of the current entry in the tar, with the padding.
    left: u64,
}

/// An entry without its content.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// Of a link.
    pub(crate) target: PathBuf,
    pub(crate) mode: u32,
    /// None if it has none.
    pub(crate) owner: Option<(u32, u32)>,
    /// Seconds and nanoseconds.
    pub(crate) modified_at: Option<(i64, u32)>,
    /// Extended attributes.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    Device,
    Unknown,
}

/// What precedes an entry.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    records: Records,
}

impl<R: Read> TapeReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, segments: Vec::new(), logical_len: 0, left: 0 }
    }

    /// The next entry; none at the end. What was not read of the entry before is skipped.
    ///
    /// # Errors
    /// If the tar is invalid or ends early.
    pub(crate) fn next_entry(&mut self) -> io::Result<Option<Entry>> {
        let mut extension = Extension::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            if kind.is_pax_global_extensions() {
                self.begin(header.entry_size()?)?;
            } else if kind.is_pax_local_extensions() {
                extension.records = Records::parse(&self.small_content(&header)?)?;
            } else if kind.is_gnu_longname() {
                extension.path = Some(until_zero(self.small_content(&header)?));
            } else if kind.is_gnu_longlink() {
                extension.target = Some(until_zero(self.small_content(&header)?));
            } else {
                return self.entry(&header, extension).map(Some);
            }
        }
    }

    /// The content of the current entry.
    pub(crate) fn content(&mut self) -> Content<'_, R> {
        Content::new(&mut self.reader, &mut self.left, &self.segments, self.logical_len)
    }

    /// The reader behind the last entry that was read.
    pub(crate) fn into_inner(self) -> R {
        self.reader
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.reader).take(self.left), &mut io::sink())?;
        // The last entry may lack its padding.
        match self.left.saturating_sub(skipped) < BLOCK_LEN {
            true => self.left = 0,
            false => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }

    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        if !read_block(&mut self.reader, block)? {
            return Ok(None);
        }
        if is_zero(block) {
            // Two blocks of zeros are the end, or one if nothing follows.
            return match !read_block(&mut self.reader, block)? || is_zero(block) {
                true => Ok(None),
                false => Err(invalid("something follows a block of zeros")),
            };
        }
        let sum = |(at, byte): (usize, &u8)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte });
        if header.as_bytes().iter().enumerate().map(sum).sum::<u32>() != header.cksum()? {
            return Err(invalid("a header has a wrong checksum"));
        }
        Ok(Some(header))
    }

    /// Begins an entry with this many bytes in the tar.
    fn begin(&mut self, stored: u64) -> io::Result<()> {
        let padded = stored.checked_next_multiple_of(BLOCK_LEN);
        self.left = padded.ok_or_else(|| invalid("an entry is too large"))?;
        self.segments.clear();
        self.segments.push(Segment { at: 0, len: stored });
        self.logical_len = stored;
        Ok(())
    }

    /// The content of an entry that describes the next one.
    fn small_content(&mut self, header: &Header) -> io::Result<Vec<u8>> {
        let len = header.entry_size()?;
        if len > EXTENSION_BYTES_MAX {
            return Err(invalid("an extended header is too large"));
        }
        self.begin(len)?;
        let mut content = Vec::new();
        self.content().read_to_end(&mut content)?;
        Ok(content)
    }

    fn entry(&mut self, header: &Header, extension: Extension) -> io::Result<Entry> {
        let Extension { path, target, records } = extension;
        // As in Go, GNU's long names precede those of extended headers.
        let path = path
            .filter(|path| !path.is_empty())
            .or(records.path)
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let own_target = || header.link_name_bytes().map(std::borrow::Cow::into_owned);
        let target = target
            .filter(|target| !target.is_empty())
            .or(records.target)
            .or_else(own_target)
            .unwrap_or_default();
        let kind = kind(header.entry_type(), &path);
        // A directory of the old format is a file whose name ends with a slash.
        let has_content = matches!(kind, Kind::File | Kind::Unknown) || header.entry_type().is_file();
        let stored = records.size.map_or_else(|| header.entry_size(), Ok)?;
        self.begin(if has_content { stored } else { 0 })?;
        if header.entry_type().is_gnu_sparse() {
            self.read_sparse_map(header, stored)?;
        }
        let id = |recorded: Option<u64>, own: io::Result<u64>| {
            u32::try_from(recorded.or(own.ok())?).ok().filter(|id| *id != u32::MAX)
        };
        let owner = id(records.uid, header.uid()).zip(id(records.gid, header.gid()));
        let own_time = header.mtime().ok().and_then(|seconds| Some((i64::try_from(seconds).ok()?, 0)));
        Ok(Entry {
            path: to_path(&path),
            kind,
            target: to_path(&target),
            mode: header.mode()?,
            owner,
            modified_at: records.modified_at.or(own_time),
            attributes: records.attributes,
        })
    }

    /// The map of GNU's old sparse format: in the header, and in blocks behind it that are no part of the size.
    fn read_sparse_map(&mut self, header: &Header, stored: u64) -> io::Result<()> {
        let gnu = header.as_gnu().ok_or_else(|| invalid("a sparse file has no GNU header"))?;
        self.segments.clear();
        self.add_segments(&gnu.sparse)?;
        let mut extended = gnu.is_extended();
        while extended {
            let mut more = GnuExtSparseHeader::new();
            self.reader.read_exact(more.as_mut_bytes())?;
            self.add_segments(&more.sparse)?;
            extended = more.is_extended();
        }
        self.logical_len = gnu.real_size()?;
        let mut end = 0;
        for Segment { at, len } in &self.segments {
            if *at < end {
                return Err(invalid("the map of a sparse file is not in order"));
            }
            end = at.checked_add(*len).ok_or_else(|| invalid("a sparse file is too large"))?;
        }
        let sum = self.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.len));
        if sum != stored || end > self.logical_len {
            return Err(invalid("the map of a sparse file does not fit its size"));
        }
        Ok(())
    }

    fn add_segments(&mut self, entries: &[GnuSparseHeader]) -> io::Result<()> {
        for entry in entries.iter().filter(|entry| !entry.is_empty()) {
            if self.segments.len() >= SEGMENTS_MAX {
                return Err(invalid("a sparse file has too many parts"));
            }
            self.segments.push(Segment { at: entry.offset()?, len: entry.length()? });
        }
        Ok(())
    }
}

/// What an entry is. Old programs mark a directory by a slash only.
fn kind(entry_type: EntryType, path: &[u8]) -> Kind {
    // The type cannot be matched: it is open to further ones.
    let known = [
        (entry_type.is_file() && path.ends_with(b"/"), Kind::Directory),
        (entry_type.is_file() || entry_type.is_contiguous() || entry_type.is_gnu_sparse(), Kind::File),
        (entry_type.is_dir(), Kind::Directory),
        (entry_type.is_symlink(), Kind::Symlink),
        (entry_type.is_hard_link(), Kind::HardLink),
        (entry_type.is_fifo(), Kind::Fifo),
        (entry_type.is_character_special() || entry_type.is_block_special(), Kind::Device),
    ];
    known.into_iter().find_map(|(is_it, kind)| is_it.then_some(kind)).unwrap_or(Kind::Unknown)
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn to_path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(len);
    bytes
}

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

/// Reads a block; false at the end.
fn read_block(reader: &mut impl Read, block: &mut [u8]) -> io::Result<bool> {
    match read_full(reader, block)? {
        0 => Ok(false),
        len if len < block.len() => Err(io::ErrorKind::UnexpectedEof.into()),
        _full => Ok(true),
    }
}

/// Reads until the buffer is full or the reader ends.
fn read_full(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = buffer.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

#[cfg(test)]
mod tests;
