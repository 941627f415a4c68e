//! `herdlet apply`: manifests become desired state, and with `--wait` it is watched becoming true.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use herdlet_api_types::{
    JobKey,
    api::{ApplyReply, ApplyRequest, JobChange, ManifestText},
};
use serde::Serialize;

use super::{
    Connection,
    failure::{Failure, USAGE},
    output::Output,
    show::styled,
    style,
    variables::VariableArgs,
    wait::{Goal, Limit, WaitReport, wait_for_applied},
};
use crate::desired::{
    manifests::{self, Drivers},
    yaml::Problems,
};

/// Arguments of `herdlet apply`.
#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    /// Manifests: files, folders, or - for standard input
    #[arg(short = 'f', long = "file", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Wait until all of it is converged
    #[arg(long)]
    wait: bool,
    /// With --wait: how long all of it may take; 0 for ever
    #[arg(long, default_value = "5m", value_parser = super::wait::limit)]
    timeout: Duration,
    /// Say by the exit code whether anything changed: 10 nothing, 11 something
    #[arg(long, conflicts_with = "wait")]
    detailed_exitcode: bool,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report<'r> {
    #[serde(flatten)]
    reply: &'r ApplyReply,
    /// How `--wait` ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitReport>,
}

/// Nothing was changed.
const UNCHANGED: u8 = 10;
/// Something was.
const CHANGED: u8 = 11;

pub(super) async fn run(args: ApplyArgs) -> Result<u8, Failure> {
    let limit = Limit::from_now(if args.wait { args.timeout } else { Duration::ZERO });
    let request = ApplyRequest { files: read(&args.files)?, variables: args.variables.texts()? };
    let client = args.connection.client()?;
    let reply = limit.within("apply it", client.apply(&request)).await?;
    tell(&reply, args.output);
    if args.detailed_exitcode {
        let unchanged =
            reply.volumes.is_empty() && reply.jobs.iter().all(|job| job.change == JobChange::Unchanged);
        args.output.document(&Report { reply: &reply, waited: None })?;
        return Ok(if unchanged { UNCHANGED } else { CHANGED });
    }
    if !args.wait {
        args.output.document(&Report { reply: &reply, waited: None })?;
        return Ok(0);
    }
    let jobs: Vec<(JobKey, u64)> = reply.jobs.iter().map(|job| (job.job.clone(), job.version)).collect();
    let waited = wait_for_applied(&client, &jobs, reply.index, Goal::Converged, limit).await;
    // Also when the wait itself broke: what was accepted is in force.
    let report = waited.as_ref().ok().map(|waited| waited.report(Goal::Converged));
    args.output.document(&Report { reply: &reply, waited: report })?;
    Ok(waited?.code())
}

fn tell(reply: &ApplyReply, output: Output) {
    for warning in &reply.warnings {
        anstream::eprintln!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    for volume in &reply.volumes {
        output.line(&format!("volume/{volume} applied"));
    }
    for applied in &reply.jobs {
        let (job, change, version) = (&applied.job, applied.change.as_str(), applied.version);
        output.line(&format!("job/{job} {change} (version {version})"));
    }
}

/// The texts as they are: the agent reads them, so that what an older command line doesn't know is no error.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<ManifestText>, Failure> {
    let mut problems = Problems::new();
    let mut texts = Vec::new();
    for text in manifests::texts(files) {
        match text {
            Ok((name, bytes)) => match String::from_utf8(bytes) {
                Ok(text) => texts.push(ManifestText { name, text }),
                // JSON can't carry it; the reader of YAML says where it is wrong.
                Err(error) => {
                    if let Err(more) = manifests::parse(&name, error.as_bytes(), &Drivers::built_in()) {
                        problems.append(more);
                    }
                }
            },
            Err(problem) => problems.push(problem),
        }
    }
    match problems.into_result() {
        Ok(()) => Ok(texts),
        Err(problems) => Err(Failure::new(problems.to_string()).code(USAGE)),
    }
}
