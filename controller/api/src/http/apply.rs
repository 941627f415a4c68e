//! `POST /v1/herdlet/apply`: manifests become desired state, all or nothing; `…/plan`: a dry run.

use std::sync::Arc;

use axum::{Json, extract::State};
use herdlet_api_types::{
    api::{AppliedJob, ApplyReply, ApplyRequest, JobChange, PlanReply, PlannedJob},
    job::Job,
    volume::Volume,
};
use herdlet_driver::users;
use herdlet_manifest::{
    hcl::Variables,
    manifests::{self, Drivers, Nearby, Set},
    one_machine, region, sets,
    yaml::{Problem, Problems},
};
use herdlet_plan::{
    event::{self, Command, Reply},
    job::periodic::first_launch,
};
use herdlet_services::catalog::Catalogs;

use super::{
    Shared, body, depends,
    error::{ApiError, ApiResult, unexpected},
    register,
};

pub(super) async fn apply(
    State(shared): State<Arc<Shared>>,
    body::Json(request): body::Json<ApplyRequest>,
) -> ApiResult<Json<ApplyReply>> {
    let set_name = request.set.clone();
    let names: Vec<String> = request.files.iter().map(|file| file.name.clone()).collect();
    let set = read(request, shared.drivers_in_manifests()).await?.map_err(ApiError::Problems)?;
    let mut jobs: Vec<Job> = set.jobs.into_iter().map(|loaded| loaded.object).collect();
    let volumes: Vec<Volume> = set.volumes.into_iter().map(|loaded| loaded.object).collect();
    if jobs.is_empty() && volumes.is_empty() {
        return Err(ApiError::Problems(nothing(&names).into()));
    }
    if let Some(problem) = unpublishable(shared.facts.unpublishable, &jobs) {
        return Err(ApiError::Problems(problem.into()));
    }
    if !set_name.is_empty() {
        let name = sets::name(&set_name)?;
        sets::join(&mut jobs, &name, |key| shared.model.job(key).filter(|view| !view.deleting))?;
    }
    let mut warnings: Vec<String> = set.warnings.iter().map(ToString::to_string).collect();
    // Both run concurrently, so a Consul that hangs delays nothing.
    let asking = jobs.clone();
    let (lacking, reply) =
        tokio::join!(shared.lacking(&asking), shared.request(Command::Apply { jobs, volumes }));
    let reply = reply?;
    warnings.extend(lacking);
    let Reply::Applied { index, jobs, volumes } = reply else { return Err(unexpected(reply)) };
    Ok(Json(ApplyReply {
        index,
        jobs: jobs.into_iter().map(|job| applied_job(&shared, job)).collect(),
        volumes,
        warnings,
    }))
}

impl Shared {
    /// Warnings about jobs that can't start as things are: they need a Consul that answers, cgroups for their limits,
    /// users of their tasks, other options of drivers, or each other. Also about jobs that name another region, and about what one machine can't offer.
    pub(super) async fn lacking(&self, jobs: &[Job]) -> Vec<String> {
        let limits = self.facts.ineffective.warnings(jobs);
        let tasks = users::users_of(jobs);
        let users = herdlet_runtime::off_thread(move || users::warnings(tasks));
        let (drivers, asked) = (self.drivers.clone(), jobs.to_vec());
        let refusals = herdlet_runtime::off_thread(move || drivers.refusals(&asked));
        let (consul, users, refusals) = tokio::join!(Catalogs::lacking(&self.consuls, jobs), users, refusals);
        let current =
            |key: &_| self.model.job(key).filter(|view| !view.deleting).map(|view| Arc::clone(&view.job));
        let cycles = depends::warnings(jobs, current);
        let regions = jobs.iter().filter_map(|job| {
            let warning = region::warning(job, Some(&self.facts.node.region))?;
            Some(format!("{}: {warning}", job.key()))
        });
        let alone = self.facts.host_ip.into_iter();
        let alone = alone.flat_map(|ip| jobs.iter().flat_map(move |job| one_machine::warnings(job, ip)));
        consul
            .into_iter()
            .chain(regions)
            .chain(alone)
            .chain(limits)
            .chain(users.unwrap_or_default())
            .chain(refusals.unwrap_or_default())
            .chain(cycles)
            .collect()
    }
}

/// `POST /v1/herdlet/plan`: what an apply would do.
pub(super) async fn plan(
    State(shared): State<Arc<Shared>>,
    body::Json(request): body::Json<ApplyRequest>,
) -> ApiResult<Json<PlanReply>> {
    let set = read(request, shared.drivers_in_manifests()).await?.map_err(ApiError::Problems)?;
    let planned = |job: &Job| {
        let unplaced = register::unplaced(&shared, job).into_iter();
        PlannedJob {
            job: job.key(),
            unplaced: unplaced.map(|(group, (why, _))| (group, why)).collect(),
            next_launch: first_launch(job, herdlet_base::clock::wall_now()),
        }
    };
    let jobs: Vec<Job> = set.jobs.into_iter().map(|loaded| loaded.object).collect();
    let warnings = shared.lacking(&jobs).await;
    Ok(Json(PlanReply { jobs: jobs.iter().map(planned).collect(), warnings }))
}

fn nothing(names: &[String]) -> Problem {
    let source = if names.is_empty() { "the request".to_owned() } else { names.join(", ") };
    let message = "it contains no manifest".to_owned();
    Problem { source, line: 0, column: 0, path: String::new(), message }
}

/// The first job with a service that publishes a port, for an agent that can't do so.
fn unpublishable(why: Option<&str>, jobs: &[Job]) -> Option<Problem> {
    let why = why?;
    let publishes = |job: &&Job| job.groups.iter().any(|group| group.published_ports().next().is_some());
    let message = format!("{}: {why}", jobs.iter().find(publishes)?.key());
    Some(Problem { source: "the request".to_owned(), line: 0, column: 0, path: String::new(), message })
}

/// Parses on another thread: megabytes of manifests take a while.
async fn read(request: ApplyRequest, drivers: Drivers) -> ApiResult<Result<Set, Problems>> {
    let reading = herdlet_runtime::off_thread(move || {
        let env_files = request.env_files.into_iter().map(|file| ((file.manifest, file.path), file.text));
        let nearby = Nearby::Sent { dirs: request.dirs, env_files: env_files.collect() };
        let texts = request.files.iter().map(|file| (file.name.as_str(), file.text.as_bytes()));
        Variables::read(&request.variables)
            .and_then(|variables| manifests::parse_sent(texts, nearby, &drivers, &variables))
    });
    reading.await.map_err(|error| ApiError::Failed(format!("read the manifests: {error}")))
}

fn applied_job(shared: &Shared, applied: event::AppliedJob) -> AppliedJob {
    let change = match applied.change {
        event::JobChange::Created => JobChange::Created,
        event::JobChange::Updated => JobChange::Updated,
        event::JobChange::Unchanged => JobChange::Unchanged,
    };
    let next_launch = shared.model.job(&applied.job).and_then(|view| view.next_launch);
    AppliedJob { job: applied.job, version: applied.version, change, next_launch }
}
