//! The status page: jobs, explanations, the lag of the last hour, and the latest transitions. It is read-only.
//!
//! In: the read model. Out: HTML that is complete without scripts; a script keeps it up to date. The page loads nothing from
//! other servers, and its content security policy forbids it.

mod job;

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Router,
    extract::{Path, State},
    http::{HeaderName, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use herdlet_agent::{
    history::LAG_MINUTES,
    overview::{overview, placed},
};
use herdlet_api_types::{
    Duration, UnixNanos,
    overview::{Overview, Transition},
    rfc3339::rfc3339,
    view::{AllocView, Explanation},
};
use herdlet_plan::event::{Command, Reply};
use herdlet_runtime::{BootClock, Clock as _, Now};

use super::{
    Shared,
    error::{ApiResult, unexpected},
};

/// At most this many jobs are listed; the counts include all.
const ROWS_MAX: usize = 500;
/// At most this many transitions are listed.
const TRANSITIONS_MAX: usize = 50;

const STYLE: &str = include_str!("ui/page.css");
const SCRIPT: &str = include_str!("ui/page.js");

/// Allows only resources of this agent, and no framing.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

pub(super) fn pages() -> Router<Arc<Shared>> {
    Router::new()
        .route("/ui", get(page))
        .route("/ui/body", get(body))
        .route("/ui/explain/{alloc}", get(explain))
        .route("/ui/page.css", get(|| async { asset("text/css", STYLE) }))
        .route("/ui/page.js", get(|| async { asset("text/javascript", SCRIPT) }))
}

async fn page(State(shared): State<Arc<Shared>>) -> Response {
    let name = escaped(&shared.facts.node.name);
    let body = body_of(&shared);
    guarded(Html(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>herdlet on {name}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" href=\"/ui/page.css\">\
         <noscript><meta http-equiv=\"refresh\" content=\"10\"></noscript></head>\n\
         <body><p id=\"stale\" role=\"status\">The agent does not answer: this is its last known state.</p>\n<main>{body}</main>\n\
         <script src=\"/ui/page.js\"></script></body></html>\n"
    )))
}

async fn body(State(shared): State<Arc<Shared>>) -> Response {
    guarded(Html(body_of(&shared)))
}

/// The explanation of an allocation: a page, and the content of an opened row.
async fn explain(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> ApiResult<Response> {
    let view = shared.alloc(&id)?;
    let reply = shared.request(Command::Explain { alloc: view.spec.id }).await?;
    let Reply::Explanation(explanation) = reply else { return Err(unexpected(reply)) };
    Ok(guarded(Html(explained(&view, &explanation))))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, format!("{kind}; charset=utf-8"))], guarded(text)).into_response()
}

fn guarded(answer: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    (headers, answer).into_response()
}

fn body_of(shared: &Shared) -> String {
    let now = BootClock.now();
    let overview = overview(&shared.model, now.boot_ns);
    let mut html = String::new();
    head(&mut html, shared, &overview);
    jobs(&mut html, shared, &overview, now);
    plot(&mut html, &shared.model.history().lag(now.boot_ns));
    transitions(&mut html, &shared.model.history().transitions());
    html
}

fn head(html: &mut String, shared: &Shared, overview: &Overview) {
    let vitals = (shared.vitals)();
    let Overview { converged, lag, overdue, .. } = overview;
    put(html, format_args!("<h1>herdlet on {}</h1>\n", escaped(&shared.facts.node.name)));
    let late = if *overdue > 0 { " class=\"wrong\"" } else { "" };
    put(
        html,
        format_args!(
            "<div class=\"figures\"><span>{converged}/{} converged</span>\
             <span title=\"age of the oldest change that has not taken effect\">lag {}</span>\
             <span{late} title=\"objects past the deadline of their own plan\">overdue {overdue}</span>\
             <span title=\"what something else removed or changed, and the agent restored\">{}</span></div>\n",
            overview.job_count(),
            lag.rounded(),
            overview.drift(),
        ),
    );
    let manifests = vitals.manifest_problems.iter().map(|problem| format!("not in force: {problem}"));
    let of_agent =
        vitals.not_ready.into_iter().chain(vitals.degraded).chain(vitals.disk_full).chain(vitals.warnings);
    for message in of_agent.chain(manifests) {
        put(html, format_args!("<p class=\"wrong\">{}</p>\n", escaped(&message)));
    }
}

fn jobs(html: &mut String, shared: &Shared, overview: &Overview, now: Now) {
    if overview.jobs.is_empty() {
        html.push_str("<p>No jobs: apply a manifest, or put one in a folder that the agent follows.</p>\n");
        return;
    }
    html.push_str(
        "<table class=\"jobs\"><thead><tr><th>Job</th><th>Version</th><th>State</th><th class=\"number\">Healthy</th><th>Next</th></tr>\
         </thead><tbody>\n",
    );
    for row in overview.jobs.iter().take(ROWS_MAX) {
        let (job, allocs) = (placed::job(&shared.model, &row.key), shared.model.allocs_of(&row.key));
        job::row(html, row, &allocs, (job.as_deref(), UnixNanos(now.wall_ns)));
    }
    html.push_str("</tbody></table>\n");
    if let Some(more) = overview.jobs.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
        put(html, format_args!("<p class=\"dim\">and {more} more</p>\n"));
    }
}

fn explained(view: &AllocView, explanation: &Explanation) -> String {
    let mut text = format!("{} {}: {}\n", view.spec.name(), view.spec.id, view.convergence.state.as_str());
    for wait in &explanation.waits {
        let _ = writeln!(text, "{}: {}", wait.part, wait.message);
    }
    if explanation.waits.is_empty() {
        text.push_str("waiting for nothing\n");
    }
    for task in &view.tasks {
        let _ = writeln!(text, "task {}: {}", task.name, task.phase);
        for event in task.events.iter() {
            let _ = writeln!(text, "  {} {}", clock(event.time), event.message);
        }
    }
    format!("<pre>{}</pre>\n", escaped(&text))
}

/// The lag of the last hour as an area, with its maximum as text.
fn plot(html: &mut String, lag: &[Option<u64>]) {
    let highest = lag.iter().copied().flatten().max().unwrap_or(0);
    let first = lag.iter().position(Option::is_some).unwrap_or_default();
    let since = match first {
        0 => String::new(),
        _ => ", since the agent started".to_owned(),
    };
    let words = format!("{}{since}", Duration(i64::try_from(highest).unwrap_or(i64::MAX)).rounded());
    put(html, format_args!("<h2>Lag of the last hour</h2>\n<p class=\"dim\">at most {words}</p>\n"));
    let height = |lag: u64| 100.0 - 96.0 * (lag as f64 / highest.max(1) as f64);
    let mut path = format!("M{first} 100");
    for (minute, lag) in lag.iter().enumerate().skip(first) {
        put(&mut path, format_args!(" L{minute} {:.1}", height(lag.unwrap_or_default())));
    }
    let last = LAG_MINUTES - 1;
    put(
        html,
        format_args!(
            "<svg viewBox=\"0 0 {last} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"lag by minute, at most \
             {words}\"><path d=\"{path} L{last} 100 Z\"/></svg>\n"
        ),
    );
}

fn transitions(html: &mut String, transitions: &[Transition]) {
    html.push_str("<h2>Last transitions</h2>\n");
    if transitions.is_empty() {
        html.push_str("<p class=\"dim\">none since the agent started</p>\n");
        return;
    }
    html.push_str("<table><tbody>\n");
    for Transition { at, job: _, name, alloc: _, state, cause } in transitions.iter().take(TRANSITIONS_MAX) {
        let state = state.as_str();
        put(
            html,
            format_args!(
                "<tr><td><time>{}</time></td><td>{}</td><td class=\"{state}\">{state}</td><td>{}</td></tr>\n",
                clock(*at),
                escaped(name),
                escaped(cause),
            ),
        );
    }
    html.push_str("</tbody></table>\n");
}

/// `2026-01-02 03:04:05Z`.
fn clock(at: UnixNanos) -> String {
    const SECOND: i64 = 1_000_000_000;
    rfc3339(UnixNanos(at.0 - at.0.rem_euclid(SECOND))).unwrap_or_default().replacen('T', " ", 1)
}

fn put(html: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a `String` can't fail.
    let _ = html.write_fmt(what);
}

/// Escapes a text for HTML, in elements and attributes.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            char if char.is_control() && char != '\n' => safe.push(' '),
            char => safe.push(char),
        }
    }
    safe
}
