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
fn failed_starts_count_and_impossible_ones_end_it() {
    let policy = policy(2, RestartMode::Fail);
    let mut state = TaskState::default();
    let mut end = |ended| describe(decide(at(1), &policy, true, ended, &mut state, 1));
    assert_eq!(end(RestartCause::StartFailed), "within policy");
    assert_eq!(end(RestartCause::StartImpossible), "failed: Error was unrecoverable");
    assert_eq!(end(RestartCause::StartFailed), format!("failed: {EXCEEDED}"));
}

#[test]
fn only_what_completes_is_done_after_code_0() {
    let on_success = |kind| restarts_on_success(kind, Lifecycle::Main);
    assert!(on_success(JobType::Service) && on_success(JobType::System));
    assert!(!on_success(JobType::Batch) && !on_success(JobType::Sysbatch));
}
