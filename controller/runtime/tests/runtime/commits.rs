//! Effects follow durability; stops are released even without it.

use std::time::Duration;

use herdlet_runtime::{CommitIndex, StoreHealth};
use tokio::sync::oneshot;

use crate::fake::{Event, Mode, Numbers, Planned, Running, run};

fn planned_all() -> Planned {
    Planned { look: true, stop: true, start: true, record: true, status: true, ..Planned::default() }
}

fn lasting() -> Planned {
    Planned { start: true, record: true, ..Planned::default() }
}

async fn begun() -> Running {
    let running = run(Numbers::default());
    running.handle.first_turn.opened().await.unwrap();
    running.log.take();
    running
}

#[tokio::test(start_paused = true)]
async fn effects_come_after_their_commit_in_order() {
    let running = begun().await;
    running.send(Event::Plan(1, planned_all())).await;
    let (reply, replied) = oneshot::channel();
    running.send(Event::Ask(reply)).await;
    running.settle().await;
    assert_eq!(
        running.log.take(),
        ["reconcile 1", "look 1", "commit 101 asked 1", "stop 1", "start 1", "offer 101 1"]
    );
    assert_eq!(replied.await, Ok(CommitIndex(101)));
}

#[tokio::test(start_paused = true)]
async fn queued_turns_share_the_next_commit() {
    let mut running = begun().await;
    running.store.set(Mode::Hang);
    running.send(Event::Plan(1, lasting())).await;
    running.store.began().await;
    for key in 2..=3 {
        running.send(Event::Plan(key, lasting())).await;
        running.settle_hung().await;
    }
    // It has no record of its own, but must not overtake the turns before it.
    running.send(Event::Plan(4, Planned { start: true, status: true, ..Planned::default() })).await;
    running.settle_hung().await;
    assert_eq!(running.log.take(), ["reconcile 1", "reconcile 2", "reconcile 3", "reconcile 4"]);
    assert_eq!(running.handle.metrics.turns_pending.get(), 4);
    running.store.set(Mode::Work);
    running.store.go();
    running.settle().await;
    assert_eq!(
        running.log.take(),
        ["commit 101 1", "start 1", "commit 102 2 3", "start 2", "start 3", "start 4", "offer 102 4"]
    );
    // Nothing waits before it, so it needs no commit.
    running.send(Event::Mark(4)).await;
    running.settle().await;
    assert_eq!(running.log.take(), ["reconcile 4", "start 4", "offer 102 4"]);
    assert_eq!((running.handle.metrics.commits.get(), running.handle.metrics.records.get()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn hanging_store_blocks_no_stop() {
    let mut running = begun().await;
    running.store.set(Mode::Hang);
    running.send(Event::Plan(1, planned_all())).await;
    running.store.began().await;
    running.settle_hung().await;
    tokio::time::advance(Duration::from_millis(500)).await;
    running.send(Event::Plan(2, Planned { look: false, ..planned_all() })).await;
    running.settle_hung().await;
    assert_eq!(running.log.take(), ["reconcile 1", "look 1", "reconcile 2"]);
    tokio::time::advance(Duration::from_millis(499)).await;
    running.settle_hung().await;
    assert!(running.log.take().is_empty());
    tokio::time::advance(Duration::from_millis(2)).await;
    running.settle_hung().await;
    assert_eq!(running.log.take(), ["stop 1"]);
    tokio::time::advance(Duration::from_millis(500)).await;
    running.settle_hung().await;
    assert_eq!(running.log.take(), ["stop 2"]);
    assert_eq!(*running.handle.store_health.borrow(), StoreHealth::Ok);
    tokio::time::advance(Duration::from_secs(4)).await;
    running.settle_hung().await;
    let health = running.handle.store_health.borrow().clone();
    assert!(
        matches!(health, StoreHealth::Degraded { failures: 0, ref error, .. } if error.contains("5s")),
        "{health:?}"
    );
    running.store.set(Mode::Work);
    running.store.go();
    running.settle().await;
    // Each stop is released once.
    assert_eq!(
        running.log.take(),
        ["commit 101 1", "start 1", "offer 101 1", "commit 102 2", "start 2", "offer 102 2"]
    );
    assert_eq!(*running.handle.store_health.borrow(), StoreHealth::Ok);
    assert_eq!(running.handle.metrics.stops_ahead.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn failing_store_starts_nothing_and_recovers_in_order() {
    let running = begun().await;
    let mut health = running.handle.store_health.clone();
    running.store.set(Mode::Fail);
    running.send(Event::Plan(1, Planned { stop: true, ..lasting() })).await;
    health.changed().await.unwrap();
    let StoreHealth::Degraded { since, failures: 1, error } = health.borrow_and_update().clone() else {
        panic!("not degraded")
    };
    assert_eq!(error, "write: disk full");
    running.send(Event::Plan(2, lasting())).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let log = running.log.take();
    let fails = log.iter().filter(|line| line.starts_with("fail")).count();
    assert_eq!(log[..4], ["reconcile 1", "fail 1", "reconcile 2", "fail 1 2"], "later turns join the retry");
    // 0.1, 0.2, 0.4, … 6.4 s, then every 10 s: the delay grows.
    assert_eq!(fails, 12);
    assert_eq!(log.iter().filter(|line| *line == "stop 1").count(), 1, "stopped nevertheless");
    assert!(!log.iter().any(|line| line.starts_with("start")));
    running.store.set(Mode::Panic);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let degraded = health.borrow_and_update().clone();
    assert!(
        matches!(&degraded, StoreHealth::Degraded { since: same, failures: 13, error }
            if *same == since && error == "the store panicked: corrupt page"),
        "{degraded:?}"
    );
    running.store.set(Mode::Work);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(running.log.take(), ["commit 101 1 2", "start 1", "start 2"]);
    assert_eq!(*health.borrow(), StoreHealth::Ok);
    assert_eq!(running.handle.metrics.commit_failures.get(), 13);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_promises_nothing_waits_for_no_commit() {
    let running = begun().await;
    running.store.set(Mode::Fail);
    let (reply, mut asked) = oneshot::channel();
    running.send(Event::Ask(reply)).await;
    let (reply, wondered) = oneshot::channel();
    running.send(Event::Wonder(reply)).await;
    let answered = tokio::time::timeout(Duration::from_secs(1), wondered).await;
    assert_eq!(answered, Ok(Ok(CommitIndex(100))), "the last commit that succeeded");
    assert!(asked.try_recv().is_err());
    running.store.set(Mode::Work);
    assert_eq!(asked.await, Ok(CommitIndex(101)));
}

#[tokio::test(start_paused = true)]
async fn ended_committer_ends_the_loop() {
    let running = begun().await;
    running.store.set(Mode::Fail);
    running.send(Event::Plan(13_013, lasting())).await;
    let (reply, asked) = oneshot::channel();
    running.send(Event::Ask(reply)).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), running.ended).await.unwrap().unwrap();
    assert!(ended.store.is_none());
    assert!(asked.await.is_err(), "the caller gets an error");
    assert!(running.inbox.is_closed());
}

#[tokio::test(start_paused = true)]
async fn panic_while_releasing_a_turn_affects_no_other() {
    let running = begun().await;
    running.send(Event::Plan(666, planned_all())).await;
    running.settle().await;
    running.send(Event::Plan(1, lasting())).await;
    running.settle().await;
    let log = running.log.take();
    assert!(log.contains(&"offer 101 666".to_owned()) && log.contains(&"start 1".to_owned()), "{log:?}");
    assert_eq!(running.handle.metrics.release_panics.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_gate_opens_with_the_commit_of_the_first_turn() {
    let world = Numbers { restored: vec![1], planned: [(1, lasting())].into(), ..Numbers::default() };
    let mut running = run(world);
    running.store.set(Mode::Hang);
    running.store.began().await;
    running.settle_hung().await;
    assert!(!running.handle.first_turn.is_open());
    running.store.go();
    running.handle.first_turn.opened().await.unwrap();
    assert_eq!(running.log.take(), ["reconcile 1", "commit 101 1", "start 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_for_long_does_not_fill_memory() {
    let mut running = begun().await;
    running.store.set(Mode::Hang);
    running.send(Event::Plan(1, lasting())).await;
    running.store.began().await;
    running.send(Event::Plan(2, Planned { record: true, status: true, ..Planned::default() })).await;
    let turns = &running.handle.metrics.turns;
    for _ in 0..20_000 {
        let seen = turns.get();
        running.send(Event::Mark(2)).await;
        while turns.get() == seen {
            tokio::task::yield_now().await;
        }
    }
    running.settle_hung().await;
    assert_eq!(running.handle.metrics.turns_pending.get(), 1 + 1_024);
    running.send(Event::Plan(3, Planned { stop: true, ..lasting() })).await;
    running.settle_hung().await;
    running.log.take();
    running.store.set(Mode::Work);
    running.store.go();
    running.settle().await;
    let log = running.log.take();
    let words: usize = log.iter().map(|line| line.split(' ').count()).sum();
    assert!(words < 12_000, "{words} instead of 40,000");
    assert_eq!(log[..2], ["commit 101 1", "start 1"]);
    assert!(log.iter().any(|line| line == "stop 3") && log.iter().any(|line| line == "start 3"));
}
