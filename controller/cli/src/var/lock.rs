//! `herdlet var lock`: runs a command while a lock on a variable is held.
//!
//! In: a path, a command. Out: the command's exit code. The lock is waited for, renewed in time, and released after the command.
//! If it is lost, the command gets SIGTERM, and after a while SIGKILL.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use clap::Args;
use herdlet_api_types::variable::{Variable, VariableKey, VariableLock, VariableMetadata};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Namespace, failure};
use crate::{
    Connection,
    client::{Client, LockOperation, VariableRefusal},
    failure::Failure,
};

/// Arguments of `herdlet var lock`.
#[derive(Debug, Clone, Args)]
pub struct LockArgs {
    /// The path of a variable, which is created if there is none
    path: String,
    /// Time without renewal after which the lock is lost, 10s to 24h
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    ttl: herdlet_api_types::Duration,
    /// Time after that in which nobody else gets it
    #[arg(long, value_name = "DURATION", default_value = "15s")]
    delay: herdlet_api_types::Duration,
    #[command(flatten)]
    of: Namespace,
    #[command(flatten)]
    pub(super) connection: Connection,
    /// The command; a single argument is run by /bin/sh
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// After SIGTERM, the command has this long.
const TERM_MAX: Duration = Duration::from_secs(10);
/// Interval between attempts to renew while the agent does not answer.
const RETRY: Duration = Duration::from_secs(1);

pub(super) async fn run(args: LockArgs) -> Result<u8, Failure> {
    lock_and_run(args).await.map_err(Failure::not_the_tasks)
}

async fn lock_and_run(args: LockArgs) -> Result<u8, Failure> {
    let key = args.of.key(&args.path)?;
    let client = args.connection.client()?;
    let lock = VariableLock { id: String::new(), ttl_ns: args.ttl.0, delay_ns: args.delay.0 };
    let held = acquire(client, &key, lock).await?;
    let ended = held.start_and_run(&args.command).await;
    // Without an answer, the lock ends by itself.
    let _ = held.client.lock_variable(&held.variable, LockOperation::Release).await;
    ended
}

/// A lock of this command.
struct Held {
    client: Client,
    /// Its key and the lock.
    variable: Variable,
    /// The lease begins after this.
    requested_at: Instant,
}

/// Waits for the lock.
async fn acquire(client: Client, key: &VariableKey, lock: VariableLock) -> Result<Held, Failure> {
    let VariableKey { namespace, path } = key.clone();
    let metadata = VariableMetadata { namespace, path, lock: Some(lock), ..VariableMetadata::default() };
    let wanted = Variable { metadata, items: None };
    let mut is_announced = false;
    loop {
        let requested_at = Instant::now();
        match client.lock_variable(&wanted, LockOperation::Acquire).await {
            Ok(Variable { metadata, .. }) => {
                let VariableMetadata { namespace, path, lock, .. } = metadata;
                let metadata = VariableMetadata { namespace, path, lock, ..VariableMetadata::default() };
                return Ok(Held { client, variable: Variable { metadata, items: None }, requested_at });
            }
            Err(VariableRefusal::Conflict(present)) => {
                if !is_announced {
                    herdlet_base::stderr_line!("waiting for the lock on {key}");
                    is_announced = true;
                }
                client.await_variable(key, present.modify_index).await?;
            }
            Err(refusal @ VariableRefusal::Failed(_)) => return Err(failure(refusal, key, None)),
        }
    }
}

fn start(command: &[String]) -> Result<Child, Failure> {
    let mut started = match command {
        [script] => {
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", script]);
            shell
        }
        [program, arguments @ ..] => {
            let mut program = Command::new(program);
            program.args(arguments);
            program
        }
        [] => return Err(Failure::new("name a command after --")),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the command must not outlive its lock, also if this one is interrupted"
    )]
    let started = started.kill_on_drop(true).spawn();
    started.map_err(|error| Failure::new(format!("the command did not start: {error}")).of_command(command))
}

impl Held {
    /// Runs the command to its end.
    async fn start_and_run(&self, command: &[String]) -> Result<u8, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(format!("the command can't be waited for: {error}"));
        // Before the start: a signal must not end this process while the command runs.
        let mut terminated = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupted = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut child = start(command)?;
        let renewals = self.renew_until_lost();
        tokio::pin!(renewals);
        let lost = loop {
            tokio::select! {
                ended = child.wait() => return ended.map(code).map_err(failed),
                // Ctrl-C reaches the command by itself, and the command may go on.
                _ = interrupted.recv() => {}
                _ = terminated.recv() => break None,
                lost = &mut renewals => break Some(lost),
            }
        };
        end(&mut child).await;
        match lost {
            None => child.wait().await.map(code).map_err(failed),
            Some(why) => {
                let key = self.variable.metadata.key();
                Err(Failure::new(format!("the lock on {key} was lost, and the command was ended: {why}")))
            }
        }
    }

    /// Renews the lock twice in its TTL. Returns why it is lost.
    async fn renew_until_lost(&self) -> String {
        let lock = self.variable.metadata.lock.clone().unwrap_or_default();
        let ttl = Duration::from_nanos(u64::try_from(lock.ttl_ns).unwrap_or_default());
        let mut next = self.requested_at + ttl / 2;
        let mut lost_at = self.requested_at + ttl;
        loop {
            sleep_until(next).await;
            let asked = Instant::now();
            let renewal = self.client.lock_variable(&self.variable, LockOperation::Renew);
            let why = match timeout(lost_at.saturating_duration_since(asked), renewal).await {
                Ok(Ok(_)) => {
                    (next, lost_at) = (asked + ttl / 2, asked + ttl);
                    continue;
                }
                Ok(Err(VariableRefusal::Conflict(_))) => return "it is not held any more".to_owned(),
                Ok(Err(VariableRefusal::Failed(error))) => error.to_string(),
                Err(_) => "the agent did not answer in time".to_owned(),
            };
            next = Instant::now() + RETRY;
            if next >= lost_at {
                return why;
            }
        }
    }
}

/// Ends the command.
async fn end(child: &mut Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
        // Its pid is its own: it is not waited for yet.
        let _ =
            pidfd_open(pid, PidfdFlags::empty()).and_then(|process| pidfd_send_signal(process, Signal::TERM));
    }
    tokio::select! {
        _ = child.wait() => {}
        () = sleep(TERM_MAX) => drop(child.start_kill()),
    }
    let _ = child.wait().await;
}

/// The exit code, as shells report it.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
