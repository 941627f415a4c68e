//! Whether the users in `task_dir_users` get the access that the config gives them.
//!
//! In: the config. Out: a finding for each name that has no effect; none if the config names no users.

use herdlet_base::user::guests;
use herdlet_config::Config;

use super::Finding;

const CHECK: &str = "task_dir_users";

pub(super) fn task_dir_users(config: &Config) -> Vec<Finding> {
    let names = &config.task_dir_users;
    if names.is_empty() {
        return Vec::new();
    }
    let found: Vec<Finding> = guests::without_effect(names)
        .into_iter()
        .map(|message| Finding::warning(CHECK, message, guests::HINT))
        .collect();
    if found.is_empty() {
        let message = format!("{} may enter the directories of every allocation", names.join(", "));
        return vec![Finding::ok(CHECK, message)];
    }
    found
}
