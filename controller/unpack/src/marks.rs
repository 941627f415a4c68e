//! What a layer removes from those below it: noted by the unpacking process, and made by the agent, because it needs rights that
//! the process does not have.
//!
//! In: `.wh.NAME` and `.wh..wh..opq` in the layer. Out: character devices 0/0 and `trusted.overlay.opaque`, as overlayfs has them
//! (the kernel's `Documentation/filesystems/overlayfs.rst`). The agent trusts the list as little as the layer: it makes nothing but
//! these marks, in the layer's directories only. Source: the OCI image specification, `layer.md`.

use std::{
    ffi::OsStr,
    fs::File,
    io::{BufWriter, Write as _},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use herdlet_base::safe_fs::{Crossing, Dir, FsError};
use rustix::{
    fs::{FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags},
    io::Errno,
};

use super::{error::TreeError, names::inside_layer};

/// The list, beside the tree.
const LIST: &str = "marks";
/// The largest list. Most layers have a few marks; one of a removed directory hides all that is in it.
pub(super) const LIST_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What an unpacked layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerReport {
    /// The digest of the unpacked tar: `sha256:HEX` or `sha512:HEX`.
    pub digest: String,
    /// The size of its files.
    pub bytes: u64,
    /// The number of device nodes and entries of unknown kinds, which are left out.
    pub skipped: u64,
}

/// One line of the list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark<'m> {
    /// What the layers below have there does not exist.
    Whiteout(&'m Path),
    /// What the layers below have in this directory does not exist.
    Opaque(&'m Path),
}

/// The list being written.
pub(super) struct MarkWriter {
    file: BufWriter<File>,
    left: u64,
}

impl MarkWriter {
    /// Makes the list in `dir`.
    ///
    /// # Errors
    /// If it can't be made.
    pub(super) fn make(dir: &Dir) -> Result<Self, TreeError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, LIST, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| FsError::io("create", dir.path().join(LIST), errno))?;
        Ok(Self { file: BufWriter::new(File::from(file)), left: LIST_BYTES_MAX })
    }

    /// # Errors
    /// If the layer has too many marks, or the disk is full.
    pub(super) fn add(&mut self, mark: &Mark<'_>) -> Result<(), TreeError> {
        match mark {
            Mark::Whiteout(path) => self.line(b'w', path.as_os_str().as_bytes()),
            Mark::Opaque(path) => self.line(b'o', path.as_os_str().as_bytes()),
        }
    }

    /// # Errors
    /// As [`MarkWriter::add`].
    pub(super) fn finish(mut self, report: &LayerReport) -> Result<(), TreeError> {
        self.line(b'b', report.bytes.to_string().as_bytes())?;
        self.line(b's', report.skipped.to_string().as_bytes())?;
        self.line(b'd', report.digest.as_bytes())?;
        Ok(self.file.flush().map_err(|error| FsError::io("write", LIST, error))?)
    }

    fn line(&mut self, tag: u8, text: &[u8]) -> Result<(), TreeError> {
        let len = u64::try_from(text.len()).unwrap_or(u64::MAX).saturating_add(2);
        self.left = self.left.checked_sub(len).ok_or(TreeError::Marks { max: LIST_BYTES_MAX })?;
        let written = [&[tag], text, &[0]].iter().try_for_each(|part| self.file.write_all(part));
        Ok(written.map_err(|error| FsError::io("write", LIST, error))?)
    }
}

/// Makes the marks of the layer in `dir`, and removes their list.
///
/// # Errors
/// If the list is not what the process writes, or a mark can't be made.
pub(super) fn make_all(dir: &Dir, tree: &Dir) -> Result<LayerReport, TreeError> {
    let missing = || FsError::io("read", dir.path().join(LIST), Errno::NOENT);
    let list = dir.read_file(OsStr::new(LIST), LIST_BYTES_MAX)?.ok_or_else(missing)?;
    let mut report = LayerReport { digest: String::new(), bytes: 0, skipped: 0 };
    for line in list.split(|byte| *byte == 0) {
        let Some((tag, text)) = line.split_first() else { continue };
        let path = || inside_layer(Path::new(OsStr::from_bytes(text)));
        match tag {
            b'w' => white_out(tree, &path()?)?,
            b'o' => make_opaque(&tree.open_below(&path()?, Crossing::Nothing)?)?,
            b'b' => report.bytes = number(text)?,
            b's' => report.skipped = number(text)?,
            b'd' => report.digest = String::from_utf8_lossy(text).into_owned(),
            _ => return Err(invalid()),
        }
    }
    dir.unlink(OsStr::new(LIST))?;
    Ok(report)
}

/// A name that the layer has itself hides the one below anyway; only a directory needs a mark, else both would be merged.
fn white_out(tree: &Dir, path: &Path) -> Result<(), TreeError> {
    let name = path.file_name().ok_or_else(|| TreeError::Outside { path: path.to_owned() })?;
    let dir = tree.open_below(path.parent().unwrap_or(Path::new("")), Crossing::Nothing)?;
    let there = dir.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode));
    match there {
        Some(FileType::Directory) => make_opaque(&dir.open_below(Path::new(name), Crossing::Nothing)?),
        Some(_) => Ok(()),
        None => {
            let before = dir.stat()?;
            rustix::fs::mknodat(&dir, name, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(|errno| FsError::io("create the mark", dir.path().join(name), errno))?;
            keep_time(&dir, &before)
        }
    }
}

fn make_opaque(dir: &Dir) -> Result<(), TreeError> {
    let set = rustix::fs::fsetxattr(dir, "trusted.overlay.opaque", b"y", XattrFlags::empty());
    Ok(set.map_err(|errno| FsError::io("set the mark of", dir.path(), errno))?)
}

/// A container sees the time of the layer, not that of the mark.
fn keep_time(dir: &Dir, before: &rustix::fs::Stat) -> Result<(), TreeError> {
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = Timestamps {
        last_access: time(before.st_atime, before.st_atime_nsec.cast_signed()),
        last_modification: time(before.st_mtime, before.st_mtime_nsec.cast_signed()),
    };
    let set = rustix::fs::futimens(dir, &times);
    Ok(set.map_err(|errno| FsError::io("set the time of", dir.path(), errno))?)
}

fn number(text: &[u8]) -> Result<u64, TreeError> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid)
}

fn invalid() -> TreeError {
    std::io::Error::new(std::io::ErrorKind::InvalidData, "the list of marks is invalid").into()
}

/// What a name in a layer marks, if it is no file.
pub(super) enum Marker {
    /// Of the union file system of old Docker versions: without a meaning.
    Obsolete,
    /// This path.
    Whiteout(PathBuf),
    /// This directory.
    Opaque(PathBuf),
}

/// Reads the name of an entry; none if it is a file of the layer.
///
/// # Errors
/// If a mark is for a path outside.
pub(super) fn marker(path: &Path) -> Result<Option<Marker>, TreeError> {
    let is_obsolete = |name: &OsStr| name.as_bytes().starts_with(b".wh..wh.") && name != OPAQUE;
    if path.iter().any(is_obsolete) {
        return Ok(Some(Marker::Obsolete));
    }
    let Some(name) = path.file_name() else { return Ok(None) };
    let parent = path.parent().unwrap_or(Path::new(""));
    if name == OPAQUE {
        return Ok(Some(Marker::Opaque(parent.to_owned())));
    }
    let Some(hidden) = name.as_bytes().strip_prefix(b".wh.") else { return Ok(None) };
    match hidden {
        b"" | b"." | b".." => Err(TreeError::Outside { path: path.to_owned() }),
        hidden => Ok(Some(Marker::Whiteout(parent.join(OsStr::from_bytes(hidden))))),
    }
}

const OPAQUE: &str = ".wh..wh..opq";
