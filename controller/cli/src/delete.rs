//! `herdlet delete`: stops and deletes jobs. Volumes and their data stay, unless `--purge` is given.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use clap::Args;
use futures_util::TryStreamExt as _;
use herdlet_api_types::{JobKey, api::Change, names::shell_word, view::JobView, volume::VolumeKind};
use herdlet_manifest::manifests::{self, Drivers};
use serde::Serialize;

use super::{
    Connection, children,
    client::{Client, ClientError, EndFlags, Purge},
    failure::{Failure, USAGE},
    here,
    output::Output,
    selection::{Absent, SelectorFlag, job_named},
    variables::VariableArgs,
    wait::{Goal, Limit, WaitReport, WaitTarget, Waited, wait_for_accepted},
};

/// Arguments of `herdlet delete`.
#[derive(Debug, Clone, Args)]
pub struct DeleteArgs {
    /// Jobs; or: volume NAME…
    #[arg(value_name = "JOB")]
    pub names: Vec<String>,
    #[command(flatten)]
    selector: SelectorFlag,
    /// Manifests whose jobs and volumes to delete: files, folders, or - [default for down: those of this folder]
    #[arg(short = 'f', long = "file", value_name = "FILE", conflicts_with = "names")]
    pub files: Vec<PathBuf>,
    /// Also delete the volumes that only these jobs used, with their data
    #[arg(long, visible_short_alias = 'v', visible_alias = "volumes")]
    purge: bool,
    #[command(flatten)]
    ends: EndFlags,
    /// Wait until the jobs are deleted
    #[arg(long)]
    wait: bool,
    /// Time limit of the whole command; 0 for none
    #[arg(long, default_value = "5m", value_parser = super::wait::limit)]
    timeout: Duration,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl DeleteArgs {
    /// Whether neither jobs nor volumes are named.
    pub fn names_nothing(&self) -> bool {
        self.files.is_empty() && self.names.is_empty() && !self.selector.is_given()
    }
}

/// What `-o json` prints.
#[derive(Default, Serialize)]
struct Report {
    jobs: Vec<JobKey>,
    volumes: Vec<RemovedVolume>,
    /// The result of `--wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitReport>,
}

#[derive(Serialize)]
struct RemovedVolume {
    name: String,
    /// `removed` or `kept`.
    data: &'static str,
}

pub async fn run(mut args: DeleteArgs) -> Result<u8, Failure> {
    if args.names_nothing() {
        args.files = here::manifests()?;
    }
    let mut report = Report::default();
    let deleted = delete(&args, &mut report).await;
    // After an error too, to report what was already deleted.
    if deleted.is_ok() || !report.jobs.is_empty() || !report.volumes.is_empty() {
        args.output.document(&report)?;
    }
    deleted
}

async fn delete(args: &DeleteArgs, report: &mut Report) -> Result<u8, Failure> {
    let limit = Limit::from_now(args.timeout);
    let client = args.connection.client()?;
    let purge = if args.purge { Purge::Data } else { Purge::Nothing };
    if let Some(names) = named_volumes(&args.names)? {
        let removal = Removal { purge, missing: Missing::Wrong, output: args.output };
        limit.within("delete volumes", removal.of(&client, names, report)).await?;
        return Ok(0);
    }
    let jobs = limit.within("list the jobs", client.jobs()).await?;
    let (keys, mut volumes) = if args.files.is_empty() {
        let names = args.selector.targets(&client, args.names.clone(), Absent::Wrong);
        (by_name(&limit.within("find it", names).await?, &jobs)?, BTreeSet::new())
    } else {
        by_file(args, &jobs)?
    };
    if args.purge {
        volumes.extend(limit.within("list the volumes", volumes_of(&client, &jobs, &keys)).await?);
    }
    let mut index = 0;
    for key in &keys {
        index = limit.within("delete a job", client.delete_job(key, args.ends)).await?;
        args.output.line(&format!("job/{key} deleting"));
        let left = jobs.iter().find(|view| view.key == *key).and_then(|view| children::left(view, &jobs));
        if let Some(left) = left {
            herdlet_base::stderr_line!("job/{key}: {left}");
        }
        report.jobs.push(key.clone());
    }
    if (args.wait || !volumes.is_empty()) && !keys.is_empty() {
        let jobs = keys.iter().map(WaitTarget::any).collect();
        let waited = wait_for_accepted(&client, jobs, index, Goal::Deleted, limit).await?;
        report.waited = Some(waited.report(Goal::Deleted));
        if waited != Waited::Reached {
            return Ok(waited.code());
        }
    }
    let removal = Removal { purge, missing: Missing::Fine, output: args.output };
    limit.within("delete volumes", removal.of(&client, volumes, report)).await?;
    Ok(0)
}

/// The volumes of `volume NAME…` or `volume/NAME…`; none if jobs are named.
fn named_volumes(names: &[String]) -> Result<Option<BTreeSet<String>>, Failure> {
    let is_kind = |word: &String| word == "volume" || word == "volumes";
    let with_kind = |name: &String| name.strip_prefix("volume/").map(str::to_owned);
    match names {
        [word, rest @ ..] if is_kind(word) && !rest.is_empty() => Ok(Some(rest.iter().cloned().collect())),
        names => {
            let volumes: BTreeSet<String> = names.iter().filter_map(with_kind).collect();
            if volumes.is_empty() {
                Ok(None)
            } else if names.iter().all(|name| with_kind(name).is_some()) {
                Ok(Some(volumes))
            } else {
                Err(Failure::new("jobs and volumes cannot be deleted at once")
                    .code(USAGE)
                    .hint("use one command for each"))
            }
        }
    }
}

fn by_name(names: &[String], jobs: &[JobView]) -> Result<Vec<JobKey>, Failure> {
    let mut keys = Vec::new();
    for name in names {
        let found = job_named(jobs, name);
        let found = found.ok_or_else(|| {
            Failure::new(format!("there is no job {name:?}; nothing was deleted"))
                .hint("list them: herdlet get jobs; volumes that a deleted job left: herdlet get volumes")
        })?;
        keys.push(found.key.clone());
    }
    Ok(keys)
}

fn by_file(args: &DeleteArgs, jobs: &[JobView]) -> Result<(Vec<JobKey>, BTreeSet<String>), Failure> {
    let set = manifests::load_names(&args.files, &Drivers::built_in(), &args.variables.read()?);
    let set = set.map_err(|problems| Failure::new(problems.to_string()).code(USAGE))?;
    let (mut keys, volumes) =
        (Vec::new(), set.volumes.into_iter().map(|loaded| loaded.object.name).collect());
    for loaded in set.jobs {
        let key = loaded.object.key();
        if jobs.iter().any(|view| view.key == key) {
            keys.push(key);
        } else {
            herdlet_base::stderr_line!("job/{key} does not exist");
        }
    }
    Ok((keys, volumes))
}

/// Volumes that only these jobs use.
async fn volumes_of(client: &Client, jobs: &[JobView], keys: &[JobKey]) -> Result<BTreeSet<String>, Failure> {
    let known: Vec<String> = client.volumes().await?.into_iter().map(|view| view.spec.name.clone()).collect();
    let used_by = |wanted: &dyn Fn(&JobKey) -> bool| -> BTreeSet<String> {
        jobs.iter().filter(|view| wanted(&view.key)).flat_map(|view| volume_names(view, &known)).collect()
    };
    let ours = used_by(&|key| keys.contains(key));
    let others = used_by(&|key| !keys.contains(key));
    Ok(ours.difference(&others).cloned().collect())
}

/// Names of the volumes that a job requests; `name[index]` for volumes per allocation.
fn volume_names(view: &JobView, known: &[String]) -> Vec<String> {
    let requests = view.job.groups.iter().flat_map(|group| group.volumes.values());
    let mut names = Vec::new();
    for request in requests {
        let of_request = |name: &&String| {
            let rest = name.strip_prefix(request.source.as_str());
            rest.is_some_and(|rest| if request.per_alloc { rest.starts_with('[') } else { rest.is_empty() })
        };
        names.extend(known.iter().filter(of_request).cloned());
    }
    names
}

struct Removal {
    purge: Purge,
    missing: Missing,
    output: Output,
}

/// Whether a missing volume is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Fine,
    Wrong,
}

impl Removal {
    async fn of(&self, client: &Client, names: BTreeSet<String>, report: &mut Report) -> Result<(), Failure> {
        let known = client.volumes().await?;
        for name in names {
            let spec = known.iter().find(|view| view.spec.name == name).map(|view| &view.spec.kind);
            match client.delete_volume(&name, self.purge).await {
                Err(ClientError::Status { status: 404, message }) if self.missing == Missing::Fine => {
                    herdlet_base::stderr_line!("{message}");
                    continue;
                }
                deleted => deleted?,
            };
            if self.purge == Purge::Data {
                wait_until_gone(client, &name).await?;
            }
            let (line, data) = removed(&name, spec, self.purge);
            self.output.line(&line);
            report.volumes.push(RemovedVolume { name, data });
        }
        Ok(())
    }
}

/// What became of a deleted volume, in a line and in a word. Only directories that the agent has created are ever removed.
fn removed(name: &str, kind: Option<&VolumeKind>, purge: Purge) -> (String, &'static str) {
    match (kind, purge) {
        (Some(VolumeKind::HostPath { path }), _) => (
            format!(
                "volume/{name} deleted; {path} and its content stay, because the agent did not create it"
            ),
            "kept",
        ),
        (Some(VolumeKind::Mkdir { .. }) | None, Purge::Data) => {
            (format!("volume/{name} deleted with its data"), "removed")
        }
        (Some(VolumeKind::Mkdir { .. }) | None, Purge::Nothing) => {
            let later =
                format!("to remove it: herdlet delete volume {} --purge", shell_word(name.to_owned()));
            (format!("volume/{name} deleted, its data stays; {later}"), "kept")
        }
    }
}

/// The agent answers a deletion before it is done. This waits until the agent has removed the data and the volume.
async fn wait_until_gone(client: &Client, name: &str) -> Result<(), Failure> {
    let mut changes = client.events().await?;
    if client.volumes().await?.iter().all(|view| view.spec.name != name) {
        return Ok(());
    }
    while let Some(change) = changes.try_next().await? {
        if matches!(change, Change::VolumeGone(gone) if gone == name) {
            return Ok(());
        }
    }
    Err(Failure::new(format!("the agent ended while it removed the data of volume {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host path was reported as removed, with the advice to purge what is never purged.
    #[test]
    fn a_host_path_is_never_reported_as_removed() {
        let host = VolumeKind::HostPath { path: "/srv/data".to_owned() };
        let own = VolumeKind::Mkdir { mode: 0o755, uid: None, gid: None };
        for purge in [Purge::Data, Purge::Nothing] {
            let (line, data) = removed("data", Some(&host), purge);
            assert_eq!(data, "kept");
            assert!(line.contains("/srv/data and its content stay") && !line.contains("--purge"), "{line}");
        }
        assert_eq!(removed("data", Some(&own), Purge::Data).1, "removed");
        assert!(removed("data", Some(&own), Purge::Nothing).0.contains("herdlet delete volume data --purge"));
    }
}
