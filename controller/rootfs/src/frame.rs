//! What every root has: /dev, /sys, a place for /proc, shared directories, and covers of what must not be seen.
//!
//! In: the files of a root at their place, mounts in no place. Out: the finished root. Until then nothing but the calling thread sees
//! it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, fstat, openat},
    io::Errno,
    mount::MountAttrFlags,
};

use crate::{
    device,
    kernel::{self, Depth},
    place::{directory, file, find, own_directory},
    root::{Access, Built, LimitedEntry, Rights, RootError, failed},
    seed::{open_dir, replace_root},
    source::{Common, Kind, PlacedMount},
};

/// A root whose own files are at their place.
pub(crate) struct Frame<'r> {
    base: &'r OwnedFd,
    common: &'r Common,
    /// Its /dev/null.
    null: OwnedFd,
}

impl<'r> Frame<'r> {
    /// Mounts /dev and /sys.
    pub(crate) fn new(
        base: &'r OwnedFd,
        shm_bytes: Option<u64>,
        common: &'r Common,
        rights: Rights,
    ) -> Result<Self, RootError> {
        let [dev, proc, sys] = ["dev", "proc", "sys"].map(Path::new);
        device::mount(base.as_fd(), &common.devices, (shm_bytes, rights)).map_err(failed("mount", dev))?;
        // Before anything of the task's can be in its place.
        let null = openat(base, "dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let null = null.map_err(failed("open", Path::new("dev/null")))?;
        own_directory(base.as_fd(), proc).map_err(failed("make a place for", proc))?;
        let place = own_directory(base.as_fd(), sys).map_err(failed("make a place for", sys))?;
        kernel::place(common.sys.as_fd(), place.as_fd()).map_err(failed("mount", sys))?;
        Ok(Self { base, common, null })
    }

    /// Mounts the rest. `access`: to the root's own files.
    pub(crate) fn finish(self, access: Access, limited: Vec<LimitedEntry>) -> Result<Built, RootError> {
        for bind in &self.common.binds {
            self.add_bind(bind)?;
        }
        for path in &self.common.hidden {
            self.hide(path).map_err(failed("hide", path))?;
        }
        let top = Path::new("/");
        if access == Access::ReadOnly {
            // Every place for a mount exists by now.
            let done = kernel::make_read_only(self.base.as_fd(), Depth::Alone);
            done.map_err(failed("refuse writes to", top))?;
        }
        replace_root(self.base).map_err(failed("replace", top))?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let own = openat(&self.common.proc, "thread-self/ns/mnt", flags, Mode::empty());
        let mounts = OwnedFd::from(File::from(own.map_err(failed("open the namespace of", top))?));
        let root = open_dir("/").map_err(failed("open", top))?;
        Ok(Built { mounts, root, null: self.null, limited })
    }

    fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    fn add_bind(&self, PlacedMount { target, mount, access, kind }: &PlacedMount) -> Result<(), RootError> {
        let place = match kind {
            Kind::Directory => directory(self.base(), target),
            Kind::File => file(self.base(), target),
        };
        let place = place.map_err(failed("make a place for", target))?;
        if *access == Access::ReadOnly {
            let done = kernel::make_read_only(mount.as_fd(), Depth::WithMountsBelow);
            done.map_err(failed("refuse writes to", target))?;
        }
        kernel::place(mount.as_fd(), place.as_fd()).map_err(failed("mount", target))
    }

    /// A link on the way hides the path as well: the task has put it there, so that what the machine has is not seen.
    fn hide(&self, path: &Path) -> io::Result<()> {
        let place = match find(self.base(), path) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            found => found?,
        };
        let cover = if FileType::from_raw_mode(fstat(&place)?.st_mode).is_dir() {
            let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            kernel::create("tmpfs", &[("mode", "0555"), ("size", "4k")], attributes)?
        } else {
            kernel::copy_open(self.null.as_fd())?
        };
        Ok(kernel::place(cover.as_fd(), place.as_fd())?)
    }
}

/// Puts a mount on a directory of the seed.
pub(crate) fn put(mount: &OwnedFd, at: &str) -> Result<(), RootError> {
    let place = open_dir(at).map_err(failed("open", Path::new(at)))?;
    kernel::place(mount.as_fd(), place.as_fd()).map_err(failed("mount", Path::new(at)))
}
