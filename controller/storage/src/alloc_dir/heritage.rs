//! What an allocation takes over of the disk of the one before it: `alloc/data`, and `local` of each task that both have.
//!
//! In: the directory of the one before, or what has come of it from another node (`.came-<id>`), and a new allocation's own directory,
//! in which nothing was begun. Out: directories renamed from one to the other. A rename that was done leaves nothing to rename, so whoever
//! is interrupted does it again and completes it; where one can't be done those before are taken back. `alloc.json` is written after all of
//! them: where it is, nothing is taken over any more. Everything here blocks.

use std::ffi::{OsStr, OsString};

use herdlet_api_types::AllocId;
use herdlet_base::{
    mounts::table::mounts_below,
    paths::{SHARED, encode},
    safe_fs::{Dir, FsError},
};
use rustix::fs::FileType;

use super::DATA;
use crate::access::UNOPENED;

/// The allocation before, and for whom something is taken over.
#[derive(Debug, Clone)]
pub struct Heritage {
    /// Whose disk it is.
    pub previous: AllocId,
    /// The tasks of the one that takes it over.
    pub tasks: Vec<String>,
}

/// What has come from another node for an allocation, whole.
pub fn came_name(id: AllocId) -> OsString {
    format!("{CAME}{id}").into()
}

/// For which allocation something of this name has come.
pub(super) fn came_for(name: &OsStr) -> Option<AllocId> {
    name.to_str()?.strip_prefix(CAME)?.parse().ok().map(AllocId)
}

/// What is on its way.
pub fn coming_name(id: AllocId) -> OsString {
    format!("{COMING}{id}").into()
}

/// The directory of a task that goes along.
pub const LOCAL: &str = "local";

const CAME: &str = ".came-";
pub(super) const COMING: &str = ".coming-";

/// One directory that goes along: below which one it is there and here, and its own name.
struct Move {
    from: OsString,
    to: OsString,
    name: &'static str,
}

impl Heritage {
    /// Takes over what there is, into `alloc`, the directory of allocation `id`. All of it or, where that can't be done, nothing.
    ///
    /// # Errors
    /// Where something is still mounted in it, which goes with what used it; or where neither all nor nothing can be had.
    pub(super) fn take(&self, allocs: &Dir, alloc: &Dir, id: AllocId) -> Result<(), FsError> {
        let Some((from, moves)) = self.found(allocs, id)? else { return Ok(()) };
        let taken =
            check(&from, &moves).and_then(|()| moves.iter().try_for_each(|one| one.make(&from, alloc)));
        match taken {
            Ok(()) => Ok(()),
            Err(mounted @ FsError::Mounted { .. }) => Err(mounted),
            Err(error) => {
                let previous = self.previous;
                tracing::warn!(alloc = %id, %previous, %error, "failed to take over a disk; the allocation begins with an empty one");
                moves.iter().try_for_each(|one| one.take_back(&from, alloc))
            }
        }
    }

    /// From where it is taken.
    fn found(&self, allocs: &Dir, id: AllocId) -> Result<Option<(Dir, Vec<Move>)>, FsError> {
        // A snapshot names tasks as they are called.
        if let Some(came) = allocs.find(&came_name(id))? {
            return Ok(Some((came, self.moves(|task| task.into()))));
        }
        let previous = allocs.find(self.previous.to_string().as_ref())?;
        Ok(previous.map(|previous| (previous, self.moves(|task| encode(task).into()))))
    }

    fn moves(&self, there: impl Fn(&str) -> OsString) -> Vec<Move> {
        let shared = Move { from: SHARED.into(), to: SHARED.into(), name: DATA };
        let local = |task: &String| Move { from: there(task), to: encode(task).into(), name: LOCAL };
        std::iter::once(shared).chain(self.tasks.iter().map(local)).collect()
    }
}

/// Whether all that is there can go along.
fn check(from: &Dir, moves: &[Move]) -> Result<(), FsError> {
    for Move { from: below, name, .. } in moves {
        let Some(above) = from.find(below)? else { continue };
        let Some(dir) = above.find(OsStr::new(name))? else { continue };
        let path = dir.real_path()?;
        let mounts =
            mounts_below(&path).map_err(|error| FsError::io("list the mounts below", &path, error))?;
        if let Some(mount) = mounts.into_iter().next() {
            return Err(FsError::Mounted { path: mount.point });
        }
    }
    Ok(())
}

impl Move {
    fn make(&self, from: &Dir, alloc: &Dir) -> Result<(), FsError> {
        let Some(above) = from.find(&self.from)? else { return Ok(()) };
        let name = OsStr::new(self.name);
        match above.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None => Ok(()),
            Some(FileType::Directory) => {
                // Where an empty one stands it gives way, and nothing else can stand there yet.
                above.rename_into(name, &alloc.make(&self.to, UNOPENED)?, name)
            }
            Some(_) => Err(FsError::NotADirectory { path: above.path().join(name) }),
        }
    }

    /// What was renamed is where it was; what wasn't still is.
    fn take_back(&self, from: &Dir, alloc: &Dir) -> Result<(), FsError> {
        let Some(here) = alloc.find(&self.to)? else { return Ok(()) };
        let name = OsStr::new(self.name);
        if let Some(above) = from.find(&self.from).ok().flatten()
            && above.stat_name(name)?.is_none()
            && here.stat_name(name)?.is_some()
        {
            here.rename_into(name, &above, name)?;
        }
        if self.name == DATA {
            return Ok(());
        }
        // Without it a task's directory would look like one from which somebody has taken it.
        alloc.remove_empty(&self.to)
    }
}

#[cfg(test)]
mod tests;
