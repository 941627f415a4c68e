//! The node as servers are told of it, and anew whenever something of it changes.
//!
//! In: the config, the machine, what drivers say, meta that operators change, room that local manifests take. Out: [`Node`]s on a watch:
//! a new one only where it differs. Networks are looked at when the kernel tells of changes, Consul again and again, also after errors.
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

use herdlet_config::{Cluster, Config};
use herdlet_driver::{Entries, Entry, Fingerprint, Health, Registry};
use herdlet_fingerprint::{self, InterfaceChanges};
use herdlet_nomad::wire::{Node, node::DriverInfo as NodeDriver};
use herdlet_plan::job::capacity::Room;
use herdlet_rpc::codec::Time;
use herdlet_runtime::off_thread;
use herdlet_services::catalog::ConsulReader;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

pub use node::{Fixed, Parts};

use crate::{
    consul,
    meta::{Changes, MetaError, NodeMeta},
};

/// What the kernel tells of networks within this time is one change: an interface comes with its addresses and routes.
const NETWORK_SETTLES: Duration = Duration::from_secs(1);
/// Where they change all the time, as routes of some routers do, they are looked at no more often.
const NETWORK_PAUSE: Duration = Duration::from_secs(5);
/// Networks are looked at this often where the kernel does not tell of changes, and after a look that failed.
const NETWORK_PERIOD: Duration = Duration::from_secs(15);
/// Consul is asked this often, as by Nomad.
const CONSUL_PERIOD: Duration = Duration::from_secs(15);
/// How long it may take to answer.
const CONSUL_MAX: Duration = Duration::from_secs(10);
/// A Consul that has not answered so often is gone; one miss may be its restart.
const CONSUL_MISSES: u32 = 2;
/// Describes this machine. Clones are one.
#[derive(Clone)]
pub struct Describer {
    shared: Arc<Shared>,
}

struct Shared {
    fixed: Fixed,
    state_dir: PathBuf,
    parts: Mutex<Parts>,
    /// One change of meta at a time, so that the file and what is told are the same.
    changing: tokio::sync::Mutex<()>,
    node: watch::Sender<Arc<Node>>,
    /// Consul was asked once, if it is asked at all.
    asked: watch::Sender<bool>,
}

impl Describer {
    /// The machine as it is now, as far as nobody has to be waited for. `drivers`: see [`described`]. Afterwards [`follow`](Self::follow)
    /// keeps it true.
    ///
    /// # Errors
    /// When the meta that was changed before can't be read.
    pub fn start(
        config: &Config,
        cluster: &Cluster,
        drivers: BTreeMap<String, NodeDriver>,
    ) -> Result<Self, MetaError> {
        let fixed = Fixed::of(config, cluster);
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
                    "the network interface of the config is not there; the node has no address"
                );
            }
            parts.networks = fixed.networks(&interfaces.unwrap_or_default());
        }
        Ok(Self::with(fixed, parts, config.state_dir.clone()))
    }

    /// From what is known already.
    pub fn with(fixed: Fixed, parts: Parts, state_dir: PathBuf) -> Self {
        let node = watch::Sender::new(Arc::new(fixed.node(&parts)));
        let (parts, changing) = (Mutex::new(parts), tokio::sync::Mutex::new(()));
        let asked = watch::Sender::new(false);
        Self { shared: Arc::new(Shared { fixed, state_dir, parts, changing, node, asked }) }
    }

    /// Waits until [`follow`](Self::follow) has heard of Consul, or has waited long enough for it: a node that registers before would do so
    /// twice.
    pub async fn is_whole(&self) {
        // The sender lives as long as this.
        let _ = self.shared.asked.subscribe().wait_for(|asked| *asked).await;
    }

    /// The node, now and whenever it has changed.
    pub fn watch(&self) -> watch::Receiver<Arc<Node>> {
        self.shared.node.subscribe()
    }

    /// Keeps looking at what may change, until it is cancelled.
    pub async fn follow(
        &self,
        consul: Option<&ConsulReader>,
        registry: &Registry,
        cancel: CancellationToken,
    ) {
        let all = async {
            tokio::join!(
                self.follow_networks(),
                self.follow_consul(consul, CONSUL_PERIOD),
                self.follow_drivers(registry)
            );
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = all => {}
        }
    }

    /// How the drivers are. Of one that may not be offered nobody hears.
    pub fn set_drivers(&self, entries: &Entries) {
        self.change(|parts| {
            let before = std::mem::take(&mut parts.drivers);
            parts.drivers = described(&self.shared.fixed.cluster, entries);
            // When it was seen counts only where it is news.
            for (name, driver) in &mut parts.drivers {
                let Some(before) = before.get(name) else { continue };
                let same = NodeDriver { update_time: before.update_time, ..driver.clone() };
                if same == *before {
                    *driver = same;
                }
            }
        });
    }

    /// What local manifests take of the machine, beside what the config reserves: room, and ports of the host.
    pub fn set_reserved(&self, room: Room, ports: BTreeSet<u16>) {
        self.change(|parts| {
            parts.reserved = room;
            parts.reserved_ports = ports;
        });
    }

    /// The node's meta: what the config says, and what was changed.
    pub fn meta(&self) -> NodeMeta {
        self.parts().meta.clone()
    }

    /// Changes the node's meta, on disk before anybody hears of it.
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
        // Before the first look, so that nothing goes unheard.
        let mut changes = InterfaceChanges::open().inspect_err(untold).ok();
        loop {
            let looked = Instant::now();
            let is_seen = match off_thread(herdlet_fingerprint::interfaces).await {
                Ok(Ok(interfaces)) => {
                    let networks = self.shared.fixed.networks(&interfaces);
                    self.change(|parts| parts.networks = networks);
                    true
                }
                // What was known stays.
                Ok(Err(error)) => missed(&error),
                Err(error) => missed(&error),
            };
            match changes.as_ref().filter(|_| is_seen) {
                Some(kernel) => {
                    if let Err(error) = kernel.next().await {
                        untold(&error);
                        changes = None;
                    }
                    sleep_until((Instant::now() + NETWORK_SETTLES).max(looked + NETWORK_PAUSE)).await;
                }
                None => sleep(NETWORK_PERIOD).await,
            }
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

    async fn follow_consul(&self, consul: Option<&ConsulReader>, period: Duration) {
        let Some(consul) = consul.filter(|_| self.shared.fixed.runs("consul")) else {
            self.shared.asked.send_replace(true);
            return;
        };
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut misses = 0;
        loop {
            ticks.tick().await;
            match timeout(CONSUL_MAX, consul::ask(consul)).await.ok().flatten() {
                Some(known) => {
                    misses = 0;
                    self.change(|parts| parts.consul = known);
                }
                None if misses + 1 < CONSUL_MISSES => misses += 1,
                None => self.change(|parts| parts.consul = consul::Known::default()),
            }
            self.shared.asked.send_replace(true);
        }
    }

    /// Changes something, and tells where that changes the node.
    fn change(&self, change: impl FnOnce(&mut Parts)) {
        let mut parts = self.parts();
        change(&mut parts);
        let node = self.shared.fixed.node(&parts);
        self.shared.node.send_if_modified(|told| {
            let is_news = **told != node;
            if is_news {
                *told = Arc::new(node);
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
    tracing::info!(%error, "the kernel does not tell of changes to networks; they are looked at every {every} s");
}

fn missed(error: &dyn std::fmt::Display) -> bool {
    tracing::debug!(%error, "failed to list network interfaces");
    false
}

/// The drivers that may be offered, in Nomad's form. One that has said nothing of itself is left out until it does.
pub fn described(cluster: &Cluster, entries: &Entries) -> BTreeMap<String, NodeDriver> {
    let offered = entries.iter().filter(|(_, entry)| node::offers(cluster, &entry.info));
    offered.filter_map(|(name, entry)| Some((name.to_owned(), node_driver(entry)?))).collect()
}

fn node_driver(entry: &Entry) -> Option<NodeDriver> {
    let Fingerprint { health, description, .. } = entry.fingerprint.clone()?;
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
