//! Volumes as symbolic links, without the right to mount.
//!
//! In: the task directory and a binding. Out: the link, or what is there instead. This module does not know of other
//! volumes.

use herdlet_base::mounts::kernel;
use herdlet_base::{
    mounts::kernel::Access,
    observation::Observation,
    safe_fs::{Crossing, Dir},
};
use rustix::fs::FileType;

use super::{Binding, MountError, parents};

/// Creates the link, unless it exists as wanted.
pub(super) fn up(task: &Dir, binding: &Binding) -> Result<(), MountError> {
    // A dangling link would only fail later, in the task.
    drop(kernel::open_source(&binding.source)?);
    let parent = task.make_all(binding.destination.parent(), parents(task)?)?;
    let name = binding.destination.name();
    let obstacle = |what| Err(MountError::Obstacle { path: parent.path().join(name), what });
    match parent.stat_name(name)?.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        None => {}
        Some(FileType::Symlink) => {
            return match parent.read_link(name)? {
                Some(target) if target == binding.source => Ok(()),
                _ => obstacle("a symbolic link that leads elsewhere"),
            };
        }
        // An empty one is replaced.
        Some(FileType::Directory) if parent.remove_empty(name).is_ok() => {}
        Some(FileType::Directory) => return obstacle("a directory that is not empty"),
        Some(_) => return obstacle("a file"),
    }
    if binding.access == Access::ReadOnly {
        tracing::warn!(
            destination = %parent.path().join(name).display(),
            "mounting is not possible here, so a read-only volume is a link, and the task can write through it"
        );
    }
    parent.link(name, &binding.source)?;
    Ok(())
}

/// Whether the link exists as wanted.
pub(super) fn inspect(task: &Dir, binding: &Binding) -> Result<Observation, MountError> {
    let parent = match task.open_below(binding.destination.parent(), Crossing::Nothing) {
        Ok(parent) => parent,
        Err(error) if error.is_missing() => return Ok(Observation::Absent),
        Err(error) => return Ok(error.into_observation()?),
    };
    let name = binding.destination.name();
    let here = parent.path().join(name);
    if parent.stat_name(name)?.is_none() {
        return Ok(Observation::Absent);
    }
    match parent.read_link(name)? {
        Some(target) if target != binding.source => {
            Ok(Observation::foreign(format!("the link {} leads to {}", here.display(), target.display())))
        }
        Some(_) if kernel::open_source(&binding.source).is_err() => {
            Ok(Observation::foreign(format!("the volume's directory {} is gone", binding.source.display())))
        }
        Some(_) => Ok(Observation::Present),
        None => Ok(Observation::foreign(format!("{} is not one of our links", here.display()))),
    }
}
