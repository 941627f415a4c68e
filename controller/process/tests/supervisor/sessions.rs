//! Exec sessions through the real supervisor program: streams, terminal, exit codes and the leash.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use herdlet_process::supervisor::*;
use rustix::{
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use tempfile::TempDir;

use super::bench::{DEADLINE, end_of, has_ended, shell};

struct Bench {
    dir: TempDir,
    program: Program,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = Program::install(dir.path()).unwrap();
        Self { dir, program }
    }

    fn enter(&self, script: &str, stdio: [&OwnedFd; 3], terminal: Terminal, leash: &OwnedFd) -> Child {
        let invocation = shell(script);
        self.enter_program(&invocation, stdio, terminal, leash)
    }

    fn enter_program(
        &self,
        invocation: &Invocation,
        stdio: [&OwnedFd; 3],
        terminal: Terminal,
        leash: &OwnedFd,
    ) -> Child {
        let what = Session {
            program: &self.program,
            title: "session",
            invocation,
            stdio: stdio.map(AsFd::as_fd),
            terminal,
            shims_cgroup: None,
            leash: leash.as_fd(),
        };
        enter(&what).unwrap()
    }
}

fn pipe() -> (OwnedFd, OwnedFd) {
    pipe_with(PipeFlags::CLOEXEC).unwrap()
}

fn null() -> OwnedFd {
    File::options().read(true).write(true).open("/dev/null").unwrap().into()
}

fn read_all(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn streams_and_exit_code_pass_through() {
    let bench = Bench::new();
    let (stdin, to_stdin) = pipe();
    let (from_stdout, stdout) = pipe();
    let (from_stderr, stderr) = pipe();
    let (leash, _held) = pipe();
    let script = "read line; echo got $line; echo err >&2; exit 41";
    let child = bench.enter(script, [&stdin, &stdout, &stderr], Terminal::None, &leash);
    drop((stdin, stdout, stderr));
    File::from(to_stdin).write_all(b"hello\n").unwrap();
    assert_eq!(read_all(from_stdout), "got hello\n");
    assert_eq!(read_all(from_stderr), "err\n");
    assert_eq!(end_of(child), ShimEnd::Code(41));
}

#[test]
fn signals_and_failed_starts_have_the_shells_codes() {
    let bench = Bench::new();
    let null = null();
    let (leash, _held) = pipe();
    let run = |invocation: &Invocation| {
        let (from_stderr, stderr) = pipe();
        let child = bench.enter_program(invocation, [&null, &null, &stderr], Terminal::None, &leash);
        drop(stderr);
        (end_of(child), read_all(from_stderr))
    };
    assert_eq!(run(&shell("kill -KILL $$")).0, ShimEnd::Code(137));
    let mut missing = shell("");
    missing.program = "/no/such/program".into();
    let (end, output) = run(&missing);
    assert_eq!(
        (end, &*output),
        (
            ShimEnd::Code(127),
            "herdlet: failed to execute the program: no such file or directory, or its interpreter is missing (errno 2)\n"
        )
    );
    missing.program = "/etc/passwd".into();
    assert_eq!(run(&missing).0, ShimEnd::Code(126));
    missing.program = "/bin/sh".into();
    missing.directory = Some("/no/such/dir".into());
    assert_eq!(run(&missing).0, ShimEnd::Code(126));
}

#[test]
fn a_terminal_controls_its_session() {
    let bench = Bench::new();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    let slave = rustix::fs::open(&*name, flags, rustix::fs::Mode::empty()).unwrap();
    let (leash, _held) = pipe();
    let script = "test -t 0 && echo on-a-terminal; echo hi > /dev/tty; sleep 1000";
    let child = bench.enter(script, [&slave, &slave, &slave], Terminal::Stdin, &leash);
    drop(slave);
    let mut terminal = File::from(master);
    let mut output = String::new();
    while !output.contains("hi") {
        let mut buffer = [0; 100];
        let len = terminal.read(&mut buffer).unwrap();
        output.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
    }
    assert_eq!(output.replace('\r', ""), "on-a-terminal\nhi\n");
    // Ctrl-C reaches the foreground of the session; a shell that is just about to fork may miss it.
    let started = Instant::now();
    while started.elapsed() < DEADLINE && !has_ended(&child, Duration::from_millis(50)) {
        terminal.write_all(&[3]).unwrap();
    }
    assert_eq!(end_of(child), ShimEnd::Code(130));
}

#[test]
fn everything_ends_with_the_leash() {
    let bench = Bench::new();
    let null = null();
    let (from_stdout, stdout) = pipe();
    let (leash, held) = pipe();
    let script = "trap '' TERM HUP; setsid sleep 1000 & sleep 1000 & echo ready; wait";
    let child = bench.enter(script, [&null, &stdout, &null], Terminal::None, &leash);
    drop((stdout, leash));
    let mut output = File::from(from_stdout);
    let mut ready = [0; 6];
    output.read_exact(&mut ready).unwrap();
    drop(held);
    assert_eq!(end_of(child), ShimEnd::Code(137));
    // All holders of the pipe are gone, including the detached one.
    assert_eq!(output.read(&mut ready).unwrap(), 0);
    drop(bench.dir);
}

#[test]
fn leftovers_of_a_command_end_without_a_cgroup() {
    let bench = Bench::new();
    let null = null();
    let (from_stdout, stdout) = pipe();
    let (leash, _held) = pipe();
    let child = bench.enter("setsid sleep 1000 & exit 6", [&null, &stdout, &null], Terminal::None, &leash);
    drop(stdout);
    assert_eq!(end_of(child), ShimEnd::Code(6));
    assert_eq!(read_all(from_stdout), "");
}
