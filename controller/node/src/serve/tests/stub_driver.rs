//! A driver that executes commands as child processes with pipes, and simulates terminals.

use std::process::Stdio;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use herdlet_api_types::{UnixNanos, task::ExitResult};
use herdlet_driver::{
    CpuUsage, DriverError, DriverInfo, DriverResult, ExecSession, FsIsolation, MemoryUsage, TerminalSize,
    Usage, fixture::StandIn,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    sync::mpsc,
};

/// With these files of the machine in its tasks' sight.
pub(super) fn hands(isolation: FsIsolation) -> StandIn {
    let mut info = DriverInfo { name: "hands".to_owned(), ..DriverInfo::mock() };
    info.capabilities.fs_isolation = isolation;
    let usage = || Usage {
        at: UnixNanos(5),
        memory: MemoryUsage { rss: Some(4_096), ..MemoryUsage::default() },
        cpu: CpuUsage { user_percent: 40.0, system_percent: 10.0, ..CpuUsage::default() },
        pids: vec![1],
    };
    StandIn::new(info).with_stats(move |_| Ok(stream::iter([Ok(usage())]).boxed())).with_exec(|request| {
        match request.terminal {
            Some(size) => Ok(terminal(size)),
            None => process(&request.command),
        }
    })
}

fn process(command: &[String]) -> DriverResult<ExecSession> {
    let mut command_line = tokio::process::Command::new(&command[0]);
    command_line.args(&command[1..]);
    command_line.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command_line
        .spawn()
        .map_err(|error| DriverError::no_program(format!("start {}: {error}", command[0])))?;
    let (mut stdin, pid) = (child.stdin.take().unwrap(), child.id().unwrap());
    let (input, mut bytes) = mpsc::channel::<Vec<u8>>(16);
    tokio::spawn(async move {
        while let Some(bytes) = bytes.recv().await {
            if stdin.write_all(&bytes).await.is_err() {
                break;
            }
        }
    });
    let (stdout, stderr) = (pump(child.stdout.take().unwrap()), pump(child.stderr.take().unwrap()));
    let (resize, _) = mpsc::channel(1);
    let ends = scopeguard(pid);
    let exit = async move {
        let status = child.wait().await.map_err(DriverError::retry)?;
        std::mem::forget(ends);
        let signal = std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or_default();
        Ok(ExitResult { code: status.code().unwrap_or_default(), signal, ..ExitResult::default() })
    };
    Ok(ExecSession { stdin: input, stdout, stderr, resize, exit: exit.boxed() })
}

/// Kills the process when it is dropped.
struct Ends(rustix::fd::OwnedFd);

fn scopeguard(pid: u32) -> Ends {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    Ends(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap())
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::KILL);
    }
}

fn pump(mut from: impl AsyncRead + Send + Unpin + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (to, pieces) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if to.send(buffer[..count].to_vec()).await.is_err() {
                break;
            }
        }
    });
    pieces
}

/// Supports `stty size` and `exit N`.
fn terminal(mut size: TerminalSize) -> ExecSession {
    let (stdin, mut input) = mpsc::channel::<Vec<u8>>(16);
    let (out, stdout) = mpsc::channel(16);
    let (_, stderr) = mpsc::channel(1);
    let (resize, mut sizes) = mpsc::channel(1);
    let exit = async move {
        let mut line = Vec::new();
        loop {
            tokio::select! {
                biased;
                new = sizes.recv() => size = new.unwrap_or(size),
                bytes = input.recv() => line.extend(bytes.unwrap_or_else(|| b"exit 0\n".to_vec())),
            }
            while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
                let command: Vec<u8> = line.drain(..=end).collect();
                let command = String::from_utf8(command).unwrap();
                if let Some(code) = command.trim().strip_prefix("exit ") {
                    return Ok(ExitResult { code: code.parse().unwrap(), ..ExitResult::default() });
                }
                if command.starts_with("stty size") {
                    let _ = out.send(format!("{} {}\r\n", size.height, size.width).into_bytes()).await;
                }
            }
        }
    };
    ExecSession { stdin, stdout, stderr, resize, exit: exit.boxed() }
}
