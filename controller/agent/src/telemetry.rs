//! The agent's own telemetry: metrics and log lines.
//!
//! In: the planner's notes, the read model, the runtime's figures. Out: a page of metrics, computed on request. Every
//! name is in [`names`]. It decides nothing, and nothing waits for it.
//!
//! ```text
//!   notes ─────► counts ──┐
//!   changes ───► counts ──┼──► page
//!   read model ─► gauges ─┤
//!   runtime, operations ──┘
//! ```

mod catalogs;
mod counts;
mod gauges;
mod journal;
pub mod logs;
pub mod monitor;
pub mod names;
pub mod nomad;
mod page;
mod state;
mod templates;
mod vault;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use herdlet_api_types::{
    JobKey,
    gc::{CollectableKind, Due},
    view::{JobView, NodeView},
};
use herdlet_plan::{env::NodeFacts, job::capacity::Room, turn::Note};
use herdlet_render::Figures;
use herdlet_runtime::{Metrics, StoreHealth, metrics::HistogramReading};
use herdlet_services::catalog::Catalogs;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};
use tokio::sync::{broadcast::error::RecvError, watch};

pub use herdlet_runtime::operation::KindFigures;
pub use nomad::{Host, Measured};
pub use page::Format;

use crate::{
    agent::{Orphans, Tally},
    planner::NoteSink,
    publish::{Object, ObjectChange, ReadModel},
    published::PublishedCounts,
    vault::VaultFigures,
};
use counts::Counts;
pub use counts::Unknown;
pub use gauges::Gauges;
use page::{Page, seconds};

/// The sources of the metrics of a running agent.
pub struct Sources {
    pub model: Arc<ReadModel>,
    /// Figures of the loop.
    pub runtime: Arc<Metrics>,
    /// Whether records become durable.
    pub store_health: watch::Receiver<StoreHealth>,
    /// Whether the disk is so full that the reserve of disk space is released.
    pub reserve_in_use: Box<dyn Fn() -> bool + Send + Sync>,
    /// Figures of operations by kind.
    pub operations: Box<dyn Fn() -> Vec<(&'static str, KindFigures)> + Send + Sync>,
    /// What holds the processes of a task together: `cgroup` or `none`.
    pub isolation: &'static str,
    /// Size of the state database in bytes.
    pub state_bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    /// Where services are registered.
    pub catalogs: Catalogs,
    /// Published ports.
    pub published: Box<dyn Fn() -> PublishedCounts + Send + Sync>,
    /// Figures about the templates of tasks.
    pub templates: Box<dyn Fn() -> Figures + Send + Sync>,
    /// Figures about tokens of Vault.
    pub vault: Box<dyn Fn() -> VaultFigures + Send + Sync>,
    /// Figures about log-ins at Consul.
    pub consul_logins: Box<dyn Fn() -> crate::consul::FiguresByName + Send + Sync>,
    /// The number of refused manifest files.
    pub manifest_errors: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The machine's resources, and the part that is reserved from allocations.
    pub room: (Room, Room),
    /// This machine, for labels of Nomad's metrics.
    pub node: NodeFacts,
    /// Queries the kernel about the machine.
    pub host: Box<dyn Fn() -> Host + Send + Sync>,
    /// The expiry of the API's certificates, in seconds of Unix time; `None` without certificates.
    pub certificate_until: Box<dyn Fn() -> Option<i64> + Send + Sync>,
    /// The node's contact with its servers; `None` if it is not part of a cluster.
    pub node_contact: Box<dyn Fn() -> Option<NodeContact> + Send + Sync>,
    /// Reads the boot clock, in nanoseconds.
    pub boot_ns: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// A node's contact with its servers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NodeContact {
    pub is_registered: bool,
    /// The time since their last answer.
    pub age: Duration,
    /// When the next heartbeat was due after that answer.
    pub ttl: Duration,
    /// The number of known servers.
    pub servers: usize,
    /// Failed registrations and heartbeats.
    pub failures: u64,
    /// How many times they may have considered the node down.
    pub losses: u64,
}

/// The metrics of one agent; cheap to clone.
#[derive(Clone, Default)]
pub struct Telemetry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    last: Mutex<Last>,
    sources: OnceLock<Sources>,
}

/// The measurements for the previous page.
#[derive(Debug, Default)]
struct Last {
    host: Host,
    tasks: nomad::allocs::Before,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Telemetry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a counter of the planner's notes, for [`crate::planner::Planner::new`].
    pub fn sink(&self) -> NoteSink {
        let shared = Arc::clone(&self.0);
        Arc::new(move |note: &Note| shared.counts().note(note))
    }

    /// Sets the sources. Called once, when the agent has started.
    pub fn attach(&self, sources: Sources) {
        if self.0.sources.set(sources).is_err() {
            tracing::debug!("the sources of the metrics are already set");
        }
    }

    /// Counts changes of jobs and tasks until the read model is gone. To be run in a task of its own.
    pub async fn follow(self, model: Weak<ReadModel>) {
        let Some(mut changes) = model.upgrade().map(|model| {
            let changes = model.changes();
            self.see_all(&model);
            changes
        }) else {
            return;
        };
        loop {
            let change = changes.recv().await;
            let Some(model) = model.upgrade() else { return };
            match change {
                Ok(ObjectChange { object: Object::Alloc(id), .. }) => match model.alloc(&id) {
                    Some(view) => self.0.counts().alloc(&view),
                    None => self.0.counts().alloc_gone(id),
                },
                Ok(ObjectChange { object: Object::Job(key), .. }) => match model.job(&key) {
                    Some(view) => self.0.counts().job(&view),
                    None => self.0.counts().job_gone(&key),
                },
                Ok(ObjectChange { object: Object::Volume(_) | Object::Node, .. }) => {}
                Err(RecvError::Lagged(_)) => self.see_all(&model),
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn see_all(&self, model: &ReadModel) {
        let (jobs, allocs) = (model.jobs(), model.allocs());
        let mut counts = self.0.counts();
        jobs.iter().for_each(|view| counts.job(view));
        allocs.iter().for_each(|view| counts.alloc(view));
        counts.prune(&keys_of(&jobs), &allocs.iter().map(|view| view.spec.id).collect());
    }

    /// Counts the orphans that were found.
    pub fn orphans(&self, found: Orphans) {
        let mut counts = self.0.counts();
        let Orphans { attempts, alloc_dirs, networks } = found;
        let found = [("attempt", attempts), ("alloc_dir", alloc_dirs), ("network", networks)];
        for (kind, Tally { left, removed }) in found {
            counts.orphans.insert(kind, left);
            *counts.orphans_removed.entry(kind).or_default() += removed;
        }
    }

    /// Counts a collected object.
    pub fn collected(&self, kind: CollectableKind, why: Due) {
        *self.0.counts().collected.entry((kind.as_str(), why.as_str())).or_default() += 1;
    }

    /// Counts a rejected caller.
    pub fn authentication_failed(&self, why: Unknown) {
        *self.0.counts().authentication_failures.entry(why.as_str()).or_default() += 1;
    }

    /// Renders the page of metrics; `measured` is the usage of single tasks.
    pub fn page(&self, format: Format, measured: Vec<Measured>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Exposition { of: Arc::clone(&self.0), measured }));
        let mut page = String::new();
        if text::encode(&mut page, &registry).is_err() {
            tracing::error!("metrics could not be written");
        }
        match format {
            Format::OpenMetrics => page,
            Format::Text => page::as_text(&page),
        }
    }
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, page: &mut Page<'_>, measured: &[Measured]) -> fmt::Result {
        page.gauges(&names::BUILD_INFO, [([env!("CARGO_PKG_VERSION")], 1.0)])?;
        if let Some(sources) = self.sources.get() {
            self.write_model(page, sources, measured)?;
            write_loop(page, &sources.runtime)?;
            write_operations(page, &(sources.operations)())?;
            state::write(page, sources)?;
            catalogs::write(page, &sources.catalogs, &sources.model)?;
            catalogs::write_published(page, (sources.published)())?;
            templates::write(page, (sources.templates)())?;
            vault::write(page, (sources.vault)(), &(sources.consul_logins)())?;
            page.gauges(&names::ISOLATION_INFO, [([sources.isolation], 1.0)])?;
            let until = (sources.certificate_until)().map(|until| ([], number(until.max(0).unsigned_abs())));
            page.gauges(&names::CERTIFICATE_EXPIRY, until)?;
            write_contact(page, (sources.node_contact)())?;
            page.gauges(&names::MANIFEST_ERRORS, [([], number((sources.manifest_errors)()))])?;
        }
        self.write_counts(page)
    }

    fn write_model(&self, page: &mut Page<'_>, sources: &Sources, measured: &[Measured]) -> fmt::Result {
        let now_ns = (sources.boot_ns)();
        let gauges = Gauges::of(&sources.model, now_ns);
        page.gauges(
            &names::OBJECTS,
            gauges.objects.iter().map(|((kind, state), n)| ([*kind, *state], number(*n))),
        )?;
        page.gauges(
            &names::UNCONVERGED,
            gauges.unconverged.iter().map(|((kind, reason), n)| ([*kind, *reason], number(*n))),
        )?;
        page.gauges(&names::OVERDUE, gauges.overdue.iter().map(|(kind, n)| ([*kind], number(*n))))?;
        page.gauges(&names::CONVERGENCE_LAG, [([], seconds(gauges.lag_ns))])?;
        page.gauges(
            &names::JOB_VERSION,
            gauges.versions.iter().map(|((namespace, job), n)| ([namespace.as_str(), job], number(*n))),
        )?;
        let converged = self.counts().converged_versions.clone();
        page.gauges(
            &names::JOB_CONVERGED_VERSION,
            gauges.versions.keys().map(|(namespace, job)| {
                let key = JobKey { namespace: namespace.as_str().into(), id: job.as_str().into() };
                let version = converged.get(&key).map_or(-1.0, |version| number(*version));
                ([namespace.as_str(), job], version)
            }),
        )?;
        page.gauges(
            &names::JOB_HELD,
            gauges.held.iter().map(|(namespace, job)| ([namespace.as_str(), job], number(1))),
        )?;
        page.gauges(
            &names::ALLOCATIONS,
            gauges.allocations.iter().map(|(status, n)| ([*status], number(*n))),
        )?;
        page.gauges(&names::TASKS, gauges.tasks.iter().map(|(state, n)| ([*state], number(*n))))?;
        write_room(page, sources.room, gauges.allocated)?;
        if (sources.node_contact)().is_none() {
            write_scheduling(page, &sources.model.node())?;
        }
        self.write_nomad(page, sources, &gauges, measured)?;
        page.gauges(
            &names::CHECK_STATE,
            gauges.checks.iter().map(|((namespace, job, service, check, state), n)| {
                ([namespace.as_str(), job, service, check, state], number(*n))
            }),
        )
    }

    /// Writes Nomad's own metrics.
    fn write_nomad(
        &self,
        page: &mut Page<'_>,
        sources: &Sources,
        gauges: &Gauges,
        measured: &[Measured],
    ) -> fmt::Result {
        let (total, reserved) = sources.room;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
        let clock = nomad::Clock { core_mhz: number(total.cpu_mhz / cores) };
        let host = (sources.host)();
        let mut last = self.last();
        nomad::write(page, &sources.node, gauges, total.minus(reserved), &host, &last.host, clock)?;
        nomad::allocs::write(page, &sources.node, measured, &mut last.tasks, clock)?;
        last.host = host;
        Ok(())
    }

    fn write_counts(&self, page: &mut Page<'_>) -> fmt::Result {
        let counts = self.counts();
        page.counters(
            &names::RECONCILE,
            counts.reconciled.iter().map(|((kind, result), n)| ([*kind, *result], *n)),
        )?;
        page.histograms(
            &names::CONVERGENCE_DURATION,
            counts.converged.iter().map(|(cause, took)| ([*cause], took.read())),
        )?;
        page.counters(
            &names::DRIFT_DETECTED,
            counts.drift_detected.iter().map(|((kind, by), n)| ([*kind, *by], *n)),
        )?;
        page.counters(&names::DRIFT_REPAIRED, counts.drift_repaired.iter().map(|(kind, n)| ([*kind], *n)))?;
        page.histograms(
            &names::DRIFT_REPAIR_DURATION,
            counts.drift_repair.iter().map(|(kind, took)| ([*kind], took.read())),
        )?;
        page.gauges(&names::ORPHANS, counts.orphans.iter().map(|(kind, n)| ([*kind], number(*n))))?;
        page.counters(&names::ORPHANS_REMOVED, counts.orphans_removed.iter().map(|(kind, n)| ([*kind], *n)))?;
        page.counters(
            &names::COLLECTED,
            counts.collected.iter().map(|((kind, why), n)| ([*kind, *why], *n)),
        )?;
        page.counters(
            &names::AUTHENTICATION_FAILURES,
            counts.authentication_failures.iter().map(|(why, n)| ([*why], *n)),
        )?;
        page.counters(
            &names::DISRUPTIONS,
            counts.disruptions.iter().map(|((job, cause), n)| ([&*job.namespace, &*job.id, cause], *n)),
        )?;
        page.counters(
            &names::TASK_RESTARTS,
            counts
                .restarts
                .iter()
                .map(|((job, task, reason), n)| ([&*job.namespace, &*job.id, task.as_str(), reason], *n)),
        )?;
        page.counters(
            &names::TASK_OOM,
            counts.ooms.iter().map(|((job, task), n)| ([&*job.namespace, &*job.id, task.as_str()], *n)),
        )?;
        page.histograms(
            &names::TASK_START,
            counts.starts.iter().map(|(driver, took)| ([driver.as_str()], took.read())),
        )
    }
}

/// Writes the parts of each resource by state; together they are what the machine has.
fn write_room(page: &mut Page<'_>, (total, reserved): (Room, Room), allocated: Room) -> fmt::Result {
    const HERTZ: f64 = 1e6;
    const BYTES: f64 = 1024.0 * 1024.0;
    let free = total.minus(reserved).minus(allocated);
    let hands = [("allocated", allocated), ("free", free), ("reserved", reserved)];
    let samples =
        |of: fn(Room) -> u64, unit: f64| hands.map(|(state, room)| ([state], number(of(room)) * unit));
    page.gauges(&names::NODE_CPU, samples(|room| room.cpu_mhz, HERTZ))?;
    page.gauges(&names::NODE_MEMORY, samples(|room| room.memory_mib, BYTES))?;
    page.gauges(&names::NODE_DISK, samples(|room| room.disk_mib, BYTES))
}

/// Writes whether this machine takes allocations.
fn write_scheduling(page: &mut Page<'_>, node: &NodeView) -> fmt::Result {
    page.gauges(&names::NODE_ELIGIBLE, [([], f64::from(u8::from(node.eligible)))])?;
    page.gauges(&names::NODE_DRAINING, [([], f64::from(u8::from(node.drain.is_some())))])
}

fn write_contact(page: &mut Page<'_>, contact: Option<NodeContact>) -> fmt::Result {
    let Some(contact) = contact else { return Ok(()) };
    let NodeContact { is_registered, age, ttl, servers, failures, losses } = contact;
    page.gauges(&names::NODE_REGISTERED, [([], f64::from(u8::from(is_registered)))])?;
    page.gauges(&names::NODE_CONTACT_AGE, [([], age.as_secs_f64())])?;
    page.gauges(&names::NODE_HEARTBEAT_TTL, [([], ttl.as_secs_f64())])?;
    page.gauges(&names::NODE_SERVERS, [([], number(u64::try_from(servers).unwrap_or(u64::MAX)))])?;
    page.counters(&names::NODE_HEARTBEAT_FAILURES, [([], failures)])?;
    page.counters(&names::NODE_TTL_MISSED, [([], losses)])
}

fn write_loop(page: &mut Page<'_>, runtime: &Metrics) -> fmt::Result {
    let none: [&str; 0] = [];
    page.gauges(&names::TURN_TIMESTAMP, [(none, seconds(runtime.turn_wall_ns.get().max(0).unsigned_abs()))])?;
    page.counters(&names::TURNS, [(none, runtime.turns.get())])?;
    page.histograms(&names::TURN_DURATION, [(none, runtime.turn_duration.read())])?;
    page.counters(&names::PANICS, [(none, runtime.panics.get() + runtime.release_panics.get())])?;
    page.gauges(&names::QUARANTINED, [(none, present(runtime.quarantined.get()))])?;
    page.gauges(&names::QUEUE_DEPTH, [(none, present(runtime.inbox_depth.get()))])?;
    page.histograms(&names::QUEUE_WAIT, [(none, runtime.inbox_wait.read())])?;
    page.gauges(&names::QUEUE_WAKES, [(none, present(runtime.wakes_pending.get()))])?;
    page.histograms(&names::RELEASE_WAIT, [(none, runtime.release_wait.read())])
}

fn write_operations(page: &mut Page<'_>, figures: &[(&'static str, KindFigures)]) -> fmt::Result {
    let results = figures.iter().flat_map(|(kind, figures)| {
        [
            ([*kind, "done"], figures.done_total),
            ([*kind, "panicked"], figures.panicked_total),
            ([*kind, "cancelled"], figures.cancelled_total),
            ([*kind, "refused"], figures.refused_total),
        ]
    });
    page.counters(&names::OPERATIONS, results)?;
    let overdue = figures.iter().map(|(kind, figures)| ([*kind], figures.overdue_total));
    page.counters(&names::OPERATIONS_OVERDUE, overdue)?;
    let durations: Vec<([&str; 1], HistogramReading)> =
        figures.iter().map(|(kind, figures)| ([*kind], figures.duration)).collect();
    page.histograms(&names::OPERATION_DURATION, durations)?;
    let each =
        |read: fn(&KindFigures) -> f64| figures.iter().map(move |(kind, figures)| ([*kind], read(figures)));
    page.gauges(&names::OPERATIONS_RUNNING, each(|figures| number(figures.running as u64)))?;
    page.gauges(&names::OPERATIONS_WAITING, each(|figures| number(figures.waiting as u64)))?;
    let paced = figures.iter().map(|(kind, figures)| ([*kind], figures.paced_total));
    page.counters(&names::OPERATIONS_PACED, paced)?;
    page.gauges(&names::OPERATION_OLDEST, each(|figures| figures.oldest.as_secs_f64()))
}

fn keys_of(jobs: &[Arc<JobView>]) -> BTreeSet<JobKey> {
    jobs.iter().map(|view| view.key.clone()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a metric needs no more than 52 bits")]
fn number(n: u64) -> f64 {
    n as f64
}

fn present(n: i64) -> f64 {
    number(n.max(0).unsigned_abs())
}

/// A page, written when its registry is encoded.
struct Exposition {
    of: Arc<Shared>,
    measured: Vec<Measured>,
}

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposition").finish_non_exhaustive()
    }
}

impl Collector for Exposition {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.of.write(&mut Page(encoder), &self.measured)
    }
}
