//! Host volumes: made once, shared by the allocations that claim them.

use std_alloc::string::String;

use herdlet_api_types::volume::{Volume, VolumeStatus};
use serde::{Deserialize, Serialize};

use crate::{
    action::{FailureClass, Outcome, Verb},
    backoff::retry_delay,
    state::{Doing, PartState},
    time::Now,
};

/// What is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// Its specification.
    pub spec: Volume,
    /// Where it comes from.
    pub origin: Origin,
    /// It is being removed with its data.
    pub purging: bool,
    /// Its path once it was made.
    pub path: Option<String>,
}

/// Where a volume comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The agent's config: read anew at each start, never stored.
    Config,
    /// A manifest.
    Manifest,
}

/// What to do with a volume now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Start this operation.
    Issue(Doing, Verb),
    /// Look again at this `CLOCK_BOOTTIME`.
    WaitUntil(u64),
    /// Nothing of it is left: it is forgotten.
    Forget,
    /// Nothing.
    Rest,
}

/// Plans a volume once.
pub fn plan(now: Now, state: &VolumeState, part: &PartState) -> Step {
    let (doing, verb) = if state.purging { (Doing::Down, Verb::Down) } else { (Doing::Up, Verb::Up) };
    match part {
        PartState::Absent if state.purging => Step::Forget,
        PartState::Up if !state.purging => Step::Rest,
        PartState::Unknown | PartState::Suspect(_) | PartState::Absent | PartState::Up => {
            Step::Issue(doing, verb)
        }
        PartState::Busy { .. } => Step::Rest,
        PartState::Failed { retry_at_ns, .. } if *retry_at_ns > now.boot_ns => Step::WaitUntil(*retry_at_ns),
        PartState::Failed { .. } => Step::Issue(doing, verb),
    }
}

/// Takes in the end of an operation on the volume.
pub fn outcome(
    now: Now,
    state: &mut VolumeState,
    part: &mut PartState,
    failures: &mut u32,
    outcome: Outcome,
) {
    let PartState::Busy { doing, .. } = *part else { return };
    match outcome {
        Outcome::Volume { path } => {
            state.path = Some(path);
            *failures = 0;
            *part = PartState::Up;
        }
        Outcome::Done | Outcome::Present => {
            *failures = 0;
            *part = match doing {
                Doing::Down => PartState::Absent,
                Doing::Up | Doing::Look(_) => PartState::Up,
            };
        }
        Outcome::Failed {
            class: FailureClass::Retry | FailureClass::Fatal | FailureClass::Recoverable,
            why,
        } => {
            *failures += 1;
            let delay = retry_delay(*failures, state.spec.name.as_str());
            let retry_at_ns = now.boot_ns.saturating_add(delay.as_nanos().unsigned_abs());
            *part = PartState::Failed { doing, attempt: *failures, retry_at_ns, why };
        }
        Outcome::Overdue => {}
        Outcome::Absent | Outcome::Foreign { .. } | Outcome::Recovered(_) | Outcome::Issued { .. } => {
            *part = PartState::Unknown;
        }
    }
}

/// The volume's status as shown.
pub fn status(state: &VolumeState, part: &PartState) -> VolumeStatus {
    match (part, &state.path) {
        (PartState::Up, Some(path)) => VolumeStatus::Ready { path: path.clone() },
        (PartState::Failed { why, .. }, _) => VolumeStatus::Failed { why: why.clone() },
        (
            PartState::Unknown
            | PartState::Suspect(_)
            | PartState::Absent
            | PartState::Up
            | PartState::Busy { .. },
            _,
        ) => VolumeStatus::Pending,
    }
}
