//! `herdlet get events`: the latest changes of allocations, and their causes.
//!
//! In: the agent's stored transitions, newest first. Out: rows in that order. The allocations may be gone, so targets are
//! compared with their names.

use herdlet_api_types::{
    AllocId, JobKey, UnixNanos, overview::Transition, rfc3339::rfc3339, view::AllocView,
};

use super::{
    Form, ObjectKind,
    listing::{Cell, Document, Listing, Row},
};

pub(super) fn list(events: Vec<Transition>, targets: &[String], form: Form) -> Listing {
    let [time, id] = heads(form);
    let mut listing = Listing::new(&[time, id, "NAME", "STATE", "CAUSE"]);
    let meant = events.into_iter().filter(|event| is_meant(&event.job, &event.name, event.alloc, targets));
    listing.rows = meant.map(|event| row(event, form)).collect();
    listing
}

fn row(event: Transition, form: Form) -> Row {
    let Transition { at, alloc, name, state, cause, .. } = &event;
    let [time, id] = when_and_what(*at, *alloc, form);
    let key =
        format!("{} {} {}", at.0, alloc.map_or_else(|| name.clone(), |id| id.to_string()), state.as_str());
    let cells = vec![time, id, name.clone().into(), state.as_str().to_owned().into(), cause.clone().into()];
    Row { key, name: name.clone(), cells, document: Document::Event(event) }
}

/// Explains an empty list.
pub(super) fn none_text(targets: &[String], allocs: &[AllocView]) -> String {
    let is_known = allocs
        .iter()
        .any(|view| is_meant(&view.spec.job_key, &view.spec.name(), Some(view.spec.id), targets));
    match targets.first() {
        Some(first) if !is_known => {
            format!("no allocation of {first} yet; the reason: herdlet explain {first}\n")
        }
        Some(_) | None => format!("{}\n", ObjectKind::Events.none()),
    }
}

/// The headings of [`when_and_what`].
pub(super) fn heads(form: Form) -> [&'static str; 2] {
    if form == Form::Wide { ["TIME", "ID"] } else { ["AGE", "ALLOC"] }
}

/// The time and allocation of an event: time to the second and full id in the wide form, else age and short id.
pub(super) fn when_and_what(at: UnixNanos, alloc: Option<AllocId>, form: Form) -> [Cell; 2] {
    if form == Form::Wide {
        [Cell::Text(to_the_second(at)), alloc.map_or_else(String::new, |id| id.to_string()).into()]
    } else {
        [Cell::Age(at), alloc.map_or_else(String::new, |id| id.short().to_string()).into()]
    }
}

fn to_the_second(at: UnixNanos) -> String {
    const SECOND: i64 = 1_000_000_000;
    rfc3339(UnixNanos(at.0 - at.0.rem_euclid(SECOND))).unwrap_or_default()
}

/// Length of a short id; a shorter text is more likely a name.
const SHORT_ID: usize = 8;

/// Whether a target names the job, the group or the allocation; true if there are no targets.
pub(super) fn is_meant(job: &JobKey, name: &str, alloc: Option<AllocId>, targets: &[String]) -> bool {
    let (full, job) = (job.full(), job.to_string());
    let group = name.rsplit_once('[').map_or(name, |(group, _)| group);
    let dotted = name.replace('[', ".").replace(']', "");
    let id = alloc.map_or_else(String::new, |id| id.to_string());
    targets.is_empty()
        || targets.iter().any(|target| {
            [&*job, &*full, name, group, &*dotted].contains(&target.as_str())
                || (target.len() >= SHORT_ID && id.starts_with(&target.to_ascii_lowercase()))
        })
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::overview::TransitionState;

    use super::*;
    use crate::table::Heading;
    use herdlet_manifest::fixture::THEN;

    fn event(seed: u8, name: &str, cause: &str) -> Transition {
        Transition {
            at: UnixNanos(THEN.0 + 5),
            job: JobKey { namespace: "default".into(), id: "web".into() },
            name: name.to_owned(),
            alloc: Some(AllocId::from_hash([seed; 16])),
            state: TransitionState::Waiting,
            cause: cause.to_owned(),
        }
    }

    #[test]
    fn events_are_listed_with_time_and_cause() {
        let events = vec![event(0x11, "web.front[0]", "task httpd: waits\nagain")];
        let listing = list(events, &[], Form::Wide);
        assert_eq!(
            listing.whole(super::super::ObjectKind::Events, Heading::Shown),
            "TIME                  ID                                    NAME          STATE    CAUSE\n\
             2026-01-02T03:04:05Z  11111111-1111-8111-9111-111111111111  web.front[0]  waiting  task httpd: waits again\n"
        );
    }

    // The list of a job that waited for its volume was only reported as empty, as if nothing was wrong.
    #[test]
    fn a_job_without_allocations_has_a_reason() {
        let web = herdlet_manifest::fixture::job("web", "front", "httpd");
        let allocs = [herdlet_manifest::fixture::alloc_view(&web, 0, 7)];
        let text = |target: &str| none_text(&[target.to_owned()], &allocs);
        assert_eq!(text("novol"), "no allocation of novol yet; the reason: herdlet explain novol\n");
        assert_eq!(text("web"), "nothing has happened since the agent started\n");
        assert_eq!(none_text(&[], &allocs), "nothing has happened since the agent started\n");
    }

    #[test]
    fn targets_name_jobs_groups_and_allocations() {
        let events = || vec![event(0x11, "web.front[0]", ""), event(0x22, "web.back[1]", "")];
        for (target, found) in [
            ("web", 2),
            ("web.front", 1),
            ("web.back[1]", 1),
            ("web.back.1", 1),
            ("22222222", 1),
            ("2222", 0),
            ("we", 0),
            ("", 0),
        ] {
            assert_eq!(list(events(), &[target.to_owned()], Form::Table).rows.len(), found, "{target:?}");
        }
    }
}
