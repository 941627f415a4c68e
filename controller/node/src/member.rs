//! This machine as a node of a cluster: its identity before the agent starts, and the tasks that run beside the agent.
//!
//! In: the config. Out: an identity, an up-to-date description, discovered servers, and a session with them. If the node was taken over
//! from a Nomad client, that client is locked out while this lives.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context as _;
use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_agent::{
    agent::Agent, consul::ConsulSettings, instance::offered_cores, publish::ReadModel, telemetry::NodeContact,
};
use herdlet_api::http::{SeenByServers, Shared};
use herdlet_api_types::job::ConsulAccess;
use herdlet_config::{Cluster, Config, DrainOnShutdown};
use herdlet_manifest::manifests::Drivers;
use herdlet_nomad::{
    identity::Identity,
    session::{self, Contact, DrainError, Session},
    wire::{Eligibility, Node, Secret},
};
use herdlet_plan::job::capacity::Room;
use herdlet_rpc::{
    connect::Network,
    pool::{Chance, Pool},
    tls::TlsError,
};
use herdlet_runtime::off_thread;
use herdlet_services::catalog::ConsulReader;
use herdlet_unpack::Unpacker;
use tokio::{
    sync::{Semaphore, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    acknowledged,
    acl::{Resolver, Settings},
    client_takeover::{self, Moved},
    cluster_client::{LazyServers, SessionServers},
    describe::{self, Describer},
    http::{NodeApi, ServerContact},
    join::join,
    leave,
    predecessor::mover::{self, Mover},
    serve::{self, NodeService},
    servers,
    snapshot::Snapshots,
};

/// A node that has not joined yet.
pub struct Member {
    cluster: Cluster,
    region: String,
    dir: PathBuf,
    moved: Moved,
    /// The Consuls of the config, by name. The one that is `default` is searched for servers.
    consuls: BTreeMap<String, Arc<ConsulReader>>,
    network: Network,
}

impl Member {
    /// The node that the config describes; `None` if this machine is standalone. Call it while holding the state directory, before anything
    /// is started.
    ///
    /// # Errors
    /// If the identity cannot be read or stored, certificates cannot be used, or a Nomad client runs in its directory or has left tasks.
    pub fn of(config: &Config, consuls: &ConsulSettings) -> anyhow::Result<Option<Self>> {
        let Some(cluster) = config.cluster.clone() else { return Ok(None) };
        let dir = config.state_dir.join("node");
        let network =
            servers::network(&cluster, &config.region).context("prepare TLS to servers (`cluster.tls`)")?;
        let moved = client_takeover::identity(&dir, cluster.moved_from.as_deref())?;
        let readers = consuls.iter().map(|(name, (config, _))| {
            let reader = ConsulReader::new(config).context("set up the Consul client")?;
            Ok((name.clone(), Arc::new(reader)))
        });
        let consuls = readers.collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        Ok(Some(Self { cluster, region: config.region.clone(), dir, moved, consuls, network }))
    }

    /// The node's id.
    pub fn id(&self) -> &str {
        self.moved.identity.id.as_str()
    }

    /// Joins the cluster: from now on servers can call. Jobs may use `drivers`; `shared` is the local API.
    ///
    /// # Errors
    /// If tokens or metadata cannot be read.
    pub async fn join(
        self,
        config: &Config,
        agent: &mut Agent,
        drivers: watch::Receiver<Drivers>,
        shared: &Arc<Shared>,
    ) -> anyhow::Result<Joined> {
        let Self { cluster, region, dir, moved, consuls, network } = self;
        let consul = consuls.get(ConsulAccess::DEFAULT_CLUSTER).context("find the Consul `default`")?;
        let consul = Arc::clone(consul);
        let Moved { identity, .. } = &moved;
        let found = describe::described(&cluster, &agent.context.drivers.entries());
        let mover = Mover {
            paths: agent.context.paths.clone(),
            tokens: Arc::clone(&agent.context.server_tokens),
            node: identity.id.clone(),
            region: region.clone(),
            tls: cluster.tls.clone(),
            unpacker: Unpacker::default(),
            turns: Semaphore::new(mover::AT_ONCE),
        };
        let snapshots =
            Snapshots::new(agent.context.paths.clone(), identity.secret.clone(), shared.closing.clone());
        let cores = config.offered_cores(offered_cores(&agent.isolation));
        let cores = cores.available().cloned().unwrap_or_default();
        let describer = Describer::start(config, &cluster, (found, cores))?;
        let asked: Arc<LazyServers> = Arc::default();
        let service = Arc::new(NodeService::new(serve::Parts {
            reach: shared.reach(),
            acl: Resolver::new(asked.clone(), Settings::from(&cluster.acl)),
            servers: asked.clone(),
            meta: Arc::new(describer.clone()),
            agent: identity.id.to_string(),
            remote_exec: !cluster.disable_remote_exec,
            debug: cluster.enable_debug,
            closing: shared.closing.clone(),
        }));
        let pool = Arc::new(Pool::new(
            Arc::clone(&service),
            region.clone(),
            Vec::new(),
            network.clone(),
            Chance::new(),
        ));
        let reload: Reload = Arc::new({
            let (cluster, region) = (cluster.clone(), region.clone());
            move || {
                let Some(files) = &cluster.tls else { return Ok(()) };
                network.set_tls(Some(servers::tls(files, &region)?));
                Ok(())
            }
        });
        let options = session::Options {
            region,
            introduction: cluster.introduction(&config.state_dir, &|name| std::env::var(name).ok())?,
            signed: Identity::load_signed(&dir)?,
            acknowledged: acknowledged::load(&dir),
            ..session::Options::default()
        };
        let session = Session::new(Arc::clone(&pool), identity.clone(), describer.watch(), options);
        asked.are(SessionServers { queries: session.queries(), pool: Arc::clone(&pool) });
        let contact = session.contact();
        let api = Arc::new(NodeApi {
            shared: Arc::clone(shared),
            service,
            servers: asked,
            snapshots,
            standing: Box::new({
                let contact = contact.clone();
                move || server_contact(&contact.borrow())
            }),
        });
        let leave: Leave = Arc::new({
            let (queries, model) = (session.queries(), Arc::clone(&agent.model));
            move |how| {
                let (queries, model) = (queries.clone(), Arc::clone(&model));
                async move { leave::drain(&queries, &model, how).await }.boxed()
            }
        });
        let joined = Joined { contact, api, leave, reload, node: describer.watch(), since: Instant::now() };
        if let Some(why) = joined.offers_nothing() {
            tracing::warn!("{why}");
        }
        agent.watch(keep_signed(session.signed(), dir));
        agent.watch({
            let (contact, consul) = (session.contact(), consul.clone());
            async move {
                if let Err(error) =
                    servers::follow(pool, contact, cluster, Some(consul), CancellationToken::new()).await
                {
                    tracing::error!("failed to {error}; restart the agent to search again");
                }
            }
        });
        agent.watch(warn_of_another_client(Arc::clone(&consul)));
        agent.watch(reserve(describer.clone(), Arc::clone(&agent.model)));
        let described = describer.clone();
        agent.watch({
            let registry = agent.context.drivers.clone();
            async move {
                // Holds the lock that keeps Nomad's client out.
                let _moved = moved;
                describer.follow(&consuls, &registry, CancellationToken::new()).await;
            }
        });
        join(agent, session, drivers, mover, async move { described.is_whole().await });
        Ok(joined)
    }
}

/// A node that has joined.
#[derive(Clone)]
pub struct Joined {
    /// The node's contact with its servers.
    pub contact: watch::Receiver<Contact>,
    pub api: Arc<NodeApi>,
    leave: Leave,
    reload: Reload,
    /// The node as servers know it.
    node: watch::Receiver<Arc<Node>>,
    since: Instant,
}

/// Drains the node.
type Leave = Arc<dyn Fn(DrainOnShutdown) -> BoxFuture<'static, Result<(), DrainError>> + Send + Sync>;

/// Reads the certificates for connections to servers again.
type Reload = Arc<dyn Fn() -> Result<(), TlsError> + Send + Sync>;

impl Joined {
    /// Reads the certificates for connections to servers again; open connections are kept.
    ///
    /// # Errors
    /// Why they can't be used; the previous ones stay in use.
    pub fn reload_tls(&self) -> Result<(), TlsError> {
        (self.reload)()
    }

    /// The node as servers see it, as far as the node knows.
    pub fn seen(&self) -> SeenByServers {
        let contact = self.contact.borrow();
        let status = match (contact.is_registered, contact.is_in_reach && !contact.is_overdue()) {
            (false, _) => "initializing",
            (true, true) => "ready",
            (true, false) => "disconnected",
        };
        let is_ineligible = contact.eligibility == Eligibility::Ineligible;
        SeenByServers { status, eligibility: if is_ineligible { "ineligible" } else { "eligible" } }
    }

    /// A warning if no driver is offered to servers.
    pub fn offers_nothing(&self) -> Option<String> {
        let offers_any = self.node.borrow().drivers.values().any(|driver| driver.detected);
        (!offers_any).then(|| {
            "no task driver is offered to the servers, so they place nothing here; run the agent as root for the driver exec, or enable raw_exec with --raw-exec".to_owned()
        })
    }

    /// A warning about the contact with servers; `None` if all is well.
    pub fn warning(&self) -> Option<String> {
        let contact = self.contact.borrow();
        let running = "running allocations continue, and no new ones arrive";
        if contact.disbelieved.is_some() {
            return Some(
                "the servers report an older state than before, as after a restore; it is accepted after a few minutes".to_owned(),
            );
        }
        // A heartbeat that is neither answered nor refused fails late.
        if contact.is_in_reach && !contact.is_overdue() {
            return (!contact.has_leader).then(|| format!("the cluster has no leader: {running}"));
        }
        Some(match contact.last {
            None => format!("{} has answered yet (see the log): {running}", self.no_server()),
            Some(heard) => {
                let ago = heard.at.elapsed().as_secs();
                format!("{} answers, the last one did {ago} s ago (see the log): {running}", self.no_server())
            }
        })
    }
}

impl Joined {
    /// Drains the node and waits for the end. Dropping the future is safe.
    ///
    /// # Errors
    /// Why it was not drained. Unreachable servers do not block it for long.
    pub fn drain(&self, how: DrainOnShutdown) -> BoxFuture<'static, Result<(), DrainError>> {
        (self.leave)(how)
    }

    /// The contact as numbers for metrics.
    pub fn figures(&self) -> NodeContact {
        let contact = self.contact.borrow();
        NodeContact {
            is_registered: contact.is_registered,
            age: contact.last.map_or(self.since, |heard| heard.at).elapsed(),
            ttl: contact.ttl,
            servers: contact.servers,
            failures: contact.failures,
            losses: contact.losses,
        }
    }

    /// Names the known servers.
    fn no_server(&self) -> String {
        match self.api.servers.addresses().join(", ") {
            known if known.is_empty() => "no server of the cluster is known, so none".to_owned(),
            known => format!("no server of the cluster ({known})"),
        }
    }
}

fn server_contact(contact: &Contact) -> ServerContact {
    ServerContact { last_heartbeat: contact.last.map(|heard| heard.at.elapsed()), ttl: contact.ttl }
}

/// Keeps resources of local manifests reserved from servers' jobs.
async fn reserve(describer: Describer, model: Arc<ReadModel>) {
    let mut last = None;
    loop {
        let version = model.version();
        let mut room = Room::default();
        let mut ports = BTreeSet::new();
        for job in model.jobs() {
            for group in &job.job.groups {
                let wanted = job.desired_count(group);
                room = room.plus(Room::of(group).times(u64::from(wanted)));
                ports.extend(group.fixed_ports().filter(|_| wanted > 0));
            }
        }
        // Most changes do not affect manifests, and updating the description is expensive.
        let now = Some((room, ports));
        if last != now {
            if let Some((room, ports)) = now.clone() {
                describer.set_reserved(room, ports);
            }
            last = now;
        }
        model.changed(version).await;
    }
}

/// Prefixes of the ids that Nomad's client uses in a Consul agent: for itself, and for services of its tasks.
const OF_A_CLIENT: [&str; 2] = ["_nomad-client-", "_nomad-task-"];

/// Warns if a Nomad client uses the same Consul agent. The two ignore each other's services, but one machine should be one node.
async fn warn_of_another_client(consul: Arc<ConsulReader>) {
    let Ok(serde_json::Value::Object(services)) = consul.read("/v1/agent/services").await else { return };
    if let Some(id) = services.keys().find(|id| OF_A_CLIENT.iter().any(|begin| id.starts_with(begin))) {
        tracing::warn!(
            service = id,
            "a Nomad client uses the same Consul agent; run only one of the two on this machine"
        );
    }
}

/// Stores the identity signed by servers for the next agent.
async fn keep_signed(mut signed: watch::Receiver<Secret>, dir: PathBuf) {
    while signed.changed().await.is_ok() {
        let (dir, token) = (dir.clone(), signed.borrow_and_update().clone());
        if let Ok(Err(error)) = off_thread(move || Identity::keep_signed(&dir, &token)).await {
            tracing::warn!(%error, "failed to store the node's signed identity; servers will sign another one");
        }
    }
}
