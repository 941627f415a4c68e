//! `herdlet restart` and `herdlet signal`.

use clap::Args;
use herdlet_api_types::view::AllocView;

use super::{
    Connection,
    client::RestartScope,
    failure::{Failure, USAGE},
    output::Output,
    round::{Report, Round},
    target,
    wait::WaitFlags,
};

/// Arguments of `herdlet restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// A job, an allocation, or a task
    target: String,
    /// Only this task
    #[arg(long, conflicts_with = "all")]
    task: Option<String>,
    /// All tasks, including dead ones, in lifecycle order [default: the running ones]
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet signal`.
#[derive(Debug, Clone, Args)]
pub struct SignalArgs {
    /// A job, an allocation, or a task
    target: String,
    /// Signal to send
    #[arg(short, long, default_value = "SIGHUP", value_name = "SIGNAL")]
    signal: String,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

pub async fn restart(args: RestartArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let target = limit.within("find it", target::find(&client, &args.target)).await?.only(args.task)?;
    let task = target.task.clone();
    if task.is_some() && args.all {
        return Err(Failure::new("a task cannot be named together with --all").code(USAGE));
    }
    // `--all` also restarts dead tasks of live allocations.
    let live = |view: &&AllocView| !view.status.is_terminal();
    let allocs: Vec<&AllocView> =
        if args.all { target.allocs.iter().filter(live).collect() } else { target.running(&args.target)? };
    if allocs.is_empty() {
        return Err(Failure::new(format!("{} has ended; apply it again to start it", args.target)));
    }
    let scope = match (&task, args.all) {
        (Some(task), _) => RestartScope::Task(task.clone()),
        (None, true) => RestartScope::All,
        (None, false) => RestartScope::Running,
    };
    let round = Round {
        client: &client,
        limit,
        wait: &args.wait,
        output: args.output,
        what: "restart it",
        told: "restarting",
        task: task.as_deref(),
        replaced: false,
    };
    round.of(&allocs, async |alloc| client.restart(alloc, &scope).await).await
}

pub async fn signal(args: SignalArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?.only(args.task)?;
    let task = target.task.clone();
    // Includes pending allocations: one counts as pending during its `shutdown_delay`.
    let live: Vec<&AllocView> = target.allocs.iter().filter(|view| !view.status.is_terminal()).collect();
    let live = if live.is_empty() { target.running(&args.target)? } else { live };
    let mut report = Report::default();
    let touched = async {
        for view in live {
            client.signal(view.spec.id, task.as_deref(), &args.signal).await?;
            report.add(view, task.as_deref(), "signalled", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
}
