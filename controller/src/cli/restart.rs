//! `herdlet restart`, `herdlet stop` and `herdlet signal`.

use clap::Args;
use herdlet_api_types::{AllocId, view::AllocView};
use serde::Serialize;

use super::{
    Connection,
    client::RestartScope,
    failure::{Failure, USAGE},
    output::Output,
    target,
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
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// Arguments of `herdlet stop`.
#[derive(Debug, Clone, Args)]
pub struct StopArgs {
    /// An allocation, or all of a group
    target: String,
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
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?.only(args.task)?;
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
    let mut report = Report::default();
    let touched = async {
        for view in allocs {
            client.restart(view.spec.id, &scope).await?;
            report.add(view, task.as_deref(), "restarting", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
}

pub(super) async fn stop(args: StopArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let target = target::find(&client, &args.target).await?;
    let name = &args.target;
    if let Some(task) = &target.task {
        let message = format!("{task:?} is a task, and allocations are stopped as a whole");
        let hint = format!("restart the task alone: herdlet restart {name}");
        return Err(Failure::new(message).code(USAGE).hint(hint));
    }
    if target.job.as_ref().is_some_and(|job| job.to_string() == *name) {
        let hint =
            format!("stop it for good: herdlet delete {name}; restart its tasks: herdlet restart {name}");
        return Err(Failure::new(format!("{name} is a whole job; name an allocation or a group"))
            .code(USAGE)
            .hint(hint));
    }
    let live: Vec<&AllocView> = target.allocs.iter().filter(|view| !view.status.is_terminal()).collect();
    if live.is_empty() {
        return Err(Failure::new(format!("{name} has ended already")));
    }
    let mut report = Report::default();
    let touched = async {
        for view in live {
            client.stop_alloc(view.spec.id).await?;
            report.add(view, None, "stopping; another takes its place where it can be placed", args.output);
        }
        Ok::<_, Failure>(())
    }
    .await;
    report.end(touched, args.output)
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
