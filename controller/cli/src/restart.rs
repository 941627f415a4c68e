//! `herdlet restart` and `herdlet signal`.

use clap::Args;
use herdlet_api_types::view::AllocView;

use super::{
    Connection,
    client::RestartScope,
    failure::{Failure, USAGE},
    output::Output,
    round::{Report, Round},
    selection::{Absent, SelectorFlag},
    target,
    wait::WaitFlags,
};

/// Arguments of `herdlet restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// Jobs, allocations, or tasks
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
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
    /// Jobs, allocations, or tasks
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
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
    let names = limit.within("find it", args.selector.targets(&client, args.targets, Absent::Wrong)).await?;
    let found = limit.within("find it", target::find_all(&client, &names)).await?;
    let mut chosen = Vec::new();
    for (name, target) in names.iter().zip(found) {
        let target = target.only(args.task.clone())?;
        if target.task.is_some() && args.all {
            return Err(Failure::new("a task cannot be named together with --all").code(USAGE));
        }
        // `--all` also restarts dead tasks of live allocations.
        let live = |view: &&AllocView| !view.status.is_terminal();
        let allocs: Vec<&AllocView> =
            if args.all { target.allocs.iter().filter(live).collect() } else { target.running(name)? };
        if allocs.is_empty() {
            return Err(Failure::new(format!("{name} has ended; apply it again to start it")));
        }
        chosen.extend(allocs.into_iter().map(|view| (view.clone(), target.task.clone())));
    }
    let round = Round {
        client: &client,
        limit,
        wait: &args.wait,
        output: args.output,
        what: "restart it",
        told: "restarting",
        replaced: false,
    };
    let scope = |task: Option<&str>| match (task, args.all) {
        (Some(task), _) => RestartScope::Task(task.to_owned()),
        (None, true) => RestartScope::All,
        (None, false) => RestartScope::Running,
    };
    round.of(&chosen, async |alloc, task| client.restart(alloc, &scope(task)).await).await
}

pub async fn signal(args: SignalArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let names = args.selector.targets(&client, args.targets, Absent::Wrong).await?;
    let mut chosen = Vec::new();
    for (name, target) in names.iter().zip(target::find_all(&client, &names).await?) {
        let target = target.only(args.task.clone())?;
        // Includes pending allocations: one counts as pending during its `shutdown_delay`.
        let live: Vec<&AllocView> = target.allocs.iter().filter(|view| !view.status.is_terminal()).collect();
        let live = if live.is_empty() { target.running(name)? } else { live };
        chosen.extend(live.into_iter().map(|view| (view.clone(), target.task.clone())));
    }
    let mut report = Report::default();
    let touched = async {
        for (view, task) in &chosen {
            client.signal(view.spec.id, task.as_deref(), &args.signal).await?;
            report.add(view, task.as_deref(), "signalled", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
}
