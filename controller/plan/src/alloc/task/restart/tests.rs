//! Nomad's restart policy: attempts 2, interval 60 s, delay 10 s.

use std_alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::job::RestartMode;

use super::*;
use crate::fixture::{at, exit, policy};

const EXCEEDED: &str = "Exceeded allowed attempts 2 in interval 1m0s and mode is \"fail\"";

/// The decision after each exit: `+S` for a restart after S whole seconds.
fn decisions(mode: RestartMode, on_success: bool, code: i32, exits: &[u64]) -> Vec<String> {
    let mut state =
        TaskState { window: Some(Deadline::after(at(0), policy(2, mode).interval)), ..TaskState::default() };
    exits
        .iter()
        .map(|second| {
            describe(decide(
                at(*second),
                &policy(2, mode),
                on_success,
                RestartCause::Exit(&exit(code)),
                &mut state,
                1,
            ))
        })
        .collect()
}

fn describe(decision: Decision) -> String {
    match decision {
        Decision::Restart { delay, reason } if reason.is_empty() => {
            let seconds = delay.as_nanos() / 1_000_000_000;
            assert!((10..13).contains(&seconds), "{delay}");
            "within policy".to_string()
        }
        Decision::Restart { delay, reason } => format!("+{delay} {reason}"),
        Decision::Done => "done".to_string(),
        Decision::Fail { reason } => format!("failed: {reason}"),
    }
}

#[test]
fn exits_are_counted_within_a_window() {
    let within = "within policy".to_string();
    let exceeded = format!("failed: {EXCEEDED}");
    let service = |mode, code, exits: &[u64]| decisions(mode, true, code, exits);
    assert_eq!(
        service(RestartMode::Fail, 1, &[1, 15, 30]),
        [within.clone(), within.clone(), exceeded.clone()]
    );
    assert_eq!(
        service(RestartMode::Delay, 1, &[1, 15, 30]),
        [within.clone(), within.clone(), "+30s Exceeded allowed attempts, applying a delay".to_string()]
    );
    assert_eq!(service(RestartMode::Fail, 1, &[1, 15, 80]), [within.clone(), within.clone(), within.clone()]);
    assert_eq!(service(RestartMode::Fail, 0, &[1, 2, 3]), [within.clone(), within, exceeded]);
    assert_eq!(decisions(RestartMode::Fail, false, 0, &[1]), ["done"]);
}

#[test]
fn no_attempts_means_no_restart() {
    let never = policy(0, RestartMode::Fail);
    let mut state = TaskState::default();
    let mut end = |on_success, code| {
        describe(decide(at(1), &never, on_success, RestartCause::Exit(&exit(code)), &mut state, 1))
    };
    assert_eq!(end(true, 0), "failed: Policy allows no restarts");
    assert_eq!(end(false, 0), "done");
    assert_eq!(end(false, 1), "failed: Policy allows no restarts");
}

#[test]
fn failed_starts_count_and_fatal_ones_end_the_task() {
    let policy = policy(2, RestartMode::Fail);
    let mut state = TaskState::default();
    let mut end = |ended| describe(decide(at(1), &policy, true, ended, &mut state, 1));
    assert_eq!(end(RestartCause::StartFailed), "within policy");
    assert_eq!(end(RestartCause::StartImpossible), "failed: Error was unrecoverable");
    assert_eq!(end(RestartCause::StartFailed), format!("failed: {EXCEEDED}"));
}

#[test]
fn only_completing_tasks_are_done_after_code_0() {
    let on_success = |kind| restarts_on_success(kind, Lifecycle::Main);
    assert!(on_success(JobType::Service) && on_success(JobType::System));
    assert!(!on_success(JobType::Batch) && !on_success(JobType::Sysbatch));
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(seconds)
}

/// How long the next attempt has to live after attempts that failed after these many seconds.
fn proof(lives: &[i64], policy: &RestartPolicy, min_healthy_time: Option<Duration>) -> i64 {
    let failures = lives.iter().fold(None, |row, lived| Some(count_failure(row, seconds(*lived))));
    let failed_after = failures.map(|row: Failures| row.longest);
    let state = TaskState { failures, failed_after, ..TaskState::default() };
    let ends_ns = proof_ends_ns(policy, min_healthy_time, &state).expect("it has failed");
    i64::try_from(ends_ns / 1_000_000_000).expect("seconds")
}

/// A task that lived for days and crashed once had to live for half an hour until `--wait` returned.
#[test]
fn a_single_crash_is_soon_forgotten() {
    let policy = RestartPolicy { interval: seconds(1_800), ..policy(2, RestartMode::Delay) };
    for (lived, expected) in [(0, 10), (20, 40), (45, 60), (1_000, 60), (864_000, 10)] {
        assert_eq!(proof(&[lived], &policy, None), expected, "{lived}");
    }
    assert_eq!(proof(&[864_000], &policy, Some(seconds(90))), 90, "its own times count");
    let short = RestartPolicy { interval: seconds(15), ..policy };
    assert_eq!(proof(&[45], &short, None), 15, "at most the interval");
}

/// Crash loops were shown as converged in between: with lives that vary, and with lives longer than the interval.
#[test]
fn attempt_must_outlive_its_preceding_failures() {
    let long = RestartPolicy { interval: seconds(1_800), ..policy(2, RestartMode::Delay) };
    let short = RestartPolicy { interval: seconds(5), ..long.clone() };
    for policy in [&long, &short] {
        assert_eq!(proof(&[7, 60, 7, 60, 7], policy, None), 120);
        assert_eq!(proof(&[7, 7], policy, None), 14);
        assert_eq!(proof(&[2_400, 2_400], policy, None), 3_600, "an hour is enough");
    }
    assert_eq!(proof(&[7, 7, 864_000], &long, None), 10, "a long life begins a new row");
    assert_eq!(proof(&[864_000, 7], &long, None), 14, "the life before the row is no measure");
}
