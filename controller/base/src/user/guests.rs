//! Checks `task_dir_users`, who may enter the directories of every allocation: which names have no effect, and why.
//!
//! In: names as in the config or on the command line. Out: a sentence for each name that gives no access. Blocking,
//! because name services are. Read-only; `controller/storage/src/access.rs` sets the rights.

use super::{UserError, ids};

/// Advice for an unknown name.
pub const HINT: &str = "correct the name in task_dir_users, or create the user, which needs no restart";

/// Why names have no effect, one sentence each.
pub fn without_effect(names: &[String]) -> Vec<String> {
    if !names.is_empty() && !rustix::process::geteuid().is_root() {
        let message =
            "task_dir_users has no effect: only an agent that runs as root opens directories to other users";
        return vec![message.to_owned()];
    }
    names.iter().filter_map(|name| ids(name).err().map(|error| sentence(name, &error))).collect()
}

fn sentence(name: &str, error: &UserError) -> String {
    let consequence =
        "it gets no access, and until it is known, other users keep their access to allocations";
    match error {
        UserError::Unknown { .. } => {
            format!("task_dir_users: there is no user {name:?} on this machine; {consequence}")
        }
        UserError::Lookup { source, .. } => {
            format!("task_dir_users: user {name:?} can't be looked up ({source}); {consequence}")
        }
        UserError::NotRoot { .. } => format!("task_dir_users: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_reported_each() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(without_effect(&[]), Vec::<String>::new());
        let reported = without_effect(&names(&["root", "no-such-user-1", "no-such-user-2"]));
        if rustix::process::geteuid().is_root() {
            let [first, second] = &*reported else { panic!("{reported:?}") };
            assert!(first.contains("no-such-user-1") && second.contains("no-such-user-2"), "{reported:?}");
        } else {
            assert!(reported[0].contains("root"), "{reported:?}");
        }
    }
}
