//! Carries out the planner's actions through the drivers and reports their outcomes.
//!
//! In: actions, each released by the committer once it may start. Out: outcomes, through the inbox. The executor translates
//! between the planner's types and the drivers'. It decides *how* an action is done, never *whether*.
//!
//! - [`api_socket`]: sockets of the Task API.
//! - [`artifacts`]: artifacts of tasks.
//! - [`environment`]: the environment of tasks.
//! - [`identities`]: tokens that servers sign.
//! - [`network`]: networks of allocations.
//! - [`process`]: starts, stops and recovers task attempts through their task driver.
//! - [`pressure`]: the pressure on the machine, which paces starts.
//! - [`places`]: directories, mounts, tokens, volumes.
//! - [`secrets`]: values of `secret` blocks.
//! - [`services`]: registrations and checks.
//! - [`scripts`]: commands of checks.
//! - [`templates`]: files rendered from templates.
//! - [`vault`]: tokens of Vault.
//! - [`consul`]: tokens of Consul.
//! - [`csi_plugin`]: tasks that are CSI plugins.

pub mod api_socket;
pub mod artifacts;
mod blocking;
pub mod consul;
mod csi_plugin;
pub mod environment;
pub mod file_access;
pub mod identities;
mod login_identity;
mod logins;
pub mod network;
pub mod places;
pub mod pressure;
pub mod process;
mod reading;
pub mod scripts;
pub mod secrets;
pub mod services;
pub mod templates;
pub mod vault;
mod workload;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    num::NonZeroU32,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use herdlet_api_types::{InstanceId, job::Provider};
use herdlet_base::{observation::Class, paths::Paths, privileges::Privileges};
use herdlet_driver::Registry;
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Verb},
    env::Variables,
    event::Event,
    identity_claims::Issuer,
    op::{Op, Part, Subject, Target, TaskPart},
    parts::{Medium, Withdraw},
};
use herdlet_render::Renderer;
use herdlet_runtime::{self as runtime, Inbox, Limit, Operations, Pace, Permits, Rate, Report, Request};
use herdlet_storage::{artifact::Fetcher, identity::Signer};

pub use self::{
    environment::{TaskVariables, inheritable},
    workload::Workload,
};
use self::{identities::Cluster, process::AttemptContext, services::Attempted};
use crate::{
    consul::{Consuls, owed::OwedTokens},
    csi_plugins::CsiPlugins,
    current_node::CurrentNode,
    identity_keys::IdentityKeys,
    networks::AllocNetworks,
    planner::{Input, PlannedAction},
    published::PublishedServices,
    server_tokens::ServerTokens,
    service_tokens::ServiceTokens,
    task_sockets::TaskSockets,
    vault::Vaults,
};
use tokio_util::sync::CancellationToken;

/// The shared environment of operations.
pub struct Context {
    /// This instance.
    pub instance: InstanceId,
    /// Directories and files of this instance.
    pub paths: Paths,
    /// Facts about this machine.
    pub node: CurrentNode,
    /// This machine's address, used for services that specify none.
    pub host_ip: String,
    /// The agent's privileges on this machine.
    pub privileges: Privileges,
    /// Users who may enter the directories of every allocation, like the users of its tasks.
    pub task_dir_users: Vec<String>,
    /// Task drivers.
    pub drivers: Registry,
    /// Signs workload identities.
    pub signer: Arc<Signer>,
    /// The same keys, for clients.
    pub identity_keys: Arc<IdentityKeys>,
    /// What the operator defines about identities.
    pub issuer: Issuer,
    /// Tokens of servers' allocations.
    pub server_tokens: Arc<ServerTokens>,
    /// The cluster, once this agent is one of its nodes.
    pub cluster: OnceLock<Box<dyn Cluster>>,
    /// Catalogues and checks.
    pub services: services::Services,
    /// Fetches the artifacts of tasks before they start.
    pub artifacts: Arc<Fetcher>,
    /// Renders the templates of tasks.
    pub renderer: Arc<Renderer>,
    /// The directory of plugins that fetch secrets.
    pub secrets_plugins: PathBuf,
    /// Servers of Vault.
    pub vaults: Arc<Vaults>,
    /// Every Consul that gives tokens.
    pub consuls: Arc<Consuls>,
    /// Tokens of Consul that services are registered with.
    pub service_tokens: Arc<ServiceTokens>,
    /// Tokens of Consul that are to be logged out.
    pub owed_tokens: Arc<OwedTokens>,
    /// Networks of allocations.
    pub networks: Arc<AllocNetworks>,
    /// Published ports of services.
    pub published: Arc<PublishedServices>,
    /// Tasks that are CSI plugins.
    pub csi_plugins: Arc<CsiPlugins>,
    /// Open sockets of the Task API.
    pub task_sockets: TaskSockets,
    /// The agent's own variables that tasks may inherit.
    pub host_env: Variables,
    /// The parent cgroup of tasks, as reported to them; none without cgroups.
    pub cgroup_parent: Option<String>,
}

/// Starts actions as operations.
pub struct Executor {
    context: Arc<Context>,
    operations: Operations<OpKey, WorkKind, Outcome>,
    permits: Permits<WorkKind>,
}

/// An operation's link to the others.
struct Control {
    /// Asks it to end.
    cancel: CancellationToken,
    permits: Permits<WorkKind>,
}

/// The key that serializes operations: their target. Signals and scripts never wait for one another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpKey {
    target: Target,
    signal: Option<u64>,
}

/// Kinds of work, each with its own permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Inspections, except those of catalogues: they change nothing.
    Inspect,
    /// Directories, mounts, tokens, volumes.
    Place,
    /// Downloads, identities signed by servers, and requests to Vault, and log-ins at Consul: they may take long.
    Download,
    /// Starts of processes.
    Start,
    /// Stops and removals of processes; they mostly wait.
    Stop,
    /// Requests to Consul.
    Catalog,
    /// The built-in catalogue and checks: they never wait.
    BuiltIn,
}

impl WorkKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Inspect, Self::Place, Self::Download, Self::Start, Self::Stop, Self::Catalog, Self::BuiltIn];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inspect => "look",
            Self::Place => "place",
            Self::Download => "download",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Catalog => "catalog",
            Self::BuiltIn => "built_in",
        }
    }
}

impl Executor {
    /// Creates an executor whose operations report to `inbox`, with starts paced by `starts`.
    pub fn new(context: Arc<Context>, inbox: Inbox<Input>, starts: Pace) -> Self {
        let permits = Permits::new(limit_of).paced(BTreeMap::from([(WorkKind::Start, starts)]));
        Self { context, operations: Operations::new(inbox, permits.clone()), permits }
    }

    /// The live operations and their metrics.
    pub fn operations(&self) -> Operations<OpKey, WorkKind, Outcome> {
        self.operations.clone()
    }
}

impl runtime::Executor<PlannedAction> for Executor {
    fn start(&mut self, mut actions: Vec<PlannedAction>) {
        // Operations that start at once start in this order.
        actions.sort_by_key(|PlannedAction(action)| Reverse(priority_of(&action.subject)));
        for PlannedAction(action) in actions {
            let key = OpKey {
                target: action.op.target.clone(),
                signal: matches!(action.verb, Verb::Signal { .. } | Verb::Script { .. })
                    .then_some(action.op.generation),
            };
            if action.verb == Verb::Withdraw {
                self.operations.cancel(&key);
                continue;
            }
            let is_prepared = process::is_prepared(&self.context, &action);
            let request = Request {
                key,
                generation: action.op.generation,
                kind: if is_prepared { WorkKind::Download } else { kind_of(&action) },
                priority: priority_of(&action.subject),
                deadline: if is_prepared { PREPARE_TIME_MAX } else { duration(action.timeout) },
            };
            let (context, permits) = (Arc::clone(&self.context), self.permits.clone());
            self.operations.start(request, |cancel| perform(context, action, Control { cancel, permits }));
        }
    }
}

impl From<Report<OpKey, Outcome>> for Input {
    fn from(report: Report<OpKey, Outcome>) -> Self {
        let outcome = match report.outcome {
            runtime::Outcome::Done(outcome) => outcome,
            runtime::Outcome::Overdue => Outcome::Overdue,
            runtime::Outcome::Panicked(message) => retry(format!("complete it: it panicked: {message}")),
            runtime::Outcome::Cancelled => retry("start it: it was withdrawn".to_owned()),
            runtime::Outcome::Refused => retry("start it: an earlier operation has not ended".to_owned()),
        };
        Self::Event(Event::Outcome(Op { target: report.key.target, generation: report.generation }, outcome))
    }
}

/// Number of catalogue requests that may start at once after an idle period,
const CATALOG_BURST: u32 = 256;
/// and the period in which each further one may start.
const CATALOG_PERIOD: Duration = Duration::from_millis(2);

/// Limits of concurrent operations by kind. On two cores, starts gain nothing beyond a handful; stops mostly wait for their
/// tasks, so many may run.
fn limit_of(kind: WorkKind) -> Limit {
    let concurrent = match kind {
        WorkKind::Inspect => 16,
        WorkKind::Place => 8,
        // A download belongs to one task and mostly waits; a hanging server must not keep other tasks from starting.
        WorkKind::Download => 64,
        WorkKind::Start => 8,
        WorkKind::Stop => 1_024,
        // They wait for a Consul that may hang, and share its responses; the requests have limits of their own.
        WorkKind::Catalog => 1_024,
        WorkKind::BuiltIn => 1_024,
    };
    let rate = match kind {
        // When a node with thousands of services starts, it must not overload its Consul agent, whose own limit is of this size.
        WorkKind::Catalog => {
            Some(Rate { burst: NonZeroU32::MIN.saturating_add(CATALOG_BURST - 1), period: CATALOG_PERIOD })
        }
        WorkKind::Inspect
        | WorkKind::Place
        | WorkKind::Download
        | WorkKind::Start
        | WorkKind::Stop
        | WorkKind::BuiltIn => None,
    };
    Limit { concurrent: NonZeroU32::new(concurrent).unwrap_or(NonZeroU32::MIN), rate }
}

/// How long the preparation of a start may take, such as the pull of a large image, before the operation counts as overdue.
const PREPARE_TIME_MAX: Duration = Duration::from_secs(3_600);

async fn perform(context: Arc<Context>, action: Action, control: Control) -> Outcome {
    let Action { subject, verb, mounts, inputs, launch, .. } = action;
    let place = PlaceVerb::of(&verb);
    let shared = inputs.iter().find(|input| input.part == Part::Network);
    let shared = shared.map(|input| Arc::clone(&input.facts));
    let network = shared.as_ref().and_then(|facts| facts.network.as_ref());
    match (subject, place) {
        (Subject::Alloc(alloc, Part::Services), None) if verb == Verb::Ask => {
            services::ask(&context, &alloc, network, None).await
        }
        (Subject::Alloc(alloc, Part::Task(index, TaskPart::Services)), None) if verb == Verb::Ask => {
            let task = Workload::of(&alloc, index).map(|task| task.in_network(shared.clone()));
            let task = task.map(|task| Attempted { task, launch });
            services::ask(&context, &alloc, network, task.as_ref()).await
        }
        (Subject::Volume(volume), Some(verb)) => places::volume(&context, &volume, verb).await,
        (Subject::Alloc(alloc, Part::Dir), Some(verb)) => {
            if verb == PlaceVerb::Down {
                context.renderer.forget(alloc.id);
                api_socket::forget(&context, &alloc).await;
            }
            places::alloc_dir(&context, &alloc, verb).await
        }
        (Subject::Alloc(alloc, Part::Network), Some(verb)) => network::network(&context, &alloc, verb).await,
        (Subject::Alloc(alloc, Part::Services), Some(verb)) => {
            services::group_services(&context, &alloc, network, verb).await
        }
        (Subject::Alloc(alloc, Part::Checks), Some(verb)) => {
            services::group_checks(&context, &alloc, network, verb).await
        }
        (Subject::Alloc(alloc, Part::Task(index, part)), place) => {
            let Some(task) = Workload::of(&alloc, index) else {
                return fatal("find the task: the allocation has no such task".to_owned());
            };
            let task = task.in_network(shared);
            match (part, place) {
                (TaskPart::Dir, Some(verb)) => places::task_dir(&context, &task, verb).await,
                (TaskPart::Artifacts, Some(verb)) => {
                    artifacts::artifacts(&context, &task, verb, &control.cancel).await
                }
                (TaskPart::Identity, Some(verb)) => places::identity(&context, &task, verb).await,
                (TaskPart::Vault, Some(verb)) => vault::vault(&context, &task, verb, &control.cancel).await,
                (TaskPart::Consul, Some(verb)) => {
                    consul::consul(&context, &task, verb, &control.cancel).await
                }
                (TaskPart::Secrets, Some(verb)) => {
                    secrets::secrets(&context, &task, verb, &control.cancel).await
                }
                (TaskPart::Mounts, Some(verb)) => places::mounts(&context, &task, &mounts, verb).await,
                (TaskPart::Templates, Some(verb)) => {
                    templates::templates(&context, &task, (verb, &control.cancel), &inputs).await
                }
                (TaskPart::ApiSocket, Some(verb)) => api_socket::api_socket(&context, &task, verb).await,
                (TaskPart::CsiPlugin, Some(verb)) => csi_plugin::directories(&context, &task, verb).await,
                (TaskPart::Services, Some(verb)) => {
                    let attempted = Attempted { task, launch };
                    services::task_services(&context, &attempted, verb).await
                }
                (TaskPart::Checks, Some(verb)) => {
                    services::task_checks(&context, &Attempted { task, launch }, verb).await
                }
                (TaskPart::Process | TaskPart::Prestop, None) => {
                    let known = AttemptContext { inputs, mounts, launch, control };
                    let operation = process::perform(&context, &task, &verb, &known);
                    csi_plugin::supervised(&context, &task, &verb, operation).await
                }
                (_, _) => fatal(format!("perform {verb:?}: this part does not support it")),
            }
        }
        (_, None) => fatal(format!("perform {verb:?}: this part does not support it")),
    }
}

/// An operation on a part that is not a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaceVerb {
    /// Bring it up.
    Up,
    /// Take it down.
    Down,
    /// Inspect it.
    Inspect,
}

impl PlaceVerb {
    fn of(verb: &Verb) -> Option<Self> {
        match verb {
            Verb::Up => Some(Self::Up),
            Verb::Down => Some(Self::Down),
            Verb::Inspect => Some(Self::Inspect),
            Verb::Ask
            | Verb::Start { .. }
            | Verb::Withdraw
            | Verb::Recover { .. }
            | Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. } => None,
        }
    }
}

/// The priority of an allocation is its job's. Volumes come first: allocations of any priority may wait for them.
fn priority_of(subject: &Subject) -> u8 {
    match subject {
        Subject::Alloc(alloc, _) => alloc.job.priority,
        Subject::Volume(_) => u8::MAX,
    }
}

fn kind_of(action: &Action) -> WorkKind {
    match (&action.verb, &action.op.target) {
        // A withdrawal is not an operation; it refers to a start.
        (Verb::Start { .. } | Verb::Withdraw, _) => WorkKind::Start,
        (
            Verb::Stop { .. }
            | Verb::Destroy { .. }
            | Verb::Prestop { .. }
            | Verb::Script { .. }
            | Verb::Signal { .. },
            _,
        ) => WorkKind::Stop,
        // Inspections too: those that wait for Consul must not delay inspections of processes, registrations in the built-in
        // catalogue, or checks.
        (
            Verb::Up | Verb::Down | Verb::Inspect | Verb::Ask | Verb::Recover { .. },
            Target::Alloc(_, part),
        ) if is_for_consul(&action.subject, *part) => WorkKind::Catalog,
        (Verb::Up | Verb::Down | Verb::Inspect, Target::Alloc(_, part))
            if matches!(part.row().medium, Medium::Catalogue | Medium::Agent) =>
        {
            WorkKind::BuiltIn
        }
        (Verb::Down | Verb::Inspect, Target::Alloc(_, Part::Network))
            if network::is_of_cni(&action.subject) =>
        {
            WorkKind::Download
        }
        (Verb::Inspect | Verb::Ask | Verb::Recover { .. }, _) => WorkKind::Inspect,
        (Verb::Up, Target::Alloc(_, part)) if part.row().withdraw == Withdraw::WhileStarting => {
            WorkKind::Download
        }
        (Verb::Up, Target::Alloc(_, Part::Task(_, TaskPart::Identity))) if is_servers(&action.subject) => {
            WorkKind::Download
        }
        // It waits for Vault.
        (Verb::Down, Target::Alloc(_, Part::Task(_, TaskPart::Vault))) => WorkKind::Download,
        (Verb::Up | Verb::Down, _) => WorkKind::Place,
    }
}

/// Whether it belongs to an allocation of servers.
fn is_servers(subject: &Subject) -> bool {
    match subject {
        Subject::Alloc(alloc, _) => alloc.server.is_some(),
        Subject::Volume(_) => false,
    }
}

/// Whether Consul is the provider of any service of this part, or the part has no services: then leftovers are removed from
/// Consul.
fn is_for_consul(subject: &Subject, part: Part) -> bool {
    let Subject::Alloc(alloc, _) = subject else { return false };
    part.services(alloc).is_some_and(|services| {
        services.is_empty() || services.iter().any(|service| service.provider == Provider::Consul)
    })
}

/// Converts a planner duration to a standard one; a negative one becomes zero.
pub(crate) fn duration(duration: herdlet_api_types::Duration) -> Duration {
    Duration::from_nanos(duration.as_nanos().max(0).unsigned_abs())
}

pub(crate) fn retry(why: String) -> Outcome {
    Outcome::Failed { class: FailureClass::Retry, why }
}

pub(crate) fn fatal(why: String) -> Outcome {
    Outcome::Failed { class: FailureClass::Fatal, why }
}

/// The reason why an operation can't even be attempted.
#[derive(Debug)]
pub struct Refusal {
    /// Whether a retry may help.
    pub class: Class,
    /// Its text follows "failed to".
    pub why: String,
}

impl Refusal {
    /// One that a later try may not meet.
    pub(crate) fn retry(why: String) -> Self {
        Self { class: Class::Retry, why }
    }

    pub(crate) fn of(class: Class, error: &(dyn std::error::Error + 'static)) -> Self {
        Self { class, why: herdlet_base::error::in_full(error) }
    }
}

/// A reason without a class is permanent.
impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self { class: Class::Fatal, why: why.to_owned() }
    }
}

impl From<Refusal> for Outcome {
    fn from(Refusal { class, why }: Refusal) -> Self {
        let class = match class {
            Class::Retry => FailureClass::Retry,
            Class::Fatal => FailureClass::Fatal,
        };
        Self::Failed { class, why }
    }
}

/// Converts a failed operation on a part to the planner's outcome.
pub(crate) fn failed(class: Class, error: &(dyn std::error::Error + 'static)) -> Outcome {
    Refusal::of(class, error).into()
}
