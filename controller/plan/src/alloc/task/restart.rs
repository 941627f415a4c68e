//! What follows the end of a task: Nomad's restart policy, with counters that survive a restart of the agent.

use std_alloc::{format, string::String};

use herdlet_api_types::{
    Duration,
    job::{JobType, Lifecycle, RestartMode, RestartPolicy},
    task::ExitResult,
};

use crate::{
    backoff::fraction,
    limits::PROOF_MIN,
    state::TaskState,
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
    /// It was stopped because a check kept failing, regardless of how it ended then.
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

/// How long a running attempt has to live before it counts, as a `CLOCK_BOOTTIME` of its boot; `None` unless the
/// attempt before it failed. A task that fails repeatedly takes that long to show it: the longest of the job's own
/// times and of twice the lifetime of the failed attempt, but no longer than the interval of the restart policy.
pub fn proof_ends_ns(
    policy: &RestartPolicy,
    min_healthy_time: Option<Duration>,
    state: &TaskState,
) -> Option<u64> {
    let twice = Duration(state.failed_after?.as_nanos().saturating_mul(2));
    let longest = PROOF_MIN.max(policy.delay).max(twice).max(min_healthy_time.unwrap_or(Duration::ZERO));
    let length = longest.min(policy.interval).as_nanos().max(0).unsigned_abs();
    Some(state.started_ns.saturating_add(length))
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
