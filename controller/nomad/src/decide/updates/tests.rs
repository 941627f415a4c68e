//! Which reports are sent, and when.

use super::*;
use crate::wire::alloc::DeploymentStatus;

fn report(id: &str, status: ClientStatus, text: &str) -> AllocReport {
    AllocReport {
        id: id.into(),
        client_status: status,
        client_description: text.to_owned(),
        ..AllocReport::default()
    }
}

fn pending(id: &str) -> AllocReport {
    report(id, ClientStatus::Pending, "")
}

fn running(id: &str, text: &str) -> AllocReport {
    report(id, ClientStatus::Running, text)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn fetched(id: &str, client_status: ClientStatus) -> Allocation {
    Allocation { id: id.into(), client_status, ..Allocation::default() }
}

/// Servers have these allocations, all pending.
fn open(ids: &[&str]) -> Updates {
    let mut updates = Updates::default();
    list(&mut updates, ids, ClientStatus::Pending);
    updates.open();
    updates
}

fn list(updates: &mut Updates, names: &[&str], status: ClientStatus) {
    let ids: Vec<AllocId> = names.iter().map(|&id| id.into()).collect();
    let allocs: Vec<_> = names.iter().map(|id| fetched(id, status.clone())).collect();
    updates.listed(ids.iter(), &allocs);
}

fn sent(updates: &mut Updates, now: Instant) -> Vec<String> {
    let reports = updates.begin(now);
    reports.iter().map(|report| format!("{}:{}", report.id, report.client_status)).collect()
}

#[test]
fn changed_status_is_urgent_and_others_are_batched() {
    let (mut updates, t) = (open(&["a", "b"]), Instant::now());
    assert_eq!(updates.due(t), None);
    // A status that servers already have is not urgent.
    updates.report(pending("a"), t);
    assert_eq!(updates.due(t), Some(t + CALM));
    updates.report(running("a", ""), t + ms(40));
    assert_eq!(updates.due(t + ms(40)), Some(t + ms(40)), "the first after silence");
    assert_eq!(sent(&mut updates, t + ms(40)), ["a:running"]);
    updates.report(running("b", ""), t + ms(41));
    assert_eq!(updates.due(t + ms(41)), None, "one call at a time");
    updates.done(7);
    assert_eq!(updates.due(t + ms(50)), Some(t + ms(240)), "one call in a tick");
    assert_eq!(sent(&mut updates, t + ms(240)), ["b:running"]);
    updates.done(7);
    // An event alone waits.
    updates.report(running("a", "more"), t + ms(300));
    assert_eq!(updates.due(t + ms(300)), Some(t + ms(1_300)));
    // It is sent along with an urgent report.
    updates.report(report("b", ClientStatus::Failed, ""), t + ms(500));
    assert_eq!(updates.due(t + ms(500)), Some(t + ms(440)));
    assert_eq!(sent(&mut updates, t + ms(500)), ["b:failed", "a:running"]);
    updates.done(7);
    updates.report(running("a", "most"), t + ms(501));
    assert_eq!(updates.due(t + ms(501)), Some(t + ms(1_501)));
}

#[test]
fn report_is_sent_once() {
    let (mut updates, t) = (open(&["a"]), Instant::now());
    assert!(updates.report(running("a", ""), t));
    updates.begin(t);
    assert!(!updates.report(running("a", ""), t), "the report is in flight");
    updates.report(running("a", "x"), t);
    assert!(!updates.report(running("a", ""), t), "the report in flight is the newest again");
    updates.done(7);
    assert_eq!(updates.due(t), None);
    assert!(!updates.report(running("a", ""), t), "servers have the report");
    updates.report(running("a", "x"), t);
    updates.report(running("a", ""), t);
    assert_eq!(updates.due(t), None, "servers already have the newest report");
}

#[test]
fn no_report_precedes_the_first_list() {
    let (mut updates, t) = (Updates::default(), Instant::now());
    updates.report(report("a", ClientStatus::Failed, ""), t);
    updates.report(running("b", ""), t);
    updates.report(running("gone", ""), t);
    assert_eq!(updates.due(t), None);
    let ids: [AllocId; 2] = ["a".into(), "b".into()];
    updates.listed(ids.iter(), &[]);
    assert_eq!(updates.due(t), None);
    updates.open();
    assert_eq!(updates.due(t), Some(t), "servers may not know this failure");
    assert_eq!(sent(&mut updates, t), ["a:failed", "b:running"]);
    updates.done(7);
    assert!(!updates.report(running("gone", "x"), t));
}

#[test]
fn failed_report_is_repeated_unless_replaced() {
    let (mut updates, mut chance, t) = (open(&["a", "b"]), Chance::of(1), Instant::now());
    updates.report(running("a", ""), t);
    updates.report(running("b", ""), t);
    let reports = updates.begin(t);
    updates.report(report("a", ClientStatus::Complete, ""), t + ms(10));
    updates.failed(reports, t + ms(20), &mut chance);
    let due = updates.due(t + ms(20)).unwrap();
    assert!(due >= t + ms(5_020) && due < t + ms(10_020));
    assert!(updates.is_held(t + ms(20)));
    updates.release();
    assert_eq!(updates.due(t + ms(1_000)), Some(t + TICK));
    assert_eq!(sent(&mut updates, t + ms(1_000)), ["a:complete", "b:running"]);
    updates.done(7);
    // After a failure it is unknown what servers have, so an earlier report may have to be repeated.
    updates.report(running("b", "x"), t);
    let reports = updates.begin(t);
    updates.failed(reports, t, &mut chance);
    updates.report(running("b", ""), t);
    updates.release();
    assert_eq!(sent(&mut updates, t), ["b:running"]);
}

#[test]
fn status_changed_by_servers_is_reported_again() {
    let (mut updates, t) = (open(&["a", "b"]), Instant::now());
    updates.report(running("a", ""), t);
    updates.report(report("b", ClientStatus::Complete, ""), t);
    updates.begin(t);
    updates.done(7);
    // An older copy from a lagging server changes nothing.
    list(&mut updates, &["a", "b"], ClientStatus::Pending);
    assert!(!updates.report(running("a", ""), t));
    let ids: [AllocId; 2] = ["a".into(), "b".into()];
    updates.listed(ids.iter(), &[fetched("a", ClientStatus::Unknown)]);
    assert!(updates.report(running("a", ""), t + CALM));
    assert_eq!(updates.due(t + CALM), Some(t + TICK), "due with the next tick");
    updates.begin(t + CALM);
    updates.done(7);
    updates.missed();
    assert!(updates.report(running("a", ""), t + 2 * CALM));
    assert!(!updates.report(report("b", ClientStatus::Complete, ""), t), "a final status does not change");
}

#[test]
fn many_go_in_several_calls() {
    let names: Vec<_> = (0..2_500).map(|number| format!("{number:04}")).collect();
    let names: Vec<_> = names.iter().map(|name| &name[..]).collect();
    let (mut updates, mut t) = (open(&names), Instant::now());
    names.iter().for_each(|name| {
        updates.report(running(name, ""), t);
    });
    for expected in [BATCH, BATCH, 500] {
        t = updates.due(t).unwrap();
        assert_eq!(updates.begin(t).len(), expected);
        updates.done(7);
    }
    assert_eq!(updates.due(t), None);
}

#[test]
fn terminal_status_stays() {
    let (mut updates, t) = (open(&["a"]), Instant::now());
    updates.report(report("a", ClientStatus::Failed, ""), t);
    assert!(!updates.report(running("a", "late"), t), "before the end is sent");
    assert_eq!(sent(&mut updates, t), ["a:failed"]);
    assert!(!updates.report(running("a", "late"), t), "while the end is in flight");
    updates.done(7);
    assert!(!updates.report(running("a", "late"), t), "afterwards");
    assert_eq!(updates.due(t + ms(10_000)), None);
}

/// Servers may have received the report before they marked the node as down, so it does not reflect their current state.
#[test]
fn repeated_report_is_dropped_once_servers_changed_it() {
    for miss in [true, false] {
        let (mut updates, mut chance, t) = (open(&["a"]), Chance::of(1), Instant::now());
        updates.report(running("a", ""), t);
        let mut reports = updates.begin(t);
        if miss {
            updates.missed();
        } else {
            list(&mut updates, &["a"], ClientStatus::Unknown);
        }
        assert!(updates.report(running("a", ""), t), "the report is sent again");
        if miss {
            updates.done(7);
        } else {
            updates.failed(std::mem::take(&mut reports), t, &mut chance);
            updates.release();
        }
        assert_eq!(updates.due(t), Some(t + TICK), "due with the next tick");
        assert_eq!(sent(&mut updates, t + TICK), ["a:running"]);
        updates.done(7);
        assert_eq!(updates.due(t + TICK), None);
    }
}

#[test]
fn empty_report_starts_no_call() {
    let (mut updates, t) = (open(&["a"]), Instant::now());
    updates.report(running("a", ""), t);
    updates.begin(t);
    updates.done(7);
    updates.report(running("a", "x"), t);
    assert!(updates.due(t).is_some());
    // Between `due` and `begin`, the newest report is again the one that servers have.
    updates.report(running("a", ""), t);
    assert_eq!(updates.begin(t + ms(9_000)), []);
    updates.report(report("a", ClientStatus::Failed, ""), t + ms(9_001));
    assert_eq!(updates.due(t + ms(9_001)), Some(t + TICK), "no call has begun meanwhile");
}

/// Both allocations run, and servers have acknowledged that.
fn acknowledged(t: Instant) -> Acknowledged {
    let mut before = open(&["a", "b"]);
    before.report(running("a", ""), t);
    before.report(running("b", ""), t);
    sent(&mut before, t);
    before.done(9);
    assert_eq!(before.remembered(), None, "only the previous session counts");
    before.acknowledged(&"n".into())
}

#[test]
fn acknowledged_report_is_not_repeated() {
    let t = Instant::now();
    let ids: Vec<AllocId> = vec!["a".into(), "b".into()];
    let mut after = Updates::remembering(acknowledged(t));
    assert_eq!(after.remembered(), Some(9));
    after.listed(ids.iter(), &[]);
    after.report(running("a", ""), t);
    after.report(report("b", ClientStatus::Complete, ""), t);
    after.open();
    assert_eq!(sent(&mut after, t), ["b:complete"]);
    assert_eq!(after.remembered(), None);
    after.done(12);
    assert!(!after.report(running("a", ""), t));
    // Allocations that servers have dropped are forgotten.
    after.listed(ids[..1].iter(), &[]);
    let kept = after.acknowledged(&"n".into()).to_string();
    assert!(kept.starts_with("n 12\na running ") && kept.lines().count() == 2, "{kept}");
}

#[test]
fn unknown_report_is_repeated() {
    let t = Instant::now();
    let ids: Vec<AllocId> = vec!["a".into(), "b".into()];
    let reported = |mut after: Updates, fetched: &[Allocation]| {
        after.listed(ids.iter(), fetched);
        for id in &ids {
            after.report(running(id.as_str(), ""), t);
        }
        after.open();
        sent(&mut after, t)
    };
    let mut forgotten = Updates::remembering(acknowledged(t));
    forgotten.forget();
    assert_eq!(forgotten.remembered(), None);
    assert_eq!(reported(forgotten, &[]), ["a:running", "b:running"]);
    let after = Updates::remembering(acknowledged(t));
    assert_eq!(reported(after, &[fetched("b", ClientStatus::Unknown)]), ["b:running"]);
}

#[test]
fn health_verdict_is_urgent_and_sent_once() {
    let (mut updates, t) = (open(&["a"]), Instant::now());
    let judged = |text: &str, healthy| AllocReport {
        deployment_status: Some(DeploymentStatus { healthy, ..DeploymentStatus::default() }),
        ..running("a", text)
    };
    updates.report(running("a", ""), t);
    assert_eq!(sent(&mut updates, t), ["a:running"]);
    updates.done(7);
    updates.report(judged("", None), t + ms(900));
    assert_eq!(updates.due(t + ms(900)), Some(t + ms(1_900)), "not known yet");
    updates.report(judged("", Some(true)), t + ms(1_000));
    assert_eq!(updates.due(t + ms(1_000)), Some(t + ms(200)));
    assert_eq!(sent(&mut updates, t + ms(1_000)), ["a:running"]);
    // The same health is in flight and then known: not urgent any more.
    updates.report(judged("more", Some(true)), t + ms(1_001));
    updates.done(7);
    assert_eq!(updates.due(t + ms(1_001)), Some(t + ms(2_001)));
    updates.report(judged("most", Some(false)), t + ms(1_002));
    assert_eq!(updates.due(t + ms(1_002)), Some(t + ms(1_200)));
}
