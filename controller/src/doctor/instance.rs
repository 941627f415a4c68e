//! Whether the instance of a state directory, or its tasks, run elsewhere: an agent would refuse the directory. And
//! whether tasks run whose own state directory is gone.
//!
//! In: the config. Out: a finding if an agent would refuse or warn; none otherwise. Nothing is claimed.

use std::path::Path;

use herdlet_agent::state_db::{ClaimError, StateDir as Claimed};
use herdlet_base::error::in_full;
use herdlet_config::Config;

use super::{Finding, StateDir};

pub(super) fn instance(config: &Config, state_dir: StateDir<'_>) -> Option<Finding> {
    let state = match state_dir {
        StateDir::Planned(state) => state,
        // The running agent has claimed it.
        StateDir::InUse(_) => return None,
    };
    let error = match abandoned(config, state) {
        Ok(Some(beside)) => return Some(beside),
        Ok(None) => elsewhere(config, state).err()?,
        Err(error) => error,
    };
    Some(Finding::failure(
        "instance",
        format!("failed to {}", in_full(&error)),
        "an agent would not start with this",
    ))
}

fn abandoned(config: &Config, state: &Path) -> Result<Option<Finding>, ClaimError> {
    let Some(runtimes) = &config.runtime_parent else { return Ok(None) };
    let found = Claimed::inspect_abandoned(state, runtimes)?;
    Ok(found.first().map(|beside| {
        Finding::warning(
            "instance",
            format!("tasks run without an agent: {beside}"),
            "an agent would start, beside these tasks",
        )
    }))
}

fn elsewhere(config: &Config, state: &Path) -> Result<(), ClaimError> {
    let Some(instance) = Claimed::instance_in(state) else { return Ok(()) };
    let runtime = config.paths(&instance).runtime;
    Claimed::inspect_instance(state).and_then(|()| Claimed::inspect_location(state, &runtime))
}
