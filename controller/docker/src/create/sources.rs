//! Sources of mounts: which paths a task may mount, and how the engine gets them.
//!
//! In: a path as a task writes it, its directories, the policy. Out: the path for the engine. With `volumes.enabled` that is the path
//! itself. Otherwise it is one of the agent's mounts, and a [`Pin`] says what has to be mounted there: a task of the same allocation may
//! put a link in place of any path that it may write to, at any moment until the engine mounts it.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
};

use super::Material;

/// Nomad's sentence, with the remedy.
pub(crate) const NOT_ENABLED: &str = "volumes are not enabled; cannot mount host paths or volumes of the engine: set `volumes.enabled` of the driver's options";

/// A file or directory of an allocation that the engine gets as a mount of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pin {
    /// The field that asks for it.
    pub(crate) field: String,
    /// Its path, in which a task may exchange directories and links.
    pub(crate) source: PathBuf,
    /// Where it is mounted for the engine.
    pub(crate) point: PathBuf,
    pub(crate) bounds: Bounds,
    pub(crate) missing: Missing,
}

/// What to do if a source does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A directory is created, as engines do for `volumes`.
    Create,
    /// The start fails, as for `mount`.
    Refuse,
}

/// The directories of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) alloc: PathBuf,
    pub(crate) shared: PathBuf,
}

impl Bounds {
    /// Whether a task may do with a path as it likes: it is the shared directory or in that or a task's. A task's directory itself, and
    /// the allocation's, have entries that the agent relies on: who may replace `local` by a link has the engine mount what it leads to.
    fn has(&self, path: &Path) -> bool {
        let Ok(below) = path.strip_prefix(&self.alloc) else { return false };
        let is_in_task = below.components().nth(1).is_some_and(|part| part.as_os_str() != "private");
        path.starts_with(&self.shared) || is_in_task
    }

    /// Whether a path without links is one of them.
    pub(crate) fn has_real(&self, real: &Path) -> bool {
        let resolved = (resolved(&self.alloc), resolved(&self.shared));
        let (Some(alloc), Some(shared)) = resolved else { return false };
        Self { alloc, shared }.has(real)
    }
}

/// Determines the engine's path of each source of a task.
pub(super) struct Sources<'m> {
    material: &'m Material<'m>,
    pub(super) pins: Vec<Pin>,
}

impl<'m> Sources<'m> {
    pub(super) const fn new(material: &'m Material<'m>) -> Self {
        Self { material, pins: Vec::new() }
    }

    /// The engine's path of a source: a relative one is in the task directory.
    pub(super) fn path(&mut self, field: &str, source: &str, missing: Missing) -> Result<PathBuf, String> {
        let dirs = &self.material.task.dirs;
        let path = plain(&dirs.task.join(source));
        if self.material.policy.host_paths {
            return Ok(path);
        }
        let refused = || format!("{source:?}: {NOT_ENABLED}");
        let alloc = dirs.task.parent().ok_or_else(refused)?.to_owned();
        let bounds = Bounds { alloc, shared: dirs.shared.clone() };
        let real = resolved(&path).ok_or_else(refused)?;
        if !bounds.has(&path) || !bounds.has_real(&real) {
            return Err(refused());
        }
        let Some(points) = &self.material.pins else { return Ok(path) };
        let point = points.join(self.pins.len().to_string());
        self.pins.push(Pin { field: field.to_owned(), source: path, point: point.clone(), bounds, missing });
        Ok(point)
    }

    /// Whether mounts that appear later on one side may appear on the other. The agent's mounts of paths are private, and do not last.
    pub(super) fn may_propagate(&self) -> bool {
        self.material.policy.host_paths || self.material.pins.is_none()
    }
}

/// The path without links, of which the end need not exist; none if a link leads nowhere, or can't be resolved.
fn resolved(path: &Path) -> Option<PathBuf> {
    let absent = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    for existing in path.ancestors() {
        match fs::symlink_metadata(existing) {
            Ok(_) => return Some(fs::canonicalize(existing).ok()?.join(path.strip_prefix(existing).ok()?)),
            Err(error) if absent(error.kind()) => {}
            Err(_) => return None,
        }
    }
    None
}

/// A path without `.` and `..`, by its text.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => plain.push(part),
        }
    }
    plain
}
