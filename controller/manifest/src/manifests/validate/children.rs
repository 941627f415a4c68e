//! Jobs that only launch child jobs (`parameterized` and `periodic`), and the payload of a dispatch.

use std::collections::BTreeSet;

use herdlet_api_types::UnixNanos;
use herdlet_api_types::job::{self, Job, PayloadRule};
use herdlet_api_types::manifest::{JobManifest, Periodic, TaskSpec, defaults::TIME_ZONE};
use herdlet_plan::job::periodic::{
    calendar::{Calendar, EXPRESSIONS_LEN_MAX, zone},
    cron::Cron,
};

use super::mount::normal;
use super::{Findings, GroupContext};
use crate::yaml::Trail;

/// Maximum number of meta keys; more is a mistake.
const KEYS_LEN_MAX: usize = 256;

pub(super) fn of_job(manifest: &JobManifest, job: &Job, spec: &Trail<'_>, findings: &mut Findings<'_>) {
    if let Some(written) = &manifest.spec.periodic {
        periodic(written, job, &spec.field("periodic"), findings);
    }
    let (Some(written), Some(block)) = (&manifest.spec.parameterized, &job.parameterized) else { return };
    let trail = spec.field("parameterized");
    if !job.kind.completes() {
        let message = format!(
            "only a batch or sysbatch job can be dispatched, this is a {} job; write `type: batch`",
            job.kind.as_str()
        );
        findings.of_type(&trail, message);
    }
    let mut seen = BTreeSet::new();
    for (keys, name) in [(&written.meta_required, "meta_required"), (&written.meta_optional, "meta_optional")]
    {
        let trail = trail.field(name);
        let keys = keys.as_deref().unwrap_or_default();
        if keys.len() > KEYS_LEN_MAX {
            findings.problem(&trail, format!("must name at most {KEYS_LEN_MAX} keys, found {}", keys.len()));
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            let trail = trail.item(index);
            if let Some(complaint) = super::text::meta_key_complaint(key) {
                findings.problem(&trail, complaint);
            } else if !seen.insert(key) {
                findings.problem(&trail, format!("`{key}` is listed twice"));
            }
        }
    }
    let takes_payload =
        job.groups.iter().flat_map(|group| &group.tasks).any(|task| task.dispatch_payload.is_some());
    if block.payload == PayloadRule::Required && !takes_payload {
        let message = "a payload is required, but no task receives it; add `dispatch_payload` to a task";
        findings.problem(&trail.field("payload"), message);
    }
}

fn periodic(written: &Periodic, job: &Job, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    // As in Nomad, a disabled schedule may be incomplete, and of any job.
    let is_enabled = written.enabled != Some(false);
    if is_enabled && !job.kind.completes() {
        let message = format!(
            "only a batch or sysbatch job can be periodic, this is a {} job; write `type: batch`",
            job.kind.as_str()
        );
        findings.of_type(trail, message);
    }
    let crons = written.crons.as_deref().unwrap_or_default();
    match (&written.cron, crons) {
        (None, []) if !is_enabled => {}
        (None, []) => {
            let message = "needs `cron`, for instance \"0 3 * * *\" or \"@hourly\"";
            if !findings.is_unread(&trail.field("crons")) {
                findings.absent(&trail.field("cron"), trail, message);
            }
        }
        (Some(_), [_, ..]) => findings.problem(
            &trail.field("crons"),
            "can't be combined with `cron`; write all expressions in `crons`",
        ),
        (Some(cron), []) => expression(cron, written, &trail.field("cron"), findings),
        (None, crons) if crons.len() > EXPRESSIONS_LEN_MAX => {
            let found = crons.len();
            let message = format!("must have at most {EXPRESSIONS_LEN_MAX} expressions, found {found}");
            findings.problem(&trail.field("crons"), message);
        }
        (None, crons) => {
            for (index, cron) in crons.iter().enumerate() {
                expression(cron, written, &trail.field("crons").item(index), findings);
            }
        }
    }
    if let Some(Err(complaint)) = written.time_zone.as_deref().map(zone) {
        findings.problem(&trail.field("time_zone"), complaint);
    }
}

fn expression(cron: &str, block: &Periodic, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    match Cron::parse(cron) {
        Ok(known) if !known.names_any() => {
            findings.warning(trail, "matches no day of any month, so it never launches anything");
        }
        Ok(_) if is_over(cron, block.time_zone.as_deref(), herdlet_base::clock::wall_now()) => {
            let never_matches = is_over(cron, block.time_zone.as_deref(), UnixNanos(0));
            findings.warning(
                trail,
                match never_matches {
                    true => {
                        "matches only hours that the clocks of its time zone skip, so it never launches anything"
                    }
                    false => "matches only past years, so it no longer launches anything",
                },
            );
        }
        Ok(_) => {}
        Err(complaint) => findings.problem(trail, complaint),
    }
}

/// Returns whether an expression matches no time after `now`. False for an unknown time zone, which is a
/// problem of its own.
fn is_over(cron: &str, time_zone: Option<&str>, now: UnixNanos) -> bool {
    let time_zone = time_zone.unwrap_or(TIME_ZONE).to_owned();
    let block = job::Periodic { crons: vec![cron.to_owned()], time_zone, ..job::Periodic::default() };
    Calendar::of(&block).is_ok_and(|calendar| calendar.next(now).is_none())
}

/// Validates `dispatch_payload` of a task.
pub(super) fn of_task(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let Some(payload) = &spec.dispatch_payload else { return };
    match &context.job.parameterized {
        None => {
            let message = "only a parameterized job has a payload; add `parameterized` to the job";
            let parameterized = Trail::begin("spec");
            return findings.absent(&parameterized.field("parameterized"), trail, message);
        }
        Some(block) if block.payload == PayloadRule::Forbidden => {
            let message = "`parameterized` forbids payloads; remove one of the two";
            return findings.problem(trail, message);
        }
        Some(_) => {}
    }
    if let Some(complaint) = payload.file.as_deref().and_then(file_complaint) {
        findings.problem(&trail.field("file"), complaint);
    }
}

/// Returns the problem with a path below `local`, if any.
fn file_complaint(path: &str) -> Option<&'static str> {
    let steps = normal(path);
    if steps.contains(&"..") {
        Some("must be a path inside the task's `local`, without `..`")
    } else if steps.is_empty() || path.ends_with('/') {
        Some("must name a file, for instance input.json")
    } else if path.contains('\0') || path.len() > 1_024 || steps.iter().any(|step| step.len() > 240) {
        Some("must have at most 1024 bytes, at most 240 in each part, and no NUL")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cron_is_over_with_its_last_year_where_its_clocks_are() {
        let at = |text: &str| {
            let moment: jiff::Timestamp = text.parse().expect("a moment");
            UnixNanos(i64::try_from(moment.as_nanosecond()).expect("it fits"))
        };
        for (cron, time_zone, now, expected) in [
            ("0 3 * * * 2024", None, "2024-12-30T00:00:00Z", false),
            ("0 3 * * * 2024", None, "2024-12-31T03:00:00Z", true),
            ("0 3 * * * 2020-2024", None, "2026-01-01T00:00:00Z", true),
            ("0 3 * * *", None, "2026-01-01T00:00:00Z", false),
            ("0 23 31 12 * 2024", Some("UTC"), "2025-01-01T01:00:00Z", true),
            ("0 23 31 12 * 2024", Some("America/New_York"), "2025-01-01T01:00:00Z", false),
            ("0 3 * * * 2024", Some("Nowhere"), "2026-01-01T00:00:00Z", false),
            // The clocks skip this hour, so there is no such time at all.
            ("30 2 28 3 * 2027", Some("Europe/Berlin"), "1970-01-01T00:00:00Z", true),
            ("30 3 28 3 * 2027", Some("Europe/Berlin"), "1970-01-01T00:00:00Z", false),
        ] {
            assert_eq!(is_over(cron, time_zone, at(now)), expected, "{cron} {time_zone:?} {now}");
        }
    }
}
