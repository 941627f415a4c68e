//! Operations: one per key, bounded, overdue and late, never dropped.

use std::num::NonZeroU32;
use std::time::Duration;

use herdlet_runtime::operation::KindFigures;
use herdlet_runtime::{Limit, Operations, Permits, Request};
use tokio::time::sleep;

use crate::fake::{Numbers, Running, run};

type Work = Operations<u32, &'static str, &'static str>;

fn working() -> (Running, Work) {
    let running = run(Numbers::default());
    let permits = Permits::new(|kind| Limit {
        concurrent: if kind == "mount" { NonZeroU32::MIN } else { NonZeroU32::MAX },
        rate: None,
    });
    let work = Operations::new(running.inbox.clone(), permits);
    (running, work)
}

fn request(key: u32, kind: &'static str) -> Request<u32, &'static str> {
    Request { key, generation: 1, kind, priority: 50, deadline: Duration::from_secs(10) }
}

fn figures_of(work: &Work, kind: &str) -> KindFigures {
    work.figures().into_iter().find(|(name, _)| *name == kind).map(|(_, figures)| figures).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn an_outcome_is_an_event() {
    let (running, work) = working();
    work.start(request(1, "kill"), |_| async {
        sleep(Duration::from_secs(3)).await;
        "killed"
    });
    assert!(work.is_live(&1));
    assert!(work.settled(Duration::from_secs(5)).await);
    running.settle().await;
    assert_eq!(running.log.take(), ["1 g1 Done(\"killed\") after 3 s"]);
    assert!(!work.is_live(&1) && !work.cancel(&1));
}

#[tokio::test(start_paused = true)]
async fn operation_past_its_deadline_is_overdue_and_keeps_its_slot() {
    let (running, work) = working();
    work.start(request(1, "mount"), |token| async move {
        token.cancelled().await;
        // After it was asked to end, it takes a while.
        sleep(Duration::from_secs(90)).await;
        "mounted"
    });
    work.start(request(2, "mount"), |_| async { "second" });
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.log.take(), ["1 g1 Overdue after 10 s"]);
    let figures = figures_of(&work, "mount");
    assert_eq!((figures.waiting, figures.running, figures.overdue, figures.oldest.as_secs()), (1, 1, 1, 60));
    work.start(Request { generation: 2, ..request(1, "mount") }, |_| async { "never" });
    running.settle().await;
    assert_eq!(running.log.take(), ["1 g2 Refused after 0 s"]);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(running.log.take(), ["1 g1 Done(\"mounted\") after 100 s", "2 g1 Done(\"second\") after 0 s"]);
    let figures = figures_of(&work, "mount");
    assert_eq!(
        (figures.asked_total, figures.done_total, figures.overdue_total, figures.refused_total),
        (2, 2, 1, 1)
    );
    assert_eq!((figures.running, figures.duration.count), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_outcome() {
    let (running, work) = working();
    work.start(request(1, "kill"), |_| async { panic!("no such driver") });
    work.start(request(2, "kill"), |_| -> std::future::Ready<&'static str> {
        panic!("before the first await")
    });
    running.settle().await;
    running.settle().await;
    let mut log = running.log.take();
    log.sort();
    assert_eq!(
        log,
        [
            "1 g1 Panicked(\"no such driver\") after 0 s",
            "2 g1 Panicked(\"before the first await\") after 0 s"
        ]
    );
    assert_eq!(figures_of(&work, "kill").panicked_total, 2);
}

#[tokio::test(start_paused = true)]
async fn operation_cancelled_while_waiting_never_begins() {
    let (running, work) = working();
    work.start(request(1, "mount"), |_| async {
        sleep(Duration::from_secs(5)).await;
        "first"
    });
    running.settle().await;
    work.start(request(2, "mount"), |_| async { "never" });
    work.start(request(3, "kill"), |_| async { "another kind does not wait" });
    running.settle().await;
    assert!(work.cancel(&2));
    running.settle().await;
    assert_eq!(
        running.log.take(),
        ["3 g1 Done(\"another kind does not wait\") after 0 s", "2 g1 Cancelled after 0 s"]
    );
    assert!(!work.settled(Duration::from_secs(1)).await, "the first is still alive");
    assert!(work.settled(Duration::from_secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn after_its_outcome_a_key_is_free_again() {
    let (running, work) = working();
    for generation in 1..=3 {
        work.start(Request { generation, ..request(1, "mount") }, |_| async { "again" });
        running.settle().await;
    }
    assert_eq!(running.log.take().len(), 3);
    assert_eq!(figures_of(&work, "mount").refused_total, 0);
}
