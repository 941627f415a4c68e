//! The whole loop: bursts, wakes, idleness, shutdown.

use std::time::Duration;

use herdlet_runtime::{BootClock, Clock, InboxError};
use tokio::sync::oneshot;

use crate::fake::{Event, Mode, Numbers, Planned, run, run_on};

#[tokio::test(start_paused = true)]
async fn idle_loop_does_nothing() {
    let running = run(Numbers::default());
    running.settle().await;
    let metrics = &running.handle.metrics;
    assert_eq!(metrics.turns.get(), 1, "the first turn");
    tokio::time::sleep(Duration::from_secs(365 * 24 * 3_600)).await;
    assert_eq!(metrics.turns.get(), 1, "a year without a tick");
    // Waiting for a distant time is idle too.
    let ten_years_ns = 10 * 365 * 24 * 3_600 * 1_000_000_000;
    running.send(Event::Plan(1, Planned { wakes: vec![ten_years_ns], ..Planned::default() })).await;
    running.settle().await;
    running.send(Event::Plan(2, Planned { wakes: vec![u64::MAX], ..Planned::default() })).await;
    running.settle().await;
    assert_eq!(metrics.turns.get(), 3);
    tokio::time::sleep(Duration::from_secs(8 * 365 * 24 * 3_600)).await;
    assert_eq!((metrics.turns.get(), metrics.wakes.get()), (3, 0));
    assert_eq!((metrics.wakes_pending.get(), metrics.commits.get()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn wake_arrives_on_time() {
    let running = run(Numbers::default());
    let second_ns = 1_000_000_000;
    running.send(Event::Plan(1, Planned { wakes: vec![30 * second_ns], ..Planned::default() })).await;
    tokio::time::sleep(Duration::from_secs(29)).await;
    assert_eq!(running.log.take(), ["reconcile 1"]);
    // An earlier wake wins while the alarm is already set.
    running
        .send(Event::Plan(2, Planned { wakes: vec![29 * second_ns + 500_000_000], ..Planned::default() }))
        .await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(running.log.take(), ["reconcile 2"]);
    running
        .send(Event::Plan(2, Planned { wakes: vec![29 * second_ns + 600_000_000], ..Planned::default() }))
        .await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert_eq!(running.log.take(), ["reconcile 2"], "the wake of 29.5 s was cancelled");
    drop(running.inbox);
    assert_eq!(running.ended.await.unwrap().world.log.take(), Vec::<String>::new(), "no sender, no loop");
}

#[tokio::test(start_paused = true)]
async fn key_that_is_due_at_once_starves_no_other() {
    let running = run(Numbers::default());
    running.send(Event::Plan(1, Planned { wakes: vec![0], ..Planned::default() })).await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    running.send(Event::Plan(1, Planned::default())).await;
    running.settle().await;
    let turns = running.handle.metrics.turns.get();
    assert!((100..5_000).contains(&turns), "{turns}");
    running.settle().await;
    assert_eq!(running.handle.metrics.turns.get(), turns);
}

#[tokio::test(start_paused = true)]
async fn burst_is_split_into_bounded_turns() {
    let running = run(Numbers::default());
    running.settle().await;
    for key in 0..10_000 {
        let planned = Planned { record: true, status: true, ..Planned::default() };
        running.inbox.try_send(Event::Plan(key, planned)).unwrap();
    }
    assert_eq!(running.inbox.depth(), 10_000);
    running.settle().await;
    let metrics = &running.handle.metrics;
    assert_eq!((metrics.events.get(), metrics.keys.get(), metrics.records.get()), (10_000, 10_000, 10_000));
    assert!((11..=12).contains(&metrics.turns.get()), "{}", metrics.turns.get());
    assert!(metrics.commits.get() <= 10);
    assert_eq!((running.inbox.depth(), metrics.inbox_wait.read().count), (0, 10_000));
}

#[tokio::test(start_paused = true)]
async fn a_flood_waits_at_the_door() {
    let running = run(Numbers::default());
    let mut taken = 0;
    while running.inbox.try_send(Event::Mark(1)).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 16_384);
    assert_eq!(running.inbox.try_send(Event::Mark(1)), Err(InboxError::Full));
    running.settle().await;
    assert_eq!(running.handle.metrics.events.get(), 16_384);
}

#[tokio::test(start_paused = true)]
async fn shutdown_accepts_and_flushes_pending_turns() {
    let mut running = run(Numbers::default());
    running.settle().await;
    running.store.set(Mode::Hang);
    running.send(Event::Plan(1, Planned { record: true, start: true, ..Planned::default() })).await;
    running.store.began().await;
    let (reply, replied) = oneshot::channel();
    running.send(Event::Ask(reply)).await;
    running.handle.shutdown.cancel();
    running.settle_hung().await;
    assert_eq!(running.inbox.try_send(Event::Mark(1)), Err(InboxError::Closed));
    assert!(!running.ended.is_finished());
    running.store.set(Mode::Work);
    running.store.go();
    let ended = running.ended.await.unwrap();
    assert!(ended.store.is_some());
    assert_eq!(replied.await.unwrap().0, 102, "accepted, so it is answered");
    assert_eq!(
        running.log.take(),
        ["reconcile 1", "commit 101 1", "commit 102 asked"],
        "nothing is started after the shutdown"
    );
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_ever() {
    let running = run(Numbers::default());
    running.settle().await;
    running.store.set(Mode::Fail);
    let (reply, replied) = oneshot::channel();
    running.send(Event::Ask(reply)).await;
    running.settle().await;
    let start = tokio::time::Instant::now();
    let (ended, _) = running.shut_down().await;
    assert!(ended.store.is_none());
    assert_eq!(start.elapsed().as_secs(), 10);
    assert!(replied.await.is_err(), "the caller learns that it was not committed");
}

/// The one test in real time: the machine's clocks, several threads, a commit per turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machines_clock_wakes_too() {
    let running = run_on(Numbers::default(), BootClock);
    running.handle.first_turn.opened().await.unwrap();
    let at_boot_ns = BootClock.now().after(Duration::from_millis(20));
    running.send(Event::Plan(1, Planned { wakes: vec![at_boot_ns], ..Planned::default() })).await;
    while running.handle.metrics.wakes.get() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(BootClock.now().boot_ns >= at_boot_ns);
    running.send(Event::Plan(1, Planned::default())).await;
    for _ in 0..200 {
        let (reply, replied) = oneshot::channel();
        running.send(Event::Ask(reply)).await;
        replied.await.unwrap();
    }
    assert_eq!(running.handle.metrics.commits.get(), 200);
    let (ended, _) = running.shut_down().await;
    assert!(ended.store.is_some());
}
