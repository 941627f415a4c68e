//! The verb `run`: runs one task attempt.
//!
//! In: the descriptors and the launch spec from the agent. Out: the attempt's record, the log files, and an exit code
//! for the caller. It does not communicate with the agent, which watches the record.

use super::birth;
use super::files::Place;
use super::logs::{Full, Shared, Streams};
use super::slay::slay;
use super::sys::{self, Errno, Fd, POLLIN, PollFd};
use super::{Descriptors, HELPER, INPUT, TERMINAL_OUTPUT, drop_spec, take_spec};
use crate::record::{Exit, Process, Record, State, Step, start_ticks};
use crate::rotation::Text;
use crate::spec::Spec;
use crate::{EXIT_LOST, EXIT_NO_RECORD, FD_LOGS, FD_RUNTIME};
use core::ffi::CStr;

/// How many milliseconds the main process's exit may wait for its output.
const EXIT_PATIENCE: u32 = 200;

/// Runs an attempt to its end; returns the exit code.
pub(super) fn run() -> u32 {
    // Detaches from the agent's terminal. Fails only if this process already leads a session.
    let _ = sys::setsid();
    let Ok(blob) = take_spec() else { return EXIT_NO_RECORD };
    let Some(name) = Spec::record_name(blob) else { return EXIT_NO_RECORD };
    let mut keeper = match Keeper::create(name) {
        Ok(keeper) => keeper,
        Err(sys::EEXIST) => return EXIT_LOST,
        Err(_) => return EXIT_NO_RECORD,
    };
    sys::umask(0o022);
    let Ok(spec) = Spec::decode(blob) else {
        keeper.fail(Step::Spec, 0);
        return 0;
    };
    keeper.record.driver = spec.driver;
    let last = match (spec.terminal, spec.input) {
        (true, _) => TERMINAL_OUTPUT,
        (false, true) => INPUT,
        (false, false) => HELPER,
    };
    let descriptors = match Descriptors::take(&spec, last) {
        Ok(descriptors) => descriptors,
        Err(errno) => {
            keeper.fail(Step::Prepare, errno);
            return 0;
        }
    };
    let place = |stem: Option<&CStr>| Place {
        dir: FD_LOGS,
        stem: Text::new().with(stem.unwrap_or_default().to_bytes()),
        files_max: spec.log_files,
        size_max: spec.log_file_size,
    };
    let full = if spec.log_block { Full::Block } else { Full::Drop };
    let places = [place(spec.stdout), place(spec.stderr)];
    let started = start(&spec, &descriptors, &mut keeper);
    drop_spec(blob);
    descriptors.close();
    let Some((pipes, signals)) = started else { return 0 };
    // Keeps no mount busy.
    let _ = sys::chdir(c"/");
    let shared = Shared::new(places, full, pipes);
    Attempt {
        keeper,
        streams: Streams::new(&shared),
        signals,
        leash: descriptors.leash,
        slaying: false,
        patience: EXIT_PATIENCE,
    }
    .live();
    0
}

/// Starts the task and updates the record. Returns the read ends of its pipes and the signal descriptor.
fn start(spec: &Spec<'_>, descriptors: &Descriptors, keeper: &mut Keeper) -> Option<([Fd; 2], Fd)> {
    match start_with_pipes(spec, descriptors) {
        Ok((pid, pipes, signals)) => {
            keeper.record.task = Process { pid, start_ticks: start_ticks_of(Some(pid)) };
            keeper.advance(State::Running);
            Some((pipes, signals))
        }
        Err((step, errno)) => {
            keeper.fail(step, errno);
            None
        }
    }
}

fn prepare(errno: Errno) -> birth::Failure {
    (Step::Prepare, errno)
}

fn start_with_pipes(
    spec: &Spec<'_>,
    descriptors: &Descriptors,
) -> Result<(u32, [Fd; 2], Fd), birth::Failure> {
    let taken = [sys::SIGCHLD, sys::SIGUSR1, sys::SIGALRM];
    let signals = taken.into_iter().fold(0, |mask, signal| mask | sys::signal_bit(signal));
    let signals = sys::signalfd(signals).map_err(prepare)?;
    let (reading, stdio) = if spec.terminal { terminal() } else { pipes(spec) }.map_err(prepare)?;
    let pid = birth::start(spec, stdio, descriptors)?;
    for end in stdio {
        if end != 0 {
            sys::close(end);
        }
    }
    Ok((pid, reading, signals))
}

/// The read ends of the task's output, and its standard streams.
type Output = ([Fd; 2], [Fd; 3]);

fn pipes(spec: &Spec<'_>) -> sys::Result<Output> {
    let mut reading = [-1; 2];
    let mut stdio = [0; 3];
    if spec.input {
        sys::keep_private(INPUT)?;
        stdio[0] = INPUT;
    }
    for (index, stem) in [spec.stdout, spec.stderr].into_iter().enumerate() {
        if stem.is_some() {
            let (from, to) = sys::pipe()?;
            reading[index] = from;
            stdio[index + 1] = to;
        }
    }
    Ok((reading, stdio))
}

/// All output of a terminal is one stream. It is read even if it is not stored; otherwise the task would block.
fn terminal() -> sys::Result<Output> {
    for fd in [INPUT, TERMINAL_OUTPUT] {
        sys::keep_private(fd)?;
    }
    Ok(([TERMINAL_OUTPUT, -1], [INPUT; 3]))
}

struct Attempt<'s> {
    keeper: Keeper,
    streams: Streams<'s>,
    signals: Fd,
    leash: Fd,
    slaying: bool,
    /// How many more times the exit may wait for the output.
    patience: u32,
}

impl Attempt<'_> {
    /// Waits until the main process, every child and both pipes have ended.
    fn live(&mut self) {
        let mut has_children = self.reap();
        while has_children || !self.streams.are_finished() {
            let timeout_ms = if self.publish_exit() { None } else { Some(1) };
            let mut entries = [PollFd { fd: self.signals, events: POLLIN, revents: 0 }; 4];
            entries[1] = PollFd { fd: self.leash, events: 0, revents: 0 };
            self.streams.prepare(&mut entries[2..]);
            if sys::poll(&mut entries, timeout_ms).is_err() {
                continue;
            }
            if entries[1].revents != 0 {
                self.leash = -1;
                self.slaying = true;
                slay(self.keeper.unreaped());
            }
            self.streams.see(&entries[2..]);
            if entries[0].revents != 0 {
                if sys::take_signals(self.signals) & sys::signal_bit(sys::SIGALRM) != 0 {
                    self.streams.watch();
                }
                self.streams.release();
                has_children = self.reap();
                if !has_children {
                    self.streams.end();
                }
            }
            self.keeper.publish_dropped(self.streams.dropped());
        }
        self.streams.give_up();
        self.keeper.record.dropped_bytes = self.streams.dropped();
        match self.keeper.exit.take() {
            Some(exit) => self.keeper.advance(State::Exited(exit)),
            None => {
                self.keeper.write();
            }
        }
    }

    /// Records the main process's exit once its output is in the log files, so that a reader that waits for the exit finds
    /// all of it. A slow disk, or a child that goes on writing, delays it by [`EXIT_PATIENCE`]. Returns whether no
    /// exit is left to record.
    fn publish_exit(&mut self) -> bool {
        let Some(exit) = self.keeper.exit else { return true };
        if !self.streams.are_caught_up() && self.patience > 0 {
            self.patience -= 1;
            return false;
        }
        self.keeper.exit = None;
        self.keeper.record.dropped_bytes = self.streams.dropped();
        self.keeper.advance(State::Exited(exit));
        true
    }

    /// Reaps dead children; returns whether children are left.
    fn reap(&mut self) -> bool {
        loop {
            match sys::reap() {
                Ok(Some((pid, status))) => {
                    if self.keeper.unreaped() == Some(pid) {
                        self.keeper.exit = Some(Exit::of_wait_status(status, sys::now_unix_ns()));
                    }
                }
                Ok(None) => {
                    if self.slaying {
                        slay(self.keeper.unreaped());
                    }
                    return true;
                }
                Err(errno) => return errno != sys::ECHILD,
            }
        }
    }
}

/// Owns the attempt's record.
struct Keeper {
    fd: Fd,
    record: Record,
    /// The main process's exit, not recorded yet.
    exit: Option<Exit>,
}

impl Keeper {
    /// Claims the attempt by creating its record.
    fn create(name: &CStr) -> Result<Self, Errno> {
        let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_EXCL;
        let fd = sys::openat(FD_RUNTIME, name, flags, 0o600)?;
        let mut record = Record::claimed();
        record.shim = Process { pid: sys::getpid(), start_ticks: start_ticks_of(None) };
        let keeper = Self { fd, record, exit: None };
        if keeper.write() {
            Ok(keeper)
        } else {
            // Without an allocated disk block the record could lose an exit later, so don't start.
            sys::unlinkat(FD_RUNTIME, name);
            Err(sys::EINVAL)
        }
    }

    /// The task's main process while it is a child of this process.
    fn unreaped(&self) -> Option<u32> {
        (self.record.state == State::Running && self.exit.is_none()).then_some(self.record.task.pid)
    }

    fn advance(&mut self, state: State) {
        self.record.state = state;
        self.write();
    }

    fn fail(&mut self, step: Step, errno: Errno) {
        self.advance(State::StartFailed { step, errno, at_unix_ns: sys::now_unix_ns() });
    }

    /// Each write wakes the watchers of the record, so the counter is published at growing intervals only.
    fn publish_dropped(&mut self, dropped: u64) {
        let known = self.record.dropped_bytes;
        if dropped > known && (known == 0 || dropped - known > known / 4 + (1 << 16)) {
            self.record.dropped_bytes = dropped;
            self.write();
        }
    }

    fn write(&self) -> bool {
        let bytes = self.record.to_bytes();
        sys::pwrite(self.fd, &bytes, 0) == Ok(bytes.len())
    }
}

/// Start time of a process, by default this one; 0 if /proc is not readable.
fn start_ticks_of(pid: Option<u32>) -> u64 {
    let path = Text::new().with(b"/proc/");
    let path = match pid {
        Some(pid) => path.with_number(u64::from(pid)),
        None => path.with(b"self"),
    };
    let Ok(fd) = sys::openat(sys::AT_FDCWD, path.with(b"/stat").as_c_str(), sys::O_RDONLY, 0) else {
        return 0;
    };
    let mut buffer = [0; 512];
    let len = sys::read(fd, &mut buffer).unwrap_or(0);
    sys::close(fd);
    start_ticks(buffer.get(..len).unwrap_or_default()).unwrap_or(0)
}
