//! Whether the variables of the state directory can be decrypted, and whether their keys are private.
//!
//! In: the config. Out: a finding if there are variables, or if the config names keys. Nothing is changed.

use std::{os::unix::fs::MetadataExt as _, path::Path};

use herdlet_config::Config;
use herdlet_variables::{
    key_file::CREDENTIAL,
    store::{Examination, examine},
};

use super::{Finding, StateDir};
use crate::variable_keys;

const CHECK: &str = "variables";

pub(super) fn variables(config: &Config, state_dir: StateDir<'_>) -> Option<Finding> {
    let (StateDir::Planned(state) | StateDir::InUse(state)) = state_dir;
    let source = variable_keys::source(config, state);
    let Examination { variables, unreadable, set_aside, problem } = match examine(state, &source) {
        Ok(examined) => examined,
        Err(error) => {
            return Some(Finding::warning(CHECK, error.to_string(), "run doctor as the agent's user"));
        }
    };
    let is_given = config.variables_key_file.is_some();
    if variables == 0 && unreadable == 0 && set_aside == 0 && !is_given {
        return None;
    }
    if let Some(problem) = problem {
        let message = format!("{variables} variables can't be decrypted: {problem}");
        // This command has no credentials, even if the agent's unit does.
        return Some(if is_given {
            Finding::failure(
                CHECK,
                message,
                "jobs that need variables wait; nothing is lost while their files are kept",
            )
        } else {
            let hint = format!(
                "this is fine if the agent's unit has the credential {CREDENTIAL}; otherwise jobs that need variables wait"
            );
            Finding::warning(CHECK, message, hint)
        });
    }
    if unreadable > 0 {
        let message = format!("{unreadable} files of variables are damaged, or from a newer release");
        let hint = format!("see {}, and restore them from a backup", state.join("variables").display());
        return Some(Finding::warning(CHECK, message, hint));
    }
    if set_aside > 0 {
        let folder = state.join("damaged");
        let message =
            format!("the agent has moved {set_aside} damaged files of variables to {}", folder.display());
        let hint = "write these variables again, or restore them from a backup; then remove the files";
        return Some(Finding::warning(CHECK, message, hint));
    }
    if is_shared(source.path()) {
        let message = format!("a group can read the keys of variables in {}", source.path().display());
        return Some(Finding::warning(CHECK, message, format!("run: chmod 600 {}", source.path().display())));
    }
    Some(Finding::ok(CHECK, format!("{variables} variables, with keys in {}", source.describe())))
}

fn is_shared(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o070 != 0)
}
