//! A virtual machine whose power is cut at random moments, again and again; what it had acknowledged must be there after each.
//!
//! In: a seed and how many cuts. Out: how they went, and every promise that was broken. What is simulated is the disk: it has a
//! cache that forgets. A write is on it for good once a flush was answered; of those that came later a cut keeps the first
//! few, or any, or none, by sectors of 4 KiB. The kernel, its ext4 and the agent are real; processors and memory are emulated.
//!
//! - [`disk`]: the disk.
//! - [`nbd`]: how qemu reads and writes it.
//! - [`machine`]: a boot of the machine, and its end.
//! - [`guest`]: what runs in the machine to tell what else runs there.
//! - [`life`]: operations, cuts, and judgement after each boot.
//!
//! Another part of herdlet joins by what it adds to [`crate::crashes::job`] and [`crate::crashes::operation`], which these lives
//! share with the crashes, and by what it must not leave behind (`life.rs`).

pub mod disk;
pub mod guest;
pub mod life;
pub mod machine;
pub mod nbd;
