//! `herdlet diff`: what an apply would change, found by comparing canonical jobs.
//!
//! In: manifests, and the agent's jobs, allocations and volumes. Out: the changes, as text or as a document. [`fields`]
//! compares documents, [`mod@groups`] determines what happens to allocations, [`text`] writes the changes for people.

mod fields;
mod groups;
mod text;

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use herdlet_api_types::{
    JobKey,
    api::{ApplyRequest, ManifestText},
    job::Job,
    manifest::{JobManifest, VolumeManifest},
    rfc3339::rfc3339,
    view::{JobView, Unplaced},
};
use herdlet_manifest::{
    manifests::{self, Drivers, Set},
    sets,
    yaml::WriteError,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    Connection,
    failure::{FAILED, Failure, USAGE},
    here,
    output::{Output, Reader},
    show::{self, styled},
    style,
    variables::VariableArgs,
};

use fields::FieldChange;
use groups::{CurrentJob, GroupChange, groups, runs_older};
use text::lines;

/// Arguments of `herdlet diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// Manifests: files, folders, or - for standard input [default: those of this folder, as for up]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Show what an apply with --prune SET would change
    #[arg(long, value_name = "SET", value_parser = sets::name)]
    prune: Option<String>,
    #[command(flatten)]
    variables: VariableArgs,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    changes: Vec<Change>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Change {
    /// `job/NAME` or `volume/NAME`.
    object: String,
    change: ChangeKind,
    /// For an update, every changed field, by path.
    fields: Vec<FieldChange>,
    /// For a job, what happens to the allocations of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupChange>,
    /// For a job, groups whose allocations would wait, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unplaced: BTreeMap<String, Unplaced>,
    /// For a periodic job, the first launch if this were applied now.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_launch: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ChangeKind {
    #[default]
    Create,
    Update,
    Delete,
}

/// Exit code 0 without changes, 1 with changes, 2 for errors.
pub async fn run(mut args: DiffArgs) -> Result<u8, Failure> {
    if args.files.is_empty() {
        args.files = here::manifests()?;
    }
    let set = manifests::load(&args.files, &Drivers::built_in(), &args.variables.read()?);
    let mut set = set.map_err(|problems| Failure::new(problems.to_string()).code(USAGE))?;
    let client = args.connection.client()?;
    let wanted = documents(&set)?;
    let known = async { tokio::try_join!(client.jobs(), client.allocs(), client.volumes()) };
    let ((jobs, allocs, volumes), planned) = tokio::try_join!(known, client.plan(&wanted))?;
    for warning in &planned.warnings {
        herdlet_base::stderr_line!("{} {warning}", styled(style::WARNING, "warning:"));
    }
    if let Some(name) = &args.prune {
        join(&mut set, name, &jobs)?;
    }
    let mut kept = BTreeMap::new();
    for key in set.jobs.iter().map(|loaded| loaded.object.key()) {
        if jobs.iter().any(|view| view.key == key && runs_older(view, &allocs)) {
            let versions = client.versions(&key).await?;
            kept.insert(key, versions);
        }
    }
    let mut changes = Vec::new();
    for loaded in &set.volumes {
        let wanted = &loaded.object;
        let known = volumes.iter().find(|view| view.spec.name == wanted.name);
        let known = known.map(|view| value(&VolumeManifest::from_volume(&view.spec)));
        let wanted_value = value(&VolumeManifest::from_volume(wanted));
        changes.extend(change(format!("volume/{}", wanted.name), known.as_ref(), &wanted_value));
    }
    for loaded in &set.jobs {
        let key = loaded.object.key();
        let view = jobs.iter().find(|view| view.key == key).filter(|view| !view.deleting);
        let known = view.map(|view| document(&view.job));
        let wanted = document(&loaded.object);
        changes.extend(change(format!("job/{key}"), known.as_ref(), &wanted).map(|change| {
            let versions = kept.get(&key).map_or(&[][..], Vec::as_slice);
            let known = view.map(|view| CurrentJob::of(view, &allocs, versions));
            let groups = groups(known.as_ref(), &loaded.object, &change.fields);
            let planned = planned.jobs.iter().find(|planned| planned.job == key);
            Change {
                groups,
                unplaced: planned.map(|planned| planned.unplaced.clone()).unwrap_or_default(),
                next_launch: planned.and_then(|planned| planned.next_launch).and_then(rfc3339),
                ..change
            }
        }));
    }
    if let Some(name) = &args.prune {
        changes.extend(pruned(&set, name, &jobs));
    }
    let code = if changes.is_empty() { 0 } else { FAILED };
    match args.output.reader() {
        // On standard error: an empty diff stays empty.
        Reader::Person if changes.is_empty() => herdlet_base::stderr_line!("no changes"),
        Reader::Person => changes.iter().for_each(|change| show::out(&lines(change))),
        Reader::Program => args.output.document(&Report { changes })?,
    }
    Ok(code)
}

/// Adds the jobs of the files to the set.
fn join(read: &mut Set, name: &str, jobs: &[JobView]) -> Result<(), Failure> {
    let known = |key: &JobKey| jobs.iter().find(|view| view.key == *key && !view.deleting);
    let read = read.jobs.iter_mut().map(|loaded| &mut loaded.object);
    sets::join(read, name, known).map_err(|error| Failure::new(error.to_string()))
}

/// The jobs of the set that are not in the files.
fn pruned<'j>(read: &'j Set, name: &'j str, jobs: &'j [JobView]) -> impl Iterator<Item = Change> + 'j {
    let is_kept = |key: &JobKey| read.jobs.iter().any(|loaded| loaded.object.key() == *key);
    sets::left(jobs, name, is_kept).map(|view| Change {
        object: format!("job/{}", view.key),
        change: ChangeKind::Delete,
        ..Change::default()
    })
}

/// The jobs of the files as canonical manifests.
fn documents(set: &Set) -> Result<ApplyRequest, Failure> {
    let texts = set.jobs.iter().map(|loaded| {
        let text = manifests::job_to_yaml(&loaded.object)?;
        Ok(ManifestText { name: loaded.object.id.clone(), text })
    });
    let files: Result<Vec<ManifestText>, _> = texts.collect();
    let files = files.map_err(|error: WriteError| Failure::new(format!("failed to {error}")))?;
    Ok(ApplyRequest { files, ..ApplyRequest::default() })
}

/// The job's manifest. Always includes the count of each group, which users read first.
fn document(job: &Job) -> Value {
    let mut document = value(&JobManifest::from_job(job));
    let groups = document.pointer_mut("/spec/groups").and_then(Value::as_array_mut);
    for (shown, group) in groups.into_iter().flatten().zip(&job.groups) {
        shown["count"] = group.count.into();
    }
    document
}

fn value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

/// The changes of one object; none if it is unchanged.
fn change(object: String, known: Option<&Value>, wanted: &Value) -> Option<Change> {
    let Some(known) = known else {
        return Some(Change { object, change: ChangeKind::Create, ..Change::default() });
    };
    let fields = fields::differing(known, wanted);
    (!fields.is_empty()).then(|| Change { object, change: ChangeKind::Update, fields, ..Change::default() })
}

#[cfg(test)]
mod tests;
