//! The description of this node for servers, kept up to date.
//!
//! In: the config, the machine, fingerprints of drivers, metadata changes by operators, resources of local manifests. Out: a [`Node`] on a
//! watch, replaced whenever it differs. Networks are inspected when the kernel reports changes, Consul at intervals, both also after
//! errors.
//!
//! ```text
//!   config, machine ──► Fixed ──┐
//!   networks, Consul, drivers,  ├──► node() ──► watch: the session registers
//!   meta, local room ──► Parts ─┘
//! ```

mod node;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use herdlet_api_types::{alloc::CoreSet, job::ConsulAccess};
use herdlet_cni::present::Present;
use herdlet_config::{Cluster, Config};
use herdlet_driver::{Entries, Entry, Fingerprint, Health, Registry};
use herdlet_fingerprint::{self, InterfaceChanges};
use herdlet_nomad::wire::{Node, node::DriverInfo as NodeDriver};
use herdlet_plan::job::capacity::Room;
use herdlet_rpc::codec::Time;
use herdlet_runtime::off_thread;
use herdlet_services::catalog::{ConsulFingerprint, ConsulReader};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

pub use node::{Fixed, Parts};

use crate::meta::{Changes, MetaError, NodeMeta};

/// Changes that the kernel reports within this time count as one: an interface comes with its addresses and routes.
const NETWORK_SETTLES: Duration = Duration::from_secs(1);
/// Minimum time between two inspections if networks change all the time, as the routes of some routers do.
const NETWORK_PAUSE: Duration = Duration::from_secs(5);
/// Interval of inspections if the kernel does not report changes, and after an inspection that failed.
const NETWORK_PERIOD: Duration = Duration::from_secs(15);
/// Interval of inspections of the files of CNI, of which few are ever changed.
const CNI_PERIOD: Duration = Duration::from_secs(30);
/// Interval of queries to Consul, as in Nomad.
const CONSUL_PERIOD: Duration = Duration::from_secs(15);
/// Time limit for a query to Consul.
const CONSUL_MAX: Duration = Duration::from_secs(10);
/// How many queries in a row must fail before Consul counts as gone: a single failure may be a restart.
const CONSUL_MISSES: u32 = 2;
/// Describes this machine. Clones share the description.
#[derive(Clone)]
pub struct Describer {
    shared: Arc<Shared>,
}

struct Shared {
    fixed: Fixed,
    state_dir: PathBuf,
    parts: Mutex<Parts>,
    /// Held during a change of metadata, so that the file and the description agree.
    changing: tokio::sync::Mutex<()>,
    node: watch::Sender<Arc<Node>>,
    /// Whether Consul was queried once, if it is used at all.
    asked: watch::Sender<bool>,
}

impl Describer {
    /// Describes the machine as it is now, without waiting for slow parts. `drivers`: see [`described`]; `cores`: those that servers may assign to single tasks. Then [`follow`](Self::follow) keeps
    /// the description up to date.
    ///
    /// # Errors
    /// If the stored metadata cannot be read.
    pub fn start(
        config: &Config,
        cluster: &Cluster,
        (drivers, cores): (BTreeMap<String, NodeDriver>, CoreSet),
    ) -> Result<Self, MetaError> {
        let fixed = Fixed::of(config, cluster).with_cores(cores);
        let mut meta = BTreeMap::from(node::META.map(|(key, value)| (key.to_owned(), value.to_owned())));
        meta.extend(config.meta.clone());
        let meta = NodeMeta::load(meta, &config.state_dir)?;
        let mut parts = Parts { drivers, meta, ..Parts::default() };
        if fixed.runs("network") {
            let interfaces = herdlet_fingerprint::interfaces();
            let is_missing = |name: &&String| {
                interfaces.as_ref().is_ok_and(|all| all.iter().all(|interface| interface.name != **name))
            };
            if let Some(interface) = cluster.network.interface.as_ref().filter(is_missing) {
                tracing::warn!(
                    interface,
                    "the configured network interface does not exist; the node has no address"
                );
            }
            parts.networks = fixed.networks(&interfaces.unwrap_or_default());
        }
        Ok(Self::with(fixed, parts, config.state_dir.clone()))
    }

    /// Starts from known parts.
    pub fn with(fixed: Fixed, parts: Parts, state_dir: PathBuf) -> Self {
        let node = watch::Sender::new(Arc::new(fixed.node(&parts)));
        let (parts, changing) = (Mutex::new(parts), tokio::sync::Mutex::new(()));
        let asked = watch::Sender::new(false);
        Self { shared: Arc::new(Shared { fixed, state_dir, parts, changing, node, asked }) }
    }

    /// Waits until [`follow`](Self::follow) has a result from Consul, or has waited long enough: a node that registers earlier would have
    /// to register twice.
    pub async fn is_whole(&self) {
        // `self` holds the sender.
        let _ = self.shared.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// The node, now and whenever it has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Node>> {
        self.shared.node.subscribe()
    }

    /// Keeps the description up to date until it is cancelled.
    pub async fn follow(
        &self,
        consuls: &BTreeMap<String, Arc<ConsulReader>>,
        registry: &Registry,
        cancel: CancellationToken,
    ) {
        let all = async {
            tokio::join!(
                self.follow_networks(),
                self.follow_consuls(consuls),
                self.follow_drivers(registry),
                self.find_secrets_plugins(),
                self.follow_cni()
            );
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = all => {}
        }
    }

    /// Sets the state of the drivers. Drivers that may not be offered are left out.
    pub fn set_drivers(&self, entries: &Entries) {
        self.change(|parts| {
            let before = std::mem::take(&mut parts.drivers);
            parts.drivers = described(&self.shared.fixed.cluster, entries);
            // A later timestamp alone is not a change.
            for (name, driver) in &mut parts.drivers {
                let Some(before) = before.get(name) else { continue };
                let same = NodeDriver { update_time: before.update_time, ..driver.clone() };
                if same == *before {
                    *driver = same;
                }
            }
        });
    }

    /// Resources and ports that local manifests take, in addition to those that the config reserves.
    pub fn set_reserved(&self, room: Room, ports: BTreeSet<u16>) {
        self.change(|parts| {
            parts.reserved = room;
            parts.reserved_ports = ports;
        });
    }

    /// The node's metadata.
    pub fn meta(&self) -> NodeMeta {
        self.parts().meta.clone()
    }

    /// Changes the node's metadata. Stores it on disk before anything uses it.
    ///
    /// # Errors
    /// See [`MetaError`]; nothing has changed then.
    pub async fn set_meta(&self, changes: &Changes) -> Result<NodeMeta, MetaError> {
        let _alone = self.shared.changing.lock().await;
        let meta = self.meta().with(changes)?;
        let (saved, state_dir) = (meta.clone(), self.shared.state_dir.clone());
        let write = off_thread(move || saved.save(&state_dir)).await;
        write.map_err(|error| {
            let source = std::io::Error::other(error.to_string());
            MetaError::Write { path: self.shared.state_dir.clone(), source }
        })??;
        self.change(|parts| parts.meta = meta.clone());
        Ok(meta)
    }

    async fn follow_networks(&self) {
        if !self.shared.fixed.runs("network") {
            return;
        }
        // Open this before the first inspection, so that no change is missed.
        let mut changes = InterfaceChanges::open().inspect_err(untold).ok();
        loop {
            let inspected_at = Instant::now();
            let was_inspected = match off_thread(herdlet_fingerprint::interfaces).await {
                Ok(Ok(interfaces)) => {
                    let networks = self.shared.fixed.networks(&interfaces);
                    self.change(|parts| parts.networks = networks);
                    true
                }
                // Keep the known networks.
                Ok(Err(error)) => missed(&error),
                Err(error) => missed(&error),
            };
            match changes.as_ref().filter(|_| was_inspected) {
                Some(kernel) => {
                    if let Err(error) = kernel.next().await {
                        untold(&error);
                        changes = None;
                    }
                    sleep_until((Instant::now() + NETWORK_SETTLES).max(inspected_at + NETWORK_PAUSE)).await;
                }
                None => sleep(NETWORK_PERIOD).await,
            }
        }
    }

    /// Asks the secrets plugins for their versions, once: servers place jobs only where their plugins are.
    async fn find_secrets_plugins(&self) {
        if self.shared.fixed.runs("plugins") {
            let versions = herdlet_render::plugin::versions(&self.shared.fixed.secrets_plugins).await;
            self.change(|parts| parts.secrets_plugins = versions);
        }
    }

    /// Reads which CNI networks and plugins there are, and again whenever files were added, removed or replaced.
    async fn follow_cni(&self) {
        let directories = &self.shared.fixed.cni;
        let mut known = None;
        loop {
            let (stamp_of, find_in) = (directories.clone(), directories.clone());
            let stamp = off_thread(move || Present::stamp(&stamp_of)).await.ok();
            if known != stamp {
                if let Ok(present) = off_thread(move || Present::find(&find_in)).await {
                    self.change(|parts| parts.cni = present);
                }
                known = stamp;
            }
            sleep(CNI_PERIOD).await;
        }
    }

    async fn follow_drivers(&self, registry: &Registry) {
        let mut entries = registry.watch();
        loop {
            let now = Arc::clone(&entries.borrow_and_update());
            self.set_drivers(&now);
            if entries.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_consuls(&self, consuls: &BTreeMap<String, Arc<ConsulReader>>) {
        if consuls.is_empty() || !self.shared.fixed.runs("consul") {
            self.shared.asked.send_replace(true);
            return;
        }
        let all = consuls.iter().map(|(name, consul)| self.follow_consul(name, consul, CONSUL_PERIOD));
        join_all(all).await;
    }

    async fn follow_consul(&self, name: &str, consul: &ConsulReader, period: Duration) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut misses = 0;
        loop {
            ticks.tick().await;
            match timeout(CONSUL_MAX, ConsulFingerprint::query(consul)).await.ok().flatten() {
                Some(known) => {
                    misses = 0;
                    let known = known.of_cluster(name);
                    self.change(|parts| _ = parts.consuls.insert(name.to_owned(), known));
                }
                None if misses + 1 < CONSUL_MISSES => misses += 1,
                None => self.change(|parts| _ = parts.consuls.remove(name)),
            }
            if name == ConsulAccess::DEFAULT_CLUSTER {
                self.shared.asked.send_replace(true);
            }
        }
    }

    /// Makes a change, and publishes the node if it differs.
    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts();
        change(&mut parts);
        let node = self.shared.fixed.node(&parts);
        self.shared.node.send_if_modified(|current| {
            let is_news = **current != node;
            if is_news {
                *current = Arc::new(node);
            }
            is_news
        });
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.shared.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn untold(error: &std::io::Error) {
    let every = NETWORK_PERIOD.as_secs();
    tracing::info!(%error, "the kernel does not report network changes; inspecting networks every {every} s");
}

fn missed(error: &dyn std::fmt::Display) -> bool {
    tracing::debug!(%error, "failed to list network interfaces");
    false
}

/// The drivers that may be offered, in Nomad's form. A driver is left out until it reports its first fingerprint.
pub fn described(cluster: &Cluster, entries: &Entries) -> BTreeMap<String, NodeDriver> {
    let offered = entries.iter().filter(|(_, entry)| node::offers(cluster, &entry.info));
    offered.filter_map(|(name, entry)| Some((name.to_owned(), node_driver(entry)?))).collect()
}

fn node_driver(entry: &Entry) -> Option<NodeDriver> {
    let Fingerprint { health, description, .. } = entry.fingerprint()?;
    let (detected, healthy) = match health {
        Health::Undetected => (false, false),
        Health::Unhealthy => (true, false),
        Health::Healthy => (true, true),
    };
    let mut attributes = entry.attributes();
    if let Some(own) = attributes.get_mut(&format!("driver.{}", entry.info.name)) {
        *own = detected.to_string();
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Some(NodeDriver {
        attributes,
        detected,
        healthy,
        health_description: description,
        update_time: Time::from_unix_nanos(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)),
    })
}
