//! The agent's health, as its API reports it.
//!
//! In: the parts of the agent that can have problems. Out: the function that determines the health for each answer.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use herdlet_agent::{
    agent::{Orphans, folder::FolderStatus},
    publish::ReadModel,
    requests::Requests,
    state_db::ReserveUse,
};
use herdlet_api::http::{Tls, Vitals};
use herdlet_base::clock;
use herdlet_node::member::Joined;
use herdlet_services::catalog::ConsulClusters;
use herdlet_variables::Variables;

use super::readiness::Readiness;

/// The sources of the agent's health.
pub(super) struct Sources {
    pub(super) readiness: Readiness,
    pub(super) requests: Requests,
    pub(super) orphans: Orphans,
    pub(super) reserve: ReserveUse,
    pub(super) state: PathBuf,
    pub(super) folders: Vec<Arc<FolderStatus>>,
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) consuls: Arc<ConsulClusters>,
    pub(super) model: Arc<ReadModel>,
    pub(super) variables: Arc<Variables>,
    /// Set once the node has joined its cluster.
    pub(super) joined: Arc<OnceLock<Joined>>,
}

impl Sources {
    /// Determines the health for each answer.
    pub(super) fn vitals(self) -> impl Fn() -> Vitals + Send + Sync + 'static {
        let Self {
            readiness,
            requests,
            orphans,
            reserve,
            state,
            folders,
            tls,
            consuls,
            model,
            variables,
            joined,
        } = self;
        move || {
            let degraded = requests.degraded();
            let degraded =
                degraded.map(|why| format!("nothing new is started, running tasks are kept: {why}"));
            let degraded = degraded.or_else(|| {
                let left = Some(orphans.attempts.left).filter(|left| *left > 0)?;
                Some(format!("{left} attempts belong to no job and were left alone: the log names them"))
            });
            // Servers that are out of reach give this node no new work.
            let of_cluster = joined.get().and_then(Joined::warning);
            let (degraded, of_cluster) = match degraded {
                None => (of_cluster, None),
                Some(_) => (degraded, of_cluster),
            };
            let manifest_problems = folders.iter().flat_map(|folder| folder.problems()).collect();
            let of_tls = tls.iter().flat_map(|tls| tls.warnings(clock::wall_now()));
            let disk_full = reserve.is_released().then(|| {
                let state = state.display();
                format!("the disk of {state} is full: the agent uses its reserve; free space there, or run `herdlet gc`")
            });
            let warnings = of_tls
                .chain(consuls.troubles(clock::wall_now(), |id| model.is_live(id)))
                .chain(variables.store().trouble())
                .chain(of_cluster)
                .chain(joined.get().and_then(Joined::offers_nothing))
                .collect();
            let seen = joined.get().map(Joined::seen);
            Vitals { not_ready: readiness.why_not(), degraded, disk_full, warnings, manifest_problems, seen }
        }
    }
}
