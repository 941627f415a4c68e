//! Users and groups that the operator trusts besides root and the agent's own user.
//!
//! In: the variables [`TRUSTED_USERS`] and [`TRUSTED_GROUPS`]: names or numbers, comma-separated. Out: their numbers,
//! and the names that this machine does not know, for warnings.

use super::accounts::Accounts;

/// Further trusted users, comma-separated; each of them can become the agent's user. For machines where a package gives
/// a service's directories to a separate user, as Nomad's packages do.
pub const TRUSTED_USERS: &str = "HERDLET_TRUSTED_USERS";

/// Groups whose members may write to files that the agent obeys, comma-separated; each member can become the agent's
/// user. For volumes that belong to a group, as with `fsGroup` in Kubernetes, where an agent without root can't change
/// anything.
pub const TRUSTED_GROUPS: &str = "HERDLET_TRUSTED_GROUPS";

/// The values of both variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trusted {
    pub(super) users: Vec<u32>,
    pub(super) groups: Vec<u32>,
    /// The variable, and a name in it that no user or group has.
    pub(super) unknown: Vec<(&'static str, String)>,
}

impl Trusted {
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>, accounts: &Accounts) -> Self {
        let mut trusted = Self::default();
        let mut numbers = |name: &'static str, known: &dyn Fn(&str) -> Option<u32>| {
            let value = variable(name).unwrap_or_default();
            let entries = value.split(',').map(str::trim).filter(|entry| !entry.is_empty());
            let mut numbers = Vec::new();
            for entry in entries {
                match known(entry).or_else(|| entry.parse().ok()) {
                    Some(number) => numbers.push(number),
                    None => trusted.unknown.push((name, entry.to_owned())),
                }
            }
            numbers
        };
        let users = numbers(TRUSTED_USERS, &|name| accounts.uid(name));
        let groups = numbers(TRUSTED_GROUPS, &|name| accounts.gid(name));
        Self { users, groups, ..trusted }
    }
}
