//! Moves data from the predecessor's disk to an allocation: `alloc/data`, and `local` of each task that both have.
//!
//! In: the predecessor's directory, or its copy from another node (`.came-<id>`), and the new allocation's directory,
//! in which no task has started. Out: renamed directories. An interrupted take-over is repeated: a completed rename
//! leaves nothing to rename. If one rename fails, the earlier ones are undone. `alloc.json` is written last: once it
//! exists, nothing is taken over any more. All calls block.

use std::ffi::{OsStr, OsString};

use herdlet_api_types::AllocId;
use herdlet_base::{
    mounts::table::mounts_below,
    paths::{SHARED, dir_name, task_name_in},
    safe_fs::{Dir, FsError},
};
use rustix::fs::FileType;

use super::DATA;
use crate::access::UNOPENED;

/// The predecessor, and the tasks that take over its data.
#[derive(Debug, Clone)]
pub struct Migration {
    /// The predecessor.
    pub previous: AllocId,
    /// The tasks of the successor.
    pub tasks: Vec<String>,
}

/// The complete copy from another node for an allocation.
pub fn came_name(id: AllocId) -> OsString {
    format!("{CAME}{id}").into()
}

/// The allocation that a copy with this name is for.
pub(super) fn came_for(name: &OsStr) -> Option<AllocId> {
    name.to_str()?.strip_prefix(CAME)?.parse().ok().map(AllocId)
}

/// The incomplete copy.
pub fn coming_name(id: AllocId) -> OsString {
    format!("{COMING}{id}").into()
}

/// The directory of a task that is moved.
pub const LOCAL: &str = "local";

const CAME: &str = ".came-";
pub(super) const COMING: &str = ".coming-";

/// One directory to move: its parent in the source and in the target, and its own name.
struct Move {
    from: OsString,
    to: OsString,
    name: &'static str,
}

impl Migration {
    /// Moves what exists into `alloc`, the directory of allocation `id`: all of it or, if that fails, nothing.
    ///
    /// # Errors
    /// If something is still mounted in it, which is unmounted once its user ends; or if undoing fails too.
    pub(super) fn take(&self, allocs: &Dir, alloc: &Dir, id: AllocId) -> Result<(), FsError> {
        let Some((from, moves)) = self.source_dir(allocs, id)? else { return Ok(()) };
        let taken =
            check(&from, &moves).and_then(|()| moves.iter().try_for_each(|one| one.make(&from, alloc)));
        match taken {
            Ok(()) => Ok(()),
            Err(mounted @ FsError::Mounted { .. }) => Err(mounted),
            Err(error) => {
                let previous = self.previous;
                tracing::warn!(alloc = %id, %previous, %error, "failed to take over the predecessor's disk; the allocation starts with an empty one");
                moves.iter().try_for_each(|one| one.take_back(&from, alloc))
            }
        }
    }

    /// The source directory.
    fn source_dir(&self, allocs: &Dir, id: AllocId) -> Result<Option<(Dir, Vec<Move>)>, FsError> {
        // A snapshot uses plain task names.
        if let Some(came) = allocs.find(&came_name(id))? {
            return Ok(Some((came, self.moves(|task| task.into()))));
        }
        let previous = allocs.find(self.previous.to_string().as_ref())?;
        Ok(previous.map(|previous| {
            let moves = self.moves(|task| task_name_in(previous.path(), task).into_owned().into());
            (previous, moves)
        }))
    }

    fn moves(&self, there: impl Fn(&str) -> OsString) -> Vec<Move> {
        let shared = Move { from: SHARED.into(), to: SHARED.into(), name: DATA };
        let dir_of = |task: &str| dir_name(task).into_owned().into();
        let local = |task: &String| Move { from: there(task), to: dir_of(task), name: LOCAL };
        std::iter::once(shared).chain(self.tasks.iter().map(local)).collect()
    }
}

/// Checks that everything can be moved.
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
                // Replaces an empty directory; there can be nothing else yet.
                above.rename_into(name, &alloc.make(&self.to, UNOPENED)?, name)
            }
            Some(_) => Err(FsError::NotADirectory { path: above.path().join(name) }),
        }
    }

    /// Moves a renamed directory back to the source; others are still there.
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
        // Otherwise the task's directory would look as if its contents had been lost.
        alloc.remove_empty(&self.to)
    }
}

#[cfg(test)]
mod tests;
