//! Formats values for people and scripts.

use anstyle::Style;
use herdlet_api_types::{
    UnixNanos,
    task::{ExitResult, TaskPhase},
    view::{AllocView, Convergence, HELD, JobView, TaskView, held_message},
};
use herdlet_base::clock;
use herdlet_manifest::yaml;
use serde::Serialize;

use super::{failure::Failure, stdout, style, table::plain};

pub(super) fn json<T: Serialize>(data: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(data)
        .map_err(|error| Failure::new(format!("failed to write JSON: {error}")))?;
    print_data(&format!("{text}\n"));
    Ok(())
}

pub(super) fn yaml<T: Serialize>(data: &T) -> Result<(), Failure> {
    let text = yaml::to_yaml(data).map_err(|error| Failure::new(format!("failed to {error}")))?;
    print_data(&text);
    Ok(())
}

/// Prints a document for programs, unchanged: without colours, it would lose characters that a terminal interprets.
pub(super) fn print_data(text: &str) {
    stdout::bytes(text.as_bytes());
}

/// Prints bytes unchanged.
pub(super) fn print_bytes(bytes: &[u8]) {
    stdout::bytes(bytes);
}

pub fn out(text: &str) {
    stdout::text(text.as_bytes());
}

/// The time since `at`: `12s`, `3m`, `5h`, `8d`.
pub(super) fn age(at: UnixNanos) -> String {
    if at.0 == 0 { "-".to_owned() } else { span(clock::wall_now().0.saturating_sub(at.0)) }
}

/// The time until `at`.
pub(super) fn ahead(at: UnixNanos) -> String {
    span(at.0.saturating_sub(clock::wall_now().0))
}

/// Whether an allocation has ended and its slot has a newer one.
pub(super) fn is_replaced<'v>(view: &AllocView, mut all: impl Iterator<Item = &'v AllocView>) -> bool {
    let (spec, status) = (&view.spec, view.status);
    status.is_terminal()
        && all.any(|other| {
            let other = &other.spec;
            (&other.job_key, &other.group, other.index) == (&spec.job_key, &spec.group, spec.index)
                && other.create_index > spec.create_index
        })
}

/// The origin of a job, in a word.
pub(super) fn origin(job: &JobView) -> &'static str {
    if job.placed { "servers" } else { "here" }
}

/// A duration in its largest fitting unit.
pub(super) fn span(nanos: i64) -> String {
    let seconds = nanos.max(0) / 1_000_000_000;
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// An amount of memory: `0`, `512 KiB`, `200 MiB`, `1.5 GiB`.
pub(super) fn bytes(bytes: u64) -> String {
    const KIB: u64 = 1024;
    const MIB: u64 = KIB * KIB;
    const GIB: u64 = MIB * KIB;
    match bytes {
        0 => "0".to_owned(),
        1..MIB => format!("{} KiB", bytes.div_ceil(KIB)),
        MIB..GIB => format!("{} MiB", bytes / MIB),
        GIB.. => format!("{:.1} GiB", bytes as f64 / GIB as f64),
    }
}

/// The result of an attempt, in a few words.
pub(super) fn exit(exit: &ExitResult) -> String {
    match (exit.signal, exit.error.as_str(), exit.oom_killed) {
        (_, _, true) => "out of memory".to_owned(),
        (0, "", false) => format!("exit {}", exit.code),
        (0, error, false) => plain(error),
        (signal, _, false) => format!("signal {signal}"),
    }
}

/// The phase of a task, in a few words.
pub(super) fn phase(task: &TaskView) -> String {
    let mut text = match (task.phase, task.failed) {
        (TaskPhase::Dead, true) => "failed".to_owned(),
        (TaskPhase::Dead, false) if task.never_ran() => "not started".to_owned(),
        (TaskPhase::Dead, false) => "complete".to_owned(),
        (phase, _) => phase.to_string(),
    };
    if task.phase != TaskPhase::Running
        && let Some(last) = &task.exit
    {
        text.push_str(&format!(" ({})", exit(last)));
    }
    text
}

pub(super) fn healthy(view: &AllocView) -> &'static str {
    match view.healthy {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

/// A verdict with its reason.
pub(super) fn convergence(convergence: &Convergence) -> String {
    match convergence.message.as_str() {
        "" => convergence.state.as_str().to_owned(),
        message => format!("{}: {}", convergence.state.as_str(), plain(message)),
    }
}

/// The line that a job is held, and why; empty if it is not.
pub(super) fn held(view: &JobView) -> String {
    view.held.as_ref().map_or_else(String::new, |file| {
        format!("  {}: {}\n", styled(style::WARNING, HELD), plain(&held_message(file)))
    })
}

pub fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}
