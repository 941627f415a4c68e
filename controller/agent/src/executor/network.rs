//! Networks of allocations.

use std::sync::Arc;

use herdlet_api_types::alloc::Allocation;
use herdlet_plan::action::Outcome;

use super::{Context, PlaceVerb, retry};

/// The network of an allocation.
pub async fn network(context: &Arc<Context>, alloc: &Arc<Allocation>, verb: PlaceVerb) -> Outcome {
    let (networks, alloc) = (Arc::clone(&context.networks), Arc::clone(alloc));
    let done = herdlet_runtime::off_thread(move || match verb {
        PlaceVerb::Up => networks.up(&alloc),
        PlaceVerb::Down => networks.down(&alloc),
        PlaceVerb::Inspect => networks.inspect(&alloc),
    });
    match done.await {
        Ok(outcome) => outcome,
        Err(error) => retry(format!("complete the operation: {error}")),
    }
}
