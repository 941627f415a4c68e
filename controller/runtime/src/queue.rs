//! The wake queue: when each key is to be reconciled again.
//!
//! In: wakes. Out: the keys that are due. Each key has one entry; the earliest wake wins. It is plain data without a
//! timer: the loop sets one alarm to [`WakeQueue::next_at`], the simulator jumps there.

use std::collections::{BTreeMap, BTreeSet};

/// A request to reconcile a key at some time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wake<K> {
    /// The key to reconcile.
    pub key: K,
    /// When, in nanoseconds of boot time; any value is legal, a past one means at once.
    pub at_boot_ns: u64,
    /// The reason, in a few words, for logs and `explain`.
    pub why: &'static str,
}

/// Wakes by key and by time.
#[derive(Debug, Clone)]
pub struct WakeQueue<K> {
    by_key: BTreeMap<K, (u64, &'static str)>,
    by_time: BTreeSet<(u64, K)>,
}

impl<K: Ord + Clone> Default for WakeQueue<K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_time: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> WakeQueue<K> {
    /// Adds a wake; of two for the same key, the earlier is kept.
    pub fn wake(&mut self, wake: Wake<K>) {
        let Wake { key, at_boot_ns, why } = wake;
        if let Some((earlier, _)) = self.by_key.get(&key) {
            if *earlier <= at_boot_ns {
                return;
            }
            self.by_time.remove(&(*earlier, key.clone()));
        }
        self.by_key.insert(key.clone(), (at_boot_ns, why));
        self.by_time.insert((at_boot_ns, key));
    }

    /// Cancels the wake of `key`, if there is one.
    pub fn cancel(&mut self, key: &K) {
        if let Some((key, (at_boot_ns, _))) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(at_boot_ns, key));
        }
    }

    /// The boot time of the earliest wake.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        self.by_time.first().map(|(at_boot_ns, _)| *at_boot_ns)
    }

    /// Removes and returns the earliest wake that is due at `now_boot_ns`.
    pub fn pop_due(&mut self, now_boot_ns: u64) -> Option<Wake<K>> {
        if self.next_at()? > now_boot_ns {
            return None;
        }
        let (at_boot_ns, key) = self.by_time.pop_first()?;
        let why = self.by_key.remove(&key).map_or("", |(_, why)| why);
        Some(Wake { key, at_boot_ns, why })
    }

    /// When and why `key` will be woken.
    #[must_use]
    pub fn of(&self, key: &K) -> Option<(u64, &'static str)> {
        self.by_key.get(key).copied()
    }

    /// The number of keys with a wake.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether no key has a wake.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake(key: u8, at_boot_ns: u64) -> Wake<u8> {
        Wake { key, at_boot_ns, why: "test" }
    }

    #[test]
    fn queue_keeps_the_earliest_entry_per_key() {
        let mut queue = WakeQueue::default();
        queue.wake(wake(1, 50));
        queue.wake(wake(1, 20));
        queue.wake(wake(1, 90));
        queue.wake(wake(2, 30));
        assert_eq!((queue.len(), queue.next_at()), (2, Some(20)));
        assert_eq!(queue.pop_due(19), None);
        assert_eq!(queue.pop_due(40), Some(wake(1, 20)));
        assert_eq!(queue.pop_due(40), Some(wake(2, 30)));
        assert_eq!(queue.pop_due(40), None);
        assert!(queue.is_empty() && queue.by_time.is_empty());
    }

    #[test]
    fn a_wake_can_be_taken_back_and_any_time_is_legal() {
        let mut queue = WakeQueue::default();
        queue.wake(wake(1, u64::MAX));
        queue.wake(wake(2, 0));
        assert_eq!(queue.of(&1), Some((u64::MAX, "test")));
        queue.cancel(&2);
        queue.cancel(&2);
        assert_eq!(queue.next_at(), Some(u64::MAX));
        assert_eq!(queue.pop_due(u64::MAX - 1), None);
        queue.cancel(&1);
        assert!(queue.is_empty() && queue.by_time.is_empty());
    }
}
