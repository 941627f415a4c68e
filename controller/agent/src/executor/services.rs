//! Registrations and checks, through the catalogues.
//!
//! Every operation resolves the services of an allocation's group or task again. They are functions of the spec, so a
//! deregistration needs no record of what was registered.

mod operations;
mod sweep;
mod tokens;

pub use sweep::sweep_consuls;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use herdlet_api_types::{
    AllocId, InstanceId,
    alloc::Allocation,
    job::{Provider, Task},
    service::{CheckResult, Registration},
};
use herdlet_base::observation::Observation;
use herdlet_plan::{
    action::Outcome,
    event::{Event, Noticed},
    launch::Launch,
    network::AllocNetwork,
    op::{Part, TaskIndex, TaskPart},
    registration::{self, Origin},
    state::{AllocState, Run, TaskState},
    time::BootId,
};
use herdlet_runtime::Inbox;
use herdlet_services::{
    catalog::{BuiltIn, CatalogError, CatalogEvent, Catalogs, ConsulClusters, ConsulConfig, ServiceOwner},
    checks::{Checks, Heard, Scripts},
    report::CheckReport,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::{operations::carry_out, tokens::Specs};
use crate::{
    executor::{Context, PlaceVerb, TaskVariables, Workload, retry, templates},
    planner::Input,
    publish::ReadModel,
    service_tokens::ServiceTokens,
};

/// Capacity for results that the loop has not taken yet; when it is full, checks wait, so that no result is lost.
const REPORTS_LEN: usize = 1_024;

/// Catalogues and checks.
#[derive(Debug)]
pub struct Services {
    /// The catalogues of services.
    pub catalogs: Catalogs,
    /// The checks that the agent performs itself.
    pub checks: Checks,
}

/// Reports of catalogues and checks.
pub struct ServiceFeeds {
    reports: mpsc::Receiver<Heard>,
    events: mpsc::Receiver<CatalogEvent>,
    sender: mpsc::Sender<CatalogEvent>,
    consuls: Arc<ConsulClusters>,
    tokens: Arc<ServiceTokens>,
}

impl Services {
    /// Creates the catalogues and checks of this instance. Sends no request and registers nothing.
    ///
    /// # Errors
    /// If the HTTP client can't be created.
    pub fn new(
        instance: InstanceId,
        consuls: &BTreeMap<String, ConsulConfig>,
        scripts: Arc<dyn Scripts>,
        tokens: Arc<ServiceTokens>,
    ) -> anyhow::Result<(Self, ServiceFeeds)> {
        let consuls = ConsulClusters::new(consuls, &instance).context("prepare the Consul catalogues")?;
        let consuls = Arc::new(consuls);
        let (report_sender, reports) = mpsc::channel(REPORTS_LEN);
        let (sender, events) = mpsc::channel(REPORTS_LEN);
        let checks = Checks::new(report_sender, scripts, Arc::clone(&consuls));
        let built_in = Arc::new(BuiltIn::new(sender.clone()));
        let catalogs = Catalogs { built_in, consuls: Arc::clone(&consuls) };
        Ok((Self { catalogs, checks }, ServiceFeeds { reports, events, sender, consuls, tokens }))
    }
}

impl ServiceFeeds {
    /// Converts reports into events for the planner until the agent ends.
    pub async fn follow(mut self, model: Arc<ReadModel>, inbox: Inbox<Input>) {
        let sender = &self.sender;
        let watch =
            self.consuls.for_each(|place| place.consul.watch(sender.clone(), CancellationToken::new()));
        tokio::pin!(watch);
        loop {
            let event = tokio::select! {
                Some(heard) = self.reports.recv() => match heard.if_current() {
                    Some(report) => check_event(report),
                    None => continue,
                },
                Some(event) = self.events.recv() => match event {
                    CatalogEvent::Check(report) => check_event(report),
                    CatalogEvent::Changed(owner) => {
                        let Some(part) = services_part(&owner, &model) else { continue };
                        Event::Drift { alloc: owner.alloc, part, by: Noticed::Event }
                    }
                },
                owner = self.tokens.due_owner() => {
                    let Some(part) = services_part(&owner, &model) else { continue };
                    Event::Drift { alloc: owner.alloc, part, by: Noticed::Event }
                }
                () = &mut watch => return,
            };
            if inbox.send(Input::Event(event)).await.is_err() {
                return;
            }
        }
    }
}

/// The group's services.
pub async fn group_services(
    context: &Arc<Context>,
    alloc: &Arc<Allocation>,
    network: Option<&AllocNetwork>,
    verb: PlaceVerb,
) -> Outcome {
    let (owner, resolved) = of_group(context, alloc, network);
    let specs = resolved.specs(alloc, None);
    carry_out(context, (alloc, &owner), (&resolved, &specs), verb).await
}

/// A task's services.
pub async fn task_services(context: &Arc<Context>, attempted: &Attempted, verb: PlaceVerb) -> Outcome {
    let Some((owner, resolved)) = of_attempt(context, attempted).await else {
        return retry("find the task".to_owned());
    };
    let specs = resolved.specs(&attempted.task.alloc, attempted.task.task());
    carry_out(context, (&attempted.task.alloc, &owner), (&resolved, &specs), verb).await
}

/// Fills the built-in catalogue with the entries it had under the earlier agent, so that clients find running services from the
/// first query on. The planner removes entries that are outdated.
pub fn restore_built_in<'w>(
    context: &Context,
    boot: BootId,
    allocs: impl Iterator<Item = (&'w Arc<Allocation>, &'w AllocState)>,
) {
    let built_in = &context.services.catalogs.built_in;
    for (alloc, state) in allocs {
        let durable = &state.durable;
        let runs =
            |known: &&TaskState| matches!(known.run, Run::Running { boot: since, .. } if since == boot);
        if durable.stop.is_some()
            || durable.restart.is_some()
            || !durable.tasks.iter().any(|known| runs(&known))
        {
            continue;
        }
        let fill = |(owner, resolved): (ServiceOwner, Resolved)| {
            let of_it = resolved.registrations.into_iter().filter(|one| one.provider == Provider::Nomad);
            built_in.up(&owner, of_it.collect());
        };
        // What is stored is all that is known of it before the first inspection.
        let shared = durable.facts.get(&Part::Network);
        fill(of_group(context, alloc, shared.and_then(|facts| facts.network.as_ref())));
        for known in durable.tasks.iter().filter(runs) {
            let Some(task) = Workload::named(alloc, &known.name) else { continue };
            let task = task.in_network(shared.cloned());
            let launch = known.launch_of(known.newest()).cloned();
            let own = templates::of_attempt(context, &task).unwrap_or_default();
            of_task(context, &Attempted { task, launch }, &own).map(fill);
        }
    }
}

/// Whether Consul responds. Its contents are not inspected: none of these registrations was ever sent.
pub async fn ask(
    context: &Arc<Context>,
    alloc: &Arc<Allocation>,
    network: Option<&AllocNetwork>,
    task: Option<&Attempted>,
) -> Outcome {
    let of_task = match task {
        Some(task) => of_attempt(context, task).await,
        None => None,
    };
    let (owner, resolved) = of_task.unwrap_or_else(|| of_group(context, alloc, network));
    match context.services.catalogs.ask(&owner, &resolved.registrations).await {
        Ok(()) => Outcome::Absent,
        Err(error) => refused(&error),
    }
}

/// The group's checks.
pub async fn group_checks(
    context: &Arc<Context>,
    alloc: &Arc<Allocation>,
    network: Option<&AllocNetwork>,
    verb: PlaceVerb,
) -> Outcome {
    let (owner, resolved) = of_group(context, alloc, network);
    checks(context, &owner, &resolved.registrations, verb)
}

/// A task's checks.
pub async fn task_checks(context: &Arc<Context>, attempted: &Attempted, verb: PlaceVerb) -> Outcome {
    let Some((owner, resolved)) = of_attempt(context, attempted).await else {
        return retry("find the task".to_owned());
    };
    checks(context, &owner, &resolved.registrations, verb)
}

/// Resolved services, and the errors of the others.
struct Resolved {
    registrations: Vec<Registration>,
    broken: Vec<String>,
    /// The ids of all services, including those without an address.
    ids: Vec<String>,
}

impl Resolved {
    /// The services of the group or of a task, by their ids.
    fn specs<'s>(&self, alloc: &'s Allocation, task: Option<&'s Task>) -> Specs<'s> {
        let services = match task {
            Some(task) => task.services.as_slice(),
            None => alloc.group().map_or(&[][..], |group| &group.services),
        };
        self.ids.iter().cloned().zip(services).collect()
    }
}

fn of_group(
    context: &Context,
    alloc: &Allocation,
    network: Option<&AllocNetwork>,
) -> (ServiceOwner, Resolved) {
    let env = context.group_env(alloc, network);
    let workload = registration::Workload {
        alloc,
        task: None,
        env: &env,
        driver_network: None,
        alloc_network: network,
        instance: &context.instance,
        origin: Origin::Standalone,
    };
    let resolved = resolved(context, &workload);
    (ServiceOwner { alloc: alloc.id, task: None }, resolved)
}

/// A task, and the launch record of the attempt whose services are meant.
pub struct Attempted {
    pub task: Workload,
    pub launch: Option<Arc<Launch>>,
}

/// The services of an attempt, with the variables that it was started with. If these can't be read any more, without
/// them.
async fn of_attempt(context: &Arc<Context>, attempted: &Attempted) -> Option<(ServiceOwner, Resolved)> {
    let is_plain = |task: &Task| task.templates.is_empty() && task.secrets.is_empty();
    if attempted.task.task().is_none_or(is_plain) {
        return of_task(context, attempted, &TaskVariables::default());
    }
    let (shared, task) = (Arc::clone(context), attempted.task.clone());
    let read = herdlet_runtime::off_thread(move || templates::of_attempt(&shared, &task)).await;
    of_task(context, attempted, &read.map(Result::unwrap_or_default).unwrap_or_default())
}

fn of_task(
    context: &Context,
    Attempted { task: workload, launch }: &Attempted,
    own: &TaskVariables,
) -> Option<(ServiceOwner, Resolved)> {
    let task = workload.task()?;
    let env = context.task_env(workload, own);
    let of_it = registration::Workload {
        alloc: &workload.alloc,
        task: Some(task),
        env: &env,
        driver_network: launch.as_ref().and_then(|launch| launch.network.as_ref()),
        alloc_network: workload.network(),
        instance: &context.instance,
        origin: Origin::Standalone,
    };
    let resolved = resolved(context, &of_it);
    Some((ServiceOwner { alloc: workload.alloc.id, task: Some(task.name.clone()) }, resolved))
}

/// A service without an address gets Consul's own address from Consul, and this machine's in the built-in catalogue.
fn resolved(context: &Context, workload: &registration::Workload<'_>) -> Resolved {
    let ids = registration::ids(workload);
    let mut resolved = Resolved { registrations: Vec::new(), broken: Vec::new(), ids };
    for result in registration::registrations(workload) {
        match result {
            Ok(mut registration) => {
                if registration.provider == Provider::Nomad && registration.address.is_empty() {
                    registration.address.clone_from(&context.host_ip);
                }
                resolved.registrations.push(registration);
            }
            Err(error) => resolved.broken.push(error.to_string()),
        }
    }
    resolved
}

/// Errors of catalogues are always retried: registrations never fail a task.
fn refused(error: &CatalogError) -> Outcome {
    retry(error.to_string())
}

fn checks(
    context: &Context,
    owner: &ServiceOwner,
    registrations: &[Registration],
    verb: PlaceVerb,
) -> Outcome {
    let checks = &context.services.checks;
    match verb {
        PlaceVerb::Up => {
            checks.up(owner, registrations);
            checking(registrations)
        }
        PlaceVerb::Down => {
            checks.down(owner);
            Outcome::Done(None)
        }
        PlaceVerb::Inspect => match checks.inspect(owner, registrations) {
            Observation::Present => Outcome::Present(None),
            Observation::Absent | Observation::Foreign { .. } | Observation::Lost { .. } => Outcome::Absent,
        },
    }
}

/// All checks of an owner, pending, regardless of who performs them.
fn checking(registrations: &[Registration]) -> Outcome {
    let pending_results = |one: &Registration| -> Vec<CheckResult> {
        one.checks.iter().map(|check| CheckResult::pending(one, check)).collect()
    };
    Outcome::Checking(registrations.iter().flat_map(pending_results).collect())
}

fn check_event(report: CheckReport) -> Event {
    Event::Check { alloc: report.alloc, result: report.result }
}

fn services_part(owner: &ServiceOwner, model: &ReadModel) -> Option<Part> {
    let Some(task) = &owner.task else { return Some(Part::Services) };
    task_index(model, owner.alloc, task).map(|index| Part::Task(index, TaskPart::Services))
}

/// A task's index in its group.
pub(crate) fn task_index(model: &ReadModel, alloc: AllocId, task: &str) -> Option<TaskIndex> {
    let view = model.alloc(&alloc)?;
    TaskIndex::try_from(view.tasks.iter().position(|known| *known.name == *task)?).ok()
}
