//! Makes a root.
//!
//! In: the seed, a description. Out: a mount namespace. The work is done on a thread in a copy of the seed: until the root
//! is complete, nothing but that thread sees it, and if it can't be completed, the copy ends with the thread.

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use herdlet_base::own_thread::on_own_thread;
use rustix::{fs::symlinkat, io::Errno};

use crate::{
    frame::{Frame, put},
    image,
    kernel::{self, Depth},
    memory::Memory,
    overlay::{self, Refusal},
    place::{directory, file},
    root::{Access, Built, Changes, ImageRoot, LimitedEntry, Rights, Root, RootError, failed},
    seed::{ALLOC, PART, ROOT, Seed, open_dir},
    source::{Content, ImageSources, Part, Sources},
};

/// Makes a root.
///
/// # Errors
/// [`RootError::Busy`] while a process of an earlier root of the same task lives. Other errors are of the machine or of the
/// description: a missing task directory, or a bind without its source.
pub fn build(seed: &Seed, root: &Root) -> Result<Built, RootError> {
    on_own_thread("root", || {
        let sources = Sources::open(root)?;
        seed.enter_copy().map_err(failed("enter a mount namespace for", &root.task))?;
        Builder::new(root, &sources)?.run(&sources)
    })
}

/// Makes the root of an image.
///
/// # Errors
/// [`RootError::Busy`] while a process of an earlier root with the same directory of changes lives. Other errors are of the machine or
/// of the description: a missing layer, a bind without its source.
pub fn build_image(seed: &Seed, root: &ImageRoot) -> Result<Built, RootError> {
    on_own_thread("root", || {
        let sources = ImageSources::open(root)?;
        seed.enter_copy().map_err(failed("enter a mount namespace for", &root.changes))?;
        let (base, limited) = image::mount(&sources, root.rights)?;
        for dir in &root.directories {
            directory(base.as_fd(), dir).map_err(failed("make", dir))?;
        }
        Frame::new(&base, root.shm_bytes, &sources.common, root.rights)?.finish(root.access, limited)
    })
}

impl From<std::io::Error> for RootError {
    fn from(error: std::io::Error) -> Self {
        failed("start a thread for", Path::new("a root"))(error)
    }
}

struct Builder<'r> {
    root: &'r Root,
    /// The task's directory, at its place.
    base: &'r OwnedFd,
    memory: Memory,
    limited: Vec<LimitedEntry>,
}

impl<'r> Builder<'r> {
    fn new(root: &'r Root, sources: &'r Sources) -> Result<Self, RootError> {
        put(&sources.task, ROOT)?;
        put(&sources.alloc, ALLOC)?;
        Ok(Self { root, base: &sources.task, memory: Memory::default(), limited: Vec::new() })
    }

    fn run(mut self, sources: &Sources) -> Result<Built, RootError> {
        let shown = self.shown(sources)?;
        for (part, shown) in sources.parts.iter().zip(shown) {
            self.add(part, shown)?;
        }
        let frame = Frame::new(self.base, None, &sources.common, Rights::Confined)?;
        frame.finish(Access::ReadWrite, self.limited)
    }

    fn base(&self) -> BorrowedFd<'_> {
        self.base.as_fd()
    }

    /// What is shown of each part, in their order.
    fn shown(&mut self, sources: &Sources) -> Result<Vec<PartMount>, RootError> {
        let alloc = sources.alloc.as_fd();
        let upper = |part: &Part| match &part.content {
            Content::Directory(mount) => {
                Some(overlay::upper_directory(alloc, &self.root.task.join(&part.target), mount))
            }
            Content::Link(_) | Content::File(_) => None,
        };
        let uppers: Vec<_> = sources.parts.iter().map(upper).collect();
        let mut shown = Vec::new();
        for (part, upper) in sources.parts.iter().zip(&uppers).rev() {
            shown.push(match (&part.content, upper) {
                (Content::Directory(mount), Some(upper)) => {
                    // On top of the one before. They go with the seed: an unmount waits until all processors have seen it.
                    put(mount, PART)?;
                    self.shown_directory(&part.target, alloc, upper)?
                }
                (Content::Link(_) | Content::File(_) | Content::Directory(_), _) => PartMount::AsItIs,
            });
        }
        shown.reverse();
        self.limited.reverse();
        Ok(shown)
    }

    /// What is shown of the directory at [`PART`].
    fn shown_directory(
        &mut self,
        target: &Path,
        alloc: BorrowedFd<'_>,
        upper: &rustix::io::Result<OwnedFd>,
    ) -> Result<PartMount, RootError> {
        let made = match upper {
            Ok(upper) => overlay::mount(self.root, alloc, target, upper),
            Err(errno) => Err(Refusal::Unsupported((*errno).into())),
        };
        let reason = match made {
            Ok(overlay) => return Ok(PartMount::Overlay(overlay)),
            Err(Refusal::Busy) => return Err(RootError::Busy { target: target.to_owned() }),
            Err(Refusal::Unsupported(error)) => error.to_string(),
        };
        let limited =
            |changes| self.limited.push(LimitedEntry { target: target.to_owned(), changes, reason });
        // What is in the task's directory, such as an artifact, is shown in any case, if it can be read.
        if let Ok(overlay) = self.memory.overlay(upper.as_ref().ok()) {
            limited(Changes::Temporary);
            return Ok(PartMount::Overlay(overlay));
        }
        limited(Changes::Refused);
        let copy = open_dir(PART).and_then(|part| kernel::copy_open(part.as_fd()));
        Ok(PartMount::ReadOnly(copy.map_err(failed("copy the mount of", target))?))
    }

    fn add(&self, part: &Part, shown: PartMount) -> Result<(), RootError> {
        let target = &part.target;
        match (&part.content, shown) {
            (Content::Link(to), _) => self.link(to, target).map_err(failed("make the link", target)),
            (Content::File(mount), _) => {
                let place = file(self.base(), target).map_err(failed("make a place for", target))?;
                place_read_only(mount, &place, target)
            }
            (Content::Directory(_), PartMount::Overlay(overlay)) => {
                let place = directory(self.base(), target).map_err(failed("make a place for", target))?;
                kernel::place(overlay.as_fd(), place.as_fd()).map_err(failed("mount", target))
            }
            (Content::Directory(_), PartMount::ReadOnly(mount)) => {
                let place = directory(self.base(), target).map_err(failed("make a place for", target))?;
                place_read_only(&mount, &place, target)
            }
            (Content::Directory(_), PartMount::AsItIs) => Ok(()),
        }
    }

    /// What the task has in the place of a link stays.
    fn link(&self, to: &Path, target: &Path) -> rustix::io::Result<()> {
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Errno::INVAL);
        };
        match symlinkat(to, directory(self.base(), parent)?, name) {
            Err(Errno::EXIST) => Ok(()),
            done => done,
        }
    }
}

/// What a root shows of a part of the machine.
enum PartMount {
    Overlay(OwnedFd),
    /// The part itself.
    ReadOnly(OwnedFd),
    /// A file or a link.
    AsItIs,
}

fn place_read_only(mount: &OwnedFd, place: &OwnedFd, target: &Path) -> Result<(), RootError> {
    let done = kernel::make_read_only(mount.as_fd(), Depth::Alone);
    done.map_err(failed("refuse writes to", target))?;
    kernel::place(mount.as_fd(), place.as_fd()).map_err(failed("mount", target))
}
