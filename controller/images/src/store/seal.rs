//! The seal of a layer: a digest of all that its tree has, by which damage is found later.
//!
//! In: a tree that nobody changes. Out: a text. It covers names, kinds, modes, owners, times of files, contents, targets of links,
//! and the attributes that layers have.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use herdlet_base::safe_fs::{Crossing, Dir, FsError};
use rustix::{fs::FileType, io::Errno};

use crate::digest::Hasher;

const CHUNK_LEN: usize = 256 * 1024;
/// The largest list of names of attributes, and the largest value, of the kernel.
const ATTRIBUTES_LEN_MAX: usize = 64 * 1024;

/// The begin of seals that have the root of the tree. Layers of earlier releases have seals without it.
const WITH_ROOT: &str = "root+";

/// Computes the seal of a layer's tree.
///
/// # Errors
/// If a part of it can't be read.
pub(super) fn of_layer(tree: &Dir) -> Result<String, FsError> {
    let mut seal = Seal::default();
    seal.root(tree)?;
    Ok(format!("{WITH_ROOT}{}", seal.finish_tree(tree)?))
}

/// Whether a tree is what was sealed.
///
/// # Errors
/// If a part of it can't be read.
pub(super) fn is_of(sealed: &str, tree: &Dir) -> Result<bool, FsError> {
    let found = match sealed.starts_with(WITH_ROOT) {
        true => of_layer(tree)?,
        false => Seal::default().finish_tree(tree)?,
    };
    Ok(found == sealed)
}

pub(super) struct Seal {
    hasher: Hasher,
    chunk: Vec<u8>,
}

impl Default for Seal {
    fn default() -> Self {
        Self { hasher: Hasher::sha256(), chunk: vec![0; CHUNK_LEN] }
    }
}

impl Seal {
    pub(super) fn finish_tree(mut self, tree: &Dir) -> Result<String, FsError> {
        self.directory(tree)?;
        Ok(self.hasher.finish().to_string())
    }

    fn root(&mut self, tree: &Dir) -> Result<(), FsError> {
        let stat = tree.stat()?;
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.number(number.into());
        }
        Ok(())
    }

    /// The unpacking process bounds the depth.
    fn directory(&mut self, dir: &Dir) -> Result<(), FsError> {
        self.attributes(dir.as_fd(), dir.path())?;
        let mut names = dir.names()?;
        names.sort();
        self.number(u64::try_from(names.len()).unwrap_or(u64::MAX));
        for name in names {
            self.entry(dir, &name)?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: &Dir, name: &OsString) -> Result<(), FsError> {
        let gone = || FsError::io("examine", dir.path().join(name), Errno::NOENT);
        let stat = dir.stat_name(name)?.ok_or_else(gone)?;
        self.text(name.as_bytes());
        for number in [stat.st_mode, stat.st_uid, stat.st_gid] {
            self.number(number.into());
        }
        self.number(stat.st_rdev);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.directory(&dir.open_below(Path::new(name), Crossing::Nothing)?),
            FileType::RegularFile => {
                self.number(stat.st_mtime.cast_unsigned());
                self.number(stat.st_mtime_nsec);
                let file = dir.open_file(name)?.ok_or_else(gone)?;
                self.attributes(file.as_fd(), &dir.path().join(name))?;
                self.content(file).map_err(|error| FsError::io("read", dir.path().join(name), error))
            }
            FileType::Symlink => {
                let target = dir.read_link(name)?.ok_or_else(gone)?;
                self.text(target.as_os_str().as_bytes());
                Ok(())
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(()),
        }
    }

    fn content(&mut self, mut file: File) -> std::io::Result<()> {
        let mut len = 0_u64;
        loop {
            let read = file.read(&mut self.chunk)?;
            let Some(part) = self.chunk.get(..read).filter(|part| !part.is_empty()) else { break };
            self.hasher.update(part);
            len = len.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        }
        // Behind the content: a file that is being cut off has no other one's bytes.
        self.number(len);
        Ok(())
    }

    fn attributes(&mut self, file: BorrowedFd<'_>, here: &Path) -> Result<(), FsError> {
        let failed = |errno: Errno| FsError::io("read the attributes of", here, errno);
        // Most files have no attributes.
        if matches!(rustix::fs::flistxattr_query(file), Ok(0) | Err(Errno::OPNOTSUPP)) {
            return Ok(());
        }
        let mut list = vec![0; ATTRIBUTES_LEN_MAX];
        let len = rustix::fs::flistxattr(file, &mut list[..]).map_err(failed)?;
        let mut names: Vec<&[u8]> = list.get(..len).unwrap_or_default().split(|byte| *byte == 0).collect();
        names.retain(|name| is_of_layer(name));
        names.sort_unstable();
        for name in names {
            let mut value = vec![0; ATTRIBUTES_LEN_MAX];
            let len = rustix::fs::fgetxattr(file, OsStr::from_bytes(name), &mut value[..]).map_err(failed)?;
            self.text(name);
            self.text(value.get(..len).unwrap_or_default());
        }
        Ok(())
    }

    fn text(&mut self, text: &[u8]) {
        self.number(u64::try_from(text.len()).unwrap_or(u64::MAX));
        self.hasher.update(text);
    }

    fn number(&mut self, number: u64) {
        self.hasher.update(&number.to_le_bytes());
    }
}

/// Not labels, which the machine may set again.
fn is_of_layer(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name == b"security.capability" || name == b"trusted.overlay.opaque"
}
