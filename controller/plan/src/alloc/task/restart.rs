//! What follows the end of a task: Nomad's restart policy, with counters that survive a restart of the agent.

use std_alloc::{format, string::String};

use herdlet_api_types::{
    Duration,
    job::{JobType, Lifecycle, RestartMode, RestartPolicy},
    task::ExitResult,
};

use crate::{
    backoff::fraction,
    limits::{PROOF_MIN, PROOF_ROW_MAX, PROOF_SINGLE_MAX},
    state::{Failures, TaskState},
    time::{Deadline, Now},
};

/// What a decision is about.
#[derive(Debug, Clone, Copy)]
pub enum RestartCause<'a> {
    /// The process ended.
    Exit(&'a ExitResult),
    /// It could not be started, but a retry may succeed.
    StartFailed,
    /// It can't be started as specified.
    StartImpossible,
    /// It was stopped because it was found unhealthy, regardless of how it ended then.
    Unhealthy,
}

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It starts again after this delay.
    Restart {
        /// How long to wait.
        delay: Duration,
        /// Nomad's sentence; empty if the policy simply allows it.
        reason: String,
    },
    /// It has completed its work.
    Done,
    /// It failed for good.
    Fail {
        /// Nomad's sentence.
        reason: String,
    },
}

/// Whether an exit with code 0 is followed by a restart.
pub fn restarts_on_success(kind: JobType, lifecycle: Lifecycle) -> bool {
    match lifecycle {
        Lifecycle::Main => !kind.completes(),
        Lifecycle::PrestartSidecar | Lifecycle::PoststartSidecar => true,
        Lifecycle::Prestart | Lifecycle::Poststart | Lifecycle::Poststop => false,
    }
}

/// When a running attempt counts, as a `CLOCK_BOOTTIME` of its boot; `None` unless an attempt before it failed. What attempts have
/// lived since then, until a request ended them, counts too: a task whose renewed tokens restart it would otherwise never count.
pub fn proof_ends_ns(
    policy: &RestartPolicy,
    min_healthy_time: Option<Duration>,
    state: &TaskState,
) -> Option<u64> {
    let survived = state.survived.unwrap_or(Duration::ZERO);
    let left = proof(policy, min_healthy_time, state)?.as_nanos().saturating_sub(survived.as_nanos());
    Some(state.started_ns.saturating_add(left.max(0).unsigned_abs()))
}

/// How long an attempt has to live before it counts; `None` unless an attempt before it failed. It is the longest of the job's own times and of twice the longest lifetime of the attempts
/// that failed in a row. After a single failure that is at most a minute, and at most the interval of the restart
/// policy.
pub fn proof(
    policy: &RestartPolicy,
    min_healthy_time: Option<Duration>,
    state: &TaskState,
) -> Option<Duration> {
    let longest_life = state.failed_after?;
    let own = PROOF_MIN.max(policy.delay).max(min_healthy_time.unwrap_or(Duration::ZERO));
    Some(match state.failures {
        Some(Failures { count: 2.., .. }) => {
            own.max(twice(longest_life)).min(policy.interval.max(PROOF_ROW_MAX))
        }
        Some(_) | None => own.max(twice(longest_life).min(PROOF_SINGLE_MAX)).min(policy.interval),
    })
}

/// The failures in a row after one more attempt, which `lived` that long. Lifetimes may vary: an attempt that lives less than
/// twice as long as those before it continues the row. The lifetime of a task that failed for the first time in hours is
/// no measure for what follows.
pub fn count_failure(before: Option<Failures>, lived: Duration) -> Failures {
    match before {
        Some(row) if lived < twice(row.longest).max(PROOF_MIN) => {
            Failures { count: row.count.saturating_add(1), longest: row.longest.max(lived) }
        }
        Some(_) | None => {
            Failures { count: 1, longest: if lived < PROOF_ROW_MAX { lived } else { Duration::ZERO } }
        }
    }
}

fn twice(duration: Duration) -> Duration {
    Duration(duration.as_nanos().saturating_mul(2))
}

/// Decides and counts. `seed` varies the jitter, up to a quarter of the delay, between tasks.
pub fn decide(
    now: Now,
    policy: &RestartPolicy,
    on_success: bool,
    ended: RestartCause<'_>,
    state: &mut TaskState,
    seed: u64,
) -> Decision {
    let done = match ended {
        RestartCause::Exit(result) => result.is_success() && !on_success,
        RestartCause::StartFailed | RestartCause::StartImpossible | RestartCause::Unhealthy => false,
    };
    if policy.attempts == 0 {
        return if done {
            Decision::Done
        } else {
            Decision::Fail { reason: String::from("Policy allows no restarts") }
        };
    }
    if state.window.is_none_or(|window| window.is_due(now)) {
        state.window = Some(Deadline::after(now, policy.interval));
        state.counted = 0;
    }
    state.counted = state.counted.saturating_add(1);
    if matches!(ended, RestartCause::StartImpossible) {
        return Decision::Fail { reason: String::from("Error was unrecoverable") };
    }
    if done {
        return Decision::Done;
    }
    if state.counted <= policy.attempts {
        let jitter = fraction(policy.delay.as_nanos() / 4, (seed, state.counted));
        return Decision::Restart {
            delay: Duration(policy.delay.as_nanos().saturating_add(jitter)),
            reason: String::new(),
        };
    }
    match policy.mode {
        RestartMode::Fail => Decision::Fail {
            reason: format!(
                "Exceeded allowed attempts {} in interval {} and mode is \"fail\"",
                policy.attempts, policy.interval
            ),
        },
        RestartMode::Delay => Decision::Restart {
            delay: state.window.map_or(policy.interval, |window| window.remaining(now)),
            reason: String::from("Exceeded allowed attempts, applying a delay"),
        },
    }
}

#[cfg(test)]
mod tests;
