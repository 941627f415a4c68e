//! How the process uses its memory: one heap for all threads, and given back what is no longer needed.
//!
//! The GNU allocator gives each thread a heap of its own that grows by one system call for each page and is rarely given back.
//! This process has few threads at work at a time: one heap is faster for it, and a third of the size after a burst. With
//! another C library nothing here does anything.

use std::{sync::Arc, time::Duration};

use crate::publish::ReadModel;

/// So long after a change free memory is given back: often the next change needs it again.
const QUIET: Duration = Duration::from_secs(5);

/// Chooses one heap. To be called before there are other threads.
pub fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    gnu::use_one_heap();
}

/// Gives free pages back to the kernel after each burst of changes. Ends with whoever runs it.
pub(crate) async fn give_back_after_changes(model: Arc<ReadModel>) {
    loop {
        model.changed(model.index()).await;
        tokio::time::sleep(QUIET).await;
        #[cfg(target_env = "gnu")]
        let _ = tokio::task::spawn_blocking(gnu::give_back).await;
    }
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "settings of the allocator have no safe interface")]
mod gnu {
    /// Buffers from this size on are mappings of their own, gone when they are freed.
    const MAPPED_BYTES_MIN: i32 = 128 << 10;
    /// The heap grows by at least so much.
    const STEP_BYTES: i32 = 256 << 10;

    pub(super) fn use_one_heap() {
        let settings = [
            (libc::M_ARENA_MAX, 1),
            // Said, because it would grow with the buffers that are freed, up to 32 MiB.
            (libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
            (libc::M_TRIM_THRESHOLD, 2 * STEP_BYTES),
            (libc::M_TOP_PAD, STEP_BYTES),
        ];
        for (name, value) in settings {
            // SAFETY: takes two numbers, and may be called at any time. A setting that is refused is as it was.
            unsafe { libc::mallopt(name, value) };
        }
    }

    pub(super) fn give_back() {
        // SAFETY: may be called at any time from any thread; it touches only memory that is free.
        unsafe { libc::malloc_trim(0) };
    }
}
