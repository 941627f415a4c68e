//! Reads archives from start to end into a tree.
//!
//! In: the bytes of a file, its format. Out: its contents in the tree. The bytes are untrusted: every error here means
//! that the archive is invalid or refused.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use herdlet_base::artifact::format::{Codec, Format};

use super::tree::{About, Bounds, Tree, TreeError};

/// Memory limit for a decompressor: `xz -9` takes 64 MiB, `zstd --ultra` 128 MiB.
const WINDOW_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Limit for skipped data in a tar, besides file contents.
const SKIPPED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Limit for the headers of each entry.
const HEADER_BYTES_MAX: u64 = 8 * 1024;

/// The maximum length of a link in a zip.
const LINK_BYTES_MAX: u64 = 4096;

/// Unpacks a file. `name` is for its only file, if the format has no names.
///
/// # Errors
/// [`TreeError`].
pub(super) fn unpack(
    archive: File,
    format: Format,
    name: &str,
    bounds: Bounds,
    tree: &mut Tree,
) -> Result<(), TreeError> {
    match format {
        Format::Tar(codec) => {
            let beside =
                SKIPPED_BYTES_MAX.saturating_add(bounds.entries_max.saturating_mul(HEADER_BYTES_MAX));
            let bytes_max = bounds.bytes_max.saturating_add(beside);
            let reader = Bounded { reader: decoder(archive, codec)?, left: bytes_max };
            tar(reader, bounds, tree)
        }
        Format::Zip => zip(archive, bounds, tree),
        Format::One(codec) => {
            tree.file(Path::new(name), About::of(0o644), &mut decoder(archive, codec)?, bounds)
        }
    }
}

fn decoder(archive: File, codec: Codec) -> Result<Box<dyn Read>, TreeError> {
    let reader = BufReader::with_capacity(128 * 1024, archive);
    Ok(match codec {
        Codec::Plain => Box::new(reader),
        Codec::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(reader)),
        Codec::Bzip2 => Box::new(bzip2::bufread::MultiBzDecoder::new(reader)),
        Codec::Xz => {
            let kib_max = u32::try_from(WINDOW_BYTES_MAX / 1024).unwrap_or(u32::MAX);
            Box::new(lzma_rust2::XzReader::new_mem_limit(reader, true, kib_max))
        }
        Codec::Zstd => Box::new(Frames { frame: Some(frame(reader)?) }),
    })
}

fn tar(reader: impl Read, bounds: Bounds, tree: &mut Tree) -> Result<(), TreeError> {
    let mut archive = tar::Archive::new(reader);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            continue;
        }
        let path = entry.path()?.into_owned();
        let header = entry.header();
        let about = About { mode: header.mode()?, owner: owner(header) };
        let target = || -> Result<PathBuf, TreeError> {
            let missing = || io::Error::new(io::ErrorKind::InvalidData, "a link has no target");
            Ok(entry.link_name()?.ok_or_else(missing)?.into_owned())
        };
        if kind.is_dir() {
            tree.directory(&path, about, bounds)?;
        } else if kind.is_file() || kind.is_contiguous() || kind.is_gnu_sparse() {
            tree.file(&path, about, &mut entry, bounds)?;
        } else if kind.is_symlink() {
            tree.symlink(&path, &target()?, about.owner, bounds)?;
        } else if kind.is_hard_link() {
            tree.hard_link(&path, &target()?, bounds)?;
        } else {
            let kind = match (kind.is_fifo(), kind.is_block_special() || kind.is_character_special()) {
                (true, _) => "a fifo",
                (_, true) => "a device",
                (false, false) => "of an unknown kind",
            };
            return Err(TreeError::Kind { path, kind });
        }
    }
    Ok(())
}

/// The owner; `None` if the archive has none.
fn owner(header: &tar::Header) -> Option<(u32, u32)> {
    let id = |id: io::Result<u64>| u32::try_from(id.ok()?).ok().filter(|id| *id != u32::MAX);
    Some((id(header.uid())?, id(header.gid())?))
}

fn zip(archive: File, bounds: Bounds, tree: &mut Tree) -> Result<(), TreeError> {
    let mut archive = zip::ZipArchive::new(BufReader::new(archive)).map_err(io::Error::from)?;
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).map_err(io::Error::from)?;
        let path = PathBuf::from(OsStr::from_bytes(file.name_raw()));
        let kind = file.unix_mode().map(|mode| mode & 0o170_000).unwrap_or_default();
        let mode = file.unix_mode().map(|mode| mode & 0o777).filter(|mode| *mode != 0);
        if file.is_dir() {
            tree.directory(&path, About::of(mode.unwrap_or(0o755)), bounds)?;
        } else if file.is_symlink() {
            let mut target = Vec::new();
            file.by_ref().take(LINK_BYTES_MAX).read_to_end(&mut target)?;
            tree.symlink(&path, Path::new(OsStr::from_bytes(&target)), None, bounds)?;
        } else if matches!(kind, 0 | 0o100_000) {
            tree.file(&path, About::of(mode.unwrap_or(0o644)), &mut file, bounds)?;
        } else {
            return Err(TreeError::Kind { path, kind: "neither a file, a directory nor a link" });
        }
    }
    Ok(())
}

/// Fails after a given number of bytes.
struct Bounded<R> {
    reader: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(buffer)?;
        let left = self.left.checked_sub(u64::try_from(len).unwrap_or(u64::MAX));
        self.left = left.ok_or_else(|| io::Error::other("it unpacks to more bytes than allowed"))?;
        Ok(len)
    }
}

type Frame<R> = ruzstd::decoding::StreamingDecoder<R, ruzstd::decoding::FrameDecoder>;

/// A zstd file is a sequence of frames, some of them skippable.
struct Frames<R: Read> {
    frame: Option<Frame<R>>,
}

fn frame<R: Read>(reader: R) -> io::Result<Frame<R>> {
    Frame::new_with_max_window_size(reader, WINDOW_BYTES_MAX).map_err(io::Error::other)
}

/// Magic number of skippable frames, from its second byte; the first is 0x50 to 0x5F (RFC 8878 §3.1.2).
const SKIPPED: [u8; 3] = [0x2A, 0x4D, 0x18];

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(current) = &mut self.frame {
            let len = current.read(buffer)?;
            if len > 0 || buffer.is_empty() {
                return Ok(len);
            }
            let Some(ended) = self.frame.take() else { break };
            let mut rest = ended.into_inner();
            self.frame = match skip_frames(&mut rest)? {
                true => Some(frame(rest)?),
                false => None,
            };
        }
        Ok(0)
    }
}

/// Skips frames without data; returns whether anything follows.
fn skip_frames(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let ahead = reader.fill_buf()?;
        if ahead.is_empty() {
            return Ok(false);
        }
        if !(ahead.first().is_some_and(|first| first & 0xF0 == 0x50) && ahead.get(1..4) == Some(&SKIPPED[..]))
        {
            return Ok(true);
        }
        let mut header = [0; 8];
        reader.read_exact(&mut header)?;
        let [.., a, b, c, d] = header;
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        io::copy(&mut reader.by_ref().take(len), &mut io::sink())?;
    }
}

/// Rewinds the file, which may have been read from.
///
/// # Errors
/// If it fails.
pub(super) fn rewound(mut archive: File) -> io::Result<File> {
    archive.rewind()?;
    Ok(archive)
}
