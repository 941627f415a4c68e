//! Claims on disk: a directory for each use of a volume by an allocation, with the volume's id for calls that undo it.
//!
//! In: claims. Out: directories created, found and removed. All functions block.

use std::{ffi::OsStr, path::Path};

use herdlet_base::safe_fs::{Crossing, Dir, FsError, Outlives, Rights};

use super::{
    VolumeError,
    paths::{self, CLAIMS, PluginRoot, STAGING, TARGET},
};
use crate::capability::Usage;

/// The use of a volume by an allocation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    pub alloc: String,
    pub namespace: String,
    /// The volume's name, not the id that the plugin has given it.
    pub volume: String,
    pub usage: Usage,
}

/// The claims of one plugin id.
pub(super) struct Claims<'r> {
    root: &'r PluginRoot,
}

/// A claim that was begun.
pub(super) struct FoundClaim {
    /// `None`: no call was made for it.
    pub(super) volume_id: Option<String>,
}

/// Name of the file with the id that the plugin has given the volume.
const VOLUME_ID: &str = "volume-id";

/// The specification limits ids to 128 bytes; plugins exist that exceed it.
const VOLUME_ID_BYTES_MAX: usize = 4096;

/// More than the allocations of one machine. A plugin can write to the directory.
const ENTRIES_MAX: usize = 2048;

/// Of all directories: only the agent and plugins may enter.
const PRIVATE: Rights = Rights::Exact { mode: 0o700, owner: None };

const PRIVATE_FILE: Rights = Rights::Exact { mode: 0o600, owner: None };

impl<'r> Claims<'r> {
    pub(super) fn new(root: &'r PluginRoot) -> Self {
        Self { root }
    }

    /// Records a claim, before any call for it.
    pub(super) fn begin(&self, claim: &Claim, volume_id: &str) -> Result<(), VolumeError> {
        if volume_id.len() > VOLUME_ID_BYTES_MAX {
            return Err(VolumeError::LongId {
                volume: claim.volume.clone(),
                bytes: volume_id.len(),
                bytes_max: VOLUME_ID_BYTES_MAX,
            });
        }
        let dir = self.open()?.make_all(&paths::directory(claim), PRIVATE)?;
        let known = read_id(&dir, VOLUME_ID)?;
        match known {
            Some(known) if known == volume_id => Ok(()),
            None => Ok(write_id(&dir, VOLUME_ID, volume_id)?),
            found => Err(other_volume(volume_id, found, dir.path())),
        }
    }

    pub(super) fn find(&self, claim: &Claim) -> Result<Option<FoundClaim>, VolumeError> {
        let Some(dir) = self.below(&paths::directory(claim))? else { return Ok(None) };
        Ok(Some(FoundClaim { volume_id: read_id(&dir, VOLUME_ID)? }))
    }

    /// Creates the directory to stage at. Returns whether the volume is staged there. The volume's id is recorded beside
    /// it before the first call.
    pub(super) fn prepare_staging(&self, claim: &Claim, volume_id: &str) -> Result<bool, VolumeError> {
        let path = self.root.staging(claim);
        let is_staged = self.root.is_mounted(&path).map_err(VolumeError::Table)?;
        let root = self.open()?;
        let parent = root.make_all(&paths::staging_parent(claim), PRIVATE)?;
        let record = paths::staging_record(claim);
        match read_id(&parent, &record)? {
            Some(known) if known == volume_id => {}
            None if !is_staged => write_id(&parent, &record, volume_id)?,
            found => return Err(other_volume(volume_id, found, &path)),
        }
        if !is_staged {
            root.make_all(&paths::staging(claim), PRIVATE)?;
        }
        Ok(is_staged)
    }

    /// The id of the volume that is staged for this use, or was about to be. `None`: there is none, or another claim
    /// uses it. A claim on another volume with the same name, which is refused, does not use it.
    pub(super) fn last_staged_id(&self, claim: &Claim) -> Result<Option<String>, VolumeError> {
        let Some(staged) = self.staged_id(claim)? else { return Ok(None) };
        let Some(allocs) = self.below(Path::new(CLAIMS))? else { return Ok(Some(staged)) };
        for alloc in names(&allocs)? {
            let other = Claim { alloc, ..claim.clone() };
            if other.alloc == claim.alloc {
                continue;
            }
            let Some(dir) = open_claims(&self.open()?, &paths::directory(&other))? else { continue };
            if read_id(&dir, VOLUME_ID)?.as_deref() == Some(&*staged) {
                return Ok(None);
            }
        }
        Ok(Some(staged))
    }

    /// The record decides whether something is staged: it is written before the directory, and removed after it.
    fn staged_id(&self, claim: &Claim) -> Result<Option<String>, VolumeError> {
        let Some(dir) = self.below(&paths::staging_parent(claim))? else { return Ok(None) };
        read_id(&dir, &paths::staging_record(claim))
    }

    /// Removes the target, at which nothing is mounted. A plugin may have removed it.
    pub(super) fn remove_target(&self, claim: &Claim) -> Result<(), FsError> {
        let Some(dir) = self.below(&paths::directory(claim))? else { return Ok(()) };
        remove(&dir, OsStr::new(TARGET))
    }

    /// Removes the directory to stage at, at which nothing is mounted.
    pub(super) fn remove_staging(&self, claim: &Claim) -> Result<(), FsError> {
        if let Some((dir, name)) = self.parent(&self.open()?, &paths::staging(claim))? {
            remove(&dir, OsStr::new(&name))?;
        }
        self.remove_staging_record(claim)
    }

    /// Removes the record beside the directory to stage at, and their parents that are empty.
    fn remove_staging_record(&self, claim: &Claim) -> Result<(), FsError> {
        if let Some(dir) = self.below(&paths::staging_parent(claim))? {
            dir.remove_file(OsStr::new(&paths::staging_record(claim)))?;
        }
        self.remove_empty_parents(&paths::staging(claim), STAGING)
    }

    /// Removes the record of a claim that has nothing else left.
    pub(super) fn end(&self, claim: &Claim) -> Result<(), VolumeError> {
        if self.staged_id(claim)?.is_none() {
            // The writing of the record may have been interrupted.
            self.remove_staging_record(claim)?;
        }
        let path = paths::directory(claim);
        if let Some(dir) = self.below(&path)? {
            dir.remove_file(OsStr::new(VOLUME_ID))?;
        }
        if let Some((dir, name)) = self.parent(&self.open()?, &path)? {
            remove(&dir, OsStr::new(&name))?;
        }
        Ok(self.remove_empty_parents(&path, CLAIMS)?)
    }

    pub(super) fn list(&self) -> Result<Vec<Claim>, VolumeError> {
        let mut claims = Vec::new();
        let Some(allocs) = self.below(Path::new(CLAIMS))? else { return Ok(claims) };
        each(&allocs, |alloc, namespaces| {
            each(namespaces, |namespace, volumes| {
                each(volumes, |volume, usages| {
                    each(usages, |usage, _| {
                        let Some(usage) = Usage::from_name(usage) else { return Ok(()) };
                        let (alloc, namespace) = (alloc.to_owned(), namespace.to_owned());
                        claims.push(Claim { alloc, namespace, volume: volume.to_owned(), usage });
                        Ok(())
                    })
                })
            })
        })?;
        claims.sort();
        Ok(claims)
    }

    fn open(&self) -> Result<Dir, FsError> {
        Dir::open(&self.root.host)
    }

    /// A directory below the root; `None` if there is none. No link is followed, and no mount is entered.
    fn below(&self, path: &Path) -> Result<Option<Dir>, FsError> {
        match self.open()?.open_below(path, Crossing::Nothing) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The parent of a path, and the last component.
    fn parent(&self, root: &Dir, path: &Path) -> Result<Option<(Dir, String)>, FsError> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str)) else {
            return Ok(None);
        };
        match root.open_below(parent, Crossing::Nothing) {
            Ok(dir) => Ok(Some((dir, name.to_owned()))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the parents of a path below `top` that are empty.
    fn remove_empty_parents(&self, path: &Path, top: &str) -> Result<(), FsError> {
        let root = self.open()?;
        let parents = path.ancestors().skip(1).take_while(|parent| *parent != Path::new(top));
        for parent in parents {
            let Some((dir, name)) = self.parent(&root, parent)? else { continue };
            // Another volume or claim is in it.
            if dir.remove_empty(OsStr::new(&name)).is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn read_id(dir: &Dir, name: &str) -> Result<Option<String>, VolumeError> {
    let id = dir.read_file(OsStr::new(name), VOLUME_ID_BYTES_MAX as u64)?;
    let broken = |_| VolumeError::BrokenRecord { path: dir.path().join(name) };
    id.map(|id| String::from_utf8(id).map_err(broken)).transpose()
}

fn write_id(dir: &Dir, name: &str, volume_id: &str) -> Result<(), FsError> {
    dir.write_file(OsStr::new(name), volume_id.as_bytes(), PRIVATE_FILE, Outlives::PowerCuts)
}

fn other_volume(volume_id: &str, found: Option<String>, path: &Path) -> VolumeError {
    VolumeError::OtherVolume { volume_id: volume_id.to_owned(), found, path: path.to_owned() }
}

/// Removes an empty directory, or a file.
fn remove(dir: &Dir, name: &OsStr) -> Result<(), FsError> {
    let Some(stat) = dir.stat_name(name)? else { return Ok(()) };
    match rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        true => dir.remove_empty(name),
        false => dir.unlink(name),
    }
}

/// Calls `visit` with each directory in a directory and its decoded name.
fn each(dir: &Dir, mut visit: impl FnMut(&str, &Dir) -> Result<(), VolumeError>) -> Result<(), VolumeError> {
    for name in names(dir)? {
        if let Some(inner) = open_claims(dir, Path::new(&paths::encode(&name)))? {
            visit(&name, &inner)?;
        }
    }
    Ok(())
}

/// Opens a directory with claims. `None`: there is none. Anything else was not created by the agent.
fn open_claims(dir: &Dir, path: &Path) -> Result<Option<Dir>, FsError> {
    match dir.open_below(path, Crossing::Nothing) {
        Ok(inner) => Ok(Some(inner)),
        Err(FsError::NotADirectory { .. } | FsError::Link { .. } | FsError::Mounted { .. }) => Ok(None),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The decoded names in a directory.
fn names(dir: &Dir) -> Result<Vec<String>, VolumeError> {
    let crowded = || VolumeError::Crowded { path: dir.path().to_owned(), entries_max: ENTRIES_MAX };
    let names = dir.names_up_to(ENTRIES_MAX)?.ok_or_else(crowded)?;
    Ok(names.iter().filter_map(|name| name.to_str().and_then(paths::decode)).collect())
}
