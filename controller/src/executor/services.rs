//! Registrations and checks (interim).
use crate::executor::{Context, PlaceVerb, Workload};
use herdlet_api_types::alloc::Allocation;
use herdlet_plan::action::Outcome;
use std::sync::Arc;
/// Interim.
pub struct Services;
/// Interim.
pub async fn group_services(_: &Arc<Context>, _: &Arc<Allocation>, _: PlaceVerb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn group_checks(_: &Arc<Context>, _: &Arc<Allocation>, _: PlaceVerb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn task_services(_: &Arc<Context>, _: &Workload, _: PlaceVerb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn task_checks(_: &Arc<Context>, _: &Workload, _: PlaceVerb) -> Outcome {
    Outcome::Done
}
