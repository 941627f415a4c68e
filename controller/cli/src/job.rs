//! `herdlet job …`: verbs without a command of their own. `controller/src/cli/nomad.rs` maps Nomad's other verbs.

use clap::{Args, Subcommand};

use serde_json::json;

use super::{Connection, dispatch::Report, failure::Failure, output::Output, rollback::find, show};

/// Arguments of `herdlet job`.
#[derive(Debug, Clone, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    pub verb: JobVerb,
}

/// What to do with a job.
#[derive(Debug, Clone, Subcommand)]
pub enum JobVerb {
    /// Periodic jobs
    #[command(after_help = "Example:\n  herdlet job periodic force backup")]
    Periodic(PeriodicArgs),
    /// Print a job in the JSON of Nomad's API; as a manifest: herdlet get jobs JOB -o yaml
    #[command(after_help = "Example:\n  herdlet job inspect web > web.json")]
    Inspect(InspectArgs),
}

/// Arguments of `herdlet job inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// A job
    job: String,
    #[command(flatten)]
    connection: Connection,
}

/// Arguments of `herdlet job periodic`.
#[derive(Debug, Clone, Args)]
pub struct PeriodicArgs {
    #[command(subcommand)]
    verb: PeriodicVerb,
}

/// What to do with a periodic job.
#[derive(Debug, Clone, Subcommand)]
enum PeriodicVerb {
    /// Launch a periodic job now, even if it prohibits overlap and a child still runs
    #[command(after_help = "Example:\n  herdlet job periodic force backup")]
    Force(ForceArgs),
}

/// Arguments of `herdlet job periodic force`.
#[derive(Debug, Clone, Args)]
struct ForceArgs {
    /// A periodic job
    job: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

impl JobVerb {
    pub fn connection(&mut self) -> &mut Connection {
        match self {
            Self::Periodic(PeriodicArgs { verb: PeriodicVerb::Force(args) }) => &mut args.connection,
            Self::Inspect(args) => &mut args.connection,
        }
    }
}

pub async fn run(args: JobArgs) -> Result<u8, Failure> {
    match args.verb {
        JobVerb::Periodic(PeriodicArgs { verb: PeriodicVerb::Force(args) }) => force(args).await,
        JobVerb::Inspect(args) => inspect(args).await,
    }
}

/// Prints the form that Nomad and herdlet accept.
async fn inspect(args: InspectArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let job = find(&client, &args.job).await?.key;
    show::json(&json!({ "Job": client.nomad_job(&job).await? }))?;
    Ok(0)
}

async fn force(args: ForceArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let parent = find(&client, &args.job).await?.key;
    let job = client.force_launch(&parent).await?;
    args.output.line(&format!("job/{parent} launched as job/{job}"));
    args.output.document(&Report { job, parent })?;
    Ok(0)
}
