//! Parts of the machine, copied while they can still be seen: a root is made where the machine's directories are not.
//!
//! In: the description of a root. Out: mounts in no place, in the order in which they are put there.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::FileTypeExt as _,
    },
    path::{Path, PathBuf},
};

use herdlet_base::mounts::table::{Mount, MountList};
use rustix::{
    mount::MountAttrFlags,
    thread::{LinkNameSpaceType, gettid, move_into_link_name_space},
};

use crate::{
    kernel::{self, Depth},
    root::{
        Access, Bind, DeviceFile, Entry, ImageRoot, MemoryDir, Propagation, Rights, Root, RootError, failed,
    },
};

/// Everything that the root of a task's directory is made of.
pub(crate) struct Sources {
    /// The task's directory, with what the agent has mounted in it.
    pub(crate) task: OwnedFd,
    pub(crate) alloc: OwnedFd,
    pub(crate) parts: Vec<Part>,
    pub(crate) common: Common,
}

/// Everything that the root of an image is made of.
pub(crate) struct ImageSources {
    /// The lowest one first.
    pub(crate) layers: Vec<OwnedFd>,
    pub(crate) changes: OwnedFd,
    pub(crate) common: Common,
}

/// What every root has.
pub(crate) struct Common {
    /// Parents first.
    pub(crate) binds: Vec<PlacedMount>,
    /// Names in /dev.
    pub(crate) devices: Vec<(&'static str, OwnedFd)>,
    pub(crate) sys: OwnedFd,
    pub(crate) proc: OwnedFd,
    /// In the root.
    pub(crate) hidden: Vec<PathBuf>,
}

/// A mount with its place in the root.
pub(crate) struct PlacedMount {
    pub(crate) target: PathBuf,
    pub(crate) mount: OwnedFd,
    pub(crate) access: Access,
    pub(crate) kind: Kind,
}

/// A part of the machine, with its place in the root.
pub(crate) struct Part {
    pub(crate) target: PathBuf,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    Link(PathBuf),
    File(OwnedFd),
    Directory(OwnedFd),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
}

/// Devices that every program may expect.
const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

impl Sources {
    pub(crate) fn open(root: &Root) -> Result<Self, RootError> {
        let hidden = existing(&root.hidden)?;
        let task = root.alloc.join(&root.task);
        // The calling thread is in the task's network from here on: only mounts are looked for.
        let mut sources = Self {
            task: copy(&task, Depth::WithMountsBelow)?,
            alloc: copy(&root.alloc, Depth::Alone)?,
            parts: Vec::new(),
            common: Common::open(&root.masked, root.network.as_deref(), Rights::Confined)?,
        };
        without_devices(&sources.task, &task)?;
        // This thread's, which need not be those of the whole process.
        let mounts = MountList::of(gettid().as_raw_pid());
        let mounts = mounts.map_err(failed("list the mounts of", Path::new("/")))?;
        for entry in &root.entries {
            sources.add_entry(entry, &mounts, &hidden)?;
        }
        // Parents first.
        sources.parts.sort_by(|one, other| one.target.cmp(&other.target));
        for bind in &root.binds {
            sources.common.add_bind(bind, &hidden)?;
        }
        for device in &root.devices {
            sources.common.add_device(device)?;
        }
        Ok(sources)
    }

    fn add_entry(&mut self, entry: &Entry, mounts: &MountList, hidden: &[PathBuf]) -> Result<(), RootError> {
        let source = &entry.source;
        let about = match fs::symlink_metadata(source) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("inspect", source)(error)),
        };
        if about.is_symlink() {
            let link = fs::read_link(source).map_err(failed("read", source))?;
            self.add(&entry.target, Content::Link(link));
            return Ok(());
        }
        // Mounts have no links in their names.
        let real = fs::canonicalize(source).map_err(failed("find", source))?;
        if hidden.iter().any(|hidden| real.starts_with(hidden)) {
            return Ok(());
        }
        self.add_mount(&real, &entry.target)?;
        if about.is_dir() {
            for (path, target) in mounts_within(&mounts.below(&real), &real, hidden) {
                self.add_mount(path, &entry.target.join(target))?;
            }
        }
        self.common.hidden.extend(places_below(&real, &entry.target, hidden));
        Ok(())
    }

    fn add_mount(&mut self, path: &Path, target: &Path) -> Result<(), RootError> {
        // It may have been unmounted since it was listed.
        let Some(mount) = unless_missing(copy(path, Depth::Alone))? else { return Ok(()) };
        without_devices(&mount, path)?;
        let content = match kind_of(path)? {
            Kind::File => Content::File(mount),
            Kind::Directory => Content::Directory(mount),
        };
        self.add(target, content);
        Ok(())
    }

    fn add(&mut self, target: &Path, content: Content) {
        self.parts.push(Part { target: target.to_owned(), content });
    }
}

impl ImageSources {
    pub(crate) fn open(root: &ImageRoot) -> Result<Self, RootError> {
        let hidden = existing(&root.hidden)?;
        let layers = distinct(&root.layers).into_iter().map(|layer| copy(layer, Depth::Alone));
        let mut sources = Self {
            layers: layers.collect::<Result<_, _>>()?,
            changes: copy(&root.changes, Depth::Alone)?,
            common: Common::open(&root.masked, root.network.as_deref(), root.rights)?,
        };
        for bind in &root.binds {
            sources.common.add_bind(bind, &hidden)?;
        }
        for dir in &root.memory {
            sources.common.add_memory(dir)?;
        }
        for device in &root.devices {
            sources.common.add_device(device)?;
        }
        sources.common.binds.sort_by(|one, other| one.target.cmp(&other.target));
        Ok(sources)
    }
}

impl Common {
    /// The calling thread is in the given network afterwards.
    fn open(masked: &[PathBuf], network: Option<&Path>, rights: Rights) -> Result<Self, RootError> {
        let mut devices = Vec::new();
        for name in DEVICES {
            let path = Path::new("/dev").join(name);
            if let Some(device) = unless_missing(copy(&path, Depth::Alone))? {
                // The device can be written to as before; the machine's file keeps its owner and mode.
                let done = kernel::make_read_only(device.as_fd(), Depth::Alone);
                done.map_err(failed("protect", &path))?;
                devices.push((name, device));
            }
        }
        let firmware = (rights == Rights::Confined).then(|| PathBuf::from("sys/firmware"));
        Ok(Self {
            binds: Vec::new(),
            devices,
            sys: sys_of(network, rights)?,
            proc: open_path(Path::new("/proc"))?,
            hidden: masked.iter().cloned().chain(firmware).collect(),
        })
    }

    fn add_bind(&mut self, bind: &Bind, hidden: &[PathBuf]) -> Result<(), RootError> {
        let kind = kind_of(&bind.source)?;
        let mount = kernel::copy_with(&bind.source, Depth::WithMountsBelow, bind.propagation)
            .map_err(failed("copy the mount of", &bind.source))?;
        without_devices(&mount, &bind.source)?;
        self.binds.push(PlacedMount { target: bind.target.clone(), mount, access: bind.access, kind });
        self.hide_below_bind(bind, hidden)
    }

    fn add_memory(&mut self, dir: &MemoryDir) -> Result<(), RootError> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let (mode, size) = (format!("{:04o}", dir.mode & 0o7777), dir.bytes.map(|bytes| bytes.to_string()));
        let options = [("mode", Some(&mode)), ("size", size.as_ref())];
        let options: Vec<(&str, &str)> =
            options.into_iter().filter_map(|(name, value)| Some((name, value?.as_str()))).collect();
        let mount = kernel::create("tmpfs", &options, attributes).map_err(failed("mount", &dir.target))?;
        let (target, access, kind) = (dir.target.clone(), dir.access, Kind::Directory);
        self.binds.push(PlacedMount { target, mount, access, kind });
        Ok(())
    }

    /// A device of the machine, with the machine's rights.
    fn add_device(&mut self, device: &DeviceFile) -> Result<(), RootError> {
        let source = &device.source;
        let about = fs::metadata(source).map_err(failed("inspect", source))?;
        if !about.file_type().is_char_device() && !about.file_type().is_block_device() {
            return Err(failed("use as a device", source)(io::Error::from(io::ErrorKind::InvalidInput)));
        }
        let mount = copy(source, Depth::Alone)?;
        let (target, access, kind) = (device.target.clone(), Access::ReadOnly, Kind::File);
        self.binds.push(PlacedMount { target, mount, access, kind });
        Ok(())
    }

    /// Hides what a volume shows of the hidden paths.
    fn hide_below_bind(&mut self, bind: &Bind, hidden: &[PathBuf]) -> Result<(), RootError> {
        let source = fs::canonicalize(&bind.source).map_err(failed("find", &bind.source))?;
        // A volume of an allocation may be in the agent's state itself.
        let below: Vec<PathBuf> =
            places_below(&source, &bind.target, hidden).filter(|path| *path != bind.target).collect();
        match (bind.propagation, below.first()) {
            // What covers it would appear on the machine, too.
            (Propagation::Shared, Some(_)) => Err(RootError::Exposed { volume: source }),
            (Propagation::Shared | Propagation::Private | Propagation::FromMachine, _) => {
                self.hidden.extend(below);
                Ok(())
            }
        }
    }
}

/// The layers without those that are there again further up: a higher one covers the same one below entirely, and the kernel mounts none
/// twice.
fn distinct(layers: &[PathBuf]) -> Vec<&PathBuf> {
    let mut seen = BTreeSet::new();
    let mut distinct: Vec<&PathBuf> = layers.iter().rev().filter(|layer| seen.insert(*layer)).collect();
    distinct.reverse();
    distinct
}

/// Those of these paths that exist, without links.
fn existing(paths: &[PathBuf]) -> Result<Vec<PathBuf>, RootError> {
    let mut found = Vec::new();
    for path in paths {
        match fs::canonicalize(path) {
            Ok(real) => found.push(real),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("find", path)(error)),
        }
    }
    Ok(found)
}

/// The places in the root of hidden paths below a directory that is shown at `target`.
fn places_below<'a>(
    real: &'a Path,
    target: &'a Path,
    hidden: &'a [PathBuf],
) -> impl Iterator<Item = PathBuf> + 'a {
    let below = hidden.iter().filter_map(move |path| path.strip_prefix(real).ok());
    below.map(move |path| if path.as_os_str().is_empty() { target.to_owned() } else { target.join(path) })
}

/// The paths at which something is mounted below a directory, with what follows the directory's own path, parents first.
fn mounts_within<'m>(mounts: &'m [Mount], dir: &Path, hidden: &[PathBuf]) -> BTreeSet<(&'m Path, &'m Path)> {
    let within = mounts.iter().filter_map(|mount| {
        let below = mount.point.strip_prefix(dir).ok().filter(|below| !below.as_os_str().is_empty())?;
        Some((mount.point.as_path(), below))
    });
    // Among the hidden ones are the agent's own, several for each task.
    within.filter(|(path, _)| !hidden.iter().any(|hidden| path.starts_with(hidden))).collect()
}

fn copy(path: &Path, depth: Depth) -> Result<OwnedFd, RootError> {
    kernel::copy(path, depth).map_err(failed("copy the mount of", path))
}

fn without_devices(mount: &OwnedFd, path: &Path) -> Result<(), RootError> {
    kernel::refuse_devices(mount.as_fd(), Depth::WithMountsBelow).map_err(failed("refuse devices in", path))
}

/// A new /sys: that of the machine has mounts below it. The calling thread is in the given network afterwards.
fn sys_of(network: Option<&Path>, rights: Rights) -> Result<OwnedFd, RootError> {
    if let Some(path) = network {
        let namespace = File::open(path).map_err(failed("open the network", path))?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(failed("enter the network", path))?;
    }
    let safe = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let attributes = match rights {
        Rights::Confined => safe | MountAttrFlags::MOUNT_ATTR_RDONLY,
        Rights::Privileged => safe,
    };
    kernel::create("sysfs", &[], attributes).map_err(failed("mount", Path::new("sys")))
}

fn open_path(path: &Path) -> Result<OwnedFd, RootError> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(failed("open", path))
}

fn kind_of(path: &Path) -> Result<Kind, RootError> {
    let about = fs::metadata(path).map_err(failed("inspect", path))?;
    Ok(if about.is_dir() { Kind::Directory } else { Kind::File })
}

fn unless_missing<T>(done: Result<T, RootError>) -> Result<Option<T>, RootError> {
    match done {
        Ok(found) => Ok(Some(found)),
        Err(RootError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
