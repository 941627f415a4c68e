//! Removal of services in Consul that no allocation wants: a crash may have left them.
//!
//! In: the published allocations. Out: requests to each Consul that is used or configured, now and whenever it reports leftovers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use herdlet_api_types::job::{Provider, Service, Task};
use herdlet_services::catalog::Place;

use super::{Attempted, Resolved, of_attempt, of_group};
use crate::{
    executor::{Context, Workload},
    publish::ReadModel,
};

/// Removes registrations of this instance from each Consul that no live allocation wants, now and whenever leftovers are found. Call
/// it once the desired state is complete. If Consul is not configured and no job uses it, sends no request.
pub async fn sweep_consuls(context: Arc<Context>, model: Arc<ReadModel>) {
    context.services.catalogs.consuls.for_each(|place| sweep_consul(&context, &model, place)).await;
}

async fn sweep_consul(context: &Arc<Context>, model: &ReadModel, place: Place) {
    loop {
        let (keep, used) = desired_in_consul(context, model, &place).await;
        // A crash may have left entries of a removed job. But don't contact a Consul on a machine that does not use one.
        if used || place.consul.is_named() {
            sweep_until_done(context, model, &place, keep).await;
        }
        place.consul.until_leftovers().await;
        // Registrations in transit are gone by then, or wanted.
        tokio::time::sleep(LEFTOVERS_PAUSE).await;
    }
}

/// Retries with growing delays until no unwanted registration is left.
async fn sweep_until_done(
    context: &Arc<Context>,
    model: &ReadModel,
    place: &Place,
    mut keep: BTreeSet<String>,
) {
    let mut logged = None;
    let delays = ExponentialBuilder::new().with_min_delay(SWEEP_AGAIN_MIN).with_max_delay(SWEEP_AGAIN_MAX);
    for delay in delays.with_jitter().without_max_times().build() {
        match place.consul.sweep(&keep).await {
            Ok(0) => return,
            Ok(count) => {
                tracing::info!(count, "removed leftover services from Consul");
                return;
            }
            Err(error) => {
                let why = error.to_string();
                // Log the same error only once.
                if logged.as_ref() != Some(&why) {
                    tracing::warn!(error = why, "failed to remove leftover services from Consul; retrying");
                    logged = Some(why);
                }
            }
        }
        tokio::time::sleep(delay).await;
        (keep, _) = desired_in_consul(context, model, place).await;
    }
}

/// How long to wait after leftovers were found before they are inspected again and removed.
const LEFTOVERS_PAUSE: Duration = Duration::from_secs(1);

/// The delay after the first failed removal. It doubles up to [`SWEEP_AGAIN_MAX`]; jitter at most doubles it.
const SWEEP_AGAIN_MIN: Duration = Duration::from_millis(500);
const SWEEP_AGAIN_MAX: Duration = Duration::from_secs(15);

/// Ids of services that live allocations may want in a Consul, and whether any allocation uses it.
async fn desired_in_consul(
    context: &Arc<Context>,
    model: &ReadModel,
    place: &Place,
) -> (BTreeSet<String>, bool) {
    let consuls = &context.services.catalogs.consuls;
    let is_here = |service: &Service| {
        let found = || consuls.find(service.consul.as_ref());
        service.provider == Provider::Consul
            && found().is_some_and(|found| Arc::ptr_eq(&found, &place.consul))
    };
    let mut keep = BTreeSet::new();
    let mut used = false;
    for view in model.allocs() {
        let Some(group) = view.spec.group() else { continue };
        used |= group.all_services().any(|(_, service)| is_here(service));
        if view.status.is_terminal() {
            continue;
        }
        let mut keep_here = |resolved: &Resolved, task: Option<&Task>| {
            let specs = resolved.specs(&view.spec, task).into_iter();
            keep.extend(specs.filter(|(_, service)| is_here(service)).map(|(id, _)| id));
        };
        keep_here(&of_group(context, &view.spec, None).1, None);
        for task in &group.tasks {
            let Some(workload) = Workload::named(&view.spec, &task.name) else { continue };
            // The launch record and the network are not known here, nor needed: ids don't depend on addresses.
            let resolved = of_attempt(context, &Attempted { task: workload, launch: None }).await;
            if let Some((_, resolved)) = resolved {
                keep_here(&resolved, Some(task));
            }
        }
    }
    (keep, used)
}
