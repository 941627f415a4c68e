//! Removal of services in Consul that no allocation wants: a crash may have left them.
//!
//! In: the published allocations. Out: requests to each Consul that is used or configured, now and whenever it reports leftovers.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use herdlet_api_types::job::{ConsulAccess, Provider, Service};
use herdlet_base::observation::Class;
use herdlet_services::catalog::Place;
use tokio::{sync::Mutex, time::Instant};

use super::{Attempted, of_attempt, of_group, tokens::Specs};
use crate::{
    executor::{Context, Workload},
    publish::ReadModel,
};

/// Removes registrations of this instance from each Consul that no live allocation wants, now and whenever leftovers are found. Call
/// it once the desired state is complete. If Consul is not configured and no job uses it, sends no request.
pub async fn sweep_consuls(context: Arc<Context>, model: Arc<ReadModel>) {
    let desired = DesiredInConsul { context: &context, model: &model, last: Mutex::default() };
    context.services.catalogs.consuls.for_each(|place| sweep_consul(&desired, place)).await;
}

async fn sweep_consul(desired: &DesiredInConsul<'_>, place: Place) {
    loop {
        sweep_until_done(desired, &place).await;
        place.consul.until_leftovers().await;
        // Registrations in transit are gone by then, or wanted.
        tokio::time::sleep(LEFTOVERS_PAUSE).await;
    }
}

/// Retries with growing delays until no unwanted registration is left.
async fn sweep_until_done(desired: &DesiredInConsul<'_>, place: &Place) {
    let mut logged = None;
    let delays = ExponentialBuilder::new().with_min_delay(SWEEP_AGAIN_MIN).with_max_delay(SWEEP_AGAIN_MAX);
    let ConsulAccess { cluster, namespace, .. } = &place.access;
    for delay in delays.with_jitter().without_max_times().build() {
        let in_places = desired.get().await;
        let here = in_places.get(&place.access);
        // A crash may have left entries of a removed job. But don't contact a Consul on a machine that does not use one, nor a namespace
        // that no job names any more.
        if here.is_none() && !(place.is_of_config() && place.consul.is_named()) {
            return;
        }
        match place.consul.sweep(here.unwrap_or(&BTreeSet::new())).await {
            Ok(0) => return,
            Ok(count) => {
                tracing::info!(count, cluster, namespace, "removed leftover services from Consul");
                return;
            }
            Err(error) => {
                let why = error.to_string();
                // Log the same error only once.
                if logged.as_ref() != Some(&why) {
                    tracing::warn!(
                        error = why,
                        cluster,
                        namespace,
                        "failed to remove leftover services from Consul"
                    );
                    logged = Some(why);
                }
                // Such as a namespace at a Consul that is not Enterprise.
                if error.class() == Class::Fatal {
                    return;
                }
            }
        }
        tokio::time::sleep(delay).await;
    }
}

/// How long to wait after leftovers were found before they are inspected again and removed.
const LEFTOVERS_PAUSE: Duration = Duration::from_secs(1);

/// The delay after the first failed removal. It doubles up to [`SWEEP_AGAIN_MAX`]; jitter at most doubles it.
const SWEEP_AGAIN_MIN: Duration = Duration::from_millis(500);
const SWEEP_AGAIN_MAX: Duration = Duration::from_secs(15);

/// How long the desired services that were computed for one sweep serve others: each resolves the services of all allocations. Older ones
/// do no harm: services that are registered later have an owner in the catalogue, and sweeps leave those alone.
const DESIRED_VALID: Duration = Duration::from_secs(10);

/// By place, the ids of services that live allocations may want there. Has each place that an allocation uses.
type DesiredIds = BTreeMap<ConsulAccess, BTreeSet<String>>;

/// The services that allocations want in Consuls, computed for all sweeps together.
struct DesiredInConsul<'a> {
    context: &'a Arc<Context>,
    model: &'a ReadModel,
    last: Mutex<Option<(Instant, Arc<DesiredIds>)>>,
}

impl DesiredInConsul<'_> {
    async fn get(&self) -> Arc<DesiredIds> {
        let mut last = self.last.lock().await;
        if let Some((at, known)) = &*last
            && at.elapsed() < DESIRED_VALID
        {
            return Arc::clone(known);
        }
        let computed = Arc::new(self.compute().await);
        *last = Some((Instant::now(), Arc::clone(&computed)));
        computed
    }

    async fn compute(&self) -> DesiredIds {
        let mut desired = DesiredIds::new();
        for view in self.model.allocs() {
            let Some(group) = view.spec.group() else { continue };
            for (_, service) in group.all_services() {
                if let Some(place) = self.place_of(service) {
                    desired.entry(place).or_default();
                }
            }
            if view.status.is_terminal() {
                continue;
            }
            self.add(&mut desired, of_group(self.context, &view.spec, None).1.specs(&view.spec, None));
            for task in &group.tasks {
                let Some(workload) = Workload::named(&view.spec, &task.name) else { continue };
                // The launch record and the network are not known here, nor needed: ids don't depend on addresses.
                let resolved = of_attempt(self.context, &Attempted { task: workload, launch: None }).await;
                if let Some((_, resolved)) = resolved {
                    self.add(&mut desired, resolved.specs(&view.spec, Some(task)));
                }
            }
        }
        // Those that are not known yet are swept too.
        for place in desired.keys() {
            self.context.services.catalogs.consuls.find(Some(place));
        }
        desired
    }

    fn add(&self, desired: &mut DesiredIds, services: Specs<'_>) {
        for (id, service) in services {
            if let Some(place) = self.place_of(service) {
                desired.entry(place).or_default().insert(id);
            }
        }
    }

    fn place_of(&self, service: &Service) -> Option<ConsulAccess> {
        let consuls = &self.context.services.catalogs.consuls;
        (service.provider == Provider::Consul).then(|| consuls.place_of(service.consul.as_ref()))
    }
}
