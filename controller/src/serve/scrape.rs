//! The sources of a running agent's metrics.
//!
//! In: the agent, its folders, its listeners, its cluster. Out: the function that renders the
//! metrics page.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use herdlet_agent::{
    agent::{Agent, folder::FolderStatus},
    executor::WorkKind,
    telemetry::{Format, Host, KindFigures, Measured, Sources, Telemetry},
};
use herdlet_api::http::Tls;
use herdlet_node::member::Joined;
use herdlet_plan::{env::NodeFacts, job::capacity::Room};
use herdlet_process::cgroup::Isolation;
use herdlet_runtime::{BootClock, Clock as _};

/// Sources of metrics besides the agent.
pub(super) struct Scraped {
    pub folders: Vec<Arc<FolderStatus>>,
    /// The machine's resources, and those reserved from allocations.
    pub room: (Room, Room),
    pub tls: Option<Arc<Tls>>,
    /// The cluster, once the node has joined one.
    pub joined: Arc<OnceLock<Joined>>,
}

/// Attaches a running agent. The returned function renders the page.
pub(super) fn scrape(
    telemetry: Telemetry,
    agent: &mut Agent,
    scraped: Scraped,
) -> impl Fn(Format, Vec<Measured>) -> String + Send + Sync + 'static {
    let Scraped { folders, room, tls, joined } = scraped;
    let operations = agent.operations.clone();
    let isolation = match agent.isolation {
        Isolation::Cgroups(_) => "cgroup",
        Isolation::None { .. } => "none",
    };
    let reserve = agent.reserve.clone();
    let database = agent.context.paths.database();
    telemetry.attach(Sources {
        model: Arc::clone(&agent.model),
        runtime: Arc::clone(&agent.handle.metrics),
        store_health: agent.handle.store_health.clone(),
        reserve_in_use: Box::new(move || reserve.is_released()),
        operations: Box::new(move || {
            let mut known: BTreeMap<WorkKind, KindFigures> = operations.figures().into_iter().collect();
            let figures = WorkKind::ALL.map(|kind| (kind.as_str(), known.remove(&kind).unwrap_or_default()));
            figures.to_vec()
        }),
        isolation,
        state_bytes: Box::new(move || std::fs::metadata(&database).map_or(0, |metadata| metadata.len())),
        catalogs: agent.context.services.catalogs.clone(),
        published: {
            let published = Arc::clone(&agent.context.published);
            Box::new(move || published.counts())
        },
        templates: {
            let renderer = Arc::clone(&agent.context.renderer);
            Box::new(move || renderer.figures())
        },
        consul_logins: {
            let consuls = Arc::clone(&agent.context.consuls);
            Box::new(move || consuls.figures())
        },
        vault: {
            let vaults = Arc::clone(&agent.context.vaults);
            Box::new(move || vaults.figures())
        },
        manifest_errors: Box::new(move || refused_files(&folders)),
        room,
        node: NodeFacts::clone(&agent.context.node.get()),
        host: Box::new(Host::now),
        certificate_until: Box::new(move || tls.as_ref()?.validity().map(|validity| validity.until)),
        node_contact: Box::new(move || Some(joined.get()?.figures())),
        boot_ns: Box::new(|| BootClock.now().boot_ns),
    });
    agent.watch(telemetry.clone().follow(Arc::downgrade(&agent.model)));
    move |format, measured| telemetry.page(format, measured)
}

/// The number of files with problems.
fn refused_files(folders: &[Arc<FolderStatus>]) -> u64 {
    let problems = folders.iter().flat_map(|folder| folder.problems());
    problems.map(|problem| problem.source).collect::<BTreeSet<String>>().len() as u64
}
