//! Registrations and checks (interim).
use crate::executor::{Context, Workload};
use herdlet_api_types::alloc::Allocation;
use herdlet_plan::action::{Outcome, Verb};
use std::sync::Arc;
/// Interim.
pub struct Services;
/// Interim.
pub async fn group_services(_: &Arc<Context>, _: &Arc<Allocation>, _: &Verb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn group_checks(_: &Arc<Context>, _: &Arc<Allocation>, _: &Verb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn task_services(_: &Arc<Context>, _: &Workload, _: &Verb) -> Outcome {
    Outcome::Done
}
/// Interim.
pub async fn task_checks(_: &Arc<Context>, _: &Workload, _: &Verb) -> Outcome {
    Outcome::Done
}
