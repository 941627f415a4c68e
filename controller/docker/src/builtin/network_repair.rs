//! Damage to networks of single containers: noticed by reports of the kernel and by inspections, and repaired.
//!
//! In: reports, the containers that have directories. Out: networks as they were recorded; events about repairs. Networks that belong to no
//! container are removed at the start.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use herdlet_base::error::in_full;
use herdlet_driver::{AttemptId, DriverError, DriverResult};
use herdlet_network::{
    networks::{Concern, NetworkError},
    reports::{self, Reports, Sources},
    watch::RuleChange,
};
use herdlet_process::engine::Engine;
use tokio::time::{self, Instant};

use super::{
    network_plan::NetworkPlan,
    networks::{is_of_container, owner},
    shared::BuiltinState,
};

/// How often networks are inspected for damage that the kernel does not report.
const INSPECTION_PERIOD: Duration = Duration::from_secs(30);
/// One inspection serves a burst of reports.
const BURST: Duration = Duration::from_millis(50);
/// Inspections take at most one part in this many of a core, however often others change their interfaces and rules.
const INSPECTION_SHARE: u32 = 20;

impl BuiltinState {
    /// The containers whose network is on the bridge.
    fn bridged(&self) -> DriverResult<Vec<(AttemptId, NetworkPlan)>> {
        let failed = |error| DriverError::retry(format!("list the containers: {error}"));
        let mut found = Vec::new();
        for id in self.dirs.list().map_err(failed)? {
            let plan = self.recorded(&id)?.map(|record| record.network);
            found.extend(
                plan.filter(|plan| matches!(plan, NetworkPlan::Bridged { .. })).map(|plan| (id, plan)),
            );
        }
        Ok(found)
    }

    /// Removes networks of containers that have no directory: the disk may have lost it.
    fn sweep(&self) -> DriverResult<()> {
        let retry = |error: NetworkError| DriverError::retry(in_full(&error));
        if !self.networks.bridge.may_be_used() {
            return Ok(());
        }
        let found = self.networks.bridge.networks().and_then(|networks| networks.owners()).map_err(retry)?;
        // Directories are listed last: each is made before its network.
        let listed = self.dirs.list();
        let listed = listed.map_err(|error| DriverError::retry(format!("list the containers: {error}")))?;
        let known: BTreeSet<String> = listed.iter().map(owner).collect();
        let is_leak = |owner: &String| is_of_container(owner) && !known.contains(owner);
        for (owner, remains) in found.iter().filter(|(owner, _)| is_leak(owner)) {
            remains.log_removal(owner);
            self.disconnect(owner).map_err(retry)?;
        }
        Ok(())
    }

    /// The networks that these reports concern.
    fn doubted(&self, reports: &Reports) -> Doubts {
        let Some(networks) = self.networks.bridge.opened() else { return Doubts::default() };
        let mut doubted = Doubts { rules: reports.rules != RuleChange::OwnOnly, ..Doubts::default() };
        for change in &reports.links {
            match networks.concern(change) {
                Concern::Nothing => {}
                Concern::Owner(owner) => {
                    doubted.owners.extend(Some(owner).filter(|owner| is_of_container(owner)))
                }
                Concern::All => return Doubts::ALL,
            }
        }
        doubted
    }

    fn repair(&self, engine: &Engine, doubted: &Doubts) -> DriverResult<()> {
        let bridged = self.bridged()?;
        if let Some(networks) = self.networks.bridge.opened().filter(|_| doubted.rules && !bridged.is_empty())
        {
            let repair = networks.repair_rules().map_err(|error| DriverError::retry(in_full(&error)))?;
            if !repair.is_empty() {
                tracing::info!(%repair, "repaired the rules of the bridge");
            }
        }
        let is_doubted = |id: &AttemptId| doubted.networks || doubted.owners.contains(&owner(id));
        for (id, plan) in bridged.into_iter().filter(|(id, _)| is_doubted(id)) {
            if let Err(error) = self.repaired(engine, &id, &plan) {
                tracing::warn!(%id, error = error.why(), "failed to repair the network of a container");
            }
        }
        Ok(())
    }
}

/// What may be damaged.
#[derive(Debug, Default)]
struct Doubts {
    /// The rules that all networks share.
    rules: bool,
    /// Every network.
    networks: bool,
    /// The networks with these names.
    owners: BTreeSet<String>,
}

impl Doubts {
    const ALL: Self = Self { rules: true, networks: true, owners: BTreeSet::new() };

    fn is_nothing(&self) -> bool {
        !self.rules && !self.networks && self.owners.is_empty()
    }
}

/// Waits until a network may be damaged: after a report of the kernel, or for the next inspection.
async fn next_doubt(shared: &BuiltinState, sources: &mut Option<Sources>) -> Doubts {
    let inspection = Instant::now() + INSPECTION_PERIOD;
    loop {
        let rule_port = shared.networks.bridge.opened().and_then(|networks| networks.rule_port().ok());
        let doubted = shared.doubted(&reports::taken(sources, rule_port));
        if !doubted.is_nothing() {
            return doubted;
        }
        let woken = async {
            match sources {
                Some(sources) => sources.woken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = woken => time::sleep(BURST).await,
            () = time::sleep_until(inspection) => return Doubts::ALL,
        }
    }
}

/// Repairs networks of containers as long as there are any.
pub(super) async fn keep_repaired(shared: Arc<BuiltinState>, engine: Engine) {
    let own = Arc::clone(&shared);
    report(herdlet_runtime::off_thread(move || own.sweep()).await.map_err(|error| error.to_string()));
    let mut sources = None;
    loop {
        let own = Arc::clone(&shared);
        let found = herdlet_runtime::off_thread(move || own.bridged()).await;
        if matches!(found, Ok(Ok(found)) if found.is_empty()) {
            sources = None;
            shared.connected.notified().await;
        }
        let doubted = next_doubt(&shared, &mut sources).await;
        let (own, engine, begun) = (Arc::clone(&shared), engine.clone(), Instant::now());
        let repaired = herdlet_runtime::off_thread(move || own.repair(&engine, &doubted)).await;
        report(repaired.map_err(|error| error.to_string()));
        time::sleep(begun.elapsed().saturating_mul(INSPECTION_SHARE)).await;
    }
}

fn report(done: Result<DriverResult<()>, String>) {
    let error = match done {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.why(),
        Err(error) => error,
    };
    tracing::warn!(error, "failed to inspect the networks of containers");
}
