//! `herdlet stop` and `herdlet start`: stops a whole job without deleting it, starts it again, or replaces single
//! allocations.
//!
//! In: a name. Out: a new version of the job that differs only in being stopped; or stopping allocations.

use clap::Args;
use herdlet_api_types::{JobKey, view::AllocView};
use serde::Serialize;

use super::{
    Connection,
    client::{Client, EndFlags, JobChange},
    failure::{Failure, USAGE},
    output::Output,
    rollback,
    round::Round,
    target,
    wait::{Accepted, Limit, WaitFlags},
};

/// Arguments of `herdlet stop`.
#[derive(Debug, Clone, Args)]
pub struct StopArgs {
    /// A job, an allocation, or a group
    target: String,
    #[command(flatten)]
    ends: EndFlags,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet start`.
#[derive(Debug, Clone, Args)]
pub struct StartArgs {
    /// A job
    job: String,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    job: JobKey,
    /// The version that was stopped or started.
    version: u64,
    stopped: bool,
}

/// What to do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobOutcome {
    Stopped(EndFlags),
    Started,
}

impl JobOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stopped(_) => "stopped",
            Self::Started => "started",
        }
    }
}

pub async fn stop(args: StopArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let target = limit.within("find it", target::find(&client, &args.target)).await?;
    let name = &args.target;
    if let Some(task) = &target.task {
        let message = format!("{task:?} is a task, but only whole allocations can be stopped");
        let hint = format!("restart the task alone: herdlet restart {name}");
        return Err(Failure::new(message).code(USAGE).hint(hint));
    }
    if target.job.as_ref().is_some_and(|job| job.to_string() == *name) {
        return decide(&client, name, JobOutcome::Stopped(args.ends), limit, &args.wait, args.output).await;
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
        told: "stopping; its job replaces it if that can be placed",
        task: None,
        replaced: true,
    };
    round.of(&live, async |alloc| client.stop_alloc(alloc, args.ends).await).await
}

pub async fn start(args: StartArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    decide(&client, &args.job, JobOutcome::Started, limit, &args.wait, args.output).await
}

/// Stops or starts a whole job.
async fn decide(
    client: &Client,
    name: &str,
    fate: JobOutcome,
    limit: Limit,
    wait: &WaitFlags,
    output: Output,
) -> Result<u8, Failure> {
    let view = limit.within("find it", rollback::find(client, name)).await?;
    let job = view.key;
    let JobChange { index, version } = match fate {
        JobOutcome::Stopped(ends) => limit.within("stop it", client.stop_job(&job, ends)).await?,
        JobOutcome::Started => limit.within("start it", client.start_job(&job)).await?,
    };
    let told = fate.as_str();
    if version == view.version {
        output.line(&format!("job/{job} unchanged: it is {told} already"));
    } else {
        output.line(&format!("job/{job} {told} (version {version})"));
    }
    let report = Report { job: job.clone(), version, stopped: fate != JobOutcome::Started };
    let accepted = Accepted::version(client, job, version, index);
    wait.finish(limit, accepted, &report, output).await
}
