//! What a variable may be called and contain: Nomad's limits.
//!
//! In: untrusted names and values. Out: nothing, or why they are not accepted; never a value. Facts:
//! <https://developer.hashicorp.com/nomad/commands/var/put>, "Restrictions", and
//! <https://developer.hashicorp.com/nomad/api-docs/variables/locks>.

use std::time::Duration;

use herdlet_api_types::variable::{VariableItems, VariableKey, VariableLock};

/// The longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 128;
/// The largest sum of all names and values of a variable, in bytes.
pub const ITEM_BYTES_MAX: usize = 64 * 1024;
/// The most variables. Their metadata is in memory, below 1 KiB each.
pub const VARIABLES_MAX: usize = 10_000;
/// The longest namespace, as for jobs.
const NAMESPACE_BYTES_MAX: usize = 128;

const TTL_DEFAULT: Duration = Duration::from_secs(15);
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The directory of Nomad's own paths.
const RESERVED: &str = "nomad";

/// Checks the namespace and the path of a variable that is written.
///
/// # Errors
/// Why they are not accepted.
pub fn check_key(key: &VariableKey) -> Result<(), String> {
    let VariableKey { namespace, path } = key;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if namespace == "*" {
        return Err("a variable is in one namespace: name it instead of \"*\"".to_owned());
    }
    if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX || !namespace.bytes().all(is_plain) {
        return Err(format!(
            "the namespace {namespace:?} is not valid: it must be 1 to {NAMESPACE_BYTES_MAX} letters, digits and \"-\""
        ));
    }
    let is_of_path = |byte: u8| is_plain(byte) || [b'_', b'~', b'/'].contains(&byte);
    if path.is_empty() || path.len() > PATH_BYTES_MAX || !path.bytes().all(is_of_path) {
        return Err(format!(
            "the path {path:?} is not valid: it must be 1 to {PATH_BYTES_MAX} letters, digits, \"-\", \"_\", \"~\" and \"/\""
        ));
    }
    let mut parts = path.split('/');
    if parts.next() != Some(RESERVED) {
        return Ok(());
    }
    match (parts.next(), parts.next(), parts.next()) {
        (Some("jobs"), ..) => Ok(()),
        (Some("job-templates"), Some(name), None) if !name.is_empty() => Ok(()),
        (..) => Err(format!(
            "the path {path:?} is reserved: below \"nomad\" only \"nomad/jobs\", paths below it, and \"nomad/job-templates/NAME\" are valid"
        )),
    }
}

/// Whether a variable without items is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Empty {
    Refused,
    /// A lock needs no items.
    Accepted,
}

/// Checks the items of a variable.
///
/// # Errors
/// Why they are not accepted.
pub fn check_items(items: &VariableItems, empty: Empty) -> Result<(), String> {
    if items.0.is_empty() && empty == Empty::Refused {
        return Err("a variable needs at least one item; to remove it, purge it".to_owned());
    }
    if items.0.keys().any(String::is_empty) {
        return Err("an item has no name".to_owned());
    }
    let size: usize = items.0.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > ITEM_BYTES_MAX {
        return Err(format!(
            "the items have {size} bytes, names included; a variable holds {ITEM_BYTES_MAX} at most"
        ));
    }
    Ok(())
}

/// The times of a lock, with defaults.
///
/// # Errors
/// Why they are not accepted.
pub fn lock_times(requested: &VariableLock) -> Result<(Duration, Duration), String> {
    let span = |name: &str, nanos: i64| match u64::try_from(nanos) {
        Ok(0) => Ok(TTL_DEFAULT),
        Ok(nanos) => Ok(Duration::from_nanos(nanos)),
        Err(_) => Err(format!("the {name} of a lock must not be negative")),
    };
    let (ttl, delay) = (span("TTL", requested.ttl_ns)?, span("LockDelay", requested.delay_ns)?);
    if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
        return Err("the TTL of a lock must be 10 seconds to 24 hours".to_owned());
    }
    if delay > TTL_MAX {
        return Err("the LockDelay of a lock must be 24 hours at most".to_owned());
    }
    Ok((ttl, delay))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(namespace: &str, path: &str) -> VariableKey {
        VariableKey { namespace: namespace.to_owned(), path: path.to_owned() }
    }

    #[test]
    fn paths_are_those_of_nomad() {
        let longest = "a".repeat(PATH_BYTES_MAX);
        for path in [
            "a",
            "a/b",
            "a~_-/",
            &longest,
            "nomads",
            "nomad/jobs",
            "nomad/jobs/a/b/c/d",
            "nomad/job-templates/x",
        ] {
            assert_eq!(check_key(&key("default", path)), Ok(()), "{path}");
        }
        let longer = "a".repeat(PATH_BYTES_MAX + 1);
        for path in [
            "",
            &longer,
            "a.b",
            "a b",
            "a@b",
            "ä",
            "a\nb",
            "nomad",
            "nomad/",
            "nomad/x",
            "nomad/job-templates",
            "nomad/job-templates/",
            "nomad/job-templates/a/b",
            "nomad/jobsite",
        ] {
            assert!(check_key(&key("default", path)).is_err(), "{path:?}");
        }
        for namespace in ["", "*", "a/b", "a_b", &longer] {
            assert!(check_key(&key(namespace, "a")).is_err(), "{namespace:?}");
        }
    }

    #[test]
    fn size_counts_names_and_values() {
        let items = |name: usize, value: usize| {
            VariableItems([("n".repeat(name), "v".repeat(value))].into_iter().collect())
        };
        assert!(check_items(&items(1, ITEM_BYTES_MAX - 1), Empty::Refused).is_ok());
        let refused = check_items(&items(2, ITEM_BYTES_MAX - 1), Empty::Refused).unwrap_err();
        assert!(!refused.contains("vv"), "{refused}");
        assert!(check_items(&items(0, 1), Empty::Refused).is_err());
        assert!(check_items(&VariableItems::default(), Empty::Refused).is_err());
        assert!(check_items(&VariableItems::default(), Empty::Accepted).is_ok());
    }

    #[test]
    fn times_of_locks_have_defaults_and_bounds() {
        let times = |ttl_ns, delay_ns| lock_times(&VariableLock { id: String::new(), ttl_ns, delay_ns });
        let second = 1_000_000_000;
        assert_eq!(times(0, 0), Ok((TTL_DEFAULT, TTL_DEFAULT)));
        assert_eq!(times(10 * second, second), Ok((TTL_MIN, Duration::from_secs(1))));
        for (ttl, delay) in
            [(9 * second, 0), (-1, 0), (0, -1), (86_401 * second, 0), (0, 86_401 * second), (i64::MIN, 0)]
        {
            assert!(times(ttl, delay).is_err(), "{ttl} {delay}");
        }
    }
}
