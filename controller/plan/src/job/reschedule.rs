//! Rescheduling: whether and when a failed allocation is followed by another one in its slot.
//!
//! In: the group's policy, the history of the slot. Out: when the next allocation is due, and the history to store once
//! it is created. All times are deadlines, so restarts of the agent and changes of the clock have no effect.
//!
//! Source of the rules: Nomad's `nomad/structs/structs.go` (`NextRescheduleTime`, `NextDelay`),
//! `scheduler/generic_sched.go` (`updateRescheduleTracker`), `scheduler/reconcile_util.go` (`updateByReschedulable`).

use std_alloc::vec::Vec;

use herdlet_api_types::{
    Duration,
    job::{DelayFunction, ReschedulePolicy},
};
use serde::{Deserialize, Serialize};

use crate::time::{Deadline, Now};

/// A failed allocation of a slot that another one has replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rescheduled {
    /// Delay before the replacement.
    pub delay: Duration,
    /// Until when it counts as an attempt.
    pub counts_until: Deadline,
    /// From then on, delays that have reached the maximum restart with the first one.
    pub calm_at: Deadline,
}

impl Rescheduled {
    /// Binds its deadlines to this boot.
    pub fn rebase(&mut self, now: Now) {
        self.counts_until = self.counts_until.rebased(now);
        self.calm_at = self.calm_at.rebased(now);
    }
}

/// History length where attempts are not counted, as in Nomad.
const UNCOUNTED_MAX: usize = 5;

/// When a replacement of an allocation that fails now is due; `None` if there is none.
pub fn due(now: Now, policy: &ReschedulePolicy, past: &[Rescheduled]) -> Option<Deadline> {
    if !policy.is_enabled() {
        return None;
    }
    let counted = past.iter().filter(|one| !one.counts_until.is_due(now)).count();
    if !policy.unlimited && counted >= usize::try_from(policy.attempts).unwrap_or(usize::MAX) {
        return None;
    }
    Some(Deadline::after(now, delay(now, policy, past)))
}

/// The history after a replacement was created, `delay` after the failure.
pub fn follow(
    now: Now,
    policy: &ReschedulePolicy,
    past: &[Rescheduled],
    delay: Duration,
) -> Vec<Rescheduled> {
    let mut kept: Vec<Rescheduled> = if policy.unlimited {
        past.iter().skip(past.len().saturating_sub(UNCOUNTED_MAX)).cloned().collect()
    } else {
        past.iter().filter(|one| !one.counts_until.is_due(now)).cloned().collect()
    };
    kept.push(Rescheduled {
        delay,
        counts_until: Deadline::after(now, policy.interval),
        calm_at: Deadline::after(now, policy.max_delay),
    });
    kept
}

fn delay(now: Now, policy: &ReschedulePolicy, past: &[Rescheduled]) -> Duration {
    let first = policy.delay;
    let Some(last) = past.last() else { return first };
    let sum = |a: Duration, b: Duration| Duration(a.as_nanos().saturating_add(b.as_nanos()));
    let full = match (policy.delay_function, past) {
        (DelayFunction::Constant, _) => return first,
        (DelayFunction::Exponential, _) => sum(last.delay, last.delay),
        // After the longest delay a new series has begun.
        (DelayFunction::Fibonacci, [.., before, _]) if before.delay > last.delay => first,
        (DelayFunction::Fibonacci, [.., before, _]) => sum(before.delay, last.delay),
        (DelayFunction::Fibonacci, _) => first,
    };
    if full <= policy.max_delay || policy.max_delay.is_zero() {
        full
    } else if last.calm_at.is_due(now) {
        first
    } else {
        policy.max_delay
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::vec;

    use super::*;
    use crate::{fixture::at, time::BootId};

    fn policy(delay_function: DelayFunction) -> ReschedulePolicy {
        ReschedulePolicy {
            attempts: 0,
            interval: Duration::ZERO,
            delay: Duration::from_secs(5),
            delay_function,
            max_delay: Duration::from_secs(60),
            unlimited: true,
        }
    }

    /// The delays of allocations that fail as soon as they are created.
    fn delays(policy: &ReschedulePolicy, count: usize) -> Vec<u64> {
        let (mut second, mut past, mut delays) = (1, Vec::new(), Vec::new());
        for _ in 0..count {
            let Some(due) = due(at(second), policy, &past) else { break };
            let waited = due.length.as_nanos().unsigned_abs() / 1_000_000_000;
            second += waited;
            delays.push(waited);
            past = follow(at(second), policy, &past, due.length);
        }
        delays
    }

    #[test]
    fn delays_grow_as_their_function_says() {
        assert_eq!(delays(&policy(DelayFunction::Constant), 4), [5, 5, 5, 5]);
        assert_eq!(delays(&policy(DelayFunction::Exponential), 6), [5, 10, 20, 40, 60, 60]);
        assert_eq!(delays(&policy(DelayFunction::Fibonacci), 8), [5, 5, 10, 15, 25, 40, 60, 60]);
        let unbounded = ReschedulePolicy { max_delay: Duration::ZERO, ..policy(DelayFunction::Exponential) };
        assert_eq!(delays(&unbounded, 6), [5, 10, 20, 40, 80, 160]);
    }

    #[test]
    fn run_longer_than_max_delay_resets_the_delay() {
        let policy = policy(DelayFunction::Exponential);
        let past = follow(at(100), &policy, &[], Duration::from_secs(60));
        let length = |now| due(now, &policy, &past).map(|due| due.length);
        assert_eq!(length(at(159)), Some(Duration::from_secs(60)));
        assert_eq!(length(at(160)), Some(Duration::from_secs(5)));
        // Only elapsed time counts, not the wall clock.
        let clock_was_set = Now { wall: at(100_000).wall, ..at(159) };
        assert_eq!(length(clock_was_set), Some(Duration::from_secs(60)));
    }

    #[test]
    fn attempts_are_counted_within_their_interval() {
        let policy = ReschedulePolicy {
            attempts: 2,
            interval: Duration::from_secs(100),
            unlimited: false,
            ..policy(DelayFunction::Constant)
        };
        assert_eq!(delays(&policy, 9), [5, 5]);
        let mut past = Vec::new();
        for second in [10, 20] {
            past = follow(at(second), &policy, &past, policy.delay);
        }
        assert_eq!(due(at(109), &policy, &past), None);
        assert!(due(at(110), &policy, &past).is_some(), "the first one no longer counts");
        let rebooted = Now { boot: BootId(2), boot_ns: 1, wall: at(60).wall };
        assert_eq!(due(rebooted, &policy, &past), None, "a reboot does not end the interval");
        assert_eq!(follow(at(115), &policy, &past, policy.delay).len(), 2);
        // Once bound to the new boot they use its clock, whatever the wall clock shows.
        past.iter_mut().for_each(|one| one.rebase(rebooted));
        let later = |seconds: u64| Now { boot_ns: 1 + seconds * 1_000_000_000, ..rebooted };
        assert_eq!(due(later(49), &policy, &past), None);
        assert!(due(later(50), &policy, &past).is_some());
    }

    #[test]
    fn after_the_longest_delay_a_new_series_begins() {
        let policy = policy(DelayFunction::Fibonacci);
        let past = follow(at(100), &policy, &[], Duration::from_secs(60));
        let past = follow(at(160), &policy, &past, Duration::from_secs(5));
        assert_eq!(due(at(165), &policy, &past).map(|due| due.length), Some(Duration::from_secs(5)));
    }

    #[test]
    fn no_attempts_means_no_reschedule_and_bounded_history() {
        assert_eq!(due(at(1), &ReschedulePolicy::default(), &[]), None);
        let policy = policy(DelayFunction::Constant);
        let mut past = vec![];
        for second in 0..20 {
            past = follow(at(second), &policy, &past, policy.delay);
        }
        assert_eq!(past.len(), UNCOUNTED_MAX + 1);
    }
}
