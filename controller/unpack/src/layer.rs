//! Unpacks a layer of an image: in the process, into `tree` beside the list of its marks.
//!
//! In: the bytes of the layer. Out: its files with all that belongs to them, and the digest of the whole tar.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use aws_lc_rs::digest;
use herdlet_base::{
    artifact::checksum::hex,
    safe_fs::{Dir, Rights},
};

use super::{
    Algorithm, LayerOrder,
    error::TreeError,
    marks::{LayerReport, Mark, MarkWriter, Marker, marker},
    read,
    tape::{Entry, Kind, TapeReader},
    tree::{Bounds, Keeping, Tree},
};

/// The layer, in the directory of the process.
pub(super) const TREE: &str = "tree";
/// As the root of a machine.
const ROOT: Rights = Rights::Exact { mode: 0o755, owner: None };

/// Unpacks the layer into `dir`.
///
/// # Errors
/// [`TreeError`].
pub(super) fn unpack(archive: File, order: &LayerOrder, dir: &Dir) -> Result<(), TreeError> {
    let bounds = Bounds { bytes_max: order.bytes_max, entries_max: order.entries_max };
    let root = dir.make(TREE.as_ref(), Rights::Masked { mode: 0o755 })?;
    // Whatever the umask.
    root.set_rights(ROOT)?;
    let mut tree = Tree::new(root, Path::new("").to_owned(), bounds, Keeping::Everything);
    let mut marks = MarkWriter::make(dir)?;
    let reader = read::tar_bytes(archive, order.codec, bounds)?;
    let mut tape = TapeReader::new(Hashing { reader, context: order.algorithm.context() });
    let mut skipped = 0;
    while let Some(entry) = tape.next_entry()? {
        skipped += add(entry, &mut tape, &mut tree, &mut marks)?;
    }
    // The digest covers what follows the last entry, too.
    let mut rest = tape.into_inner();
    io::copy(&mut rest, &mut io::sink())?;
    let bytes = tree.bytes();
    tree.finish()?;
    let digest = format!("{}:{}", order.algorithm.name(), hex(rest.context.finish().as_ref()));
    marks.finish(&LayerReport { digest, bytes, skipped })
}

/// Adds an entry. Returns how many were left out.
fn add(
    entry: Entry,
    tape: &mut TapeReader<impl Read>,
    tree: &mut Tree,
    marks: &mut MarkWriter,
) -> Result<u64, TreeError> {
    match marker(&entry.path)? {
        Some(Marker::Obsolete) => return Ok(0),
        Some(Marker::Whiteout(path)) => marks.add(&Mark::Whiteout(&tree.make_parents(&path)?))?,
        Some(Marker::Opaque(path)) => marks.add(&Mark::Opaque(&tree.make_directory(&path)?))?,
        None => match entry.kind {
            // A container gets its own /dev; other nodes would give it devices that its job does not name.
            Kind::Device | Kind::Unknown => return Ok(1),
            Kind::Fifo => tree.fifo(&entry.path, &read::about(&entry))?,
            Kind::File | Kind::Directory | Kind::Symlink | Kind::HardLink => {
                read::add(entry, &mut tape.content(), tree)?;
            }
        },
    }
    Ok(0)
}

/// Hashes what it reads.
struct Hashing<R> {
    reader: R,
    context: digest::Context,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(buffer)?;
        self.context.update(buffer.get(..len).unwrap_or_default());
        Ok(len)
    }
}

impl Algorithm {
    /// The begin of digests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Starts a computation.
    pub fn context(self) -> digest::Context {
        digest::Context::new(match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        })
    }
}
