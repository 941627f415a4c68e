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

use super::{
    error::TreeError,
    tape::{Entry, Kind, TapeReader},
    tree::{About, Bounds, Tree},
};

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
            let mut tape = TapeReader::new(tar_bytes(archive, codec, bounds)?);
            while let Some(entry) = tape.next_entry()? {
                add(entry, &mut tape.content(), tree)?;
            }
            Ok(())
        }
        Format::Zip => zip(archive, tree),
        Format::One(codec) => tree.file(Path::new(name), &About::of(0o644), &mut decoder(archive, codec)?),
    }
}

/// The bytes of a tar, and not many more than its files may have.
///
/// # Errors
/// If they can't be read.
pub(super) fn tar_bytes(archive: File, codec: Codec, bounds: Bounds) -> Result<impl Read, TreeError> {
    let beside = SKIPPED_BYTES_MAX.saturating_add(bounds.entries_max.saturating_mul(HEADER_BYTES_MAX));
    Ok(Bounded { reader: decoder(archive, codec)?, left: bounds.bytes_max.saturating_add(beside) })
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

/// Adds an entry to the tree.
///
/// # Errors
/// [`TreeError`].
pub(super) fn add(entry: Entry, content: &mut impl Read, tree: &mut Tree) -> Result<(), TreeError> {
    let about = about(&entry);
    let Entry { path, target, kind, .. } = entry;
    let other = |kind| Err(TreeError::Kind { path: path.clone(), kind });
    match kind {
        Kind::Directory => tree.directory(&path, about),
        Kind::File => tree.file(&path, &about, content),
        Kind::Symlink | Kind::HardLink if target.as_os_str().is_empty() => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "a link has no target").into())
        }
        Kind::Symlink => tree.symlink(&path, &target, &about),
        Kind::HardLink => tree.hard_link(&path, &target),
        Kind::Fifo => other("a fifo"),
        Kind::Device => other("a device"),
        Kind::Unknown => other("of an unknown kind"),
    }
}

pub(super) fn about(entry: &Entry) -> About {
    About {
        mode: entry.mode,
        owner: entry.owner,
        modified_at: entry.modified_at,
        attributes: entry.attributes.clone(),
    }
}

fn zip(archive: File, tree: &mut Tree) -> Result<(), TreeError> {
    let mut archive = zip::ZipArchive::new(BufReader::new(archive)).map_err(io::Error::from)?;
    for index in 0..archive.len() {
        let mut file = archive.by_index(index).map_err(io::Error::from)?;
        let path = PathBuf::from(OsStr::from_bytes(file.name_raw()));
        let kind = file.unix_mode().map(|mode| mode & 0o170_000).unwrap_or_default();
        let mode = file.unix_mode().map(|mode| mode & 0o777).filter(|mode| *mode != 0);
        if file.is_dir() {
            tree.directory(&path, About::of(mode.unwrap_or(0o755)))?;
        } else if file.is_symlink() {
            let mut target = Vec::new();
            file.by_ref().take(LINK_BYTES_MAX).read_to_end(&mut target)?;
            tree.symlink(&path, Path::new(OsStr::from_bytes(&target)), &About::default())?;
        } else if matches!(kind, 0 | 0o100_000) {
            tree.file(&path, &About::of(mode.unwrap_or(0o644)), &mut file)?;
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
