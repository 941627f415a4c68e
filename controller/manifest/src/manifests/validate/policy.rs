//! `scaling`, `reschedule`, `update` and `restart`: numbers that must be consistent with each other.

use herdlet_api_types::Duration;
use herdlet_api_types::job::{
    DelayFunction, Group, HealthCheck, JobType, ReschedulePolicy, RestartMode, RestartPolicy,
};
use herdlet_api_types::manifest::defaults::{UPDATE, default_restart};
use herdlet_api_types::manifest::{Restart, RestartRule, RestartWord, Span, Update};

use super::Findings;
use crate::yaml::Trail;

/// Minimum interval in which restarts are counted.
const INTERVAL_MIN: Duration = Duration::from_secs(5);

/// Validates the bounds within which a group may be scaled.
pub(super) fn scaling(group: &Group, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(scaling) = &group.scaling else { return };
    if scaling.min > scaling.max {
        let message = format!("max ({}) must be at least min ({})", scaling.max, scaling.min);
        findings.problem(&trail.field("scaling"), message);
    } else if let Some(message) = scaling.refuses(group.count) {
        findings.problem(&trail.field("count"), message);
    }
}

/// Validates the time after which an allocation is stopped.
pub(super) fn max_run_duration(longest: Span, kind: JobType, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if !kind.completes() {
        let message = format!("a {} job runs until it is stopped; remove `max_run_duration`", kind.as_str());
        findings.of_type(trail, message);
    } else if longest.0.is_zero() {
        findings.problem(trail, "must be longer than 0");
    }
}

/// Returns the policy of a group's `restart`, with defaults.
pub(super) fn of_group(restart: &Restart, kind: JobType) -> RestartPolicy {
    restart.over(&default_restart(kind))
}

/// Checks that a word of Compose can mean in this job what it means there.
pub(super) fn restart_word(
    rule: &RestartRule,
    kind: JobType,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let message = match (rule.word, kind.completes()) {
        (Some(RestartWord::Always), true) => format!(
            "tasks of a {} job end for good with exit code 0; write `on-failure`, or make it a service job",
            kind.as_str()
        ),
        (Some(RestartWord::OnFailure(_)), false) => format!(
            "tasks of a {} job are restarted after exit code 0 too; write `always`, or make it a batch job",
            kind.as_str()
        ),
        (Some(RestartWord::No | RestartWord::Always | RestartWord::OnFailure(_)) | None, _) => return,
    };
    findings.of_type(trail, message);
}

/// Validates a restart policy, defaults included.
pub(super) fn restart(policy: &RestartPolicy, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let RestartPolicy { attempts, interval, delay, mode, render_templates: _ } = policy;
    if *interval < INTERVAL_MIN {
        return findings.problem(
            &trail.field("interval"),
            format!("must be at least {INTERVAL_MIN}, found {}", Span(*interval)),
        );
    }
    if *attempts == 0 && *mode == RestartMode::Delay {
        let message = "`delay` with 0 attempts never restarts anything; write `fail`, or allow attempts";
        return findings.problem(&trail.field("mode"), message);
    }
    if i128::from(*attempts) * i128::from(delay.as_nanos()) > i128::from(interval.as_nanos()) {
        let message = format!(
            "{attempts} attempts with a delay of {} don't fit into an interval of {}; \
             lengthen the interval, shorten the delay or allow fewer",
            Span(*delay),
            Span(*interval)
        );
        findings.problem(trail, message);
    }
}

/// Minimum delay before another allocation, as in Nomad.
const RESCHEDULE_DELAY_MIN: Duration = Duration::from_secs(5);
/// Minimum interval in which these attempts are counted, as in Nomad.
const RESCHEDULE_INTERVAL_MIN: Duration = Duration::from_secs(15);

/// Validates a reschedule policy, defaults included.
pub(super) fn reschedule(
    policy: &ReschedulePolicy,
    kind: JobType,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let ReschedulePolicy { attempts, interval, delay, delay_function, max_delay, unlimited } = policy;
    if !policy.is_enabled() {
        return;
    }
    if matches!(kind, JobType::System | JobType::Sysbatch) {
        let message = format!("a {} job is not rescheduled; remove `reschedule`", kind.as_str());
        return findings.of_type(trail, message);
    }
    if *unlimited && *attempts > 0 {
        let message =
            format!("{attempts} attempts are counted, so it can't be unlimited too; remove one of them");
        return findings.problem(&trail.field("unlimited"), message);
    }
    let mut at_least = |name: &str, found: Duration, least: Duration| {
        if found < least {
            findings.problem(&trail.field(name), format!("must be at least {least}, found {}", Span(found)));
        }
    };
    at_least("delay", *delay, RESCHEDULE_DELAY_MIN);
    if !unlimited {
        at_least("interval", *interval, RESCHEDULE_INTERVAL_MIN);
    }
    if *delay_function != DelayFunction::Constant {
        at_least("max_delay", *max_delay, *delay);
    }
}

/// Validates an `update` merged with the outer one, and warns of fields that have no effect yet.
pub(super) fn update(
    update: &Update,
    outer: Option<&Update>,
    kind: JobType,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if kind.completes() {
        let message = format!("a {} job is not rolled out; remove `update`", kind.as_str());
        return findings.of_type(trail, message);
    }
    let rules = update.over(&outer.map_or(UPDATE, |outer| outer.over(&UPDATE)));
    if rules.max_parallel == 0 && update.canary.is_some_and(|canary| canary > 0) {
        findings.warning(
            &trail.field("canary"),
            "has no effect with `max_parallel: 0`: all allocations change at once",
        );
    }
    if rules.auto_promote && rules.canary == 0 && update.auto_promote.is_some() {
        findings.absent(
            &trail.field("canary"),
            &trail.field("auto_promote"),
            "requires `canary`, because there is nothing to promote without canaries",
        );
    }
    // Problems of the outer block alone are already reported there.
    let own = |written: &[bool]| outer.is_none() || written.contains(&true);
    let deadline_written = update.healthy_deadline.is_some();
    if rules.healthy_deadline <= rules.min_healthy_time
        && own(&[deadline_written, update.min_healthy_time.is_some()])
    {
        let message = format!(
            "healthy_deadline ({}) must be longer than min_healthy_time ({})",
            Span(rules.healthy_deadline),
            Span(rules.min_healthy_time)
        );
        findings.problem(trail, message);
    }
    let in_order = rules.progress_deadline.is_zero() || rules.progress_deadline > rules.healthy_deadline;
    if !in_order && own(&[deadline_written, update.progress_deadline.is_some()]) {
        let message = format!(
            "progress_deadline ({}) must be longer than healthy_deadline ({}), or 0 for none",
            Span(rules.progress_deadline),
            Span(rules.healthy_deadline)
        );
        findings.problem(trail, message);
    }
    if update.stagger.is_some() && rules.stagger.is_zero() {
        findings.problem(&trail.field("stagger"), "must be longer than 0");
    }
    let mut warn = |idle: &[&str], why: &str| {
        if let Some(first) = idle.first() {
            let (verb, names) = (if idle.len() == 1 { "has" } else { "have" }, idle.join(", "));
            findings.warning(&trail.field(first), format!("{names} {verb} no effect {why}"));
        }
    };
    warn(&idle_fields(update), "in this release; the rest of `update` has");
    if kind.is_on_each_machine() {
        let why = format!("on a {} job: it has no deployments", kind.as_str());
        warn(&deployment_fields(update), &why);
    }
}

/// Returns the fields that only affect deployments, if they are written with other values than the defaults.
fn deployment_fields(update: &Update) -> Vec<&'static str> {
    written([
        (
            "progress_deadline",
            update.progress_deadline.is_some_and(|span| span.0 != UPDATE.progress_deadline),
        ),
        ("auto_revert", update.auto_revert == Some(true)),
        ("auto_promote", update.auto_promote == Some(true)),
        ("canary", update.canary.is_some_and(|canary| canary > 0)),
        ("health_check", update.health_check == Some(HealthCheck::Manual)),
    ])
}

/// Returns the fields that are only stored, if they are written with other values than the defaults.
fn idle_fields(update: &Update) -> Vec<&'static str> {
    written([("stagger", update.stagger.is_some_and(|span| span.0 != UPDATE.stagger))])
}

fn written<const N: usize>(fields: [(&'static str, bool); N]) -> Vec<&'static str> {
    fields.into_iter().filter_map(|(name, written)| written.then_some(name)).collect()
}
