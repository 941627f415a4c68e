//! The layers of an image as one file system: an overlay, in whose upper directory is what the task changes.
//!
//! In: the layers and a directory for changes, as mounts in no place. Out: an overlay at [`ROOT`]. The option string of mount(2) holds a
//! page, and that of fsconfig(2) 256 bytes: the layers are mounted under short names in a working directory. Overlays of layers can't
//! be kept and shared: each start mounts afresh, which costs less than a millisecond.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid, chmod, chownat, fstat, mkdirat, openat},
    io::Errno,
    mount::{MountAttrFlags, MountFlags, mount as mount_at},
    process::chdir,
};

use crate::{
    frame::put,
    kernel,
    memory::SIZE,
    overlay::path_of,
    place::own_directory,
    root::{Changes, LAYERS_MAX, LimitedEntry, Rights, RootError, failed},
    seed::{MEMORY, ROOT, open_dir},
    source::ImageSources,
};

/// Names in the directory of changes.
const UPPER: &str = "upper";
const WORK: &str = "work";
/// The name under which the directory of changes is mounted. Layers have numbers.
const CHANGES: &str = "c";

/// Mounts the overlay. Returns its root, and whether changes end with it.
pub(crate) fn mount(
    sources: &ImageSources,
    rights: Rights,
) -> Result<(OwnedFd, Vec<LimitedEntry>), RootError> {
    let top = match sources.layers.last() {
        Some(top) if sources.layers.len() <= LAYERS_MAX => top,
        _ => return Err(RootError::Layers { layers: sources.layers.len() }),
    };
    let place = Path::new(MEMORY);
    arrange(sources).map_err(failed("mount the layers at", place))?;
    chdir(MEMORY).map_err(failed("enter", place))?;
    let limited = match on_disk(top, sources, rights) {
        Ok(()) => Vec::new(),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(RootError::Busy { target: "/".into() });
        }
        // The directory is on an overlay, as in a container, or on a file system that can't be used in one.
        Err(error) => {
            in_memory(top, sources, rights).map_err(failed("mount the image at", Path::new("/")))?;
            let reason = error.to_string();
            vec![LimitedEntry { target: "".into(), changes: Changes::Temporary, reason }]
        }
    };
    let base = open_dir(ROOT).map_err(failed("open", Path::new(ROOT)))?;
    Ok((base, limited))
}

/// Mounts layers and changes under short names in a directory of the seed.
fn arrange(sources: &ImageSources) -> Result<(), io::Error> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // Directories only, besides the changes of `in_memory`.
    let names = kernel::create("tmpfs", &[("mode", "0700"), ("size", SIZE)], attributes)?;
    let layers = sources.layers.iter().enumerate().map(|(number, layer)| (number.to_string(), layer));
    put(&names, MEMORY).map_err(io::Error::other)?;
    for (name, mount) in layers.chain([(CHANGES.to_owned(), &sources.changes)]) {
        mkdirat(&names, &*name, Mode::from(0o700))?;
        put(mount, &format!("{MEMORY}/{name}")).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Mounts the overlay with the directory of changes.
fn on_disk(top: &OwnedFd, sources: &ImageSources, rights: Rights) -> io::Result<()> {
    let changes = openat(CWD, CHANGES, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let upper = own_directory(changes.as_fd(), Path::new(UPPER))?;
    own_directory(changes.as_fd(), Path::new(WORK))?;
    resemble(&upper, top)?;
    overlay(sources.layers.len(), (CHANGES, Index::On), rights)
}

/// Mounts the overlay with changes in memory, which end with it.
fn in_memory(top: &OwnedFd, sources: &ImageSources, rights: Rights) -> io::Result<()> {
    for name in [UPPER, WORK] {
        mkdirat(CWD, name, Mode::from(0o755))?;
    }
    resemble(&open_dir(UPPER)?, top)?;
    overlay(sources.layers.len(), (".", Index::Off), rights)
}

/// Whether the kernel refuses an upper directory that is in use. It would only log it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Index {
    On,
    /// An upper directory in memory can't have it, and nobody else sees that.
    Off,
}

/// Mounts an overlay at [`ROOT`], with changes below this directory.
fn overlay(layers: usize, (changes, index): (&str, Index), rights: Rights) -> io::Result<()> {
    // The kernel's list begins with the highest one.
    let lower: Vec<String> = (0..layers).rev().map(|number| number.to_string()).collect();
    let index = if index == Index::On { "on" } else { "off" };
    let options = format!(
        "lowerdir={},upperdir={changes}/{UPPER},workdir={changes}/{WORK},index={index},redirect_dir=off,metacopy=off,xino=off",
        lower.join(":")
    );
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    let flags = match rights {
        // A task may have the right to make devices.
        Rights::Confined => MountFlags::NODEV,
        Rights::Privileged => MountFlags::empty(),
    };
    Ok(mount_at("overlay", ROOT, "overlay", flags, Some(options.as_c_str()))?)
}

/// Gives a new upper directory mode and owner of the image's root: an overlay shows those of its upper directory.
fn resemble(upper: &OwnedFd, top: &OwnedFd) -> rustix::io::Result<()> {
    let shown = fstat(top)?;
    let (uid, gid) = (Uid::from_raw(shown.st_uid), Gid::from_raw(shown.st_gid));
    chownat(upper, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    chmod(&*path_of(upper), Mode::from_raw_mode(shown.st_mode))
}
