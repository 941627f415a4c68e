//! Remembers the refused host names that were already logged.
//!
//! In: a name. Out: whether to log it. Each name is logged once. Clients can send any name, so memory and log lines are
//! bounded.

use std::{
    collections::BTreeSet,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Names to remember. Few machines have more names than this; clients can invent any number.
const NAMES_MAX: usize = 64;

/// Log lines for names beyond the limit: one a minute.
const LINES: Quota = Quota::per_minute(NonZeroU32::MIN);

pub(super) struct Reports {
    logged: Mutex<BTreeSet<String>>,
    beyond: DefaultDirectRateLimiter,
}

impl Default for Reports {
    fn default() -> Self {
        Self { logged: Mutex::default(), beyond: RateLimiter::direct(LINES) }
    }
}

impl Reports {
    pub(super) fn is_due(&self, name: &str) -> bool {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.contains(name) {
            return false;
        }
        if logged.len() < NAMES_MAX {
            return logged.insert(name.to_owned());
        }
        self.beyond.check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_names_are_logged_once_and_bounded() {
        let reports = Reports::default();
        assert!(reports.is_due("a.example"));
        assert!(!reports.is_due("a.example"));
        let due = (0..10_000).filter(|n| reports.is_due(&format!("{n}.example"))).count();
        assert_eq!(due, NAMES_MAX - 1 + 1, "one more than the limit in this minute");
        assert_eq!(reports.logged.lock().unwrap().len(), NAMES_MAX);
    }
}
