//! From the task's pipes to the log files, without ever making the task wait for a disk.
//!
//! In: two pipes. Out: two series of files, and a count of what could not be kept. The main loop moves bytes from a pipe
//! into a ring in memory; a writer thread, which exists only while there is something to write, moves them from the ring
//! into files. Memory and thread are given back after a quiet while.
//!
//! ```text
//! task ──pipe──► main loop ──ring──► writer thread ──► <stem>.N
//! ```
//!
//! A full ring is first of all a writer that has not had its turn: the task is held back for a moment ([`PATIENCE_MS`]),
//! as any pipe would do. If the ring doesn't get half empty meanwhile, the disk counts as stalled: what the task writes is
//! thrown away and counted until half of the ring is free again, and the patience is halved until the ring was empty once.
//! With [`Full::Block`] the patience has no end.
//!
//! ```text
//! writer: gone ──► busy ◄──► idle ──► leaving ──► gone
//! ```

use super::files::{LogFile, Place};
use super::sys::{self, Fd, POLLIN, PollFd};
use crate::clone::{Birth, CLONE_VM, clone_onto};
use crate::ring::Cursor;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Bytes of each stream that may wait for the disk.
const RING_LEN: usize = 256 * 1024;
/// The most that is written at once, so that room comes back step by step.
const PIECE_LEN: usize = 64 * 1024;
const STACK_LEN: usize = 32 * 1024;
const AREA_LEN: usize = 2 * RING_LEN + STACK_LEN;
/// How long a task is held back before a full ring counts as a stalled disk.
const PATIENCE_MS: u64 = 200;
/// How long the writer waits for more before it gives back its memory.
const QUIET_MS: u64 = 3_000;
/// How long a refused write is left alone when nothing may be dropped.
const RETRY_MS: u64 = 500;
/// How long a stalled disk may hold up the end, once the task and all its children are gone.
const FINISH_MS: u64 = 10_000;

const GONE: u32 = 0;
const BUSY: u32 = 1;
const IDLE: u32 = 2;
const LEAVING: u32 = 3;

const WANTS_NOTHING: u32 = 0;
const WANTS_ROOM: u32 = 1;
const WANTS_END: u32 = 2;

/// What to do when the disk is slower than the task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    Drop,
    Block,
}

/// What the main loop and the writer share. Must not move once a pipe was read.
pub(super) struct Shared {
    places: [Place; 2],
    full: Full,
    process: u32,
    rings: [Cursor; 2],
    /// Address of the rings and the writer's stack, or 0.
    area: AtomicUsize,
    writer: AtomicU32,
    writer_thread: AtomicU32,
    wants: AtomicU32,
    ending: AtomicU32,
    dropped: AtomicU64,
    /// The writer's own; the main loop touches them only while there is no writer.
    files: UnsafeCell<[LogFile; 2]>,
}

impl Shared {
    pub(super) fn new(places: [Place; 2], full: Full) -> Self {
        Self {
            places,
            full,
            process: sys::getpid(),
            rings: [Cursor::new(), Cursor::new()],
            area: AtomicUsize::new(0),
            writer: AtomicU32::new(GONE),
            writer_thread: AtomicU32::new(0),
            wants: AtomicU32::new(WANTS_NOTHING),
            ending: AtomicU32::new(0),
            dropped: AtomicU64::new(0),
            files: UnsafeCell::new([LogFile::closed(), LogFile::closed()]),
        }
    }

    fn is_empty(&self) -> bool {
        self.rings.iter().all(|ring| ring.used() == 0)
    }

    /// A part of a ring.
    ///
    /// # Safety
    /// The area must be mapped; the span must come from this ring's cursor, for the side that asks.
    #[expect(clippy::mut_from_ref, reason = "the cursor keeps both sides apart")]
    unsafe fn ring(&self, stream: usize, offset: usize, len: usize) -> &mut [u8] {
        let at = self.area.load(SeqCst) + stream * RING_LEN + offset;
        // SAFETY: as promised by the caller.
        unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) }
    }
}

/// The main loop's side.
pub(super) struct Streams<'s> {
    shared: &'s Shared,
    streams: [Stream; 2],
}

struct Stream {
    pipe: Fd,
    pressure: Pressure,
    patience_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pressure {
    Flowing,
    /// The ring is full; the task is held back until half of it is free.
    Holding {
        until_ms: u64,
    },
    /// The disk is stalled; output is thrown away.
    Dropping,
}

impl<'s> Streams<'s> {
    /// Takes over the reading ends of both pipes; -1 where there is none.
    pub(super) fn new(shared: &'s Shared, pipes: [Fd; 2]) -> Self {
        let stream = |pipe| Stream { pipe, pressure: Pressure::Flowing, patience_ms: PATIENCE_MS };
        Self { shared, streams: pipes.map(stream) }
    }

    /// Whether every writing end is closed.
    pub(super) fn are_closed(&self) -> bool {
        self.streams.iter().all(|stream| stream.pipe < 0)
    }

    /// Bytes that could not be kept so far.
    pub(super) fn dropped(&self) -> u64 {
        self.shared.dropped.load(SeqCst)
    }

    /// Fills in what to wait for; returns for how long at most.
    pub(super) fn prepare(&mut self, entries: &mut [PollFd]) -> Option<u64> {
        let mut timeout_ms: Option<u64> = None;
        for (index, entry) in entries.iter_mut().enumerate().take(2) {
            let wait_ms = self.pressure(index);
            let holding = wait_ms.is_some();
            let fd = if holding { -1 } else { self.streams[index].pipe };
            *entry = PollFd { fd, events: POLLIN, revents: 0 };
            if self.shared.full == Full::Drop {
                timeout_ms = match (timeout_ms, wait_ms) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        timeout_ms
    }

    /// Looks at a ring's state; returns for how long its pipe must be left alone, if at all.
    fn pressure(&mut self, index: usize) -> Option<u64> {
        let (ring, stream) = (&self.shared.rings[index], &mut self.streams[index]);
        let threshold = match stream.pressure {
            Pressure::Flowing => RING_LEN - 1,
            Pressure::Holding { .. } | Pressure::Dropping => RING_LEN / 2,
        };
        if ring.used() > threshold {
            // First say what is wanted, then look again: the writer does it the other way round.
            self.shared.wants.store(WANTS_ROOM, SeqCst);
        }
        if stream.pipe < 0 || ring.used() <= threshold {
            stream.pressure = Pressure::Flowing;
            return None;
        }
        let now_ms = sys::now_ms();
        match stream.pressure {
            Pressure::Flowing => {
                stream.pressure = Pressure::Holding { until_ms: now_ms + stream.patience_ms };
                Some(stream.patience_ms.max(1))
            }
            Pressure::Holding { until_ms } if now_ms < until_ms || self.shared.full == Full::Block => {
                Some(until_ms.saturating_sub(now_ms).max(1))
            }
            Pressure::Holding { .. } => {
                stream.patience_ms /= 2;
                stream.pressure = Pressure::Dropping;
                None
            }
            Pressure::Dropping => None,
        }
    }

    /// Empties one pipe by one step, after poll said that there is something.
    pub(super) fn read(&mut self, index: usize) {
        if self.streams[index].pressure == Pressure::Dropping || !self.has_area() {
            return self.discard(index);
        }
        let (ring, stream) = (&self.shared.rings[index], &mut self.streams[index]);
        if ring.used() == 0 {
            stream.patience_ms = PATIENCE_MS;
        }
        let vacant = ring.vacant(RING_LEN);
        if vacant.len == 0 {
            return;
        }
        // SAFETY: the area is mapped, the span is vacant and ours to fill.
        let room = unsafe { self.shared.ring(index, vacant.offset, vacant.len) };
        match sys::read(stream.pipe, room) {
            Ok(0) => stream.close(),
            Ok(len) => {
                ring.put(len);
                self.rouse_writer();
            }
            Err(sys::EINTR) => {}
            Err(_) => stream.close(),
        }
    }

    /// Throws away what waits in a pipe.
    fn discard(&mut self, index: usize) {
        const EAGAIN: sys::Errno = 11;
        let stream = &mut self.streams[index];
        match sys::splice(stream.pipe, 0, 1 << 20) {
            Ok(0) => stream.close(),
            Ok(len) => {
                self.shared.dropped.fetch_add(len as u64, SeqCst);
            }
            Err(sys::EINTR | EAGAIN) => {}
            Err(_) => stream.close(),
        }
    }

    fn has_area(&self) -> bool {
        if self.shared.area.load(SeqCst) == 0 {
            let Ok(area) = sys::map(AREA_LEN) else { return false };
            self.shared.area.store(area.as_ptr() as usize, SeqCst);
        }
        true
    }

    fn rouse_writer(&self) {
        let shared = self.shared;
        match shared.writer.swap(BUSY, SeqCst) {
            BUSY => {}
            IDLE => sys::futex_wake(&shared.writer),
            LEAVING => {
                self.join_writer();
                self.create_writer();
            }
            _ => self.create_writer(),
        }
    }

    fn create_writer(&self) {
        const CLONE_FS_FILES_SIGHAND_THREAD_SYSVSEM: u64 = 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
        const CLONE_PARENT_SETTID_CHILD_CLEARTID: u64 = 0x10_0000 | 0x20_0000;
        let shared = self.shared;
        let word = sys::address(&shared.writer_thread);
        let birth = Birth {
            flags: CLONE_VM | CLONE_FS_FILES_SIGHAND_THREAD_SYSVSEM | CLONE_PARENT_SETTID_CHILD_CLEARTID,
            exit_signal: 0,
            parent_word: word,
            child_word: word,
            cgroup: 0,
        };
        let at = shared.area.load(SeqCst) + 2 * RING_LEN;
        // SAFETY: the stack is part of the area and no earlier writer lives; `shared` outlives the process' threads.
        let thread = unsafe {
            let stack = core::slice::from_raw_parts_mut(at as *mut u8, STACK_LEN);
            clone_onto(&birth, stack, writer, core::ptr::from_ref(shared).cast_mut().cast())
        };
        if thread < 0 {
            // No thread to be had (a limit): better to wait for the disk than to lose everything.
            write_rings(shared);
            shared.writer.store(GONE, SeqCst);
        }
    }

    fn join_writer(&self) {
        loop {
            let thread = self.shared.writer_thread.load(SeqCst);
            if thread == 0 {
                return;
            }
            sys::futex_wait(&self.shared.writer_thread, thread, None);
        }
    }

    /// Gives the memory back after the writer has left.
    pub(super) fn release(&self) {
        let shared = self.shared;
        if shared.writer.load(SeqCst) == LEAVING {
            self.join_writer();
            shared.writer.store(GONE, SeqCst);
            let area = shared.area.swap(0, SeqCst);
            // SAFETY: the writer is gone, it left with empty rings, and only this thread fills them.
            unsafe { sys::unmap(area as *const u8, AREA_LEN) };
        }
    }

    /// Waits until everything is written, or the disk is given up.
    pub(super) fn finish(&self, signals: Fd) {
        let shared = self.shared;
        let until_ms = sys::now_ms() + FINISH_MS;
        shared.ending.store(1, SeqCst);
        sys::futex_wake(&shared.ending);
        loop {
            shared.wants.store(WANTS_END, SeqCst);
            let left_ms = until_ms.saturating_sub(sys::now_ms());
            if shared.is_empty() || left_ms == 0 {
                break;
            }
            let _ = sys::poll(&mut [PollFd { fd: signals, events: POLLIN, revents: 0 }], Some(left_ms));
            let _ = sys::read(signals, &mut [0; 256]);
        }
        for ring in &shared.rings {
            shared.dropped.fetch_add(ring.used() as u64, SeqCst);
        }
    }
}

impl Stream {
    fn close(&mut self) {
        sys::close(self.pipe);
        self.pipe = -1;
    }
}

/// The writer thread.
unsafe extern "C" fn writer(argument: *mut c_void) -> ! {
    // SAFETY: `Streams::create_writer` passes what lives as long as the process.
    let shared = unsafe { &*argument.cast::<Shared>() };
    loop {
        write_rings(shared);
        shared.writer.store(IDLE, SeqCst);
        if !shared.is_empty() {
            let _ = shared.writer.compare_exchange(IDLE, BUSY, SeqCst, SeqCst);
            continue;
        }
        sys::futex_wait(&shared.writer, IDLE, Some(QUIET_MS));
        if shared.writer.compare_exchange(IDLE, LEAVING, SeqCst, SeqCst).is_ok() {
            sys::signal_thread(shared.process, shared.process, sys::SIGUSR1);
            sys::exit_thread();
        }
    }
}

/// Moves everything from the rings into files.
fn write_rings(shared: &Shared) {
    // SAFETY: called by the writer, or by the main loop while there is none.
    let files = unsafe { &mut *shared.files.get() };
    while !shared.is_empty() {
        for (stream, file) in files.iter_mut().enumerate() {
            let filled = shared.rings[stream].filled(RING_LEN);
            if filled.len > 0 {
                // SAFETY: the area is mapped while the rings hold something; the span is filled and ours to read.
                let bytes = unsafe { shared.ring(stream, filled.offset, filled.len.min(PIECE_LEN)) };
                write_piece(shared, stream, file, bytes);
            }
        }
    }
}

fn write_piece(shared: &Shared, stream: usize, file: &mut LogFile, bytes: &[u8]) {
    let written = file.append(&shared.places[stream], bytes);
    let refused = bytes.len() - written;
    let may_wait = shared.full == Full::Block && shared.ending.load(SeqCst) == 0;
    let ring = &shared.rings[stream];
    if refused > 0 && may_wait {
        ring.take(written);
        sys::futex_wait(&shared.ending, 0, Some(RETRY_MS));
    } else {
        shared.dropped.fetch_add(refused as u64, SeqCst);
        ring.take(bytes.len());
    }
    let satisfied = match shared.wants.load(SeqCst) {
        WANTS_ROOM => ring.used() <= RING_LEN / 2,
        WANTS_END => shared.is_empty(),
        _ => false,
    };
    if satisfied {
        shared.wants.store(WANTS_NOTHING, SeqCst);
    }
    if satisfied || refused > 0 {
        sys::signal_thread(shared.process, shared.process, sys::SIGUSR1);
    }
}
