//! A program with bounds.
//!
//! In: a command, its input, a deadline. Out: what it printed and how it ended. The program is one of others: it may hang, print
//! without end, or start further processes. When its time is over, all its processes end: those of its process group, and those
//! with the mark in their environment, which also identifies the processes of a run that was interrupted by a crash of the agent.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, Mode, OFlags, fstat, memfd_create, openat},
    io::{Errno, ioctl_fionbio},
    process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal},
};

/// The variable that marks the processes of a run.
pub const MARK: &str = "HERDLET_NETWORK";

/// The longest output. Results have a few kilobytes.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// More than the kernel passes to a new program.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// How much of the messages of a program is kept.
const MESSAGES_BYTES_MAX: usize = 16 * 1024;

/// How often to list processes until none is left: one that starts others may do so while it is listed.
const ROUNDS_MAX: usize = 20;

/// How long a killed process may take to end.
const END_TIME_MAX: Duration = Duration::from_secs(1);

/// What a program has printed, and how it ended.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub result: Vec<u8>,
    pub messages: Vec<u8>,
}

/// Why there is no output. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("start it")]
    Start { source: io::Error },
    #[error("wait for it")]
    Wait { source: io::Error },
    #[error("wait for it: it did not end within {} s, and was killed", time.as_secs())]
    Overdue { time: Duration },
    #[error("read what it prints: it has more than {OUTPUT_BYTES_MAX} bytes, and was killed")]
    TooLong,
}

/// Runs a program to its end, or until its time is over.
///
/// # Errors
/// [`RunError`]; no process of the program is left then.
pub fn run(mut command: Command, input: &[u8], mark: &str, time: Duration) -> Result<Output, RunError> {
    let begun = Instant::now();
    let start = |source: io::Error| RunError::Start { source };
    let input = input_of(input).map_err(start)?;
    command.env(MARK, mark).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(start)?;
    let ended = wait(&mut child, begun + time, time);
    if ended.is_err() {
        // While the child is not reaped, no other process has its pid or its group.
        end_all(mark, Some(child.id()));
        let _ = child.wait();
    }
    ended
}

/// Ends all processes with this mark.
pub fn end_marked(mark: &str) {
    end_all(mark, None);
}

/// The input as a file: a program that does not read it can't block its writer.
fn input_of(bytes: &[u8]) -> io::Result<Stdio> {
    let mut file = fs::File::from(memfd_create("input", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

fn wait(child: &mut Child, deadline: Instant, time: Duration) -> Result<Output, RunError> {
    let failed = |source: io::Error| RunError::Wait { source };
    let missing = || failed(io::ErrorKind::NotFound.into());
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(missing)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let mut result = Stream::new(child.stdout.take().ok_or_else(missing)?.into()).map_err(failed)?;
    let mut messages = Stream::new(child.stderr.take().ok_or_else(missing)?.into()).map_err(failed)?;
    loop {
        let has_ended = ready(&[Some(process.as_fd()), result.fd(), messages.fd()], deadline)
            .map_err(failed)?
            .ok_or(RunError::Overdue { time })?;
        // What the program itself has printed is in the pipes by now; its background processes may keep them open.
        result.read().map_err(failed)?;
        messages.read().map_err(failed)?;
        messages.bytes.truncate(MESSAGES_BYTES_MAX);
        if result.bytes.len() > OUTPUT_BYTES_MAX {
            return Err(RunError::TooLong);
        }
        if has_ended {
            let status = child.wait().map_err(failed)?;
            return Ok(Output { status, result: result.bytes, messages: messages.bytes });
        }
    }
}

/// Waits for one of these, and returns whether it is the first one. `None` if the deadline has passed.
fn ready(fds: &[Option<BorrowedFd<'_>>], deadline: Instant) -> io::Result<Option<bool>> {
    let mut polled: Vec<PollFd<'_>> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(io::Error::other)?;
    match poll(&mut polled, Some(&left)) {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(polled.first().is_some_and(|first| !first.revents().is_empty()))),
        Err(Errno::INTR) => Ok(Some(false)),
        Err(errno) => Err(errno.into()),
    }
}

/// The end of a pipe whose other end a program has.
struct Stream {
    file: Option<fs::File>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(pipe: OwnedFd) -> io::Result<Self> {
        ioctl_fionbio(&pipe, true)?;
        Ok(Self { file: Some(pipe.into()), bytes: Vec::new() })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Reads what is there, but no more than somewhat beyond the longest output.
    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        while let Some(file) = &mut self.file {
            match file.read(&mut buffer) {
                Ok(0) => self.file = None,
                Ok(length) => self.bytes.extend(buffer.iter().take(length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.bytes.len() > OUTPUT_BYTES_MAX {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Kills the processes with this mark and those of this group, until there are none.
fn end_all(mark: &str, group: Option<u32>) {
    let marked = format!("{MARK}={mark}");
    for _ in 0..ROUNDS_MAX {
        let found: Vec<OwnedFd> =
            processes().filter_map(|pid| opened(pid, marked.as_bytes(), group)).collect();
        if found.is_empty() {
            return;
        }
        for process in found {
            let _ = pidfd_send_signal(&process, Signal::KILL);
            let _ = ready(&[Some(process.as_fd())], Instant::now() + END_TIME_MAX);
        }
    }
    tracing::error!(mark, "processes of a CNI plugin can't be killed");
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The process, if it is one of these. It is opened before it is inspected, so that it is the same one.
fn opened(pid: u32, marked: &[u8], group: Option<u32>) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
    let environment = environment(pid).unwrap_or_default();
    let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == marked);
    (is_marked || group.is_some_and(|group| is_live_in(pid, group))).then_some(process)
}

/// The environment of a process of the agent's user. That of another one is not read: it is memory of the process, which its owner
/// could make slow to read.
fn environment(pid: u32) -> io::Result<Vec<u8>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?;
    let mut read = Vec::new();
    if fstat(&dir)?.st_uid == geteuid().as_raw() {
        let file = openat(&dir, "environ", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        fs::File::from(file).take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut read)?;
    }
    Ok(read)
}

/// Whether a process is in this group and is no zombie (proc_pid_stat(5)).
fn is_live_in(pid: u32, group: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name of the program is in parentheses, and may have some itself.
    let Some((_, fields)) = stat.rsplit_once(')') else { return false };
    let mut fields = fields.split_ascii_whitespace();
    let (state, own) = (fields.next(), fields.nth(1));
    state.is_some_and(|state| state != "Z") && own.and_then(|own| own.parse().ok()) == Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(180);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run_marked(script: &str, mark: &str, time: Duration) -> Result<Output, RunError> {
        run(shell(script), b"the input", mark, time)
    }

    /// A mark that no other test has.
    fn mark(name: &str) -> String {
        format!("{name} of {}", std::process::id())
    }

    fn is_live(mark: &str) -> bool {
        let marked = format!("{MARK}={mark}");
        processes().any(|pid| {
            opened(pid, marked.as_bytes(), None).is_some_and(|_| {
                fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
            })
        })
    }

    #[test]
    fn program_reads_its_input_and_prints_a_result_and_messages() {
        let output = run_marked("cat; echo words >&2; exit 3", &mark("plain"), LONG).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!((&*output.result, &*output.messages), (&b"the input"[..], &b"words\n"[..]));
        // More than a pipe holds, which the program does not read.
        let output = run(shell("echo done"), &[b'x'; 1 << 20], &mark("deaf"), LONG).unwrap();
        assert_eq!(output.result, b"done\n");
    }

    #[test]
    fn background_process_that_keeps_the_output_open_is_not_waited_for() {
        let mark = mark("background");
        let output = run_marked("echo result; sleep 1000 & exit 0", &mark, LONG).unwrap();
        assert_eq!(output.result, b"result\n");
        assert!(is_live(&mark), "it may be what the plugin is for");
        end_marked(&mark);
        assert!(!is_live(&mark));
    }

    #[test]
    fn program_that_hangs_is_killed_with_all_its_processes() {
        let mark = mark("hangs");
        let script = "setsid sleep 1000 & env -i sleep 1000 & trap '' TERM; sleep 1000; sleep 1000";
        let error = run_marked(script, &mark, Duration::from_millis(300)).unwrap_err();
        assert!(matches!(error, RunError::Overdue { .. }), "{error}");
        assert!(!is_live(&mark));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may fork slowly")]
    fn environment_of_another_user_is_not_read() {
        let started = Command::new("sleep").arg("1000").env(MARK, "theirs").uid(65534).spawn();
        let Ok(mut theirs) = started else {
            return herdlet_base::test_env::leave_out("processes of other users (root)");
        };
        let read = environment(theirs.id());
        theirs.kill().unwrap();
        theirs.wait().unwrap();
        assert_eq!(read.unwrap(), b"");
        assert!(!environment(std::process::id()).unwrap().is_empty());
    }

    #[test]
    fn endless_output_ends_with_the_program() {
        let mark = mark("endless");
        let error = run_marked("yes", &mark, LONG).unwrap_err();
        assert!(matches!(error, RunError::TooLong), "{error}");
        assert!(!is_live(&mark));
        let script = "yes >&2 & sleep 0.2; echo result";
        let output = run_marked(script, &mark, LONG).unwrap();
        assert!(output.messages.len() <= MESSAGES_BYTES_MAX && output.result == b"result\n");
        end_marked(&mark);
    }

    #[test]
    fn program_that_is_not_there_can_not_be_started() {
        let error = run(Command::new("/nonexistent"), b"", &mark("none"), LONG).unwrap_err();
        assert!(matches!(error, RunError::Start { .. }), "{error}");
    }
}
