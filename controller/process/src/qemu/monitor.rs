//! The sockets of an emulator in its task's directory: the monitor, by which the agent presses the power button of the guest.
//!
//! In: the task's directory, the emulator's pid. Out: a command to the monitor. The task's user can replace the files there, so no
//! link is followed, and the one who listens must be the emulator. All calls block.

use std::{
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::{Duration, Instant},
};

use herdlet_base::safe_fs::proc_path;
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, unlinkat},
    io::Errno,
    net::{
        self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
};

/// The monitor's socket. Tools know its name from Nomad.
pub(super) const MONITOR: &str = "qm.sock";
/// The socket of the guest agent.
pub(super) const AGENT: &str = "qa.sock";

/// How long the emulator may take to accept a command.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);
/// It greets, repeats the command and prompts: much less than this.
const ANSWER_LEN_MAX: usize = 16 * 1024;
/// What it writes when it is ready for a command.
const PROMPT: &[u8] = b"(qemu)";

/// Removes the sockets of an earlier attempt, whose user may have been another.
///
/// # Errors
/// If the directory can't be changed.
pub(super) fn remove_sockets(task_dir: &Path) -> io::Result<()> {
    let dir = open_dir(task_dir)?;
    for name in [MONITOR, AGENT] {
        match unlinkat(&dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                return Err(io::Error::other(format!("remove {name} of an earlier attempt: {errno}")));
            }
        }
    }
    Ok(())
}

/// Presses the power button of the guest: what it does then is its own matter.
///
/// # Errors
/// If the emulator can't be reached.
pub(super) fn press_power_button(task_dir: &Path, emulator: u32) -> io::Result<()> {
    let dir = open_dir(task_dir)?;
    let socket = openat(&dir, MONITOR, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
        return Err(io::Error::other(format!("{MONITOR} is no socket")));
    }
    let mut monitor = connect(&socket)?;
    let listener = socket_peercred(&monitor)?.pid.as_raw_nonzero().get();
    if u32::try_from(listener) != Ok(emulator) {
        return Err(io::Error::other(format!("process {listener} listens on {MONITOR}, not the emulator")));
    }
    monitor.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    monitor.write_all(b"system_powerdown\n")?;
    // A connection that is closed at once may take the command with it. After the greeting's prompt comes that of the next command.
    let (mut answer, mut piece) = (Vec::new(), [0; 1024]);
    let until = Instant::now() + ANSWER_TIME_MAX;
    while prompts(&answer) < 2 && answer.len() < ANSWER_LEN_MAX && Instant::now() < until {
        match monitor.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(len) => answer.extend_from_slice(&piece[..len]),
        }
    }
    Ok(())
}

/// Connects by a short path, whatever the length of the directory's. One who does not accept would block it, so the time is limited
/// before.
fn connect(listener: &OwnedFd) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(ANSWER_TIME_MAX))?;
    net::connect(&socket, &SocketAddrUnix::new(proc_path(listener.as_fd(), None))?)?;
    Ok(UnixStream::from(socket))
}

fn prompts(answer: &[u8]) -> usize {
    answer.windows(PROMPT.len()).filter(|window| *window == PROMPT).count()
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::symlink, net::UnixListener},
        thread,
    };

    use super::*;

    /// Answers like an emulator; returns the commands.
    fn emulator(listener: UnixListener) -> thread::JoinHandle<Vec<u8>> {
        thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.write_all(b"QEMU 7.2 monitor - type 'help' for more information\r\n(qemu) ").unwrap();
            let mut command = [0; 64];
            let len = peer.read(&mut command).unwrap();
            peer.write_all(b"system_powerdown\r\n(qemu) ").unwrap();
            command[..len].to_vec()
        })
    }

    #[test]
    fn the_button_is_pressed_in_a_directory_with_a_long_path() {
        let dir = tempfile::tempdir().unwrap();
        let long = dir.path().join("x".repeat(200));
        fs::create_dir(&long).unwrap();
        let short = dir.path().join("short");
        symlink(&long, &short).unwrap();
        let listener = UnixListener::bind(short.join(MONITOR)).unwrap();
        let emulator = emulator(listener);
        press_power_button(&long, std::process::id()).unwrap();
        assert_eq!(emulator.join().unwrap(), b"system_powerdown\n");
        remove_sockets(&long).unwrap();
        assert!(!long.join(MONITOR).exists());
        remove_sockets(&long).unwrap();
        assert!(press_power_button(&long, std::process::id()).is_err());
    }

    #[test]
    fn nobody_else_gets_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::create_dir(&own).unwrap();
        let listener = UnixListener::bind(&other).unwrap();
        listener.set_nonblocking(true).unwrap();
        symlink(&other, own.join(MONITOR)).unwrap();
        let refused = press_power_button(&own, std::process::id()).unwrap_err();
        assert!(refused.to_string().contains("no socket"), "{refused}");
        assert!(listener.accept().is_err());
        fs::remove_file(own.join(MONITOR)).unwrap();
        let _listener = UnixListener::bind(own.join(MONITOR)).unwrap();
        let refused = press_power_button(&own, 1).unwrap_err();
        assert!(refused.to_string().contains("not the emulator"), "{refused}");
        remove_sockets(&own).unwrap();
        assert!(other.exists());
    }
}
