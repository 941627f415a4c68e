//! Networks of allocations.

use std::sync::Arc;

use herdlet_api_types::{alloc::Allocation, job::NetworkMode};
use herdlet_plan::{action::Outcome, op::Subject};

use super::{Context, PlaceVerb, retry};

/// The network of an allocation.
pub async fn network(context: &Arc<Context>, alloc: &Arc<Allocation>, verb: PlaceVerb) -> Outcome {
    let (networks, alloc) = (Arc::clone(&context.networks), Arc::clone(alloc));
    let published = Arc::clone(&context.published);
    let done = herdlet_runtime::off_thread(move || match verb {
        PlaceVerb::Up => networks.up(&alloc),
        // The address goes to another allocation next.
        PlaceVerb::Down => match published.withdraw(alloc.id) {
            Ok(()) => networks.down(&alloc),
            Err(why) => retry(why),
        },
        PlaceVerb::Inspect => networks.inspect(&alloc),
    });
    match done.await {
        Ok(outcome) => outcome,
        Err(error) => retry(format!("complete the operation: {error}")),
    }
}

/// Whether it belongs to an allocation with a network that CNI plugins set up: they may hang.
pub fn is_of_cni(subject: &Subject) -> bool {
    let Subject::Alloc(alloc, _) = subject else { return false };
    let network = alloc.group().and_then(|group| group.network.as_ref());
    network.is_some_and(|network| matches!(network.mode, NetworkMode::Cni(_)))
}
