//! `herdlet apply`: makes manifests the desired state, and with `--wait` waits until it is reached.

use std::path::PathBuf;

use clap::Args;
use herdlet_api_types::{
    JobKey,
    api::{AgentStatus, AppliedJob, ApplyReply, ApplyRequest, EnvFileText, JobChange, ManifestText},
    rfc3339::rfc3339,
};
use herdlet_manifest::{
    manifests::{self, Drivers},
    sets,
    yaml::Problems,
};

use serde::Serialize;

use super::{
    Connection,
    client::{Client, ClientError},
    failure::{Failure, USAGE},
    here,
    output::Output,
    show::styled,
    style,
    variables::VariableArgs,
    wait::{Accepted, Goal, WaitFlags, WaitTarget},
};

/// Arguments of `herdlet apply`.
#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    /// Manifests: files, folders, or - for standard input [default for up: those of this folder]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Return once the change is accepted, which is the default; --wait has priority
    #[arg(short = 'd', long = "detach")]
    _detach: bool,
    #[command(flatten)]
    wait: WaitFlags,
    /// Delete jobs that were applied with the same SET before and are not in these files; volumes are kept
    #[arg(long, value_name = "SET", value_parser = sets::name)]
    prune: Option<String>,
    /// Report by the exit code whether anything changed: 10 nothing, 11 something
    #[arg(long, conflicts_with = "wait")]
    detailed_exitcode: bool,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
    /// The verb of the command line.
    #[arg(skip)]
    pub verb: ApplyVerb,
}

/// The verb that was typed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ApplyVerb {
    #[default]
    Apply,
    /// Nomad's, which sends jobs to servers.
    JobRun,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    reply: ApplyReply,
    /// Jobs that are deleted because they are no longer in the set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pruned: Vec<JobKey>,
}

/// Exit code of `--detailed-exitcode`: nothing was changed.
const UNCHANGED: u8 = 10;
/// Exit code of `--detailed-exitcode`: something was changed.
const CHANGED: u8 = 11;

pub async fn run(mut args: ApplyArgs) -> Result<u8, Failure> {
    if args.files.is_empty() {
        args.files = here::manifests()?;
    }
    let limit = args.wait.limit();
    let set = args.prune.clone().unwrap_or_default();
    let mut request = ApplyRequest {
        files: read(&args.files)?,
        variables: args.variables.texts()?,
        set,
        ..ApplyRequest::default()
    };
    add_nearby(&mut request)?;
    let client = args.connection.client()?;
    if args.verb == ApplyVerb::JobRun {
        let status = limit.within("query the agent", client.status()).await?;
        if let Some(note) = local_note(&status) {
            herdlet_base::stderr_line!("{} {note}", styled(style::WARNING, "note:"));
        }
    }
    let reply = limit.within("apply it", client.apply(&request)).await?;
    print_reply(&reply, args.output);
    let pruned = match &args.prune {
        Some(set) => limit.within("prune", prune(&client, set, &reply, args.output)).await?,
        None => Vec::new(),
    };
    let report = Report { reply, pruned };
    let Report { reply, pruned } = &report;
    if args.detailed_exitcode {
        let unchanged = reply.volumes.is_empty()
            && pruned.is_empty()
            && reply.jobs.iter().all(|job| job.change == JobChange::Unchanged);
        args.output.document(&report)?;
        return Ok(if unchanged { UNCHANGED } else { CHANGED });
    }
    let wanted = |job: &AppliedJob| WaitTarget::version(job.job.clone(), job.version);
    let jobs = reply.jobs.iter().map(wanted).collect();
    let accepted = Accepted { client: &client, jobs, index: reply.index, goal: Goal::Converged };
    args.wait.finish(limit, accepted, &report, args.output).await
}

/// What `job run` does on a node of a cluster, where users may expect that servers get the job.
fn local_note(status: &AgentStatus) -> Option<&'static str> {
    status.in_cluster.then_some(
        "this machine is a node of a cluster; the job is for this machine only, and servers do not know it; for a job of the servers: nomad job run",
    )
}

/// Deletes jobs that are no longer in the set. Jobs that a folder of manifests owns stay, with a message.
async fn prune(
    client: &Client,
    set: &str,
    reply: &ApplyReply,
    output: Output,
) -> Result<Vec<JobKey>, Failure> {
    let jobs = client.jobs().await?;
    let is_kept = |key: &JobKey| reply.jobs.iter().any(|applied| applied.job == *key);
    let mut pruned = Vec::new();
    for view in sets::left(&jobs, set, is_kept) {
        let key = &view.key;
        match client.delete_version(key, view.version).await {
            Ok(_) => {
                output.line(&format!("job/{key} deleting: it is no longer in set {set}"));
                pruned.push(key.clone());
            }
            // Another client has deleted it meanwhile.
            Err(ClientError::Status { status: 404, .. }) => {}
            Err(ClientError::Status { status: 409, message }) => {
                herdlet_base::stderr_line!("{} {message}", styled(style::WARNING, "kept:"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(pruned)
}

fn print_reply(reply: &ApplyReply, output: Output) {
    for warning in &reply.warnings {
        herdlet_base::stderr_line!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    for volume in &reply.volumes {
        output.line(&format!("volume/{volume} applied"));
    }
    for applied in &reply.jobs {
        let (job, change, version) = (&applied.job, applied.change.as_str(), applied.version);
        let next = applied.next_launch.and_then(rfc3339);
        let next = next.map(|at| format!(", next launch: {at}")).unwrap_or_default();
        output.line(&format!("job/{job} {change} (version {version}){next}"));
    }
}

/// Adds the files that manifests name relative to themselves, and their directories: the agent may be on another machine, and
/// reads no file for a client.
fn add_nearby(request: &mut ApplyRequest) -> Result<(), Failure> {
    for ManifestText { name, text } in &request.files {
        if text.contains("env_file") {
            for path in manifests::env_file_paths(name, text.as_bytes()) {
                let failure =
                    |why: &str| Failure::new(format!("{name}: env_file {path:?} {why}")).code(USAGE);
                let bytes = manifests::read_env_file(name, &path).map_err(|why| failure(&why))?;
                let text = bytes.map(String::from_utf8).transpose().map_err(|_| failure("is not UTF-8"))?;
                request.env_files.push(EnvFileText { manifest: name.clone(), path, text });
            }
        }
        let names_dir = text.contains("manifest.dir") || text.contains("host_path");
        if let Some(dir) = manifests::dir_of(name).filter(|_| names_dir) {
            request.dirs.insert(name.clone(), dir.display().to_string());
        }
    }
    Ok(())
}

/// The texts of the files. Only the agent parses them, so an older command line accepts newer fields.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<ManifestText>, Failure> {
    let mut problems = Problems::new();
    let mut texts = Vec::new();
    for text in manifests::texts(files) {
        match text {
            Ok((name, bytes)) => match String::from_utf8(bytes) {
                Ok(text) => texts.push(ManifestText { name, text }),
                // JSON can't contain these bytes; the YAML parser reports their position.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_run_on_a_node_of_a_cluster_says_where_the_job_goes() {
        let status = |in_cluster| AgentStatus { in_cluster, ..crate::status::tests::agent() };
        assert_eq!(local_note(&status(false)), None);
        assert!(local_note(&status(true)).is_some_and(|note| note.contains("this machine only")));
    }
}
