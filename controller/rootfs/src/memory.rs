//! Memory for changes of parts of the machine, where the task's directory can't hold them: it is on an overlay, as in a
//! container, or on a file system that can't be used in one.
//!
//! In: a part that is mounted at [`PART`], what the task's directory has for it. Out: an overlay in no place. The changes of
//! all parts together are limited, count as memory of the processes that make them, and end with the root.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Gid, Mode, Uid, chmod, chownat, fstat, mkdirat},
    mount::MountAttrFlags,
};

use crate::{
    kernel,
    overlay::path_of,
    seed::{MEMORY, PART, open_dir},
};

/// The size of all changes together.
pub(crate) const SIZE: &str = "64m";

/// The memory of one root.
#[derive(Default)]
pub(crate) struct Memory {
    /// How many parts use it; it is mounted with the first one.
    parts: u32,
}

impl Memory {
    /// Mounts an overlay of what is at [`PART`], with `above` on top of it if the kernel can read that.
    pub(crate) fn overlay(&mut self, above: Option<&OwnedFd>) -> io::Result<OwnedFd> {
        if self.parts == 0 {
            let memory = kernel::create(
                "tmpfs",
                &[("mode", "0755"), ("size", SIZE)],
                MountAttrFlags::MOUNT_ATTR_NODEV,
            )?;
            kernel::place(memory.as_fd(), open_dir(MEMORY)?.as_fd())?;
        }
        self.parts += 1;
        let dir = Path::new(MEMORY).join(self.parts.to_string());
        let [upper, work] = ["upper", "work"].map(|name| dir.join(name));
        for path in [&dir, &upper, &work] {
            mkdirat(CWD, path, Mode::from(0o755))?;
        }
        // The overlay shows mode and owner of its upper directory.
        let shown = fstat(open_dir(PART)?)?;
        let (uid, gid) = (Uid::from_raw(shown.st_uid), Gid::from_raw(shown.st_gid));
        chownat(CWD, &upper, Some(uid), Some(gid), AtFlags::empty())?;
        chmod(&upper, Mode::from_raw_mode(shown.st_mode))?;
        let with = |lower: &str| mount(lower, &upper, &work);
        match above {
            Some(above) => with(&format!("{}:{PART}", path_of(above))).or_else(|_| with(PART)),
            None => with(PART),
        }
    }
}

fn mount(lower: &str, upper: &PathBuf, work: &PathBuf) -> io::Result<OwnedFd> {
    let [upper, work] = [upper, work].map(|path| path.to_string_lossy());
    let options = [
        ("lowerdir", lower),
        ("upperdir", &*upper),
        ("workdir", &*work),
        ("redirect_dir", "off"),
        ("metacopy", "off"),
        ("xino", "off"),
    ];
    Ok(kernel::create("overlay", &options, MountAttrFlags::MOUNT_ATTR_NODEV)?)
}
