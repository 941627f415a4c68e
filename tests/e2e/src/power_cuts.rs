//! Cuts the power of a virtual machine at random moments, again and again. All acknowledged changes must exist
//! after each cut.
//!
//! In: a seed and the number of cuts. Out: the result of each, and every violation. The disk is simulated: it
//! has a volatile cache. A write is durable once a flush was answered; of later writes, a cut keeps the first
//! few, or any, or none, in sectors of 4 KiB. The kernel, its ext4 and the agent are real; processors and
//! memory are emulated.
//!
//! - [`disk`]: the disk.
//! - [`nbd`]: the protocol between qemu and the disk.
//! - [`machine`]: a boot of the machine, and its end.
//! - [`guest`]: a program in the machine that reports what runs there.
//! - [`life`]: operations, cuts, and checks after each boot.
//!
//! To cover a new part of herdlet, add it to [`crate::crashes::job`] and [`crate::crashes::operation`], which
//! the crashes use too, and the traces that it must not leave to `life.rs`.

pub mod disk;
pub mod guest;
pub mod life;
pub mod machine;
pub mod nbd;
