//! `herdlet restart`, `herdlet stop` and `herdlet signal`.

use std::collections::BTreeSet;

use clap::Args;
use herdlet_api_types::{AllocId, JobKey, view::AllocView};
use serde::Serialize;

use super::{
    Connection,
    client::{Client, ClientError, RestartScope},
    failure::{Failure, USAGE},
    output::Output,
    stop, target,
    wait::{Accepted, Goal, Limit, WaitFlags, Wanted},
};

/// Arguments of `herdlet restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// A job, an allocation, or a task
    target: String,
    /// Only this task
    #[arg(long, conflicts_with = "all")]
    task: Option<String>,
    /// All tasks, dead ones too, in lifecycle order [default: the running ones]
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Arguments of `herdlet stop`.
#[derive(Debug, Clone, Args)]
pub struct StopArgs {
    /// A job, an allocation, or all of a group
    target: String,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Arguments of `herdlet signal`.
#[derive(Debug, Clone, Args)]
pub struct SignalArgs {
    /// A job, an allocation, or a task
    target: String,
    /// Which signal
    #[arg(short, long, default_value = "SIGHUP", value_name = "SIGNAL")]
    signal: String,
    /// Only this task
    #[arg(long)]
    task: Option<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Who was restarted or signalled; what `-o json` prints.
#[derive(Default, Serialize)]
struct Report<'r> {
    allocs: Vec<Touched<'r>>,
}

#[derive(Serialize)]
struct Touched<'r> {
    id: AllocId,
    name: String,
    /// The task, where one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'r str>,
}

pub(super) async fn restart(args: RestartArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let target = limit.within("find it", target::find(&client, &args.target)).await?.only(args.task)?;
    let task = target.task.clone();
    if task.is_some() && args.all {
        return Err(Failure::new("a task cannot be named together with --all").code(USAGE));
    }
    // Dead tasks of an allocation that has not ended may be restarted too.
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
    };
    round.of(&allocs, async |alloc| client.restart(alloc, &scope).await).await
}

pub(super) async fn stop(args: StopArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let target = limit.within("find it", target::find(&client, &args.target)).await?;
    let name = &args.target;
    if let Some(task) = &target.task {
        let message = format!("{task:?} is a task, and allocations are stopped as a whole");
        let hint = format!("restart the task alone: herdlet restart {name}");
        return Err(Failure::new(message).code(USAGE).hint(hint));
    }
    if target.job.as_ref().is_some_and(|job| job.to_string() == *name) {
        return stop::stop(&client, name, &args.wait, args.output).await;
    }
    let live: Vec<&AllocView> = target.allocs.iter().filter(|view| !view.status.is_terminal()).collect();
    if live.is_empty() {
        return Err(Failure::new(format!("{name} has ended already")));
    }
    let round = Round {
        client: &client,
        limit,
        wait: &args.wait,
        output: args.output,
        what: "stop it",
        told: "stopping; another takes its place where it can be placed",
        task: None,
    };
    round.of(&live, async |alloc| client.stop_alloc(alloc).await).await
}

pub(super) async fn signal(args: SignalArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?.only(args.task)?;
    let task = target.task.clone();
    let running = target.running(&args.target)?;
    let mut report = Report::default();
    let touched = async {
        for view in running {
            client.signal(view.spec.id, task.as_deref(), &args.signal).await?;
            report.add(view, task.as_deref(), "signalled", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
}

/// What is asked of one allocation after the other.
struct Round<'r> {
    client: &'r Client,
    limit: Limit,
    wait: &'r WaitFlags,
    output: Output,
    /// Reads after "failed to".
    what: &'r str,
    /// What is told of each.
    told: &'r str,
    task: Option<&'r str>,
}

impl Round<'_> {
    /// Asks it of these, and waits for their jobs where that is wanted.
    async fn of(
        self,
        allocs: &[&AllocView],
        ask: impl AsyncFn(AllocId) -> Result<u64, ClientError>,
    ) -> Result<u8, Failure> {
        let mut report = Report::default();
        let touched = self.limit.within(self.what, async {
            let mut index = 0;
            for view in allocs {
                index = ask(view.spec.id).await?;
                report.add(view, self.task, self.told, self.output);
            }
            Ok::<_, Failure>(index)
        });
        match touched.await {
            Ok(index) => {
                let jobs: BTreeSet<&JobKey> = allocs.iter().map(|view| &view.spec.job_key).collect();
                let jobs = jobs.into_iter().map(Wanted::any).collect();
                let accepted = Accepted { client: self.client, jobs, index, goal: Goal::Converged };
                self.wait.finish(self.limit, accepted, &report, self.output).await
            }
            Err(failure) => report.end(Err(failure), self.output),
        }
    }
}

impl<'r> Report<'r> {
    fn add(&mut self, view: &AllocView, task: Option<&'r str>, what: &str, output: Output) {
        let name = view.spec.name();
        output.line(&match task {
            Some(task) => format!("{name}/{task} {what}"),
            None => format!("{name} {what}"),
        });
        self.allocs.push(Touched { id: view.spec.id, name, task });
    }

    /// Prints it, also when it broke halfway.
    fn end(&self, touched: Result<(), Failure>, output: Output) -> Result<u8, Failure> {
        if touched.is_ok() || !self.allocs.is_empty() {
            output.document(self)?;
        }
        touched.map(|()| 0)
    }
}
