//! Jobs in Nomad's form: registering, parsing and planning them.
//!
//! In: `{"Job": …}` as Nomad's clients send it, or the text of a job file. Out: what was accepted, the job in Nomad's JSON, or
//! what a registration would change. Errors in a job come back as problems, each with its path.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
};
use herdlet_api_types::{
    job::{Job, JobType},
    nomad::{self, GroupChange, Updates},
    rfc3339::rfc3339,
    view::{AllocView, JobView, Unplaced},
};
use herdlet_manifest::{
    manifests::{self, Loaded},
    yaml::{Problem, Problems},
};
use herdlet_plan::{
    event::{Command, Counts},
    job::{capacity::Room, feasibility, periodic::first_launch, same_work, scale},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    jobs::reversioned,
    submission::Submission,
    trigger::Trigger,
};

/// The body of a registration or plan, as Nomad names its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Request {
    job: Value,
    enforce_index: bool,
    /// The index at which the caller has seen the job; 0 if it saw none.
    job_modify_index: u64,
    preserve_counts: bool,
    preserve_resources: bool,
    diff: bool,
    submission: Option<Submission>,
}

impl Request {
    fn check(&self) -> ApiResult<()> {
        if self.job.is_null() {
            return Err(ApiError::bad("Job must be specified"));
        }
        if self.preserve_resources {
            return Err(ApiError::NotBuilt("PreserveResources is not built".to_owned()));
        }
        Ok(())
    }
}

pub(super) async fn register(
    State(shared): State<Arc<Shared>>,
    body::Json(request): body::Json<Request>,
) -> ApiResult<Json<Value>> {
    accept(&shared, request, None).await
}

/// `POST /v1/job/ID`: registers the job that the path names.
pub(super) async fn update(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(request): body::Json<Request>,
) -> ApiResult<Json<Value>> {
    accept(&shared, request, Some(id)).await
}

async fn accept(shared: &Arc<Shared>, request: Request, id: Option<String>) -> ApiResult<Json<Value>> {
    request.check()?;
    let (job, warnings) = read(shared, json!({ "Job": request.job }).to_string(), "job.json").await?;
    named(&job, id.as_deref())?;
    let key = job.key();
    let warnings = with_lacking(shared, warnings, &job).await;
    let counts = if request.preserve_counts { Counts::Keep } else { Counts::Replace };
    let enforced_index = request.enforce_index.then_some(request.job_modify_index);
    let command = Command::Register { job: job.into(), counts, enforced_index };
    let changed = shared.job_changed(command).await?;
    let eval = shared.evaluations.note(&key, Trigger::JobRegister, changed.at());
    let unstored = match request.submission {
        Some(submission) => shared.keep_source(&key, changed.version, submission).await,
        None => None,
    };
    Ok(Json(reversioned(&eval, changed, &joined(warnings, unstored))))
}

/// The body of a parse request, as Nomad names its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Text {
    #[serde(rename = "JobHCL")]
    job_hcl: String,
    variables: String,
}

pub(super) async fn parse(
    State(shared): State<Arc<Shared>>,
    body::Json(text): body::Json<Text>,
) -> ApiResult<Json<Value>> {
    if !text.variables.is_empty() {
        return Err(ApiError::NotBuilt(
            "Variables is not built; use herdlet convert --var instead".to_owned(),
        ));
    }
    if text.job_hcl.trim().is_empty() {
        return Err(ApiError::bad("Job spec is empty"));
    }
    let (job, _) = read(&shared, text.job_hcl, "job.hcl").await?;
    Ok(Json(nomad::job(&job, 0)))
}

/// `POST /v1/job/ID/plan`: a dry run of a registration.
pub(super) async fn plan(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    body::Json(request): body::Json<Request>,
) -> ApiResult<Json<Value>> {
    request.check()?;
    let (job, warnings) = read(&shared, json!({ "Job": request.job }).to_string(), "job.json").await?;
    named(&job, Some(&id))?;
    let known = shared.model.job(&job.key()).filter(|view| !view.deleting);
    let job = match &known {
        Some(view) if request.preserve_counts => scale::with_counts_of(job, &view.job)?,
        Some(_) | None => job,
    };
    let changes: BTreeMap<String, GroupChange> = group_names(&job, known.as_deref())
        .map(|group| {
            // A parent job has no allocations of its own.
            let own = if job.makes_children() { Updates::default() } else { updates(&shared, &job, group) };
            let is_in_place = known.as_deref().is_some_and(|known| same_work(&known.job, &job, group));
            (group.to_owned(), GroupChange { updates: with_canaries(own, &job, group), is_in_place })
        })
        .collect();
    let diff = request.diff.then(|| {
        let old = known.as_deref().map(|view| nomad::job(&view.job, 0));
        let mut diff = nomad::job_diff(old.as_ref(), &nomad::job(&job, 0));
        nomad::annotate(&mut diff, &changes);
        diff
    });
    let updates: Map<String, Value> =
        changes.iter().map(|(group, change)| (group.clone(), change.updates.to_json())).collect();
    let warnings = with_lacking(&shared, warnings, &job).await;
    let unplaced = unplaced(&shared, &job);
    let failed = unplaced.iter().map(|(group, (why, count))| (group, why, *count));
    Ok(Json(json!({
        "Annotations": { "DesiredTGUpdates": updates, "PreemptedAllocs": null }, "FailedTGAllocs": nomad::failed_groups(failed),
        "JobModifyIndex": known.map_or(0, |view| view.modify_index), "CreatedEvals": null, "Diff": diff,
        "NextPeriodicLaunch": first_launch(&job, herdlet_base::clock::wall_now()).and_then(rfc3339), "Warnings": warnings, "Index": shared.model.index(),
    })))
}

/// `POST /v1/validate/job`: whether a job would be accepted.
pub(super) async fn validate(
    State(shared): State<Arc<Shared>>,
    body::Json(request): body::Json<Request>,
) -> ApiResult<Json<Value>> {
    request.check()?;
    let text = json!({ "Job": request.job }).to_string();
    let (problems, warnings) = match manifest(&shared, text, "job.json").await? {
        Ok((job, warnings)) => (Vec::new(), with_lacking(&shared, warnings, &job).await),
        Err(problems) => (problems.iter().map(in_data).collect(), String::new()),
    };
    let errors = (!problems.is_empty()).then_some(&problems);
    Ok(Json(json!({
        "DriverConfigValidated": true, "ValidationErrors": errors, "Error": problems.join("; "), "Warnings": warnings,
    })))
}

/// A problem or warning. Its place in a text of a person is kept.
fn shown(problem: &Problem, source: &str) -> String {
    if source.ends_with(".json") { in_data(problem) } else { problem.to_string() }
}

/// A problem with its path in the job. Its line and column are omitted: the text is one line that no person has written.
fn in_data(problem: &Problem) -> String {
    match problem.path.as_str() {
        "" => problem.message.clone(),
        path => format!("{path}: {}", problem.message),
    }
}

async fn with_lacking(shared: &Shared, warnings: String, job: &Job) -> String {
    joined(warnings, shared.lacking(std::slice::from_ref(job)).await)
}

fn joined(warnings: String, more: impl IntoIterator<Item = String>) -> String {
    let known = Some(warnings).filter(|warnings| !warnings.is_empty());
    known.into_iter().chain(more).collect::<Vec<_>>().join("\n")
}

/// Groups that can't be placed on this node now, by name: the reason, and the number of allocations. For a parameterized job,
/// this is about its next child.
pub(super) fn unplaced(shared: &Shared, job: &Job) -> BTreeMap<String, (Unplaced, u64)> {
    let (total, reserved) = shared.facts.room;
    let all = total.minus(reserved);
    let mut taken = taken_by_others(shared, job);
    let mut unplaced = BTreeMap::new();
    for group in &job.groups {
        let Updates { place, destructive_update, in_place_update, .. } = updates(shared, job, &group.name);
        let missing = place + destructive_update;
        let changed = missing + in_place_update;
        if changed == 0 {
            continue;
        }
        let wants = Room::of(group).times(missing);
        let fits = feasibility::check(job, group, &shared.facts.node)
            .and_then(|()| wants.check(all.minus(taken), all));
        match fits {
            Ok(()) => taken = taken.plus(wants),
            Err(why) => {
                unplaced.insert(group.name.clone(), (why, changed));
            }
        }
    }
    unplaced
}

/// Resources of live allocations, except those of this job that it will stop or replace.
fn taken_by_others(shared: &Shared, job: &Job) -> Room {
    let key = job.key();
    let stays = |view: &AllocView| {
        let count = job.group(&view.spec.group).map_or(0, |group| job.desired_count(group));
        view.spec.job_key != key
            || view.spec.index < count && same_work(&view.spec.job, job, &view.spec.group)
    };
    let allocs = shared.model.allocs();
    let live = allocs.iter().filter(|view| !view.status.is_terminal() && stays(view));
    live.filter_map(|view| view.spec.group()).map(Room::of).fold(Room::default(), Room::plus)
}

/// The groups of the job, and of its present version.
fn group_names<'j>(job: &'j Job, known: Option<&'j JobView>) -> impl Iterator<Item = &'j str> {
    let old = known.into_iter().flat_map(|view| &view.job.groups);
    let gone = old.filter(|group| job.group(&group.name).is_none());
    job.groups.iter().chain(gone).map(|group| group.name.as_str())
}

/// What happens to the allocations of a group when this job is applied.
fn updates(shared: &Shared, job: &Job, group: &str) -> Updates {
    let count = job.group(group).filter(|_| !job.stop).map_or(0, |group| group.count);
    let mut updates = Updates::default();
    let live = shared.model.allocs_of(&job.key()).into_iter();
    for view in live.filter(|view| {
        view.spec.group == group && view.spec.desired == herdlet_api_types::alloc::Desired::Run
    }) {
        if view.spec.index >= count {
            updates.stop += 1;
        } else if *view.spec.job == *job {
            updates.ignore += 1;
        } else if same_work(&view.spec.job, job, group) {
            updates.in_place_update += 1;
        } else {
            updates.destructive_update += 1;
        }
    }
    let placed = updates.ignore + updates.in_place_update + updates.destructive_update;
    updates.place = u64::from(count).saturating_sub(placed);
    updates
}

/// Allocations that a canary would replace stay until the promotion.
fn with_canaries(updates: Updates, job: &Job, group: &str) -> Updates {
    let update =
        job.group(group).and_then(|group| group.update.as_ref()).filter(|_| job.kind == JobType::Service);
    match update.map_or(0, |update| u64::from(update.canary)) {
        0 => updates,
        _ if updates.destructive_update == 0 => updates,
        canary => Updates {
            canary,
            ignore: updates.ignore + updates.destructive_update,
            destructive_update: 0,
            ..updates
        },
    }
}

fn named(job: &Job, id: Option<&str>) -> ApiResult<()> {
    match id {
        Some(id) if id != job.id => Err(ApiError::bad("Job ID does not match request path")),
        Some(_) | None => Ok(()),
    }
}

/// Reads a text with exactly one job, and its warnings. All its problems are one line, as other errors of Nomad's API.
async fn read(shared: &Shared, text: String, source: &'static str) -> ApiResult<(Job, String)> {
    manifest(shared, text, source).await?.map_err(|problems| {
        let shown = problems.iter().map(|one| shown(one, source));
        let more = (problems.more() > 0).then(|| format!("and {} more", problems.more()));
        ApiError::BadRequest(shown.chain(more).collect::<Vec<_>>().join("; "))
    })
}

/// The same with its problems. Parses on another thread, because it takes a while.
async fn manifest(
    shared: &Shared,
    text: String,
    source: &'static str,
) -> ApiResult<Result<(Job, String), Problems>> {
    let drivers = shared.drivers_in_manifests();
    let reading = herdlet_runtime::off_thread(move || manifests::parse(source, text.as_bytes(), &drivers));
    let set = reading.await.map_err(|error| ApiError::Failed(format!("read the job: {error}")))?;
    let set = match set {
        Ok(set) => set,
        Err(problems) => return Ok(Err(problems)),
    };
    let warnings = set.warnings.iter().map(|one| shown(one, source)).collect::<Vec<_>>().join("\n");
    let mut jobs = set.jobs.into_iter();
    match (jobs.next(), jobs.next()) {
        (Some(Loaded { object, .. }), None) if set.volumes.is_empty() => Ok(Ok((object, warnings))),
        _ => Ok(Err(not_one(source))),
    }
}

fn not_one(source: &str) -> Problems {
    let message = "it must contain exactly one job".to_owned();
    Problem { source: source.to_owned(), line: 0, column: 0, path: "Job".to_owned(), message }.into()
}
