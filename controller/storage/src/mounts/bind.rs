//! Volumes as bind mounts.
//!
//! In: the task directory and a binding. Out: the mount, or what is there instead. This module does not know of other
//! volumes.

use std::{ffi::OsStr, path::Path};

use herdlet_base::mounts::{
    kernel,
    table::{Mount, mounts_below, mounts_below_now},
};
use herdlet_base::{
    mounts::kernel::Access,
    observation::Observation,
    paths::SHARED,
    safe_fs::{Crossing, Dir, FsError},
};

use super::{Binding, MountError, parents};

/// Creates the mount, unless it exists as wanted. `all` are the task's bindings.
pub(super) fn up(task: &Dir, binding: &Binding, all: &[Binding]) -> Result<(), MountError> {
    // Checked before anything is unmounted: a running task keeps its old mount.
    if source(binding)?.is_none() {
        return Err(MountError::NoSource { path: binding.source.clone() });
    }
    let rights = parents(task)?;
    let parent = task.make_all(binding.destination.parent(), rights)?;
    let name = binding.destination.name();
    // Unmount foreign mounts until the wanted one appears or none is left.
    loop {
        match mounts_at(&parent, name)?.as_slice() {
            [] => break,
            [one] if is_right_mount(&parent, binding, one)? => return Ok(()),
            _ => {
                tracing::info!(point = %parent.path().join(name).display(), "unmounting a mount that is not ours or not as wanted");
                kernel::unmount_top(&parent, name)?;
            }
        }
    }
    // Left from a time without mounting.
    if parent.read_link(name)?.as_ref() == Some(&binding.source) {
        parent.unlink(name)?;
    }
    let target = match parent.find(name)? {
        Some(target) => target,
        None => parent.make(name, rights)?,
    };
    unmount_moved(task, binding, all)?;
    kernel::bind(&binding.source, &target, binding.access)?;
    Ok(())
}

/// Unmounts the volume where none of the task's volumes belongs, in its directory or the shared one. A task's user
/// can't move a mount, but can move the directories above it, and would get another mount each time. If the task's
/// directory is the parent, nothing can be moved, and the mount table, which is long on a busy machine, is not read.
fn unmount_moved(task: &Dir, binding: &Binding, all: &[Binding]) -> Result<(), MountError> {
    if binding.destination.parent() == Path::new("") {
        return Ok(());
    }
    let Some(source) = source(binding)? else { return Ok(()) };
    let wanted =
        rustix::fs::fstat(&source).map_err(|errno| FsError::io("examine", &binding.source, errno))?;
    let here = task.real_path()?;
    let Some(alloc) = here.parent() else { return Ok(()) };
    let shared = alloc.join(SHARED);
    // A fresh reading: the kernel doesn't report renames.
    let mounts = mounts_below_now(alloc).map_err(MountError::Table)?;
    let bases = [(Some(task.open_below(Path::new(""), Crossing::Mounts)?), here), (open(&shared)?, shared)];
    for (dir, base) in bases {
        let Some(dir) = dir else { continue };
        for mount in &mounts {
            let Ok(below) = mount.point.strip_prefix(&base) else { continue };
            let is_ours = all.iter().any(|one| below.starts_with(one.destination.path()));
            let (Some(above), Some(name)) = (below.parent(), below.file_name()) else { continue };
            // It may be moved again meanwhile; the next call then finds it.
            let Ok(above) = dir.open_below(above, Crossing::Mounts) else { continue };
            let seen = above.stat_name(name)?.map(|stat| (stat.st_dev, stat.st_ino));
            if seen == Some((wanted.st_dev, wanted.st_ino)) && (!is_ours || base.ends_with(SHARED)) {
                tracing::info!(point = %mount.point.display(), "unmounting a moved volume");
                kernel::unmount_at_name(&above, name)?;
            }
        }
    }
    Ok(())
}

fn open(dir: &Path) -> Result<Option<Dir>, FsError> {
    match Dir::open(dir) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the mount exists as wanted.
pub(super) fn inspect(task: &Dir, binding: &Binding) -> Result<Observation, MountError> {
    let parent = match task.open_below(binding.destination.parent(), Crossing::Nothing) {
        Ok(parent) => parent,
        Err(error) if error.is_missing() => return Ok(Observation::Absent),
        Err(error) => return Ok(error.into_observation()?),
    };
    let name = binding.destination.name();
    let here = parent.path().join(name);
    match mounts_at(&parent, name)?.as_slice() {
        [] => Ok(Observation::Absent),
        [one] if is_right_mount(&parent, binding, one)? => Ok(Observation::Present),
        [_] if source(binding)?.is_none() => {
            Ok(Observation::foreign(format!("the volume's directory {} is gone", binding.source.display())))
        }
        [_] => Ok(Observation::foreign(format!("something else is mounted at {}", here.display()))),
        many => Ok(Observation::foreign(format!("{} mounts are stacked at {}", many.len(), here.display()))),
    }
}

/// Whether the only mount at `name` shows the volume's directory with the wanted access.
fn is_right_mount(parent: &Dir, binding: &Binding, mount: &Mount) -> Result<bool, MountError> {
    let Some(source) = source(binding)? else { return Ok(false) };
    let source_stat =
        rustix::fs::fstat(&source).map_err(|errno| FsError::io("examine", &binding.source, errno))?;
    let Some(seen) = parent.stat_name(binding.destination.name())? else { return Ok(false) };
    if (seen.st_dev, seen.st_ino) != (source_stat.st_dev, source_stat.st_ino) {
        return Ok(false);
    }
    match binding.access {
        Access::ReadOnly => Ok(mount.read_only),
        // If the volume itself is on a read-only mount, ours is read-only too.
        Access::ReadWrite => Ok(!mount.read_only || is_read_only(&source, &binding.source)?),
    }
}

/// Opens the volume's directory, if it exists.
fn source(binding: &Binding) -> Result<Option<std::os::fd::OwnedFd>, FsError> {
    match kernel::open_source(&binding.source) {
        Err(error) if error.is_missing() => Ok(None),
        source => source.map(Some),
    }
}

fn is_read_only(source: &std::os::fd::OwnedFd, path: &Path) -> Result<bool, FsError> {
    let about = rustix::fs::fstatvfs(source).map_err(|errno| FsError::io("examine", path, errno))?;
    Ok(about.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

fn mounts_at(parent: &Dir, name: &OsStr) -> Result<Vec<Mount>, MountError> {
    if !kernel::may_be_mounted(parent, name)? {
        return Ok(Vec::new());
    }
    let point = parent.real_path()?.join(name);
    let mut mounts = mounts_below(&point).map_err(MountError::Table)?;
    mounts.retain(|mount| mount.point == point);
    Ok(mounts)
}
