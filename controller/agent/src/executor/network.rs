//! Networks of allocations.

use herdlet_api_types::alloc::Allocation;
use herdlet_plan::action::Outcome;

use super::{PlaceVerb, fatal};

/// The network of an allocation. This agent sets up none, so none can exist.
pub fn network(alloc: &Allocation, verb: PlaceVerb) -> Outcome {
    match verb {
        PlaceVerb::Up => {
            let network = alloc.group().and_then(|group| group.network.as_ref());
            let mode = network.map(|network| network.mode.to_string()).unwrap_or_default();
            fatal(format!("this agent has no networks of mode {mode:?}"))
        }
        PlaceVerb::Down => Outcome::Done(None),
        PlaceVerb::Inspect => Outcome::Absent,
    }
}
