//! Whether the instance of a state directory, or its tasks, run elsewhere: an agent would refuse the directory.
//!
//! In: the config. Out: a finding if an agent would refuse; none otherwise. Nothing is claimed.

use herdlet_agent::state_db::StateDir as Claimed;
use herdlet_base::error::in_full;
use herdlet_config::Config;

use super::{Finding, StateDir};

pub(super) fn instance(config: &Config, state_dir: StateDir<'_>) -> Option<Finding> {
    let state = match state_dir {
        StateDir::Planned(state) => state,
        // The running agent has claimed it.
        StateDir::InUse(_) => return None,
    };
    let instance = Claimed::instance_in(state)?;
    let runtime = config.paths(&instance).runtime;
    let judged = Claimed::inspect_instance(state).and_then(|()| Claimed::inspect_location(state, &runtime));
    let error = judged.err()?;
    Some(Finding::failure(
        "instance",
        format!("failed to {}", in_full(&error)),
        "an agent would not start with this",
    ))
}
