//! All Consul agents that have services, by their names in the agent's config.
//!
//! In: the settings of each, and the place of a service: a Consul, a namespace and a partition. Out: the [`Consul`] of that place. One is
//! made when the first service needs it. This module sends no requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use herdlet_api_types::{AllocId, InstanceId, UnixNanos, job::ConsulAccess, service::Registration};
use tokio::sync::watch;

use super::{Consul, ConsulConfig, ConsulError, ServiceCounts};
use crate::catalog::{CatalogFailure, ServiceOwner};

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
            Ok((ConsulAccess::of_cluster(name), Arc::new(Consul::new(config, instance.clone())?)))
        };
        let places = configs.iter().map(place).collect::<Result<BTreeMap<_, _>, ConsulError>>()?;
        let clusters =
            Self { configs: configs.clone(), places: Mutex::default(), count: watch::Sender::new(0) };
        *clusters.places() = places;
        // A namespace of the config is that of services that name none.
        for name in configs.keys() {
            clusters.at(&ConsulAccess::of_cluster(name));
        }
        Ok(clusters)
    }

    /// One Consul that does not exist.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn absent() -> Self {
        Self::of(Arc::new(Consul::absent()))
    }

    /// Only this one, as the Consul `default`.
    #[cfg(any(test, fuzzing, feature = "fixture"))]
    pub fn of(consul: Arc<Consul>) -> Self {
        let places = [(ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER), consul)].into();
        Self { configs: BTreeMap::new(), places: Mutex::new(places), count: watch::Sender::new(1) }
    }

    /// The names of all.
    pub fn names(&self) -> BTreeSet<String> {
        self.places().keys().map(|place| place.cluster.clone()).collect()
    }

    /// The Consul of a registration or service; `None` if the config has none of this name.
    pub fn find(&self, place: Option<&ConsulAccess>) -> Option<Arc<Consul>> {
        match place {
            Some(place) => self.at(place),
            None => self.at(&ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER)),
        }
    }

    fn at(&self, place: &ConsulAccess) -> Option<Arc<Consul>> {
        let whole = ConsulAccess::of_cluster(&place.cluster);
        let place = self.narrowed(place);
        let mut places = self.places();
        if let Some(known) = places.get(&place) {
            return Some(Arc::clone(known));
        }
        let (agent, config) = (places.get(&whole)?, self.configs.get(&place.cluster)?);
        let scope = [("ns", &place.namespace), ("partition", &place.partition)];
        let scope = scope.into_iter().filter_map(|(name, value)| Some((name, value.clone()?)));
        let consul = Arc::new(agent.in_scope(config, scope.collect()));
        places.insert(place, Arc::clone(&consul));
        self.count.send_replace(places.len());
        Some(consul)
    }

    /// The place as requests name it: with the namespace of the config where none is named. A Consul that is not Enterprise refuses
    /// requests with a namespace, also with `default`.
    fn narrowed(&self, place: &ConsulAccess) -> ConsulAccess {
        let of_config = self.configs.get(&place.cluster).map(ConsulConfig::namespace).unwrap_or_default();
        let namespace = place.namespace.as_deref().unwrap_or(of_config);
        let is_named = |name: &&str| !name.is_empty() && (*name != "default" || !of_config.is_empty());
        ConsulAccess {
            cluster: place.cluster.clone(),
            namespace: Some(namespace).filter(is_named).map(str::to_owned),
            partition: place.partition.as_deref().filter(|name| *name != "default").map(str::to_owned),
        }
    }

    /// The place that a job names, without the namespace `default` of a Consul that may have no other.
    pub fn named(&self, place: Option<&ConsulAccess>) -> ConsulAccess {
        let default = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
        let place = place.unwrap_or(&default);
        let narrowed = self.narrowed(place);
        ConsulAccess { namespace: narrowed.namespace.filter(|_| place.namespace.is_some()), ..narrowed }
    }

    /// Each place with its Consul.
    fn all(&self) -> Vec<(ConsulAccess, Arc<Consul>)> {
        self.places().iter().map(|(place, consul)| (place.clone(), Arc::clone(consul))).collect()
    }

    /// Does `work` for each place at once, also for those that follow, until this is dropped.
    pub async fn for_each<F: Future<Output = ()>>(&self, work: impl Fn(Place) -> F) {
        let mut count = self.count.subscribe();
        let (mut begun, mut running) = (BTreeSet::new(), FuturesUnordered::new());
        loop {
            count.borrow_and_update();
            for (access, consul) in self.all() {
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
    ) -> (Vec<(Arc<Consul>, Vec<Registration>)>, Vec<CatalogFailure>) {
        let mut failures = Vec::new();
        let mut by_place: BTreeMap<ConsulAccess, (Arc<Consul>, Vec<Registration>)> = BTreeMap::new();
        for one in wanted {
            let default = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
            let place = self.narrowed(one.consul.as_ref().unwrap_or(&default));
            match self.at(&place) {
                Some(consul) => by_place.entry(place).or_insert((consul, Vec::new())).1.push(one.clone()),
                None => failures.push(super::retry(format!(
                    "register service {}: the agent's config has no Consul `{}`, only {}",
                    one.name,
                    place.cluster,
                    self.names().into_iter().collect::<Vec<_>>().join(", ")
                ))),
            }
        }
        for (place, consul) in self.all() {
            if !by_place.contains_key(&place) {
                if consul.holds(owner) {
                    by_place.insert(place, (consul, Vec::new()));
                } else {
                    consul.stop_waiting_for(owner);
                }
            }
        }
        (by_place.into_values().collect(), failures)
    }

    /// Whether one of them may hold services of `owner`.
    pub fn hold(&self, owner: &ServiceOwner) -> bool {
        self.all().iter().any(|(_, consul)| consul.holds(owner))
    }

    /// The warnings that they do not answer, of those that should hold services of ours. `is_known` returns whether an allocation exists.
    pub fn troubles(&self, wall: UnixNanos, is_known: impl Fn(&AllocId) -> bool) -> BTreeSet<String> {
        self.all().iter().filter_map(|(_, consul)| consul.trouble(wall, &is_known)).collect()
    }

    /// The number of services in each state, by the name of the Consul; `is_known` tells which allocations exist.
    pub fn counts(&self, is_known: impl Fn(&AllocId) -> bool) -> BTreeMap<String, ServiceCounts> {
        let mut all = BTreeMap::<String, ServiceCounts>::new();
        for (place, consul) in self.all() {
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
        let whole =
            self.all().into_iter().filter(|(place, _)| *place == ConsulAccess::of_cluster(&place.cluster));
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

/// A namespace of a Consul.
#[derive(Debug, Clone)]
pub struct Place {
    pub access: ConsulAccess,
    pub consul: Arc<Consul>,
}
