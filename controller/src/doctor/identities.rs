//! Whether the keys of identities in the state directory can be used.
//!
//! In: the state directory. Out: a finding if there are keys. Nothing is changed.

use herdlet_storage::identity::{IdentityError, examine};

use super::{Finding, StateDir};

const CHECK: &str = "identities";

pub(super) fn identities(state_dir: StateDir<'_>) -> Option<Finding> {
    let (StateDir::Planned(state) | StateDir::InUse(state)) = state_dir;
    let keys = state.join("keys");
    match examine(&keys) {
        Ok(0) => None,
        Ok(count) => Some(Finding::ok(CHECK, format!("{count} signing keys in {}", keys.display()))),
        Err(error @ IdentityError::Damaged { .. }) => Some(Finding::failure(
            CHECK,
            format!("failed to {error}"),
            "tasks with identities wait; tasks that run continue",
        )),
        Err(error) => {
            Some(Finding::warning(CHECK, format!("failed to {error}"), "run doctor as the agent's user"))
        }
    }
}
