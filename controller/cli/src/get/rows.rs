//! The rows that `get` lists for each kind.
//!
//! In: the agent's views, and targets. Out: rows, in the order of output.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use herdlet_api_types::{
    JobKey,
    alloc::ClientStatus,
    job::{Group, Provider},
    service::{CheckResult, CheckStatus, Registration, ServiceHealth, ServiceView},
    view::{AllocView, ConvergenceState, HELD, JobVersion, JobView, TaskView, VolumeView},
    volume::{VolumeKind, VolumeStatus},
};

use super::{
    EndedAllocs, Form, ListRequest, ObjectKind, drift, events,
    listing::{Cell, Document, Listing, Row},
};
use crate::{
    children,
    client::Client,
    deployments,
    failure::{Failure, USAGE},
    missing::Missing,
    rollback, selection, show, target,
};

pub(super) async fn list(wanted: &ListRequest<'_>, missing: Missing) -> Result<Listing, Failure> {
    let ListRequest { client, targets, ended, form, .. } = *wanted;
    match wanted.kind {
        ObjectKind::Jobs => jobs(client, targets, missing).await,
        ObjectKind::Allocs => allocs(client, targets, form, ended, missing).await,
        ObjectKind::Tasks => tasks(client, targets, missing).await,
        ObjectKind::Services => services(client, targets, form, missing).await,
        ObjectKind::Volumes => volumes(client, targets).await,
        ObjectKind::Deployments => list_deployments(client, targets, form, missing).await,
        ObjectKind::Versions => versions(client, targets, missing).await,
        ObjectKind::Events => {
            let events = client.transitions().await?;
            let is_told = |target: &String| {
                let only = std::slice::from_ref(target);
                events.iter().any(|event| events::is_meant(&event.job, &event.name, event.alloc, only))
            };
            known(client, targets, missing, is_told).await?;
            Ok(events::list(events, targets, form))
        }
        ObjectKind::Drift => {
            let drifts = client.drifts().await?;
            let is_told = |target: &String| {
                let only = std::slice::from_ref(target);
                drifts.iter().any(|drift| events::is_meant(&drift.job, &drift.name, Some(drift.alloc), only))
            };
            known(client, targets, missing, is_told).await?;
            Ok(drift::list(drifts, targets, form))
        }
        ObjectKind::Node => Ok(Listing::new(&[])),
    }
}

/// Fails for targets that don't exist. An existing target without events is no error.
async fn known(
    client: &Client,
    targets: &[String],
    missing: Missing,
    is_told: impl Fn(&String) -> bool,
) -> Result<(), Failure> {
    let open: Vec<&String> = targets.iter().filter(|target| !is_told(target)).collect();
    if open.is_empty() || missing == Missing::IsGone {
        return Ok(());
    }
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    for target in open {
        target::find_among(client, target, &jobs, &allocs).await?;
    }
    Ok(())
}

/// The jobs with these names, or all.
fn chosen_jobs(
    mut jobs: Vec<JobView>,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<JobView>, Failure> {
    if targets.is_empty() {
        return Ok(jobs);
    }
    let is_there = |name: &str| selection::job_named(&jobs, name).is_some();
    if let Some(name) = missing.among(targets, is_there) {
        return Err(Failure::new(format!("there is no job {name:?}")));
    }
    let named = targets.iter().filter_map(|name| selection::job_named(&jobs, name));
    let named: BTreeSet<JobKey> = named.map(|view| view.key.clone()).collect();
    jobs.retain(|view| named.contains(&view.key));
    Ok(jobs)
}

async fn jobs(client: &Client, targets: &[String], missing: Missing) -> Result<Listing, Failure> {
    let (all, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    // The origin is a column only if there are jobs of servers.
    let has_placed = all.iter().any(|view| view.placed);
    let mut columns = vec!["JOB", "TYPE", "VERSION", "RUNNING", "STATE", "AGE", "MESSAGE"];
    if has_placed {
        columns.insert(1, "FROM");
    }
    let mut listing = Listing::new(&columns);
    for view in with_fates(client, &all, targets, chosen_jobs(all.clone(), targets, missing)).await? {
        let name = view.key.to_string();
        let mut cells = Vec::from(job_cells(&view, &allocs, &all));
        if has_placed {
            cells.insert(1, show::origin(view.placed).to_owned().into());
        }
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Job(Box::new(view)) });
    }
    Ok(listing)
}

/// Adds to the error what happened to the missing job.
async fn with_fates<T>(
    client: &Client,
    jobs: &[JobView],
    targets: &[String],
    found: Result<T, Failure>,
) -> Result<T, Failure> {
    let is_missing = |target: &&String| selection::job_named(jobs, target).is_none();
    match (found, targets.iter().find(is_missing)) {
        (Ok(found), _) => Ok(found),
        (Err(failure), Some(target)) => Err(target::with_fate(client, target, jobs, failure).await),
        (Err(failure), None) => Err(failure),
    }
}

/// A row for a job; `jobs` has all jobs.
fn job_cells(view: &JobView, allocs: &[AllocView], jobs: &[JobView]) -> [Cell; 7] {
    let of_job = || allocs.iter().filter(|alloc| alloc.spec.job_key == view.key);
    let running = of_job().filter(|alloc| alloc.status == ClientStatus::Running).count();
    let wanted: usize = if view.placed {
        view.allocs.len()
    } else {
        view.job.groups.iter().map(|group| view.desired_count(group) as usize).sum()
    };
    let mut kind = view.job.kind.as_str();
    let count = if view.job.makes_children() && !view.placed {
        let children = children::of(view, jobs);
        let all = children.pending + children.running + children.dead;
        kind = children::kind(&view.job);
        let failed = match children::failed(view, jobs) {
            0 => String::new(),
            failed => format!(", {failed} failed"),
        };
        format!("{} ({}/{all} ended{failed})", children.running, children.dead)
    } else if view.job.kind.completes() {
        let done = of_job().filter(|alloc| alloc.status == ClientStatus::Complete).count();
        format!("{running} ({done}/{wanted} done)")
    } else {
        format!("{running}/{wanted}")
    };
    let state = match (view.deleting, view.convergence.state) {
        (true, _) => "deleting",
        (false, ConvergenceState::Converged) if view.job.stop => "stopped",
        (false, ConvergenceState::Progressing) if view.job.stop => "stopping",
        (false, ConvergenceState::Converged) if view.held.is_some() => HELD,
        (false, state) => state.as_str(),
    };
    [
        view.key.to_string().into(),
        kind.to_owned().into(),
        view.version.to_string().into(),
        count.into(),
        state.to_owned().into(),
        Cell::Age(view.submit_time),
        view.message().into(),
    ]
}

/// The allocations of the targets, or all; each with the task that the target names.
async fn chosen(
    client: &Client,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<(AllocView, Option<String>)>, Failure> {
    if targets.is_empty() {
        let mut allocs = client.allocs().await?;
        allocs.sort_by_key(|view| {
            (view.spec.job_key.clone(), view.spec.group.clone(), view.spec.index, view.spec.create_index)
        });
        return Ok(allocs.into_iter().map(|view| (view, None)).collect());
    }
    let (jobs, allocs) = tokio::try_join!(client.jobs(), client.allocs())?;
    let mut chosen = Vec::new();
    for text in targets {
        match (target::find_among(client, text, &jobs, &allocs).await, missing) {
            (Ok(target), _) => {
                chosen.extend(target.allocs.into_iter().map(|view| (view, target.task.clone())));
            }
            (Err(failure), Missing::IsWrong) => return Err(failure),
            (Err(_), Missing::IsGone) => {}
        }
    }
    Ok(chosen)
}

async fn allocs(
    client: &Client,
    targets: &[String],
    form: Form,
    ended: EndedAllocs,
    missing: Missing,
) -> Result<Listing, Failure> {
    let mut columns = vec!["ID", "NAME", "VERSION", "STATUS", "HEALTHY", "STATE", "AGE"];
    if form == Form::Wide {
        columns.extend(["PORTS", "MESSAGE"]);
    }
    let mut listing = Listing::new(&columns);
    let mut unlisted = 0;
    for view in with_ended(client, targets, missing).await? {
        if ended == EndedAllocs::Counted && view.status.is_terminal() {
            unlisted += 1;
            continue;
        }
        let id = view.spec.id.to_string();
        let shown = if form == Form::Wide { id.clone() } else { view.spec.id.short() };
        let mut cells: Vec<Cell> = alloc_cells(&view, shown).into();
        if form == Form::Wide {
            let verdict = Some(&*view.convergence.message).filter(|message| !message.is_empty());
            let message = verdict.or(view.loss()).unwrap_or_default().to_owned();
            cells.extend([ports(&view).into(), message.into()]);
        }
        let document = Document::Alloc(Box::new(view));
        listing.rows.push(Row { key: id.clone(), name: id, cells, document });
    }
    let listed = if listing.rows.is_empty() { "nothing runs; " } else { "" };
    listing.unlisted = (unlisted > 0)
        .then(|| format!("{listed}ended allocations not listed: {unlisted} (herdlet ps --all)"));
    Ok(listing)
}

/// The allocations of the targets, with those of the same slots that have ended: earlier ones, and canaries that failed.
/// Without targets, all.
async fn with_ended(
    client: &Client,
    targets: &[String],
    missing: Missing,
) -> Result<Vec<AllocView>, Failure> {
    let (named, all) = tokio::try_join!(chosen(client, targets, missing), async {
        client.allocs().await.map_err(Failure::from)
    })?;
    // An id names one allocation and not its slot.
    let names_place = |view: &AllocView| {
        targets.iter().any(|target| selection::after_job(target, &view.spec.job_key).is_some())
    };
    let mut found: Vec<AllocView> = Vec::new();
    for (view, _) in named {
        let slot = |view: &AllocView| (view.spec.job_key.clone(), view.spec.group.clone(), view.spec.index);
        let ended = all.iter().filter(|other| {
            other.spec.id != view.spec.id
                && names_place(&view)
                && other.status.is_terminal()
                && slot(other) == slot(&view)
        });
        found.extend(ended.cloned());
        found.push(view);
    }
    let mut known = BTreeSet::new();
    found.retain(|view| known.insert(view.spec.id));
    Ok(found)
}

fn alloc_cells(view: &AllocView, id: String) -> [Cell; 7] {
    [
        id.into(),
        view.spec.title().into(),
        view.spec.job_version.to_string().into(),
        view.status.as_str().to_owned().into(),
        show::healthy(view).to_owned().into(),
        view.convergence.state.as_str().to_owned().into(),
        Cell::Age(view.spec.create_time),
    ]
}

fn ports(view: &AllocView) -> String {
    let ports = view.spec.named_ports().map(|(name, port)| format!("{name}={}:{}", port.host_ip, port.value));
    ports.collect::<Vec<_>>().join(",")
}

async fn tasks(client: &Client, targets: &[String], missing: Missing) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&["TASK", "ALLOC", "STATE", "PHASE", "RESTARTS", "AGE"]);
    for (view, wanted) in chosen(client, targets, missing).await? {
        let is_meant = |task: &&TaskView| wanted.as_deref().is_none_or(|wanted| *wanted == *task.name);
        listing.rows.extend(view.tasks.iter().filter(is_meant).map(|task| task_row(&view, task)));
    }
    Ok(listing)
}

fn task_row(view: &AllocView, task: &TaskView) -> Row {
    let alloc = view.spec.id;
    let name = format!("{}/{}", view.spec.name(), task.name);
    let cells = [
        view.spec.task_title(&task.name).into(),
        alloc.short().into(),
        task.state.as_str().to_owned().into(),
        show::phase(task).into(),
        task.restarts.to_string().into(),
        Cell::Age(task.started_at),
    ];
    let document = Document::Task { alloc, name: name.clone(), task: Box::new(task.clone()) };
    Row { key: format!("{alloc}/{}", task.name), name, cells: cells.into(), document }
}

async fn services(
    client: &Client,
    names: &[String],
    form: Form,
    missing: Missing,
) -> Result<Listing, Failure> {
    let (mut services, jobs) = tokio::try_join!(client.services(), client.jobs())?;
    let in_consul = names_in_consul(&jobs);
    let is_there = |name: &str| services.iter().any(|one| service_name(one) == name);
    if let Some(name) = missing.among(names, is_there) {
        let failure = Failure::new(format!("there is no service {name:?} in the built-in catalogue"));
        return Err(match in_consul.get(name) {
            Some(job) => failure
                .hint(format!("it is in Consul; for its checks, see: herdlet describe {}", job.argument())),
            None => failure.hint("list them: herdlet get services"),
        });
    }
    services.retain(|one| names.is_empty() || names.contains(&service_name(one)));
    services.sort_by_cached_key(service_name);
    let mut listing = service_listing(services, form);
    if names.is_empty() && !in_consul.is_empty() {
        let in_consul: Vec<_> = in_consul.into_keys().collect();
        listing.unlisted = Some(format!("not listed because they are in Consul: {}", in_consul.join(", ")));
    }
    Ok(listing)
}

/// Names of the services that jobs register in Consul, each with one such job.
fn names_in_consul(jobs: &[JobView]) -> BTreeMap<String, &JobKey> {
    let mut names = BTreeMap::new();
    for view in jobs.iter().filter(|view| !view.job.stop && !view.deleting) {
        for (_, service) in view.job.groups.iter().flat_map(Group::all_services) {
            if service.provider == Provider::Consul {
                names.insert(service_key(&view.key.namespace, &service.name), &view.key);
            }
        }
    }
    names
}

fn service_listing(services: Vec<ServiceView>, form: Form) -> Listing {
    let mut columns = vec!["SERVICE", "HEALTH", "PASSING", "ADDRESS", "PROVIDER", "ALLOC", "TASK", "TAGS"];
    columns.extend((form == Form::Wide).then_some("OUTPUT"));
    let mut listing = Listing::new(&columns);
    let mut instances: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for one in &services {
        let (passing, all) = instances.entry(service_name(one)).or_default();
        *passing += usize::from(one.health == ServiceHealth::Passing);
        *all += 1;
    }
    for one in services {
        let (key, name) = (one.registration.id.clone(), service_name(&one));
        let (passing, all) = instances.get(&name).copied().unwrap_or_default();
        let mut cells: Vec<Cell> = service_cells(&one, format!("{passing}/{all}")).map(Cell::Text).into();
        cells.extend((form == Form::Wide).then(|| Cell::Text(check_output(&one.results))));
        listing.rows.push(Row { key, name, cells, document: Document::Service(Box::new(one)) });
    }
    listing
}

fn service_name(one: &ServiceView) -> String {
    service_key(&one.registration.job.namespace, &one.registration.name)
}

/// The name, with the namespace if it is not the default, as for jobs.
fn service_key(namespace: &Arc<str>, name: &str) -> String {
    JobKey { namespace: Arc::clone(namespace), id: name.into() }.to_string()
}

/// `passing`: the number of passing instances of the service, and of all.
fn service_cells(one: &ServiceView, passing: String) -> [String; 8] {
    let Registration { address, port, alloc, task, tags, .. } = &one.registration;
    let provider = match one.registration.provider {
        Provider::Nomad => "nomad",
        Provider::Consul => "consul",
    };
    [
        service_name(one),
        one.health.as_str().to_owned(),
        passing,
        if *port == 0 { address.clone() } else { format!("{address}:{port}") },
        provider.to_owned(),
        alloc.short(),
        task.clone().unwrap_or_else(|| "-".to_owned()),
        tags.join(","),
    ]
}

/// The first line of a check's output: of a failing check if there is one, else of one with a
/// warning, else of the first.
fn check_output(results: &[CheckResult]) -> String {
    let with_status = |status| results.iter().find(|result| result.status == status);
    let chosen =
        with_status(CheckStatus::Failure).or_else(|| with_status(CheckStatus::Warning)).or(results.first());
    chosen.map_or_else(String::new, |result| {
        format!("{}: {}", result.check, result.output.lines().next().unwrap_or_default())
    })
}

async fn volumes(client: &Client, names: &[String]) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&["VOLUME", "KIND", "STATUS", "CLAIMS", "PATH"]);
    let mut volumes = client.volumes().await?;
    volumes.retain(|view| names.is_empty() || names.contains(&view.spec.name));
    for view in volumes {
        let name = view.spec.name.clone();
        let cells = volume_cells(&view).map(Cell::Text).into();
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Volume(Box::new(view)) });
    }
    Ok(listing)
}

fn volume_cells(view: &VolumeView) -> [String; 5] {
    let kind = match view.spec.kind {
        VolumeKind::HostPath { .. } => "host path",
        VolumeKind::Mkdir { .. } => "mkdir",
    };
    let (status, path) = match &view.status {
        VolumeStatus::Pending => ("pending".to_owned(), String::new()),
        VolumeStatus::Ready { path } => ("ready".to_owned(), path.clone()),
        VolumeStatus::Failed { why } => (format!("failed: {why}"), String::new()),
    };
    [view.spec.name.clone(), kind.to_owned(), status, view.claims.len().to_string(), path]
}

async fn list_deployments(
    client: &Client,
    targets: &[String],
    form: Form,
    missing: Missing,
) -> Result<Listing, Failure> {
    let mut listing = Listing::new(&deployments::COLUMNS);
    let jobs = client.jobs().await?;
    for one in deployments::of(&jobs, targets, missing)? {
        let id = one.id.to_string();
        let shown = if form == Form::Wide { id.clone() } else { one.id.short() };
        let cells = deployments::row(one, shown).map(Cell::Text).into();
        let document = Document::Deployment(Box::new(one.clone()));
        listing.rows.push(Row { key: id.clone(), name: id, cells, document });
    }
    Ok(listing)
}

async fn versions(client: &Client, targets: &[String], missing: Missing) -> Result<Listing, Failure> {
    let [name] = targets else {
        return Err(Failure::new("versions belong to one job, name it: herdlet get versions JOB").code(USAGE));
    };
    let mut listing = Listing::new(&["VERSION", "AGE", "STABLE", ""]);
    let job = match rollback::known(client.jobs().await?, name) {
        Ok(view) => view,
        Err(failure) if missing == Missing::IsWrong => return Err(failure),
        Err(_) => return Ok(listing),
    };
    let kept = client.versions(&job.key).await?;
    let notes: Vec<String> = (0..kept.len()).map(|at| version_notes(&job, &kept, at)).collect();
    for (version, note) in kept.into_iter().zip(notes) {
        let stable = if job.is_stable(version.version) { "yes" } else { "-" };
        let name = version.version.to_string();
        let cells =
            vec![name.clone().into(), Cell::Age(version.submit_time), stable.to_owned().into(), note.into()];
        listing.rows.push(Row { key: name.clone(), name, cells, document: Document::Version(version) });
    }
    Ok(listing)
}

/// What distinguishes a version; after a rollback, the version that it restored. `kept` is sorted newest first.
fn version_notes(job: &JobView, kept: &[JobVersion], at: usize) -> String {
    let Some((version, older)) = kept.get(at..).and_then(<[_]>::split_first) else { return String::new() };
    let same = older.iter().find(|older| older.job == version.job);
    let notes = [
        (at == 0).then(|| "current".to_owned()),
        version.job.stop.then(|| "stopped".to_owned()),
        job.has_failed(version.version).then(|| "failed".to_owned()),
        same.map(|same| format!("same as {}", same.version)),
    ];
    notes.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, UnixNanos, fixture};

    use super::*;
    use crate::table::Heading;

    /// `rollback` skips versions that the list did not distinguish.
    #[test]
    fn repeated_version_is_listed_with_its_original() {
        let texts = ["good", "bad", "good"].map(|name| herdlet_manifest::fixture::job(name, "g", "t"));
        let version =
            |(version, job)| JobVersion { version, index: 0, submit_time: UnixNanos(0), job, tag: None };
        let mut kept: Vec<JobVersion> = (0..).zip(texts).map(version).collect();
        kept.reverse();
        let view = herdlet_manifest::fixture::job_view(&kept[0].job, 2);
        let notes: Vec<String> = (0..3).map(|at| version_notes(&view, &kept, at)).collect();
        assert_eq!(notes, ["current, same as 0", "", ""]);
    }

    fn instance(name: &str, seed: u8, health: ServiceHealth, results: &[(CheckStatus, &str)]) -> ServiceView {
        let result = |(status, output): &(CheckStatus, &str)| CheckResult {
            service: name.to_owned(),
            output: (*output).to_owned(),
            at: UnixNanos(1),
            ..fixture::check_result("alive", *status)
        };
        let registration = Registration {
            name: name.to_owned(),
            tags: vec!["a".to_owned(), "b".to_owned()],
            ..fixture::registration(&format!("{name}-{seed}"), AllocId::from_hash([seed; 16]))
        };
        ServiceView { registration, health, results: results.iter().map(result).collect() }
    }

    fn elsewhere(mut one: ServiceView) -> ServiceView {
        one.registration.job.namespace = "prod".into();
        one
    }

    #[test]
    fn services_are_listed_with_their_health() {
        let instances = || {
            vec![
                instance("db", 0x11, ServiceHealth::Passing, &[]),
                instance("web", 0x22, ServiceHealth::Passing, &[(CheckStatus::Success, "HTTP 200")]),
                instance(
                    "web",
                    0x33,
                    ServiceHealth::Critical,
                    &[(CheckStatus::Success, "fine"), (CheckStatus::Failure, "connection refused\nand more")],
                ),
                instance("web", 0x44, ServiceHealth::Pending, &[(CheckStatus::Pending, "")]),
                elsewhere(instance("web", 0x55, ServiceHealth::Passing, &[])),
            ]
        };
        assert_eq!(
            service_listing(instances(), Form::Table)
                .whole(super::super::ObjectKind::Services, Heading::Shown),
            "\
SERVICE   HEALTH    PASSING  ADDRESS         PROVIDER  ALLOC     TASK  TAGS
db        passing   1/1      127.0.0.1:8080  nomad     11111111  -     a,b
web       passing   1/3      127.0.0.1:8080  nomad     22222222  -     a,b
web       critical  1/3      127.0.0.1:8080  nomad     33333333  -     a,b
web       pending   1/3      127.0.0.1:8080  nomad     44444444  -     a,b
prod/web  passing   1/1      127.0.0.1:8080  nomad     55555555  -     a,b
"
        );
        let wide = service_listing(instances(), Form::Wide);
        let outputs: Vec<String> =
            wide.rows.iter().filter_map(|row| Some(row.cells.last()?.text())).collect();
        assert_eq!(outputs, ["", "alive: HTTP 200", "alive: connection refused", "alive: ", ""]);
    }
}
