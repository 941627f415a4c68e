//! `herdlet stop JOB` and `herdlet start`: a whole job is stopped and kept, and started again.
//!
//! In: a job's name. Out: a new version of it that differs in nothing else, its number told.

use clap::Args;
use herdlet_api_types::JobKey;
use serde::Serialize;

use super::{
    Connection,
    client::Client,
    failure::Failure,
    output::Output,
    rollback::find,
    wait::{Accepted, WaitFlags},
};

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
    pub(super) connection: Connection,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report {
    job: JobKey,
    /// The version that is stopped, or not.
    version: u64,
    stopped: bool,
}

/// What is to become of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stopped,
    Started,
}

impl Fate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Started => "started",
        }
    }
}

pub(super) async fn start(args: StartArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    decide(&client, &args.job, Fate::Started, &args.wait, args.output).await
}

/// Stops a whole job.
pub(super) async fn stop(
    client: &Client,
    name: &str,
    wait: &WaitFlags,
    output: Output,
) -> Result<u8, Failure> {
    decide(client, name, Fate::Stopped, wait, output).await
}

async fn decide(
    client: &Client,
    name: &str,
    fate: Fate,
    wait: &WaitFlags,
    output: Output,
) -> Result<u8, Failure> {
    let limit = wait.limit();
    let view = limit.within("find it", find(client, name)).await?;
    let job = view.key;
    let index = match fate {
        Fate::Stopped => limit.within("stop it", client.stop_job(&job)).await?,
        Fate::Started => limit.within("start it", client.start_job(&job)).await?,
    };
    let newest = limit.within("list its versions", client.newest_version(&job)).await?;
    let version = newest.unwrap_or(view.version);
    let told = fate.as_str();
    if version == view.version {
        output.line(&format!("job/{job} unchanged: it is {told} already"));
    } else {
        output.line(&format!("job/{job} {told} (version {version})"));
    }
    let report = Report { job: job.clone(), version, stopped: fate == Fate::Stopped };
    let accepted = Accepted::version(client, job, version, index);
    wait.finish(limit, accepted, &report, output).await
}
