//! The row of a job on the status page, and what it opens: an explanation, facts about the job, and its allocations.
//!
//! In: the overview's row, the job and its allocations. Out: HTML. A job without allocations has an explanation too.

use std::sync::Arc;

use herdlet_api_types::{
    UnixNanos,
    overview::JobRow,
    rfc3339::rfc3339,
    view::{AllocView, JobView},
};

use super::{clock, escaped, put};

/// At most this many allocations of a job are listed.
const ALLOCS_MAX: usize = 100;

pub(super) fn row(
    html: &mut String,
    row: &JobRow,
    allocs: &[Arc<AllocView>],
    shown: (Option<&JobView>, UnixNanos),
) {
    let (job, now) = shown;
    let name = escaped(&row.key.to_string());
    let state = row.state_text();
    put(
        html,
        format_args!(
            "<tr class=\"job\"><td class=\"name\">{name}{}</td><td data-label=\"version\">{}</td><td class=\"{state}\">{}</td>\
             <td class=\"number\" data-label=\"healthy\">{}/{}</td><td class=\"next\">{}</td></tr>\n\
             <tr class=\"more\"><td colspan=\"5\"><details id=\"job-{name}\"><summary>details</summary>",
            if row.placed { " (servers)" } else { "" },
            row.versions(),
            row.progress_text(),
            row.healthy,
            row.wanted,
            escaped(&row.outlook(now)),
        ),
    );
    if let Some(job) = job {
        facts(html, job);
    }
    for alloc in allocs.iter().take(ALLOCS_MAX) {
        allocation(html, alloc);
    }
    if let Some(more) = allocs.len().checked_sub(ALLOCS_MAX).filter(|more| *more > 0) {
        put(html, format_args!("<p class=\"dim\">and {more} more allocations</p>"));
    }
    html.push_str("</details></td></tr>\n");
}

fn allocation(html: &mut String, alloc: &AllocView) {
    let (id, name, status) = (alloc.spec.id, escaped(&alloc.spec.name()), alloc.status.as_str());
    let verdict = alloc.convergence.state.as_str();
    let ports: String = alloc
        .spec
        .named_ports()
        .map(|(name, port)| format!(" {name}={}:{}", port.host_ip, port.value))
        .collect();
    put(
        html,
        format_args!(
            "<details id=\"alloc-{id}\"><summary>{name} <span class=\"{verdict}\">{status}, {verdict}</span> \
             <span class=\"dim\">version {}{}</span></summary>\
             <div data-explain=\"/ui/explain/{id}\"><a href=\"/ui/explain/{id}\">explain</a></div></details>",
            alloc.spec.job_version,
            escaped(&ports),
        ),
    );
}

/// What is known of the job itself, as a list of names and values.
fn facts(html: &mut String, job: &JobView) {
    html.push_str("<dl>");
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            put(html, format_args!("<dt>{name}</dt><dd>{}</dd>", escaped(value)));
        }
    };
    fact("type", &kind(job));
    fact("state", &explanation(job));
    for unplaced in job.unplaced.values() {
        fact("not placed", &unplaced.message);
    }
    if let Some(at) = job.next_launch {
        fact("next launch", &clock(at));
    }
    if let Some(newest) = job.deployments.first() {
        let groups: Vec<String> = newest
            .groups
            .iter()
            .map(|(name, group)| format!("{name} {}/{} healthy", group.healthy_allocs, group.desired_total))
            .collect();
        let (status, why) = (newest.status.as_str(), &newest.description);
        fact(
            "deployment",
            &format!("of version {}: {status}, {why} ({})", newest.job_version, groups.join(", ")),
        );
    }
    fact("versions", &versions(job));
    html.push_str("</dl>");
}

fn kind(job: &JobView) -> String {
    let kind = job.job.kind.as_str();
    match (job.job.takes_dispatches(), job.job.launches()) {
        (true, _) => format!("{kind}, parameterized: each dispatch creates a child"),
        (false, Some(periodic)) => {
            format!("{kind}, periodic: {} {}", periodic.crons.join(", "), periodic.time_zone)
        }
        (false, None) => kind.to_owned(),
    }
}

/// The verdict with its reason, and since when.
fn explanation(job: &JobView) -> String {
    let since = clock(job.convergence.since.wall);
    let state = if job.is_held() { herdlet_api_types::view::HELD } else { job.convergence.state.as_str() };
    match job.message().as_str() {
        "" => format!("{state} since {since}: nothing to do until something changes"),
        why => format!("{state} since {since}: {why}"),
    }
}

fn versions(job: &JobView) -> String {
    let earlier = job.past.iter().rev().map(|past| {
        let at =
            rfc3339(past.submit_time).filter(|_| past.submit_time.0 > 0).map(|_| clock(past.submit_time));
        format!("{}{}", past.version, at.map(|at| format!(" ({at})")).unwrap_or_default())
    });
    let current = format!("{} ({})", job.version, clock(job.submit_time));
    std::iter::once(current).chain(earlier).collect::<Vec<_>>().join(", ")
}
