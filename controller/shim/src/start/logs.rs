//! Moves output from the task's pipes to the log files, without making the task wait for a disk.
//!
//! In: two pipes. Out: two series of files, and a count of dropped bytes.
//!
//! ```text
//! task ──pipe──► writer thread ──► <stem>.N
//!           └──► discarded by the main thread, while the writer is stuck and the pipe fills up
//! ```
//!
//! A writer thread exists only while there is output: the main thread, which sleeps in its poll, creates it at the
//! first byte. After an idle period the writer exits, and its memory is freed. Only the writer waits for a disk.
//!
//! Whenever the writer starts to write, it sets an alarm. If the alarm finds (almost) no progress since, and a pipe is
//! half full, the main thread discards that pipe's contents and counts the bytes. So a stalled disk delays a task that
//! writes a lot by [`PATIENCE_MS`] at first, then less and less, down to 1 ms for each half pipe; the output of a task
//! that writes little stays in its pipe. With [`Full::Block`] there is no alarm: the task waits for the disk.

use super::files::{LogFile, Place};
use super::sys::{self, Fd, POLLIN, PollFd};
use crate::clone::{Birth, CLONE_VM, clone_onto};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// The maximum size of a read and write.
const BUFFER_LEN: usize = 128 * 1024;
const STACK_LEN: usize = 32 * 1024;
const AREA_LEN: usize = BUFFER_LEN + STACK_LEN;
/// The default capacity of a pipe (pipe(7)). A full one indicates heavy traffic.
const PIPE_LEN: u32 = 64 * 1024;
/// The capacity under heavy traffic: fewer switches between task and writer.
const PIPE_LEN_HEAVY: u32 = 256 * 1024;
/// Minimum size for moving bytes through the relay; copying is faster for fewer.
const RELAY_MIN: usize = 16 * 1024;
/// The initial time after which a busy writer is checked.
const PATIENCE_MS: u32 = 200;
/// Minimum bytes per millisecond (1 MB/s); a slower writer counts as stuck.
const SLOW_BYTES_MS: u64 = 1000;
/// How long the writer waits for more output before it exits.
const QUIET_MS: u64 = 3_000;
/// Delay before retrying a refused write if nothing may be dropped.
const RETRY_MS: u64 = 500;
/// How long a stuck disk may delay the end after the task and all its children are gone.
const FINISH_MS: u32 = 10_000;

const GONE: u32 = 0;
const ACTIVE: u32 = 1;
const LEAVING: u32 = 2;

/// What to do if the disk is slower than the task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Drop,
    Block,
}

/// State shared by both threads. Must not move once a writer has been created.
pub(super) struct Shared {
    places: [Place; 2],
    full: Full,
    process: u32,
    streams: [Stream; 2],
    /// Address of the writer's buffer and stack, or 0.
    area: AtomicUsize,
    writer: AtomicU32,
    writer_thread: AtomicU32,
    /// 1 while the writer moves bytes from a pipe to a file.
    moving: AtomicU32,
    /// Size of the current write, 0 if there is none.
    writing: AtomicU32,
    /// Bytes written or refused.
    done: AtomicU64,
    /// Bytes that were dropped.
    dropped: AtomicU64,
    /// 1 while an alarm is set.
    armed: AtomicU32,
    patience_ms: AtomicU32,
    /// 1 when no process is left that could write more.
    ending: AtomicU32,
    /// Owned by the writer; the main thread accesses them only while there is no writer.
    files: UnsafeCell<[LogFile; 2]>,
}

/// One of the task's output streams.
struct Stream {
    /// The pipe's read end, or -1 if there is none.
    pipe: Fd,
    pipe_len: AtomicU32,
    /// 1 after end of file.
    closed: AtomicU32,
}

/// The main thread's side.
pub(super) struct Streams<'s> {
    shared: &'s Shared,
    /// [`Shared::done`] at the last alarm.
    done_before: u64,
    /// How long the writer has been stuck.
    stuck_ms: u32,
}

impl Shared {
    /// Takes ownership of the read ends of both pipes; -1 for none.
    pub(super) fn new(places: [Place; 2], full: Full, pipes: [Fd; 2]) -> Self {
        let stream = |pipe: Fd| Stream {
            pipe,
            pipe_len: AtomicU32::new(PIPE_LEN),
            closed: AtomicU32::new(u32::from(pipe < 0)),
        };
        Self {
            places,
            full,
            process: sys::getpid(),
            streams: pipes.map(stream),
            area: AtomicUsize::new(0),
            writer: AtomicU32::new(GONE),
            writer_thread: AtomicU32::new(0),
            moving: AtomicU32::new(0),
            writing: AtomicU32::new(0),
            done: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            armed: AtomicU32::new(0),
            patience_ms: AtomicU32::new(PATIENCE_MS),
            ending: AtomicU32::new(0),
            files: UnsafeCell::new([LogFile::closed(), LogFile::closed()]),
        }
    }

    fn are_closed(&self) -> bool {
        self.streams.iter().all(|stream| stream.closed.load(SeqCst) != 0)
    }

    fn wake_main(&self) {
        sys::signal_thread(self.process, self.process, sys::SIGUSR1);
    }
}

impl<'s> Streams<'s> {
    pub(super) fn new(shared: &'s Shared) -> Self {
        Self { shared, done_before: 0, stuck_ms: 0 }
    }

    /// Bytes dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.dropped.load(SeqCst)
    }

    /// Whether all output is written or given up.
    pub(super) fn are_finished(&self) -> bool {
        let is_written = self.shared.are_closed() && self.shared.writer.load(SeqCst) == GONE;
        is_written || self.stuck_ms >= FINISH_MS
    }

    /// Whether everything that was in the pipes at the time of the call is written or given up. The order matters: bytes
    /// leave a pipe only while [`Shared::moving`] is set.
    pub(super) fn are_caught_up(&self) -> bool {
        let shared = self.shared;
        let is_empty =
            |stream: &Stream| stream.closed.load(SeqCst) != 0 || sys::waiting_bytes(stream.pipe) == 0;
        shared.streams.iter().all(is_empty) && shared.moving.load(SeqCst) == 0
    }

    /// Sets the main thread's poll entries: the pipes, unless the writer waits for them.
    pub(super) fn prepare(&self, entries: &mut [PollFd]) {
        let is_idle = self.shared.writer.load(SeqCst) == GONE;
        for (entry, stream) in entries.iter_mut().zip(&self.shared.streams) {
            let fd = if is_idle && stream.closed.load(SeqCst) == 0 { stream.pipe } else { -1 };
            *entry = PollFd { fd, events: POLLIN, revents: 0 };
        }
    }

    /// Handles the poll results: records a pipe's end, and leaves anything else to the writer.
    pub(super) fn see(&self, entries: &[PollFd]) {
        let mut has_bytes = false;
        for (entry, stream) in entries.iter().zip(&self.shared.streams) {
            if entry.revents & POLLIN != 0 {
                has_bytes = true;
            } else if entry.revents != 0 {
                stream.closed.store(1, SeqCst);
            }
        }
        if has_bytes {
            self.create_writer();
        }
    }

    fn create_writer(&self) {
        const CLONE_FS_FILES_SIGHAND_THREAD_SYSVSEM: u64 = 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
        const CLONE_PARENT_SETTID_CHILD_CLEARTID: u64 = 0x10_0000 | 0x20_0000;
        let shared = self.shared;
        let Ok(area) = sys::map(AREA_LEN) else { return self.discard_all() };
        shared.area.store(area.as_ptr() as usize, SeqCst);
        shared.writer.store(ACTIVE, SeqCst);
        let word = sys::address(&shared.writer_thread);
        let birth = Birth {
            flags: CLONE_VM | CLONE_FS_FILES_SIGHAND_THREAD_SYSVSEM | CLONE_PARENT_SETTID_CHILD_CLEARTID,
            exit_signal: 0,
            parent_word: word,
            child_word: word,
            cgroup: 0,
        };
        let (_, stack) = area.split_at_mut(BUFFER_LEN);
        let argument = core::ptr::from_ref(shared).cast_mut().cast();
        // SAFETY: the stack is the new thread's own, and `shared` lives as long as the process.
        let thread = unsafe { clone_onto(&birth, stack, writer, argument) };
        if thread < 0 {
            // No thread can be created (a limit of the user): the task matters more than its output.
            self.discard_all();
            shared.writer.store(LEAVING, SeqCst);
            self.release();
        }
    }

    /// Frees the writer's memory after it has exited.
    pub(super) fn release(&self) {
        let shared = self.shared;
        if shared.writer.load(SeqCst) != LEAVING {
            return;
        }
        loop {
            // The kernel clears the word when the thread has exited completely.
            let thread = shared.writer_thread.load(SeqCst);
            if thread == 0 {
                break;
            }
            sys::futex_wait(&shared.writer_thread, thread, None);
        }
        for stream in &shared.streams {
            stream.resize(PIPE_LEN);
        }
        let area = shared.area.swap(0, SeqCst);
        // SAFETY: the thread is gone, and its buffer and stack have no other users.
        unsafe { sys::unmap(area as *const u8, AREA_LEN) };
        shared.writer.store(GONE, SeqCst);
    }

    /// Handles the alarm: checks the writer's progress.
    pub(super) fn watch(&mut self) {
        let shared = self.shared;
        let patience_ms = shared.patience_ms.load(SeqCst);
        let done = shared.done.load(SeqCst);
        let is_slow = done - self.done_before < SLOW_BYTES_MS * u64::from(patience_ms);
        self.stuck_ms = if done == self.done_before { self.stuck_ms + patience_ms } else { 0 };
        self.done_before = done;
        shared.armed.store(0, SeqCst);
        if shared.writing.load(SeqCst) == 0 {
            // The writer waits for output; its next write sets the alarm again.
            self.stuck_ms = 0;
            shared.patience_ms.store(PATIENCE_MS, SeqCst);
            return;
        }
        let mut is_held = false;
        if is_slow {
            for stream in &shared.streams {
                if sys::waiting_bytes(stream.pipe) * 2 >= stream.pipe_len.load(SeqCst) {
                    is_held = true;
                    self.discard(stream);
                }
            }
        }
        let patience_ms = match (is_slow, is_held) {
            (false, _) => PATIENCE_MS,
            (true, true) => (patience_ms / 2).max(1),
            (true, false) => (patience_ms * 2).min(PATIENCE_MS),
        };
        shared.patience_ms.store(patience_ms, SeqCst);
        arm(shared);
    }

    /// Discards the contents of a pipe.
    fn discard(&self, stream: &Stream) {
        if let Ok(len) = sys::splice(stream.pipe, 0, 1 << 20) {
            self.shared.dropped.fetch_add(len as u64, SeqCst);
        }
    }

    fn discard_all(&self) {
        for stream in &self.shared.streams {
            if sys::waiting_bytes(stream.pipe) > 0 {
                self.discard(stream);
            }
        }
    }

    /// No process is left that could write more: give up output that can't be written now.
    pub(super) fn end(&self) {
        self.shared.ending.store(1, SeqCst);
        sys::futex_wake(&self.shared.ending);
    }

    /// Counts the output given up.
    pub(super) fn give_up(&self) {
        let left = u64::from(self.shared.writing.load(SeqCst));
        self.shared.dropped.fetch_add(left, SeqCst);
        self.discard_all();
    }
}

impl Stream {
    fn resize(&self, len: u32) {
        if self.pipe_len.swap(len, SeqCst) != len {
            sys::resize_pipe(self.pipe, len as usize);
        }
    }
}

/// The writer thread.
unsafe extern "C" fn writer(argument: *mut c_void) -> ! {
    // SAFETY: `Streams::create_writer` passes a value that lives as long as the process.
    let shared = unsafe { &*argument.cast::<Shared>() };
    // SAFETY: the buffer and the files belong to this thread while it lives; there is only one.
    let (buffer, files) = unsafe {
        let at = shared.area.load(SeqCst) as *mut u8;
        (core::slice::from_raw_parts_mut(at, BUFFER_LEN), &mut *shared.files.get())
    };
    let mut relay = Relay::closed();
    while !shared.are_closed() {
        let mut entries = [PollFd { fd: -1, events: POLLIN, revents: 0 }; 2];
        for (entry, stream) in entries.iter_mut().zip(&shared.streams) {
            entry.fd = if stream.closed.load(SeqCst) == 0 { stream.pipe } else { -1 };
        }
        if sys::poll(&mut entries, Some(QUIET_MS)) == Ok(0) {
            break;
        }
        for (index, file) in files.iter_mut().enumerate() {
            if entries[index].revents != 0 {
                shared.moving.store(1, SeqCst);
                move_piece(shared, index, file, buffer, &mut relay);
                shared.moving.store(0, SeqCst);
            }
        }
    }
    relay.close();
    shared.writer.store(LEAVING, SeqCst);
    shared.wake_main();
    sys::exit_thread()
}

/// Moves one piece from pipe to file.
fn move_piece(shared: &Shared, index: usize, file: &mut LogFile, buffer: &mut [u8], relay: &mut Relay) {
    let (stream, place) = (&shared.streams[index], &shared.places[index]);
    // The main thread may have emptied the pipe meanwhile, so this must not block.
    let waiting = sys::waiting_bytes(stream.pipe) as usize;
    let relayed = if waiting >= RELAY_MIN { relay.fill(stream.pipe, waiting) } else { 0 };
    let len = match (relayed, waiting) {
        (0, 0) => 0,
        (0, _) => sys::read(stream.pipe, buffer).unwrap_or(0),
        (relayed, _) => relayed,
    };
    if len == 0 {
        let mut entry = [PollFd { fd: stream.pipe, events: POLLIN, revents: 0 }];
        // Empty and hung up: end of file. Only empty: the main thread was faster.
        if sys::poll(&mut entry, Some(0)) == Ok(1) && entry[0].revents & POLLIN == 0 {
            stream.closed.store(1, SeqCst);
        }
        return;
    }
    if len >= PIPE_LEN as usize {
        stream.resize(PIPE_LEN_HEAVY);
    }
    shared.writing.store(len as u32, SeqCst);
    if shared.full == Full::Drop {
        arm(shared);
    }
    if relayed == 0 {
        write_piece(shared, place, file, buffer.get(..len).unwrap_or_default());
    } else {
        let mut left = len - file.take(place, relay.from, len);
        while left > 0 {
            // Near the end of a file the content matters; refused writes are handled there too.
            let read = sys::read(relay.from, buffer).unwrap_or(0);
            if read == 0 {
                break;
            }
            write_piece(shared, place, file, buffer.get(..read).unwrap_or_default());
            left = left.saturating_sub(read);
        }
    }
    shared.done.fetch_add(len as u64, SeqCst);
    shared.writing.store(0, SeqCst);
}

/// A separate pipe between the task's and the file. Data is copied once, from pipe to file, and a slow disk blocks this
/// pipe instead of the task's.
struct Relay {
    from: Fd,
    to: Fd,
}

impl Relay {
    const fn closed() -> Self {
        Self { from: -1, to: -1 }
    }

    fn close(&self) {
        sys::close(self.from);
        sys::close(self.to);
    }

    /// Moves at most this many bytes out of the task's pipe without waiting. Returns the number of bytes, 0 if it is
    /// not possible.
    fn fill(&mut self, pipe: Fd, len: usize) -> usize {
        if self.from < 0 {
            let Ok((from, to)) = sys::pipe() else { return 0 };
            (self.from, self.to) = (from, to);
            sys::resize_pipe(to, PIPE_LEN_HEAVY as usize);
        }
        sys::splice(pipe, self.to, len).unwrap_or(0)
    }
}

fn write_piece(shared: &Shared, place: &Place, file: &mut LogFile, mut piece: &[u8]) {
    loop {
        let written = file.append(place, piece);
        piece = piece.get(written..).unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        if shared.full == Full::Drop || shared.ending.load(SeqCst) != 0 {
            break;
        }
        sys::futex_wait(&shared.ending, 0, Some(RETRY_MS));
    }
    if shared.dropped.fetch_add(piece.len() as u64, SeqCst) == 0 {
        // The first loss is published at once, later ones at the next opportunity.
        shared.wake_main();
    }
}

/// Sets the alarm unless it is already set.
fn arm(shared: &Shared) {
    if shared.armed.swap(1, SeqCst) == 0 {
        sys::set_alarm(shared.patience_ms.load(SeqCst));
    }
}
