//! All Consul agents that have services, by their names in the agent's config.
//!
//! In: the settings of each, and the place of a service: a Consul, a namespace and a partition. Out: the [`Consul`] of that place. One is
//! made when the first service needs it. This module sends no requests.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use herdlet_api_types::{AllocId, InstanceId, UnixNanos, job::ConsulAccess, service::Registration};
use tokio::sync::watch;

use super::{Consul, ConsulConfig, ConsulError, ServiceCounts};
use crate::catalog::{CatalogFailure, ServiceOwner};

/// A Consul, and the registrations that are wanted there.
pub(in crate::catalog) type WantedAt = (Arc<Consul>, Vec<Registration>);

/// The Consuls of this agent. Namespaces of a Consul share its connections.
#[derive(Debug)]
pub struct ConsulClusters {
    configs: BTreeMap<String, ConsulConfig>,
    places: Mutex<BTreeMap<ConsulAccess, Arc<Consul>>>,
    /// The number of places.
    count: watch::Sender<usize>,
}

impl ConsulClusters {
    /// The Consuls with these settings, by name. Sends no request yet.
    ///
    /// # Errors
    ///
    /// If an HTTP client can't be created.
    pub fn new(configs: &BTreeMap<String, ConsulConfig>, instance: &InstanceId) -> Result<Self, ConsulError> {
        let place = |(name, config): (&String, &ConsulConfig)| {
            Ok((
                ConsulAccess::of_cluster(name),
                Arc::new(Consul::of_cluster(name, config, instance.clone())?),
            ))
        };
        let places = configs.iter().map(place).collect::<Result<BTreeMap<_, _>, ConsulError>>()?;
        let count = watch::Sender::new(places.len());
        Ok(Self { configs: configs.clone(), places: Mutex::new(places), count })
    }

    /// One Consul that does not exist.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn absent() -> Self {
        Self::with_default(Arc::new(Consul::absent()))
    }

    /// Only this one, as the Consul `default`.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn with_default(consul: Arc<Consul>) -> Self {
        let places = [(ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER), consul)].into();
        Self { configs: BTreeMap::new(), places: Mutex::new(places), count: watch::Sender::new(1) }
    }

    /// The names of all.
    pub fn names(&self) -> BTreeSet<String> {
        self.places().keys().map(|place| place.cluster.clone()).collect()
    }

    /// The Consul of a registration or service; `None` if the config has none of this name.
    pub fn find(&self, place: Option<&ConsulAccess>) -> Option<Arc<Consul>> {
        self.at(&self.place_of(place))
    }

    fn at(&self, place: &ConsulAccess) -> Option<Arc<Consul>> {
        let mut places = self.places();
        if let Some(known) = places.get(place) {
            return Some(Arc::clone(known));
        }
        let (agent, config) =
            (places.get(&ConsulAccess::of_cluster(&place.cluster))?, self.configs.get(&place.cluster)?);
        let consul = Arc::new(agent.at(place.clone(), config));
        places.insert(place.clone(), Arc::clone(&consul));
        self.count.send_replace(places.len());
        Some(consul)
    }

    /// The place of a registration or service: it names a namespace only if that is not the one of the config.
    pub fn place_of(&self, access: Option<&ConsulAccess>) -> ConsulAccess {
        let named = self.named(access);
        let of_config = self.namespace_of(&named.cluster);
        ConsulAccess { namespace: named.namespace.filter(|name| name != of_config), ..named }
    }

    /// What a job names. The namespace `default` is left out for a Consul whose config has no namespace: one that is not Enterprise refuses
    /// requests with a namespace, also with this one.
    pub fn named(&self, access: Option<&ConsulAccess>) -> ConsulAccess {
        let default = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
        let ConsulAccess { cluster, namespace, partition } = access.unwrap_or(&default).clone();
        let has_namespace = !self.namespace_of(&cluster).is_empty();
        let is_named = |name: &String| !name.is_empty() && (name != "default" || has_namespace);
        let is_partition = |name: &String| !name.is_empty() && name != "default";
        ConsulAccess {
            cluster,
            namespace: namespace.filter(is_named),
            partition: partition.filter(is_partition),
        }
    }

    fn namespace_of(&self, cluster: &str) -> &str {
        self.configs.get(cluster).map(ConsulConfig::namespace).unwrap_or_default()
    }

    /// Each place with its Consul.
    fn all_places(&self) -> Vec<(ConsulAccess, Arc<Consul>)> {
        self.places().iter().map(|(place, consul)| (place.clone(), Arc::clone(consul))).collect()
    }

    /// Does `work` for each place at once, also for those that follow, until this is dropped.
    pub async fn for_each<F: Future<Output = ()>>(&self, work: impl Fn(Place) -> F) {
        let mut count = self.count.subscribe();
        let (mut begun, mut running) = (BTreeSet::new(), FuturesUnordered::new());
        loop {
            count.borrow_and_update();
            for (access, consul) in self.all_places() {
                if begun.insert(access.clone()) {
                    running.push(work(Place { access, consul }));
                }
            }
            tokio::select! {
                // `self` holds the sender.
                _ = count.changed() => {}
                Some(()) = running.next() => {}
            }
        }
    }

    /// The wanted registrations by place, also for places that hold services of `owner` and should hold none; and failures for those
    /// whose Consul is not in the config.
    pub(in crate::catalog) fn by_place(
        &self,
        owner: &ServiceOwner,
        wanted: &[Registration],
    ) -> (Vec<WantedAt>, Vec<CatalogFailure>) {
        let mut failures = Vec::new();
        let mut by_place: BTreeMap<ConsulAccess, WantedAt> = BTreeMap::new();
        for one in wanted {
            let place = self.place_of(one.consul.as_ref());
            match self.at(&place) {
                Some(consul) => by_place.entry(place).or_insert((consul, Vec::new())).1.push(one.clone()),
                None => failures.push(super::retry(format!(
                    "use service {}: the agent's config has no Consul `{}`, only {}",
                    one.name,
                    place.cluster,
                    self.names().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
                ))),
            }
        }
        for (place, consul) in self.all_places() {
            match by_place.entry(place) {
                Entry::Vacant(entry) if consul.holds(owner) => {
                    entry.insert((consul, Vec::new()));
                }
                Entry::Vacant(_) => consul.stop_waiting_for(owner),
                Entry::Occupied(_) => {}
            }
        }
        (by_place.into_values().collect(), failures)
    }

    /// The warnings about Consuls that should hold services and do not answer. `is_known` returns whether an allocation exists.
    pub fn troubles(&self, wall: UnixNanos, is_known: impl Fn(&AllocId) -> bool) -> BTreeSet<String> {
        self.all_places().iter().filter_map(|(_, consul)| consul.trouble(wall, &is_known)).collect()
    }

    /// The number of services in each state, by the name of the Consul; `is_known` returns whether an allocation exists.
    pub fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> BTreeMap<String, ServiceCounts> {
        let mut all = BTreeMap::<String, ServiceCounts>::new();
        for (place, consul) in self.all_places() {
            let ServiceCounts { registered, pending, leaving } = consul.counts(&is_known);
            let sum = all.entry(place.cluster).or_default();
            sum.registered += registered;
            sum.pending += pending;
            sum.leaving += leaving;
        }
        all
    }

    /// The number of failed requests so far: the name of the Consul, the kind, and the number.
    pub fn failures(&self) -> Vec<(String, &'static str, u64)> {
        let whole = self
            .all_places()
            .into_iter()
            .filter(|(place, _)| *place == ConsulAccess::of_cluster(&place.cluster));
        whole
            .flat_map(|(place, consul)| {
                consul
                    .failures()
                    .map(|(kind, count)| (place.cluster.clone(), kind, count))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    fn places(&self) -> MutexGuard<'_, BTreeMap<ConsulAccess, Arc<Consul>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Consul, or a namespace of one, with what a job names to use it.
#[derive(Debug, Clone)]
pub struct Place {
    pub access: ConsulAccess,
    pub consul: Arc<Consul>,
}

impl Place {
    /// Whether it is for the namespace of the config, or else of the token, and not for one that jobs name.
    pub fn is_of_config(&self) -> bool {
        self.consul.is_whole()
    }
}
