//! `herdlet exec`: runs a command in a running task, and exits with its exit code.

use std::io::Write as _;

use clap::Args;
use herdlet_api_types::{
    alloc::ClientStatus,
    job::Lifecycle,
    names::shell_word,
    task::TaskStatus,
    view::{AllocView, JobView, TaskView},
};
use tokio::{
    io::AsyncReadExt,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use super::{
    Connection,
    client::{ClientError, ExecFrame, ExecInput, ExecOutput, Tty},
    failure::{AGENT_FAILED, Failure},
    stdout,
    target::{self, Target},
    terminal::{self, Raw},
};

/// Arguments of `herdlet exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Pass standard input to the command
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a terminal for the command
    #[arg(short, long)]
    tty: bool,
    /// A job, an allocation, or a task; of several allocations, the first healthy one
    target: String,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    pub connection: Connection,
    /// Program and arguments; everything after the program is passed to it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Bytes per read of standard input.
const PIECE_BYTES: usize = 16 * 1024;
/// Interval of heartbeats while nothing is typed, as in Nomad's command line.
const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(10);

pub async fn run(args: ExecArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let target = target::find_among(&client, &args.target, &jobs, &allocs).await?.only(args.task.clone())?;
    let (view, task) = choose(&target, &jobs, &args.target)?;
    let several = target.tasks().count() > 1;
    if several {
        herdlet_base::stderr_line!("in {} ({})", view.spec.task_title(&task.name), view.spec.id.short());
    }
    let raw = match (args.tty, args.interactive) {
        (true, true) => Raw::enter()?,
        (true, false) | (false, _) => None,
    };
    if args.tty && args.interactive && raw.is_none() {
        herdlet_base::stderr_line!("standard input is not a terminal; the command gets one anyway");
    }
    let tty = if args.tty { Tty::Yes } else { Tty::No };
    let socket = client.exec(view.spec.id, &task.name, &args.command, tty).await?;
    let (mut input, output) = socket.split();
    if let Some((height, width)) = terminal::size().filter(|_| args.tty) {
        input.resize(height, width).await?;
    }
    let pieces = args.interactive.then(typed);
    let resized = if args.tty { signal(SignalKind::window_change()).ok() } else { None };
    let feeding = feed(input, pieces, resized);
    let draining = drain(output);
    tokio::pin!(draining);
    let ended = tokio::select! {
        ended = &mut draining => ended,
        // The session is over or the connection broke; the receiving side reports which, and why.
        _ = feeding => draining.await,
    };
    drop(raw);
    match ended {
        Ok(Some(code)) => Ok(u8::try_from(code & 0xff).unwrap_or(AGENT_FAILED)),
        Ok(None) => Err(Failure::new("the session ended without an exit code")),
        Err(error) => Err(Failure::from(error).of_command(&args.command)),
    }
}

/// The task to run in: the named one, else the first running main task, in the healthiest allocation.
fn choose<'t>(
    target: &'t Target,
    jobs: &[JobView],
    text: &str,
) -> Result<(&'t AllocView, &'t TaskView), Failure> {
    let mut allocs: Vec<&AllocView> =
        target.allocs.iter().filter(|view| view.status == ClientStatus::Running).collect();
    allocs.sort_by_key(|view| !view.is_healthy());
    for view in allocs {
        let meant = |task: &&TaskView| {
            task.state == TaskStatus::Running
                && target.task.as_deref().is_none_or(|wanted| *wanted == *task.name)
        };
        // Prefers main tasks to sidecars. Without the job's specification, the first running task is used.
        let job = jobs.iter().find(|job| job.key == view.spec.job_key);
        let group = job.and_then(|job| job.job.group(&view.spec.group));
        let is_main = |task: &&TaskView| {
            let spec = group.and_then(|group| group.task(&task.name));
            spec.is_none_or(|spec| spec.lifecycle == Lifecycle::Main)
        };
        let running: Vec<&TaskView> = view.tasks.iter().filter(meant).collect();
        if let Some(task) = running.iter().copied().find(|task| is_main(task)).or(running.first().copied()) {
            return Ok((view, task));
        }
    }
    Err(Failure::new(format!("no task of {text} is running"))
        .hint(format!("see why: herdlet explain {}", shell_word(text.to_owned()))))
}

/// Prints output until the command has ended.
async fn drain(mut output: ExecOutput) -> Result<Option<i32>, ClientError> {
    while let Some(frame) = output.next().await? {
        match frame {
            ExecFrame::Stdout(bytes) => stdout::bytes(&bytes),
            // If stderr can't be written, the exit code still counts.
            ExecFrame::Stderr(bytes) => drop(std::io::stderr().write_all(&bytes)),
            ExecFrame::Exited(code) => return Ok(Some(code)),
        }
    }
    Ok(None)
}

enum Never {}

/// Forwards the pieces of standard input, and the terminal's size whenever it is `resized`. Never ends by itself: the
/// command decides when the session ends.
async fn feed(
    mut input: ExecInput,
    mut pieces: Option<mpsc::Receiver<Vec<u8>>>,
    mut resized: Option<Signal>,
) -> Result<Never, ClientError> {
    if pieces.is_none() {
        input.end().await?;
    }
    loop {
        let piece = async {
            match &mut pieces {
                Some(pieces) => pieces.recv().await,
                None => std::future::pending().await,
            }
        };
        let resize = async {
            match &mut resized {
                Some(resized) => resized.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            piece = piece => match piece {
                Some(bytes) => input.stdin(&bytes).await?,
                None => {
                    pieces = None;
                    input.end().await?;
                }
            },
            _ = resize => if let Some((height, width)) = terminal::size() {
                input.resize(height, width).await?;
            },
            () = tokio::time::sleep(HEARTBEAT) => input.heartbeat().await?,
        }
    }
}

/// Standard input in pieces. Read by a separate task, because a read can't be cancelled.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, pieces) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut stdin = tokio::io::stdin();
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count) = stdin.read(&mut buffer).await {
            if count == 0 || sender.send(buffer[..count].to_vec()).await.is_err() {
                return;
            }
        }
    });
    pieces
}
