//! What is told, and when.

use super::*;

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

/// Servers have these, all pending.
fn open(ids: &[&str]) -> Sync {
    let mut sync = Sync::default();
    list(&mut sync, ids, ClientStatus::Pending);
    sync.open();
    sync
}

fn list(sync: &mut Sync, names: &[&str], status: ClientStatus) {
    let ids: Vec<AllocId> = names.iter().map(|&id| id.into()).collect();
    let allocs: Vec<_> = names.iter().map(|id| fetched(id, status.clone())).collect();
    sync.listed(ids.iter(), &allocs);
}

fn sent(sync: &mut Sync, now: Instant) -> Vec<String> {
    let reports = sync.begin(now);
    reports.iter().map(|report| format!("{}:{}", report.id, report.client_status)).collect()
}

#[test]
fn a_changed_status_goes_at_once_and_the_rest_waits_for_company() {
    let (mut sync, t) = (open(&["a", "b"]), Instant::now());
    assert_eq!(sync.due(t), None);
    // What servers have already is not urgent, and waits.
    sync.report(pending("a"), t);
    assert_eq!(sync.due(t), Some(t + CALM));
    sync.report(running("a", ""), t + ms(40));
    assert_eq!(sync.due(t + ms(40)), Some(t + ms(40)), "the first after silence");
    assert_eq!(sent(&mut sync, t + ms(40)), ["a:running"]);
    sync.report(running("b", ""), t + ms(41));
    assert_eq!(sync.due(t + ms(41)), None, "one call at a time");
    sync.done();
    assert_eq!(sync.due(t + ms(50)), Some(t + ms(240)), "one call in a tick");
    assert_eq!(sent(&mut sync, t + ms(240)), ["b:running"]);
    sync.done();
    // An event, while nothing else happens.
    sync.report(running("a", "more"), t + ms(300));
    assert_eq!(sync.due(t + ms(300)), Some(t + ms(1_300)));
    // It goes along with what is urgent.
    sync.report(report("b", ClientStatus::Failed, ""), t + ms(500));
    assert_eq!(sync.due(t + ms(500)), Some(t + ms(440)));
    assert_eq!(sent(&mut sync, t + ms(500)), ["b:failed", "a:running"]);
    sync.done();
    sync.report(running("a", "most"), t + ms(501));
    assert_eq!(sync.due(t + ms(501)), Some(t + ms(1_501)));
}

#[test]
fn nothing_goes_twice() {
    let (mut sync, t) = (open(&["a"]), Instant::now());
    assert!(sync.report(running("a", ""), t));
    sync.begin(t);
    assert!(!sync.report(running("a", ""), t), "it is under way");
    sync.report(running("a", "x"), t);
    assert!(!sync.report(running("a", ""), t), "and is the newest again");
    sync.done();
    assert_eq!(sync.due(t), None);
    assert!(!sync.report(running("a", ""), t), "it was told");
    sync.report(running("a", "x"), t);
    sync.report(running("a", ""), t);
    assert_eq!(sync.due(t), None, "what servers have is the newest again");
}

#[test]
fn nothing_goes_before_the_first_list_and_nothing_that_servers_do_not_have() {
    let (mut sync, t) = (Sync::default(), Instant::now());
    sync.report(report("a", ClientStatus::Failed, ""), t);
    sync.report(running("b", ""), t);
    sync.report(running("gone", ""), t);
    assert_eq!(sync.due(t), None);
    let ids: [AllocId; 2] = ["a".into(), "b".into()];
    sync.listed(ids.iter(), &[]);
    assert_eq!(sync.due(t), None);
    sync.open();
    assert_eq!(sync.due(t), Some(t), "a failure of which servers may not know");
    assert_eq!(sent(&mut sync, t), ["a:failed", "b:running"]);
    sync.done();
    assert!(!sync.report(running("gone", "x"), t));
}

#[test]
fn what_failed_is_sent_again_unless_there_is_something_newer() {
    let (mut sync, mut chance, t) = (open(&["a", "b"]), Chance::of(1), Instant::now());
    sync.report(running("a", ""), t);
    sync.report(running("b", ""), t);
    let reports = sync.begin(t);
    sync.report(report("a", ClientStatus::Complete, ""), t + ms(10));
    sync.failed(reports, t + ms(20), &mut chance);
    let due = sync.due(t + ms(20)).unwrap();
    assert!(due >= t + ms(5_020) && due < t + ms(10_020));
    assert!(sync.is_held(t + ms(20)));
    sync.release();
    assert_eq!(sync.due(t + ms(1_000)), Some(t + TICK));
    assert_eq!(sent(&mut sync, t + ms(1_000)), ["a:complete", "b:running"]);
    sync.done();
    // Nobody knows what servers have after a failure: what was told before may have to be told again.
    sync.report(running("b", "x"), t);
    let reports = sync.begin(t);
    sync.failed(reports, t, &mut chance);
    sync.report(running("b", ""), t);
    sync.release();
    assert_eq!(sent(&mut sync, t), ["b:running"]);
}

#[test]
fn what_servers_have_changed_is_told_again() {
    let (mut sync, t) = (open(&["a", "b"]), Instant::now());
    sync.report(running("a", ""), t);
    sync.report(report("b", ClientStatus::Complete, ""), t);
    sync.begin(t);
    sync.done();
    // An older copy, as a server that lags behind has it, is no news.
    list(&mut sync, &["a", "b"], ClientStatus::Pending);
    assert!(!sync.report(running("a", ""), t));
    let ids: [AllocId; 2] = ["a".into(), "b".into()];
    sync.listed(ids.iter(), &[fetched("a", ClientStatus::Unknown)]);
    assert!(sync.report(running("a", ""), t + CALM));
    assert_eq!(sync.due(t + CALM), Some(t + TICK), "at once");
    sync.begin(t + CALM);
    sync.done();
    sync.missed();
    assert!(sync.report(running("a", ""), t + 2 * CALM));
    assert!(!sync.report(report("b", ClientStatus::Complete, ""), t), "an end is an end");
}

#[test]
fn many_go_in_several_calls() {
    let names: Vec<_> = (0..2_500).map(|number| format!("{number:04}")).collect();
    let names: Vec<_> = names.iter().map(|name| &name[..]).collect();
    let (mut sync, mut t) = (open(&names), Instant::now());
    names.iter().for_each(|name| {
        sync.report(running(name, ""), t);
    });
    for expected in [BATCH, BATCH, 500] {
        t = sync.due(t).unwrap();
        assert_eq!(sync.begin(t).len(), expected);
        sync.done();
    }
    assert_eq!(sync.due(t), None);
}

#[test]
fn what_has_ended_stays_ended() {
    let (mut sync, t) = (open(&["a"]), Instant::now());
    sync.report(report("a", ClientStatus::Failed, ""), t);
    assert!(!sync.report(running("a", "late"), t), "before it is told");
    assert_eq!(sent(&mut sync, t), ["a:failed"]);
    assert!(!sync.report(running("a", "late"), t), "while it is told");
    sync.done();
    assert!(!sync.report(running("a", "late"), t), "afterwards");
    assert_eq!(sync.due(t + ms(10_000)), None);
}
