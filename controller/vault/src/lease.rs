//! The life of one token or secret: when it is renewed, when it is replaced, and what failures change.
//!
//! In: terms of a lease, times, results of renewals. Out: the next step. No IO, no clock, no chance. The record is stored
//! beside the token or secret, without it, so that a new agent goes on where the last one was and issues nothing.
//!
//! Rules: a renewable lease is renewed after half of its duration (Nomad: `client/vaultclient/vaultclient.go`), any other is
//! replaced after 85 to 95 % (consul-template: `dependency/vault_common.go`). A failure to reach Vault replaces nothing, ever:
//! the last value stays in use, also after its end, and tries go on. Only Vault itself ends a lease early.
//!
//! Times are nanoseconds of the boot clock, which nobody can set, and which goes on while the machine sleeps.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{error::LeaseFailure, spread::Spread};

/// Leases from this duration on are renewed up to [`RENEWAL_SPREAD`] before or after their half.
const SPREAD_FROM: Duration = Duration::from_secs(60);
const RENEWAL_SPREAD: Duration = Duration::from_secs(10);
/// Nomad's first and last wait between tries.
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LAST: Duration = Duration::from_secs(180);
/// No try follows another sooner, however short the lease is.
const WAIT_MIN: Duration = Duration::from_secs(1);
/// Vault rounds durations to seconds, and answers take time.
const ROUNDING: Duration = Duration::from_secs(2);
/// Vault may rotate a little later than announced.
const AFTER_ROTATION: Duration = Duration::from_secs(1);

/// What Vault promises for a token or secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    pub duration: Duration,
    pub kind: LeaseKind,
}

/// What can be done before the end of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// It can be renewed.
    Renewable,
    /// It can only be replaced.
    Fixed,
    /// Vault rotates the value itself; reading it earlier gives the same value.
    Rotating,
    /// It has no end.
    Endless,
}

/// A time of the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootTime {
    /// See `herdlet_base::clock::boot_id`.
    pub boot_id: u64,
    pub ns: u64,
}

/// What to do with a token or secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time of the boot clock; `u64::MAX` is never.
    Wait { until_ns: u64 },
    /// Renew the lease, then call [`LeaseRecord::renewed`] or [`LeaseRecord::failed`].
    Renew,
    /// Log in or read again, then make a new record or call [`LeaseRecord::failed`]. The old value stays in use until then.
    Replace(ReplaceReason),
}

/// Why a new token or secret is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplaceReason {
    /// Vault reports that the lease is gone.
    Lost,
    /// Renewals do not move the end any more.
    MaxTtl,
    /// The lease can't be renewed.
    NotRenewable,
    /// Vault has a new value.
    Rotation,
}

/// What is stored of a lease. It has no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRecord {
    boot_id: u64,
    /// When the terms were given.
    granted_at_boot_ns: u64,
    duration_ns: u64,
    kind: LeaseKind,
    /// Absent while the lease is renewed.
    replace: Option<ReplaceReason>,
    next_at_boot_ns: u64,
    /// Tries since the last one that succeeded.
    failures: u32,
    failing_since_boot_ns: Option<u64>,
}

impl LeaseRecord {
    /// A new token or secret.
    #[must_use]
    pub fn granted(terms: LeaseTerms, now: BootTime, spread: Spread) -> Self {
        let replace = match terms.kind {
            LeaseKind::Renewable | LeaseKind::Endless => None,
            LeaseKind::Fixed => Some(ReplaceReason::NotRenewable),
            LeaseKind::Rotating => Some(ReplaceReason::Rotation),
        };
        Self::planned(terms, replace, now, spread)
    }

    /// A token whose record is missing, as after an upgrade: a renewal returns its terms. Nothing is issued.
    #[must_use]
    pub fn recovered(now: BootTime) -> Self {
        let terms = LeaseTerms { duration: Duration::ZERO, kind: LeaseKind::Renewable };
        let record = Self::planned(terms, None, now, Spread::of_parts(0));
        Self { next_at_boot_ns: now.ns, ..record }
    }

    fn planned(terms: LeaseTerms, replace: Option<ReplaceReason>, now: BootTime, spread: Spread) -> Self {
        let wait = match (terms.kind, replace) {
            (LeaseKind::Endless, _) => Duration::MAX,
            (LeaseKind::Rotating, _) => terms.duration.saturating_add(AFTER_ROTATION),
            (LeaseKind::Renewable, None) => renewal_wait(terms.duration, spread),
            (LeaseKind::Renewable, Some(_)) | (LeaseKind::Fixed, _) => {
                replacement_wait(terms.duration, spread)
            }
        };
        Self {
            boot_id: now.boot_id,
            granted_at_boot_ns: now.ns,
            duration_ns: nanos(terms.duration),
            kind: terms.kind,
            replace,
            next_at_boot_ns: now.ns.saturating_add(nanos(wait.max(WAIT_MIN))),
            failures: 0,
            failing_since_boot_ns: None,
        }
    }

    /// What to do now.
    #[must_use]
    pub fn step(&self, now: BootTime) -> Step {
        let is_of_this_boot = self.boot_id == now.boot_id;
        if is_of_this_boot && now.ns < self.next_at_boot_ns {
            return Step::Wait { until_ns: self.next_at_boot_ns };
        }
        match (self.replace, self.kind) {
            (Some(reason), _) => Step::Replace(reason),
            (None, LeaseKind::Endless) => Step::Wait { until_ns: u64::MAX },
            // After a reboot too: a renewal returns the time left, and issues nothing.
            (None, LeaseKind::Renewable | LeaseKind::Fixed | LeaseKind::Rotating) => Step::Renew,
        }
    }

    /// Vault has renewed the lease. If that has not moved the end, further renewals would not either: the lease is at its
    /// maximum, and is replaced before its end. A duration that is only shorter than before is no sign of that: Vault's
    /// default may have been changed.
    pub fn renewed(&mut self, terms: LeaseTerms, now: BootTime, spread: Spread) {
        let is_at_maximum = terms.kind == LeaseKind::Renewable && self.keeps_its_end(terms, now);
        *self = match terms.kind {
            LeaseKind::Renewable if is_at_maximum => {
                Self::planned(terms, Some(ReplaceReason::MaxTtl), now, spread)
            }
            LeaseKind::Renewable | LeaseKind::Fixed | LeaseKind::Rotating | LeaseKind::Endless => {
                Self::granted(terms, now, spread)
            }
        };
    }

    fn keeps_its_end(&self, terms: LeaseTerms, now: BootTime) -> bool {
        if self.boot_id != now.boot_id || self.duration_ns == 0 {
            return false;
        }
        let old_end = self.ends_at_ns();
        let new_end = now.ns.saturating_add(nanos(terms.duration));
        // Without a maximum, the end moves as far as time has passed.
        let passed = now.ns.saturating_sub(self.granted_at_boot_ns);
        if passed < nanos(ROUNDING) {
            return false;
        }
        let has_moved = new_end > old_end.saturating_add(passed / 2);
        !has_moved && new_end.saturating_add(nanos(ROUNDING)) >= old_end
    }

    /// A renewal or a replacement has failed.
    pub fn failed(&mut self, failure: LeaseFailure, now: BootTime, spread: Spread) {
        self.rebase(now);
        self.failing_since_boot_ns.get_or_insert(now.ns);
        match failure {
            LeaseFailure::Lost if self.replace != Some(ReplaceReason::Lost) => {
                self.replace = Some(ReplaceReason::Lost);
                self.next_at_boot_ns = now.ns;
                self.failures = 0;
            }
            LeaseFailure::Lost => self.retry(None, now, spread),
            LeaseFailure::Later { retry_after } => self.retry(retry_after, now, spread),
        }
    }

    /// The next try: after Nomad's waits, but before the end of the lease if that is still to come.
    fn retry(&mut self, retry_after: Option<Duration>, now: BootTime, spread: Spread) {
        let doubled = RETRY_FIRST.saturating_mul(1 << self.failures.min(6)).min(RETRY_LAST);
        self.failures = self.failures.saturating_add(1);
        let wait = doubled + spread.share_of(doubled / 4);
        let left = Duration::from_nanos(self.ends_at_ns().saturating_sub(now.ns));
        let wait = if left.is_zero() { wait } else { wait.min(left / 2) };
        let wait = wait.max(WAIT_MIN).max(retry_after.unwrap_or_default());
        self.next_at_boot_ns = now.ns.saturating_add(nanos(wait));
    }

    /// Times of another boot mean nothing now.
    fn rebase(&mut self, now: BootTime) {
        if self.boot_id != now.boot_id {
            self.boot_id = now.boot_id;
            self.granted_at_boot_ns = now.ns;
            self.duration_ns = 0;
            self.failing_since_boot_ns = None;
        }
    }

    fn ends_at_ns(&self) -> u64 {
        match self.kind {
            LeaseKind::Endless => u64::MAX,
            LeaseKind::Renewable | LeaseKind::Fixed | LeaseKind::Rotating => {
                self.granted_at_boot_ns.saturating_add(self.duration_ns)
            }
        }
    }

    /// Whether its system has ended it before its time.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.replace == Some(ReplaceReason::Lost)
    }

    /// Whether the time that Vault has given is over. The value may still work; only Vault knows. Always false for times of
    /// another boot and for recovered tokens.
    #[must_use]
    pub fn is_past_end(&self, now: BootTime) -> bool {
        self.boot_id == now.boot_id && self.duration_ns > 0 && now.ns >= self.ends_at_ns()
    }

    /// The time until something is due; `None` if nothing ever is.
    #[must_use]
    pub fn due_in(&self, now: BootTime) -> Option<Duration> {
        match self.step(now) {
            Step::Wait { until_ns: u64::MAX } => None,
            Step::Wait { until_ns } => Some(Duration::from_nanos(until_ns.saturating_sub(now.ns))),
            Step::Renew | Step::Replace(_) => Some(Duration::ZERO),
        }
    }

    /// Since when tries fail, by `CLOCK_BOOTTIME`; `None` if the last one succeeded.
    #[must_use]
    pub fn failing_since_ns(&self, now: BootTime) -> Option<u64> {
        self.failing_since_boot_ns.filter(|_| self.boot_id == now.boot_id)
    }

    /// How long tries have failed; `None` if the last one succeeded.
    #[must_use]
    pub fn failing_for(&self, now: BootTime) -> Option<Duration> {
        Some(Duration::from_nanos(now.ns.saturating_sub(self.failing_since_ns(now)?)))
    }

    /// How long ago Vault gave the present terms; `None` for those of another boot.
    #[must_use]
    pub fn age(&self, now: BootTime) -> Option<Duration> {
        let age = Duration::from_nanos(now.ns.saturating_sub(self.granted_at_boot_ns));
        Some(age).filter(|_| self.boot_id == now.boot_id)
    }
}

fn renewal_wait(duration: Duration, spread: Spread) -> Duration {
    let half = duration / 2;
    if duration < SPREAD_FROM {
        return half;
    }
    half - RENEWAL_SPREAD + spread.share_of(2 * RENEWAL_SPREAD)
}

/// Most of the duration, so that as little as possible is issued.
fn replacement_wait(duration: Duration, spread: Spread) -> Duration {
    let percent = duration / 100;
    percent * 85 + spread.share_of(percent * 10)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
