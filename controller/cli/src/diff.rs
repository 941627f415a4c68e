//! `herdlet diff`: what an apply would change, found by comparing canonical jobs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use herdlet_api_types::{
    JobKey,
    alloc::Allocation,
    api::{ApplyRequest, ManifestText},
    job::Job,
    manifest::{JobManifest, VolumeManifest},
    rfc3339::rfc3339,
    view::{AllocView, JobVersion, JobView, Unplaced},
};
use herdlet_manifest::{
    manifests::{self, Drivers, Set},
    sets,
    yaml::WriteError,
};
use herdlet_plan::job::difference::replacing;
use serde::Serialize;
use serde_json::Value;

use super::{
    Connection,
    failure::{FAILED, Failure, USAGE},
    here,
    output::{Output, Reader},
    show::{self, styled},
    style,
    table::plain,
    variables::VariableArgs,
};

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

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// What happens to the allocations of a group.
#[derive(Debug, PartialEq, Serialize)]
struct GroupChange {
    group: String,
    change: GroupKind,
    /// The increase of the count; negative for a decrease.
    #[serde(skip_serializing_if = "is_zero")]
    more: i64,
    /// Number of canaries, which run beside the old allocations until they are promoted.
    #[serde(skip_serializing_if = "is_zero")]
    canaries: u32,
    /// Number of allocations that are replaced at a time; missing if all are replaced at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_a_time: Option<u32>,
    /// Paths of the fields that cause it.
    because: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum GroupKind {
    /// They stay unchanged.
    Nothing,
    /// They continue under the new version.
    InPlace,
    /// They are stopped and replaced.
    Replace,
    Create,
    Stop,
}

impl GroupKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::InPlace => "in-place",
            Self::Replace => "replace",
            Self::Create => "create",
            Self::Stop => "stop",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum ChangeKind {
    #[default]
    Create,
    Update,
    Delete,
}

/// Values in a manifest; a missing value is the default.
#[derive(Debug, PartialEq, Serialize)]
struct FieldChange {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
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
    let (mut before, mut after) = (BTreeMap::new(), BTreeMap::new());
    flatten("", known, &mut before);
    flatten("", wanted, &mut after);
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let fields: Vec<FieldChange> = paths
        .into_iter()
        .map(|path| FieldChange {
            path: path.clone(),
            before: before.get(path).cloned(),
            after: after.get(path).cloned(),
        })
        .filter(|field| field.before != field.after)
        .collect();
    (!fields.is_empty()).then(|| Change { object, change: ChangeKind::Update, fields, ..Change::default() })
}

/// The job's allocations that run and should continue.
fn running_allocs<'k>(view: &'k JobView, allocs: &'k [AllocView]) -> impl Iterator<Item = &'k Allocation> {
    let of_job = allocs.iter().filter(|alloc| alloc.spec.job_key == view.key && alloc.fills_a_place());
    of_job.map(|alloc| &*alloc.spec)
}

/// Whether an allocation has an older version, whose job must be fetched.
fn runs_older(view: &JobView, allocs: &[AllocView]) -> bool {
    running_allocs(view, allocs).any(|spec| spec.job_version != view.version)
}

/// The present state of a job.
struct CurrentJob<'k> {
    job: &'k Job,
    /// By group, the versions of running allocations, including older ones while canaries wait or after a failed
    /// roll-out.
    runs: BTreeMap<&'k str, Vec<Arc<Job>>>,
}

impl<'k> CurrentJob<'k> {
    fn of(view: &'k JobView, allocs: &'k [AllocView], versions: &[JobVersion]) -> Self {
        let mut runs: BTreeMap<&str, Vec<Arc<Job>>> = BTreeMap::new();
        for spec in running_allocs(view, allocs) {
            let older = versions.iter().find(|kept| kept.version == spec.job_version);
            let text = older.map_or(&view.job, |older| &older.job);
            let of_group = runs.entry(&spec.group).or_default();
            if !of_group.iter().any(|known| Arc::ptr_eq(known, text)) {
                of_group.push(Arc::clone(text));
            }
        }
        Self { job: &view.job, runs }
    }

    /// Paths of the fields that require a replacement of the group's allocations.
    fn replacing(&self, wanted: &Job, group: &str) -> Vec<String> {
        let running = self.runs.get(group).into_iter().flatten().map(|job| &**job);
        let running = running.chain((!self.runs.contains_key(group)).then_some(self.job));
        let asking: BTreeSet<String> = running.flat_map(|job| replacing(job, wanted, group)).collect();
        asking.into_iter().collect()
    }
}

/// What happens to each group when `known` (if any) becomes `wanted`. `fields`: the differences.
fn groups(known: Option<&CurrentJob<'_>>, wanted: &Job, fields: &[FieldChange]) -> Vec<GroupChange> {
    let current = known.map(|known| known.job);
    let gone = current.iter().flat_map(|known| &known.groups);
    let gone = gone.filter(|group| wanted.group(&group.name).is_none());
    let names = wanted.groups.iter().chain(gone).map(|group| group.name.as_str());
    let change = |group: &str| {
        let own = format!("spec.groups[{group}].");
        let is_of_job = |path: &str| !path.starts_with("spec.groups[");
        let differing = fields.iter().map(|field| field.path.as_str());
        let because: Vec<String> = differing
            .filter(|path| is_of_job(path) || path.strip_prefix(&own).is_some_and(|rest| rest != "count"))
            .map(|path| path.strip_prefix(&own).unwrap_or(path).to_owned())
            .collect();
        let asking = known.map_or_else(Vec::new, |known| known.replacing(wanted, group));
        let count = |job: &Job| job.group(group).map_or(0, |group| i64::from(job.desired_count(group)));
        // Stopped jobs and parents have no allocations.
        let runs = |job: &'_ Job| !job.makes_children() && count(job) > 0;
        let (change, because) = match (current.is_some_and(runs), runs(wanted)) {
            (false, false) => (GroupKind::Nothing, Vec::new()),
            (false, true) => (GroupKind::Create, Vec::new()),
            (true, false) => (GroupKind::Stop, Vec::new()),
            (true, true) if !asking.is_empty() => (GroupKind::Replace, written_of(asking, &because)),
            (true, true) if because.is_empty() => (GroupKind::Nothing, Vec::new()),
            (true, true) => (GroupKind::InPlace, because),
        };
        let update = wanted.group(group).and_then(|group| group.update.as_ref());
        let update = update.filter(|_| change == GroupKind::Replace);
        let at_a_time = update.map(|update| update.max_parallel);
        let canaries = update.map_or(0, |update| update.canary);
        let before = current.filter(|known| runs(known)).map_or(0, count);
        let more = if runs(wanted) { count(wanted) - before } else { 0 };
        GroupChange { group: group.to_owned(), change, more, canaries, at_a_time, because }
    };
    // A new parent only creates nothing yet.
    let is_told = |one: &GroupChange| known.is_some() || one.change != GroupKind::Nothing;
    names.map(change).filter(is_told).collect()
}

/// The changed fields below the paths that require a replacement; the paths themselves if there are none.
fn written_of(asking: Vec<String>, differing: &[String]) -> Vec<String> {
    let lies_in = |field: &str, path: &str| {
        field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let fields = differing.iter().filter(|field| asking.iter().any(|path| lies_in(field, path)));
    let fields: Vec<String> = fields.cloned().collect();
    if fields.is_empty() { asking } else { fields }
}

/// A change as text: a line for the object, and one for each field.
fn lines(change: &Change) -> String {
    let object = &change.object;
    let mut lines = match change.change {
        ChangeKind::Create => styled(style::GOOD, format!("+ {object}")),
        ChangeKind::Update => styled(style::WARNING, format!("~ {object}")),
        ChangeKind::Delete => styled(style::ERROR, format!("- {object}")),
    };
    lines.push('\n');
    for FieldChange { path, before, after } in &change.fields {
        let line = match (before, after) {
            (Some(old), Some(new)) => {
                styled(style::WARNING, format!("  ~ {path}: {} → {}", written(old), written(new)))
            }
            (Some(old), None) => styled(style::ERROR, format!("  - {path}: {}", written(old))),
            (None, Some(new)) => styled(style::GOOD, format!("  + {path}: {}", written(new))),
            (None, None) => continue,
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    for GroupChange { group, change, more, canaries, at_a_time, because } in &change.groups {
        let canaries = match canaries {
            0 => String::new(),
            1 => ", 1 canary first".to_owned(),
            more => format!(", {more} canaries first"),
        };
        let pace = match (change, at_a_time) {
            (GroupKind::Replace, Some(count)) => format!(", {count} at a time"),
            (GroupKind::Replace, None) => ", all at once (it has no `update`)".to_owned(),
            (GroupKind::Nothing | GroupKind::InPlace | GroupKind::Create | GroupKind::Stop, _) => {
                String::new()
            }
        };
        let because =
            if because.is_empty() { String::new() } else { format!(", because of {}", because.join(", ")) };
        let what = format!("{}{canaries}{pace}{because}", change.as_str());
        let description = match (*more, change) {
            (0, _) => what,
            (count, GroupKind::Create) => format!("{what} {count}"),
            (more, GroupKind::Nothing) => added(more),
            (more, _) => format!("{what}, {}", added(more)),
        };
        lines.push_str(&format!("  group {group}: {description}\n"));
    }
    for (group, why) in &change.unplaced {
        let line = format!("  group {group} would wait: {}", plain(&why.message));
        lines.push_str(&styled(style::WARNING, line));
        lines.push('\n');
    }
    if let Some(at) = &change.next_launch {
        lines.push_str(&format!("  next launch: {at}\n"));
    }
    lines
}

fn added(more: i64) -> String {
    if more < 0 { format!("{} fewer", more.unsigned_abs()) } else { format!("{more} more") }
}

/// A value as in YAML: without quotes if none are needed.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) if !text.is_empty() && !text.contains(['\n', '"', ' ']) => plain(text),
        Value::String(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::Array(_)
        | Value::Object(_) => value.to_string(),
    }
}

/// Collects every leaf under its path. Items of lists are identified by name if they have one, so that their order is no
/// change.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| flatten(&below(name), value, into));
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                let step = name.map_or_else(|| index.to_string(), ToOwned::to_owned);
                flatten(&format!("{path}[{step}]"), item, into);
            }
        }
        Value::Null => {}
        Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job_view};

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn diff_lists_changed_fields_and_ignores_order() {
        let known = json!({ "n": 1, "tasks": [{ "name": "a", "cpu": 1 }, { "name": "b" }], "old": "x", "none": null });
        let wanted = json!({ "n": 1, "tasks": [{ "name": "b" }, { "name": "a", "cpu": 2 }], "new": [1] });
        let change_text =
            |known, wanted| change("job/web".to_owned(), known, wanted).map(|one| plain(&lines(&one)));
        assert_eq!(
            change_text(Some(&known), &wanted).unwrap(),
            "~ job/web\n  + new[0]: 1\n  - old: x\n  ~ tasks[a].cpu: 1 → 2\n"
        );
        assert_eq!(change_text(Some(&known), &known), None);
        assert_eq!(change_text(None, &known).unwrap(), "+ job/web\n");
    }

    #[test]
    fn diff_names_the_change_of_each_group() {
        let mut known = (*herdlet_manifest::fixture::job("web", "front", "httpd")).clone();
        let group = |name: &str| {
            let mut group = known.groups[0].clone();
            group.name = name.to_owned();
            group
        };
        known.groups = ["same", "more", "policy", "work", "old"].map(group).into_iter().collect();
        let mut wanted = known.clone();
        wanted.groups[1].count += 1;
        let update = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec:\n  groups:\n    - {name: g, update: {max_parallel: 2}, tasks: [{name: t, driver: mock, config: {}}]}\n";
        let parsed = manifests::parse("t", update.as_bytes(), &Drivers::built_in()).unwrap();
        wanted.groups[2].update = parsed.jobs[0].object.groups[0].update.clone();
        wanted.groups[3].tasks[0].env.insert("A".to_owned(), "1".to_owned());
        // This field alone would be an in-place change, and is not a cause of the replacement.
        wanted.groups[3].tasks[0].kill_timeout = herdlet_api_types::Duration::from_secs(90);
        wanted.groups[4].name = "new".to_owned();
        let change = change("job/web".to_owned(), Some(&document(&known)), &document(&wanted)).unwrap();
        let shown = groups(Some(&idle(&known)), &wanted, &change.fields);
        let shown: Vec<_> =
            shown.iter().map(|one| (one.group.as_str(), one.change, one.because.join(" "))).collect();
        assert_eq!(shown[0], ("same", GroupKind::Nothing, String::new()));
        assert_eq!(
            shown[1],
            ("more", GroupKind::Nothing, String::new()),
            "new allocations are created beside them"
        );
        assert_eq!((shown[2].0, shown[2].1), ("policy", GroupKind::InPlace));
        assert!(shown[2].2.starts_with("update"), "{}", shown[2].2);
        assert_eq!(shown[3], ("work", GroupKind::Replace, "tasks[httpd].env.A".to_owned()));
        assert_eq!(shown[4], ("new", GroupKind::Create, String::new()));
        assert_eq!(shown[5], ("old", GroupKind::Stop, String::new()));
        let change = Change { groups: groups(Some(&idle(&known)), &wanted, &change.fields), ..change };
        let replaced =
            "  group work: replace, all at once (it has no `update`), because of tasks[httpd].env.A\n";
        assert!(plain(&lines(&change)).contains(replaced));
        assert!(plain(&lines(&change)).contains("  group more: 1 more\n"));
        wanted.groups[3].update = wanted.groups[2].update.clone();
        let change = Change { groups: groups(Some(&idle(&known)), &wanted, &change.fields), ..change };
        assert!(plain(&lines(&change)).contains("  group work: replace, 2 at a time, because of "));
        let update = wanted.groups[3].update.as_mut().unwrap();
        update.canary = 1;
        let change = Change { groups: groups(Some(&idle(&known)), &wanted, &change.fields), ..change };
        assert!(
            plain(&lines(&change))
                .contains("  group work: replace, 1 canary first, 2 at a time, because of ")
        );
        let groups = groups(None, &wanted, &[]);
        let created = Change { object: "job/web".to_owned(), groups, ..Change::default() };
        assert!(plain(&lines(&created)).starts_with("+ job/web\n  group same: create 1\n"));
    }

    /// It was reported as a replacement of allocations that an apply leaves running.
    #[test]
    fn diff_compares_with_running_version_during_canaries() {
        let blue = herdlet_manifest::fixture::job("web", "front", "httpd");
        let mut green = (*blue).clone();
        green.groups[0].tasks[0].env.insert("COLOR".to_owned(), "green".to_owned());
        let green = Arc::new(green);
        let view = job_view(&green, 1);
        let (runs, mut canary) = (alloc_view(&blue, 0, 1), alloc_view(&green, 0, 2));
        let spec = Arc::make_mut(&mut canary.spec);
        let id = herdlet_api_types::DeploymentId::from_hash([1; 16]);
        spec.deployment = Some(herdlet_api_types::alloc::AllocDeployment { id, canary: true });
        spec.job_version = 1;
        let allocs = [runs, canary];
        let kept = [(1, &green), (0, &blue)].map(|(version, job)| JobVersion {
            version,
            index: 0,
            submit_time: herdlet_api_types::UnixNanos(0),
            job: Arc::clone(job),
            tag: None,
        });
        let change_to =
            |wanted: &Job| groups(Some(&CurrentJob::of(&view, &allocs, &kept)), wanted, &[])[0].change;
        assert_eq!(change_to(&blue), GroupKind::Nothing);
        assert_eq!(change_to(&green), GroupKind::Replace);
    }

    fn idle(job: &Job) -> CurrentJob<'_> {
        CurrentJob { job, runs: BTreeMap::new() }
    }

    /// It was reported as an in-place change, although the job had no allocations.
    #[test]
    fn parameterized_or_periodic_job_changes_no_group() {
        let plain = (*herdlet_manifest::fixture::job("web", "front", "httpd")).clone();
        let mut periodic = plain.clone();
        periodic.parameterized = Some(herdlet_api_types::job::Parameterized::default());
        let change_between = |known: &Job, wanted: &Job| groups(Some(&idle(known)), wanted, &[])[0].change;
        assert_eq!(change_between(&periodic, &plain), GroupKind::Create);
        assert_eq!(change_between(&plain, &periodic), GroupKind::Stop);
        assert_eq!(change_between(&periodic, &periodic), GroupKind::Nothing);
    }

    #[test]
    fn values_are_shown_as_manifests_write_them() {
        let job = herdlet_manifest::fixture::job("web", "front", "httpd");
        let mut changed = (*job).clone();
        changed.groups[0].tasks[0].kill_timeout = herdlet_api_types::Duration::from_secs(90);
        changed.groups[0].tasks[0].env.insert("A".to_owned(), "two words".to_owned());
        let change = change("job/web".to_owned(), Some(&document(&job)), &document(&changed)).unwrap();
        assert_eq!(
            plain(&lines(&change)),
            "~ job/web\n  + spec.groups[front].tasks[httpd].env.A: \"two words\"\n  + spec.groups[front].tasks[httpd].kill_timeout: 1m30s\n"
        );
        assert_eq!(
            serde_json::to_value(&change.fields[1]).unwrap(),
            json!({ "path": "spec.groups[front].tasks[httpd].kill_timeout", "after": "1m30s" })
        );
    }
}
