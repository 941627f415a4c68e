//! Reports on allocations to servers.

use std::time::Duration;

use herdlet_nomad::wire::{AllocReport, ClientStatus};
use herdlet_nomad_server::{Cluster, Fault, Lan, Settings};
use tokio::time::{Instant, sleep};

use crate::world::{identity, live, pool, ready, runs, seconds, within, world};

fn updates(cluster: &Cluster) -> usize {
    cluster.seen("Node.UpdateAlloc").len()
}

#[tokio::test(start_paused = true)]
async fn status_is_reported_at_once_and_events_within_a_second() {
    let (cluster, living) = world(Settings::default()).await;
    let placed = Instant::now();
    let id = cluster.place(&living.id, "job");
    within(5, "the report arrives", || updates(&cluster) == 1).await;
    assert!(placed.elapsed() <= Duration::from_millis(20), "{:?}", placed.elapsed());
    runs(&cluster, &id).await;
    sleep(seconds(5)).await;
    let event = Instant::now();
    living.report(&id, ClientStatus::Running, "an event");
    sleep(Duration::from_millis(300)).await;
    living.report(&id, ClientStatus::Running, "another one");
    within(5, "the report arrives", || updates(&cluster) == 2).await;
    assert!((900..=1_050).contains(&event.elapsed().as_millis()), "{:?}", event.elapsed());
    sleep(seconds(5)).await;
    assert_eq!(updates(&cluster), 2, "both reports in one call");
    let end = Instant::now();
    living.report(&id, ClientStatus::Complete, "");
    within(5, "the report arrives", || updates(&cluster) == 3).await;
    assert!(end.elapsed() <= Duration::from_millis(20), "{:?}", end.elapsed());
}

#[tokio::test(start_paused = true)]
async fn there_is_one_call_at_a_time_and_one_in_a_tick() {
    let (cluster, living) = world(Settings::default()).await;
    let ids = cluster.place_many(&living.id, "job", 20);
    sleep(seconds(5)).await;
    for (round, id) in ids.iter().enumerate() {
        let status = if round % 2 == 0 { ClientStatus::Complete } else { ClientStatus::Failed };
        living.report(id, status, "");
        sleep(Duration::from_millis(30)).await;
    }
    sleep(seconds(5)).await;
    let seen = cluster.seen("Node.UpdateAlloc");
    assert!(seen.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(200)));
    assert!((4..=7).contains(&seen.len()), "{}", seen.len());
    assert!(ids.iter().all(|id| cluster.reports(id).len() == 2), "nothing is sent twice");
}

#[tokio::test(start_paused = true)]
async fn a_report_survives_a_failed_update_and_a_newer_one_wins() {
    let (cluster, living) = world(Settings::default()).await;
    let (a, b) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &a).await;
    runs(&cluster, &b).await;
    cluster.fault("Node.UpdateAlloc", 1, &Fault::Slow(seconds(3)));
    cluster.fault("Node.UpdateAlloc", 1, &Fault::Error("boom".to_owned()));
    living.report(&a, ClientStatus::Running, "slow");
    sleep(seconds(2)).await;
    living.report(&a, ClientStatus::Running, "fails");
    living.report(&b, ClientStatus::Failed, "fails");
    sleep(Duration::from_millis(2_600)).await;
    living.report(&a, ClientStatus::Complete, "newest");
    within(20, "all reports arrive", || {
        cluster.client_status(&a) == ClientStatus::Complete
            && cluster.client_status(&b) == ClientStatus::Failed
    })
    .await;
    sleep(seconds(30)).await;
    assert_eq!(cluster.reports(&b), [ClientStatus::Running, ClientStatus::Failed]);
    assert_eq!(cluster.alloc(&a).unwrap().client_description, "newest");
    assert_eq!(cluster.reports(&a).last(), Some(&ClientStatus::Complete));
}

#[tokio::test(start_paused = true)]
async fn repeated_report_is_sent_once() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let report = living.bench.see(|seen| seen.state_of(&seen.allocs[&id]));
    for _ in 0..50 {
        living.reports.report(report.clone());
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(cluster.reports(&id), [ClientStatus::Running]);
    assert_eq!(updates(&cluster), 1);
}

#[tokio::test(start_paused = true)]
async fn no_report_is_sent_before_the_first_list() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let bench = living.end().await;
    let before = updates(&cluster);
    cluster.fault("Node.GetClientAllocs", 3, &Fault::Error("boom".to_owned()));
    let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    second.report(&id, ClientStatus::Failed, "meanwhile");
    second.reports.report(AllocReport { id: "unknown".into(), ..AllocReport::default() });
    within(60, "the node is registered", || second.contact.borrow().is_registered).await;
    while !second.contact.borrow().is_listed {
        assert_eq!(updates(&cluster), before);
        sleep(Duration::from_millis(100)).await;
    }
    within(5, "the report arrives", || cluster.client_status(&id) == ClientStatus::Failed).await;
    sleep(seconds(10)).await;
    assert_eq!(updates(&cluster), before + 1);
}

#[tokio::test(start_paused = true)]
async fn slow_server_blocks_nothing() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.fault("Node.UpdateAlloc", 1, &Fault::Slow(seconds(20)));
    let begun = Instant::now();
    for number in 0..10_000 {
        living.report(&id, ClientStatus::Running, &number.to_string());
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    sleep(seconds(2)).await;
    living.report(&id, ClientStatus::Complete, "");
    let other = cluster.place(&living.id, "other");
    within(5, "the allocation is listed", || living.bench.ids().contains(&other)).await;
    sleep(seconds(30)).await;
    assert_eq!(cluster.client_status(&id), ClientStatus::Complete);
    ready(&cluster, &living.id).await;
    assert_eq!(updates(&cluster), 3);
}

#[tokio::test(start_paused = true)]
async fn lost_answer_repeats_the_report() {
    let (cluster, living) = world(Settings { servers: 2, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.fault("Node.UpdateAlloc", 1, &Fault::Drop);
    living.report(&id, ClientStatus::Complete, "");
    sleep(seconds(30)).await;
    assert_eq!(cluster.client_status(&id), ClientStatus::Complete);
    assert!(cluster.reports(&id).len() <= 3);
    // No later report goes back to an earlier status.
    assert!(cluster.reports(&id).iter().skip(1).all(|status| *status == ClientStatus::Complete));
}

/// Other calls succeed all the time.
#[tokio::test(start_paused = true)]
async fn failed_update_is_not_retried_at_once() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.fault("Node.UpdateAlloc", 100, &Fault::Error("boom".to_owned()));
    let before = updates(&cluster);
    living.report(&id, ClientStatus::Complete, "");
    for number in 0..120 {
        let _ = cluster.place(&living.id, &format!("job{number}"));
        sleep(Duration::from_millis(500)).await;
    }
    let tries = updates(&cluster) - before;
    assert!((6..=20).contains(&tries), "{tries} in a minute");
    cluster.no_faults();
    within(11, "the report arrives", || cluster.client_status(&id) == ClientStatus::Complete).await;
}
