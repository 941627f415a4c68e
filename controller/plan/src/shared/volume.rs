//! Host volumes: made once, shared by the allocations that claim them.

use std_alloc::string::String;

use herdlet_api_types::volume::{Volume, VolumeStatus};
use serde::{Deserialize, Serialize};

use crate::{
    action::{FailureClass, Outcome, Verb},
    backoff::retry_delay,
    state::{Doing, PartState, Tracked},
    time::Now,
};

/// What is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// Its specification.
    pub spec: Volume,
    /// Where it comes from.
    pub origin: Origin,
    /// What is to become of it.
    pub fate: Fate,
    /// Its path once it was made.
    pub path: Option<String>,
}

/// What is to become of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It should exist.
    Wanted,
    /// It is forgotten; its data stays.
    Dropped,
    /// It is removed with its data, then forgotten.
    Purged,
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
    let (doing, verb) = match state.fate {
        Fate::Wanted => (Doing::Up, Verb::Up),
        Fate::Dropped if part.is_busy() => return Step::Rest,
        Fate::Dropped => return Step::Forget,
        Fate::Purged => (Doing::Down, Verb::Down),
    };
    match part {
        PartState::Absent if doing == Doing::Down => Step::Forget,
        PartState::Up if doing == Doing::Up => Step::Rest,
        PartState::Busy { .. } => Step::Rest,
        PartState::Failed { doing: failed, retry_at_ns, .. }
            if *failed == doing && *retry_at_ns > now.boot_ns =>
        {
            Step::WaitUntil(*retry_at_ns)
        }
        PartState::Unknown
        | PartState::Suspect(_)
        | PartState::Absent
        | PartState::Up
        | PartState::Failed { .. } => Step::Issue(doing, verb),
    }
}

/// Takes in the end of an operation on the volume, which did `doing`.
pub fn outcome(
    now: Now,
    state: &mut Tracked<VolumeState>,
    part: &mut PartState,
    failures: &mut u32,
    (doing, outcome): (Doing, Outcome),
) {
    match outcome {
        Outcome::Volume { path } => {
            if state.path.as_ref() != Some(&path) {
                state.path = Some(path);
            }
            *failures = 0;
            part.learn(PartState::Up);
        }
        Outcome::Done | Outcome::Present => {
            *failures = 0;
            part.learn(match doing {
                Doing::Down => PartState::Absent,
                Doing::Up | Doing::Renew | Doing::Look(_) => PartState::Up,
            });
        }
        Outcome::Failed {
            class: FailureClass::Retry | FailureClass::Fatal | FailureClass::Recoverable,
            why,
        } => {
            *failures += 1;
            let delay = retry_delay(*failures, state.spec.name.as_str());
            let retry_at_ns = now.boot_ns.saturating_add(delay.as_nanos().unsigned_abs());
            part.learn(PartState::Failed { doing, attempt: *failures, retry_at_ns, why });
        }
        Outcome::Absent
        | Outcome::Foreign { .. }
        | Outcome::Lost { .. }
        | Outcome::Recovered(_)
        | Outcome::Issued { .. }
        | Outcome::Overdue => {}
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
