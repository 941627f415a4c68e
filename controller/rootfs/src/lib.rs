//! Roots of isolated tasks: mount namespaces in which a task's directory is `/`, with parts of the machine in it, or the layers of an
//! image.
//!
//! In: a description of a root. Out: a mount namespace, as a descriptor, and what could not be made as described. A
//! namespace exists as long as its descriptor or a process in it: an agent that dies leaves only files in the directory of
//! the allocation. It is independent of jobs and tasks. All functions block for some milliseconds; callers use threads for them.
//!
//! The parts of the machine are overlays: the task can write everywhere, and what it writes is in its directory. A file
//! that is in the directory before the root is made, such as an artifact in `etc`, is found in the root. Mounts of /proc and
//! of message queues are missing: only a process in the task's namespaces can make them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`root`] | the description of a root |
//! | [`seed`] | the small namespace that is copied for each root |
//! | [`builder`] | makes a root |
//! | `frame` | what every root has |
//! | `image` | the layers of an image |
//! | `source` | parts of the machine, copied while they can still be seen |
//! | `overlay` | overlays of these parts |
//! | `memory` | changes that the task's directory can't hold |
//! | `device` | /dev |
//! | `place` | places for mounts in a root |
//! | [`kernel`] | mounts by descriptors |

pub mod builder;
mod device;
mod frame;
mod image;
pub mod kernel;
mod memory;
mod overlay;
mod place;
pub mod root;
pub mod seed;
mod source;
