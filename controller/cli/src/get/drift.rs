//! `herdlet drift`: differences between what the agent created and what it found, and what happened
//! to them.
//!
//! In: the agent's stored drift, newest first. Out: rows in that order.

use herdlet_api_types::overview::{Drift, DriftState};

use super::{
    Form, events,
    listing::{Document, Listing, Row},
};

pub(super) fn list(drifts: Vec<Drift>, targets: &[String], form: Form) -> Listing {
    let [time, id] = events::heads(form);
    let mut listing = Listing::new(&[time, id, "NAME", "TASK", "KIND", "NOTICED", "STATE", "CAUSE"]);
    let is_meant = |drift: &Drift| events::is_meant(&drift.job, &drift.name, Some(drift.alloc), targets);
    listing.rows = drifts.into_iter().filter(is_meant).map(|drift| row(drift, form)).collect();
    listing
}

fn row(drift: Drift, form: Form) -> Row {
    let Drift { at, alloc, name, task, kind, by, state, took, cause, .. } = &drift;
    let [time, id] = events::when_and_what(*at, Some(*alloc), form);
    let task = task.clone().unwrap_or_default();
    let state = match (state, took) {
        (DriftState::Repaired, Some(took)) => format!("repaired after {took}"),
        (state, _) => state.as_str().to_owned(),
    };
    let key = format!("{} {alloc} {task} {kind}", at.0);
    let cells = vec![
        time,
        id,
        name.clone().into(),
        task.into(),
        kind.clone().into(),
        // The stored name of an inspection is `look`.
        format!("by {}", if by == "look" { "inspection" } else { by }).into(),
        state.into(),
        cause.clone().unwrap_or_default().into(),
    ];
    Row { key, name: name.clone(), cells, document: Document::Drift(drift) }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{AllocId, Duration, JobKey, UnixNanos};

    use super::*;
    use crate::{get::ObjectKind, table::Heading};
    use herdlet_manifest::fixture::THEN;

    fn drift(name: &str, task: Option<&str>, state: DriftState) -> Drift {
        Drift {
            at: UnixNanos(THEN.0 + 5),
            job: JobKey { namespace: "default".into(), id: "web".into() },
            name: name.to_owned(),
            alloc: AllocId::from_hash([0x11; 16]),
            task: task.map(str::to_owned),
            kind: "mount".to_owned(),
            by: "event".to_owned(),
            cause: Some("it is missing".to_owned()),
            state,
            took: (state == DriftState::Repaired).then_some(Duration(12_000_000)),
        }
    }

    #[test]
    fn drift_outcome_is_listed() {
        let drifts = || {
            vec![
                drift("web.front[0]", Some("httpd"), DriftState::Repaired),
                drift("web.back[1]", None, DriftState::Open),
            ]
        };
        let listing = list(drifts(), &[], Form::Wide);
        assert_eq!(
            listing.whole(ObjectKind::Drift, Heading::Shown),
            "TIME                  ID                                    NAME          TASK   KIND   NOTICED   STATE                CAUSE\n\
             2026-01-02T03:04:05Z  11111111-1111-8111-9111-111111111111  web.front[0]  httpd  mount  by event  repaired after 12ms  it is missing\n\
             2026-01-02T03:04:05Z  11111111-1111-8111-9111-111111111111  web.back[1]          mount  by event  open                 it is missing\n"
        );
        assert_eq!(list(drifts(), &["web.back".to_owned()], Form::Table).rows.len(), 1);
    }
}
