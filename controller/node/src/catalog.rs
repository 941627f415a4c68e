//! Registers services of provider `nomad` from servers' allocations in the servers' catalogue (1.3 and later).
//!
//! In: the built-in catalogue, which has them too. Out: registrations and removals at the servers, until both agree. Each registration is
//! sent once, and again if servers may have marked the node as down, since they remove its services then. Servers themselves remove entries
//! left by a killed agent, when its allocations end.
//!
//! Facts: `hashicorp/nomad:nomad/structs/service_registration.go`, `client/serviceregistration/nsd/nsd.go`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use herdlet_agent::publish::ReadModel;
use herdlet_api_types::service::Registration;
use herdlet_nomad::{session::Queries, wire::WriteOptions};
use herdlet_plan::env::NodeFacts;
use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
};
use herdlet_services::catalog::BuiltIn;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};

/// Maximum number of services per call.
const BATCH: usize = 256;

/// Wait after a failure.
const AGAIN: Duration = Duration::from_secs(5);

/// Wait if the servers do not support services (before 1.3).
const UNKNOWN_AGAIN: Duration = Duration::from_secs(600);

/// A service in the servers' format.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "ID")]
    id: String,
    service_name: String,
    namespace: String,
    #[serde(rename = "NodeID")]
    node_id: String,
    datacenter: String,
    #[serde(rename = "JobID")]
    job_id: String,
    #[serde(rename = "AllocID")]
    alloc_id: String,
    tags: Vec<String>,
    address: String,
    port: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct UpsertRequest {
    services: Vec<Entry>,
    #[serde(flatten)]
    options: WriteOptions,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeleteRequest {
    #[serde(rename = "ID")]
    id: String,
    #[serde(flatten)]
    options: WriteOptions,
}

/// Responses hold only an index.
#[derive(Deserialize)]
struct Done {}

/// Keeps the servers' catalogue in sync with the built-in one.
pub struct Mirror {
    catalog: Arc<BuiltIn>,
    model: Arc<ReadModel>,
    node: NodeFacts,
    /// The entries that servers have accepted, by id.
    registered: BTreeMap<String, Entry>,
}

impl Mirror {
    /// For this node, whose allocations are in `model`.
    pub fn new(catalog: Arc<BuiltIn>, model: Arc<ReadModel>, node: NodeFacts) -> Self {
        Self { catalog, model, node, registered: BTreeMap::new() }
    }

    /// Keeps servers up to date. A change of `told_again` means that they may have lost all entries.
    pub async fn follow<S: Service, D: Dial>(
        mut self,
        queries: Queries<S, D>,
        mut told_again: watch::Receiver<u64>,
    ) {
        let catalog = Arc::clone(&self.catalog);
        loop {
            let (version, shown) = (catalog.version(), self.model.version());
            // Check before sending: the allocation may appear in the meantime.
            let is_early = self.is_early();
            if told_again.has_changed().unwrap_or_default() {
                told_again.mark_unchanged();
                self.registered.clear();
            }
            let pause = match self.synchronize(&queries).await {
                Ok(()) => None,
                Err(error) if error.kind() == ErrorKind::UnknownMethod => {
                    tracing::warn!(%error, "the servers do not support services (before 1.3); those of provider nomad are found on this node only");
                    Some(UNKNOWN_AGAIN)
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to update services at the servers; retrying");
                    Some(AGAIN)
                }
            };
            match pause {
                Some(pause) => sleep(pause).await,
                None => tokio::select! {
                    () = catalog.changed(version) => {}
                    () = self.model.changed(shown), if is_early => {}
                    again = told_again.changed() => if again.is_err() { return },
                },
            }
        }
    }

    async fn synchronize<S: Service, D: Dial>(&mut self, queries: &Queries<S, D>) -> Result<(), CallError> {
        let wanted = self.desired_entries();
        let news: Vec<Entry> =
            wanted.values().filter(|entry| self.registered.get(&entry.id) != Some(entry)).cloned().collect();
        for batch in news.chunks(BATCH) {
            let request = |options| UpsertRequest { services: batch.to_vec(), options };
            let Done {} = queries.send_once("ServiceRegistration.Upsert", request).await?;
            self.registered.extend(batch.iter().map(|entry| (entry.id.clone(), entry.clone())));
        }
        let gone: Vec<Entry> =
            self.registered.values().filter(|entry| !wanted.contains_key(&entry.id)).cloned().collect();
        for entry in gone {
            let request = |options| DeleteRequest {
                id: entry.id.clone(),
                options: WriteOptions { namespace: entry.namespace.clone(), ..options },
            };
            match queries.send_once::<_, Done>("ServiceRegistration.DeleteByID", request).await {
                Ok(Done {}) => {}
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
            self.registered.remove(&entry.id);
        }
        Ok(())
    }

    /// The entries that servers should have; local allocations are excluded.
    fn desired_entries(&self) -> BTreeMap<String, Entry> {
        let entries = self.catalog.all().into_iter().filter_map(|one| self.entry(one));
        entries.map(|entry| (entry.id.clone(), entry)).collect()
    }

    /// Whether a registered service's allocation is not in the read model yet: a service can come up before the commit that publishes it.
    fn is_early(&self) -> bool {
        self.catalog.all().iter().any(|one| self.model.alloc(&one.alloc).is_none())
    }

    fn entry(&self, one: Registration) -> Option<Entry> {
        let view = self.model.alloc(&one.alloc)?;
        view.spec.server.as_ref()?;
        Some(Entry {
            // The two formats differ only in this prefix.
            id: one.id.replacen("_herdlet-", "_nomad-", 1),
            service_name: one.name,
            namespace: one.job.namespace.to_string(),
            node_id: self.node.id.clone(),
            datacenter: self.node.datacenter.clone(),
            job_id: one.job.id.to_string(),
            alloc_id: one.alloc.to_string(),
            tags: one.tags,
            address: one.address,
            port: i64::from(one.port),
        })
    }
}

/// Whether the entry is already gone. Servers remove the entries of ended allocations, and from 2.0 on, with ACLs, deny a later removal
/// (`hashicorp/nomad:nomad/auth/auth.go`).
fn is_gone(error: &CallError) -> bool {
    let CallError::Server(error) = error else { return false };
    error.kind() == ErrorKind::PermissionDenied || error.text().contains("service registration not found")
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{fixture::server_side, view::AllocView};
    use herdlet_nomad::{
        identity::Identity,
        seam::{Desired, Factory, Runner},
        session::{self, Reports, Session},
        wire::{AllocId, Node},
    };
    use herdlet_nomad_server::{Cluster, Fault, Lan, Settings};
    use herdlet_plan::turn::View;
    use herdlet_rpc::{
        error::ServerError,
        pool::{Chance, Pool},
        serve::Unserved,
    };
    use herdlet_runtime::{CommitIndex, Publisher as _};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use herdlet_manifest::fixture::{alloc_view, job, registration};
    use herdlet_services::catalog::ServiceOwner;

    /// A runner that does nothing.
    struct Nothing;

    impl Factory for Nothing {
        type Runner = Self;

        fn start(self, _: Reports) -> Self {
            self
        }
    }

    impl Runner for Nothing {
        fn known(&self) -> Vec<(AllocId, u64)> {
            Vec::new()
        }

        async fn apply(&self, _: Desired) {}

        fn report_again(&self) {}
    }

    /// A service may be up before its allocation is published, even while servers are being updated.
    #[tokio::test(start_paused = true)]
    async fn service_up_before_its_allocation_is_registered_later() {
        let cluster = Cluster::start(Settings::default());
        let servers = vec!["s0:4647".parse().unwrap()];
        let pool =
            Pool::new(Arc::new(Unserved), "global".to_owned(), servers, Lan::new(&cluster), Chance::of(1));
        let described = Node {
            name: "node".to_owned(),
            datacenter: "dc1".to_owned(),
            attributes: [("nomad.version".to_owned(), "1.6.5".to_owned())].into(),
            ..Node::default()
        };
        let (_, node) = watch::channel(Arc::new(described));
        let identity = Identity::random().unwrap();
        let facts = NodeFacts { id: identity.id.to_string(), ..NodeFacts::default() };
        let session = Session::new(Arc::new(pool), identity, node, session::Options::default());
        let mirror = Mirror::new(Arc::default(), Arc::default(), facts);
        let (catalog, model) = (Arc::clone(&mirror.catalog), Arc::clone(&mirror.model));
        let (_again, told_again) = watch::channel(0);
        let following = tokio::spawn(mirror.follow(session.queries(), told_again));
        let living = tokio::spawn(session.run(Nothing, CancellationToken::new()));
        let made = |seed: u8| {
            let mut view = alloc_view(&job("web", "g", "t"), 0, seed);
            let spec = Arc::make_mut(&mut view.spec);
            spec.server = Some(server_side(&spec.job).into());
            view
        };
        let up = |view: &AllocView| {
            let registered = registration(view, "web", &format!("s{}", view.spec.id));
            catalog.up(&ServiceOwner { alloc: view.spec.id, task: None }, vec![registered]);
        };
        let show = |commit, view: AllocView| {
            model.publisher().offer(CommitIndex(commit), vec![View::Alloc(view.into())]);
        };
        let known = || cluster.read(|state| state.services.len());

        let [alone, slow, meanwhile] = [1, 2, 3].map(made);
        up(&alone);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(known(), 0);
        show(1, alone);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(known(), 1);

        cluster.fault("ServiceRegistration.Upsert", 1, &Fault::Slow(Duration::from_secs(3)));
        show(2, slow.clone());
        // Both come up before the mirror checks again.
        up(&slow);
        up(&meanwhile);
        sleep(Duration::from_secs(1)).await;
        show(3, meanwhile);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(known(), 3);
        following.abort();
        living.abort();
    }

    #[test]
    fn removed_registration_is_not_removed_again() {
        for (text, expected) in [
            ("service registration not found", true),
            ("rpc error: Permission denied", true),
            ("No cluster leader", false),
        ] {
            assert_eq!(is_gone(&ServerError::new(text).into()), expected, "{text}");
        }
        assert!(!is_gone(&CallError::NoServers));
    }
}
