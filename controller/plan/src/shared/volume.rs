//! Host volumes: created once, shared by the allocations that claim them.

use std_alloc::{borrow::Cow, format, string::String};

use herdlet_api_types::{
    alloc::Allocation,
    job::VolumeRequest,
    volume::{Volume, VolumeStatus},
};
use serde::{Deserialize, Serialize};

use crate::{
    action::{FailureClass, Outcome, Verb},
    backoff::retry_delay,
    state::{Doing, PartState, Tracked},
    time::Now,
};

/// Stored state of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeState {
    /// Its specification.
    pub spec: Volume,
    /// Its source.
    pub origin: Origin,
    /// Its desired state.
    pub fate: VolumeIntent,
    /// Its path, once it was created.
    pub path: Option<String>,
}

/// Desired state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeIntent {
    /// It should exist.
    #[serde(rename = "wanted")]
    Desired,
    /// Remove it from the state, keep its data.
    Dropped,
    /// Remove its data, then the volume from the state.
    Purged,
}

/// Source of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The agent's config: read at each start, never stored.
    Config,
    /// A manifest.
    Manifest,
}

/// What to do with a volume now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Start this operation.
    Issue(Doing, Verb),
    /// Plan again at this `CLOCK_BOOTTIME`.
    WaitUntil(u64),
    /// Nothing of it is left: remove it from the state.
    Forget,
    /// Nothing.
    Rest,
}

/// Plans a volume once.
pub fn plan(now: Now, state: &VolumeState, part: &PartState) -> Step {
    let (doing, verb) = match state.fate {
        VolumeIntent::Desired => (Doing::Up, Verb::Up),
        VolumeIntent::Dropped if part.is_busy() => return Step::Rest,
        VolumeIntent::Dropped => return Step::Forget,
        VolumeIntent::Purged => (Doing::Down, Verb::Down),
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
        | PartState::Pending { .. }
        | PartState::Failed { .. } => Step::Issue(doing, verb),
    }
}

/// Applies the outcome of an operation on the volume, which did `doing`.
pub fn outcome(
    now: Now,
    state: &mut Tracked<VolumeState>,
    part: &mut PartState,
    failures: &mut u32,
    (doing, outcome): (Doing, Outcome),
) {
    match outcome {
        Outcome::Done(facts) | Outcome::Present(facts) => {
            let root = facts.as_ref().and_then(|facts| facts.root.as_ref());
            if root.is_some() && state.path.as_ref() != root {
                state.path = root.cloned();
            }
            *failures = 0;
            part.set(match doing {
                Doing::Down => PartState::Absent,
                Doing::Up | Doing::Renew | Doing::Inspect(_) => PartState::Up,
            });
        }
        Outcome::Failed {
            class:
                FailureClass::Retry | FailureClass::Fatal | FailureClass::NoProgram | FailureClass::Recoverable,
            why,
        } => {
            *failures += 1;
            let delay = retry_delay(*failures, state.spec.name.as_str());
            let retry_at_ns = now.boot_ns.saturating_add(delay.as_nanos().unsigned_abs());
            part.set(PartState::Failed { doing, attempt: *failures, retry_at_ns, why });
        }
        Outcome::Absent
        | Outcome::Foreign { .. }
        | Outcome::Lost { .. }
        | Outcome::Recovered(_)
        | Outcome::Started(_)
        | Outcome::Pending { .. }
        | Outcome::Outdated { .. }
        | Outcome::Checking(_)
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
            | PartState::Pending { .. }
            | PartState::Busy { .. },
            _,
        ) => VolumeStatus::Pending,
    }
}

/// Name of the volume that a request claims: its source, with the allocation's index for `per_alloc`.
pub fn volume_name<'a>(spec: &Allocation, request: &'a VolumeRequest) -> Cow<'a, str> {
    if request.per_alloc {
        Cow::Owned(format!("{}[{}]", request.source, spec.index))
    } else {
        Cow::Borrowed(&request.source)
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::volume::VolumeKind;
    use std_alloc::borrow::ToOwned;

    use super::*;
    use crate::{facts::Facts, fixture::at};

    fn state(fate: VolumeIntent) -> VolumeState {
        let kind = VolumeKind::Mkdir { mode: 0o755, uid: None, gid: None };
        let spec = Volume { name: "data".to_owned(), kind, read_only: false };
        VolumeState { spec, origin: Origin::Manifest, fate, path: None }
    }

    fn busy(doing: Doing) -> PartState {
        let mut part = PartState::Absent;
        part.begin(1, doing, 0);
        part
    }

    #[test]
    fn volume_plan_follows_its_intent() {
        let now = at(100);
        let failed = |doing, second| PartState::Failed {
            doing,
            attempt: 1,
            retry_at_ns: at(second).boot_ns,
            why: String::new(),
        };
        let (up, down) = (Step::Issue(Doing::Up, Verb::Up), Step::Issue(Doing::Down, Verb::Down));
        let later = Step::WaitUntil(at(101).boot_ns);
        for (part, wanted, dropped, purged) in [
            (PartState::Unknown, &up, Step::Forget, &down),
            (PartState::Absent, &up, Step::Forget, &Step::Forget),
            (PartState::Up, &Step::Rest, Step::Forget, &down),
            (busy(Doing::Up), &Step::Rest, Step::Rest, &Step::Rest),
            (busy(Doing::Down), &Step::Rest, Step::Rest, &Step::Rest),
            (failed(Doing::Up, 101), &later, Step::Forget, &down),
            (failed(Doing::Up, 100), &up, Step::Forget, &down),
            (failed(Doing::Down, 101), &up, Step::Forget, &later),
            (failed(Doing::Down, 99), &up, Step::Forget, &down),
        ] {
            let steps = [VolumeIntent::Desired, VolumeIntent::Dropped, VolumeIntent::Purged]
                .map(|fate| plan(now, &state(fate), &part));
            assert_eq!(steps, [wanted.clone(), dropped, purged.clone()], "{part:?}");
        }
    }

    #[test]
    fn failures_are_counted_until_one_try_works() {
        let mut known = Tracked::stored(state(VolumeIntent::Desired));
        let (mut part, mut failures) = (PartState::Unknown, 0);
        let mut end = |outcome| {
            let ended = (Doing::Up, outcome);
            outcome_of(&mut known, &mut part, &mut failures, ended)
        };
        let failed = || Outcome::Failed { class: FailureClass::Fatal, why: "no".to_owned() };
        let ready = || Outcome::Done(Some(Facts::rooted("/data".to_owned())));
        assert_eq!([end(failed()), end(failed()), end(failed())], [Some(1), Some(2), Some(3)]);
        assert_eq!([end(ready()), end(failed())], [None, Some(1)]);
    }

    /// Number of consecutive failures.
    fn outcome_of(
        known: &mut Tracked<VolumeState>,
        part: &mut PartState,
        failures: &mut u32,
        ended: (Doing, Outcome),
    ) -> Option<u32> {
        outcome(at(100), known, part, failures, ended);
        if let PartState::Failed { attempt, .. } = part { Some(*attempt) } else { None }
    }
}
