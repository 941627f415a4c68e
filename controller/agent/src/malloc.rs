//! The memory usage of the process: one heap for all threads, and unused memory is returned to the kernel.
//!
//! In: notifications of changes. Out: a smaller process, once nothing has changed for some seconds, or from time to
//! time while changes continue. It must not know what the memory was used for.
//!
//! The GNU allocator gives each thread a heap of its own, which grows by one system call per page and is rarely
//! returned. This process has few busy threads at a time: a single heap is faster for it, and a third of the size
//! after a burst. With another C library the heap is left alone.
//!
//! Most of an idle agent is its own code that only the start, or the last burst of work, has needed. The agent unmaps
//! it: it stays in the page cache as long as the machine has memory to spare, and is mapped again page by page when
//! it runs.

use std::{sync::Arc, time::Duration};

use rustix::process::DumpableBehavior;

use crate::publish::ReadModel;

/// The time without changes after which free memory is returned; the next change often needs it again.
const QUIET: Duration = Duration::from_secs(5);

/// After this time free memory is returned even if changes continue, so that what a burst has left is not kept
/// indefinitely.
const UNREST_MAX: Duration = Duration::from_secs(120);

/// The interval at which a series of changes is checked, so that not every change wakes the task.
const PACE: Duration = Duration::from_secs(1);

/// Memory is returned once more after this time without a change: the agent keeps the remains of an attempt for a
/// minute.
const REST: Duration = Duration::from_secs(70);

/// Selects a single heap. Must be called before there are other threads.
pub fn use_one_heap() {
    #[cfg(target_env = "gnu")]
    gnu::use_one_heap();
}

/// Closes this process to core dumps and debuggers, and its `/proc` to other processes of its user: its memory holds
/// tokens and the environments of tasks. Tasks would inherit a core size limit; this setting ends with execve(2).
pub fn close_to_others() {
    // No kernel refuses this. A sandbox may, and then nothing changes.
    let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Returns memory after the start and after each burst of changes.
pub(crate) async fn give_back_after_changes(model: Arc<ReadModel>) {
    loop {
        quiet(&model).await;
        let version = model.version();
        let _ = herdlet_runtime::off_thread(give_back).await;
        if tokio::time::timeout(REST, model.changed(version)).await.is_err() {
            let _ = herdlet_runtime::off_thread(give_back).await;
            model.changed(version).await;
        }
    }
}

/// Waits until nothing has changed for [`QUIET`], at most for [`UNREST_MAX`].
async fn quiet(model: &ReadModel) {
    let unrest = async {
        while tokio::time::timeout(QUIET, model.changed(model.version())).await.is_ok() {
            tokio::time::sleep(PACE).await;
        }
    };
    let _ = tokio::time::timeout(UNREST_MAX, unrest).await;
}

/// Returns free memory to the kernel. Blocks.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    gnu::give_back();
    match std::fs::read_to_string("/proc/self/maps") {
        Ok(maps) => code::own(&maps).for_each(code::unmap),
        Err(error) => tracing::debug!(%error, "failed to read the memory mappings of this process"),
    }
}

#[expect(unsafe_code, reason = "madvise(2) has no safe interface")]
mod code {
    use std::ops::Range;

    /// The address ranges of this program's code: executable, not writable, and containing this function.
    pub(super) fn own(maps: &str) -> impl Iterator<Item = Range<usize>> {
        let here = own as *const () as usize;
        let code = move |line: &str| {
            let mut fields = line.split_ascii_whitespace();
            let (from, to) = fields.next()?.split_once('-')?;
            let range = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
            (fields.next()? == "r-xp" && range.contains(&here)).then_some(range)
        };
        maps.lines().filter_map(code)
    }

    pub(super) fn unmap(code: Range<usize>) {
        // SAFETY: these pages hold the content of the file, and the next access maps them again. That they are not
        // writable now does not prove that they were never modified: the dynamic linker would have done so for
        // relocations in code, but this is a position-independent executable without any (no `DT_TEXTREL`).
        // Breakpoints that a debugger has set are lost, which only affects the debugger.
        unsafe { libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED) };
    }
}

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "settings of the allocator have no safe interface")]
mod gnu {
    /// Buffers of at least this size are mappings of their own, which freeing unmaps.
    const MAPPED_BYTES_MIN: i32 = 128 << 10;
    /// The heap grows by at least this much.
    const STEP_BYTES: i32 = 256 << 10;

    pub(super) fn use_one_heap() {
        let settings = [
            (libc::M_ARENA_MAX, 1),
            // Set explicitly, because it would otherwise grow with freed buffers, up to 32 MiB.
            (libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
            (libc::M_TRIM_THRESHOLD, 2 * STEP_BYTES),
            (libc::M_TOP_PAD, STEP_BYTES),
        ];
        for (name, value) in settings {
            // SAFETY: takes two numbers; a refused setting stays unchanged. It is unsafe while other threads allocate
            // (mallopt(3): MT-Unsafe init const:mallopt): the caller ensures that there are none yet.
            unsafe { libc::mallopt(name, value) };
        }
    }

    pub(super) fn give_back() {
        // SAFETY: may be called at any time from any thread; it touches only free memory.
        unsafe { libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use herdlet_plan::turn::View;
    use herdlet_runtime::{CommitIndex, Publisher as _};
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Changes the model every second for `seconds`; returns how long memory was kept after the first change.
    async fn kept_while_busy_for(seconds: u64) -> Duration {
        let model = Arc::new(ReadModel::default());
        let mut publisher = model.publisher();
        let changes = tokio::spawn(async move {
            for index in 1..=seconds {
                publisher.offer(CommitIndex(index), vec![View::VolumeGone("a".to_owned())]);
                sleep(Duration::from_secs(1)).await;
            }
        });
        let began = Instant::now();
        quiet(&model).await;
        changes.abort();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_released_after_changes_have_ended() {
        assert_eq!(kept_while_busy_for(0).await, QUIET);
        let kept = kept_while_busy_for(30).await;
        assert!(kept > Duration::from_secs(30) && kept <= Duration::from_secs(30) + PACE + QUIET, "{kept:?}");
        assert_eq!(kept_while_busy_for(100_000).await, UNREST_MAX);
    }

    #[test]
    fn released_code_pages_still_run() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert_eq!(code::own(&maps).count(), 1, "{maps}");
        for _ in 0..3 {
            give_back();
        }
        assert_eq!(
            code::own("7f0000000000-7f0000001000 rw-p 00000000 00:00 0\nrubbish\n- r-xp\n").count(),
            0
        );
    }
}
