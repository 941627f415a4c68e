//! Failures of stock clients that involve servers. Each test has the number of its entry in the project's list of races and design flaws.

use std::sync::Arc;

use herdlet_nomad::{
    session::{Newer, Options, Session},
    wire::{ClientStatus, DesiredStatus, Job},
};
use herdlet_nomad_server::{Fault, Lan, Settings, jobs::with, state::job};
use herdlet_rpc::codec::Value;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::Bench,
    world::{described, identity, live, pool, ready, runs, seconds, within, world},
};

#[tokio::test(start_paused = true)]
async fn flaw_1_allocation_stopped_before_delivery_never_starts() {
    let (cluster, living) = world(Settings::default()).await;
    // The allocation is stopped between the list and the fetch.
    cluster.fault("Alloc.GetAllocs", 1, &Fault::Error("boom".to_owned()));
    let id = cluster.place(&living.id, "job");
    sleep(seconds(1)).await;
    cluster.stop(&id);
    within(70, "the report arrives", || cluster.client_status(&id) == ClientStatus::Complete).await;
    assert_eq!(living.bench.see(|seen| seen.started.get(&id).copied()), None);
}

#[tokio::test(start_paused = true)]
async fn flaw_4_terminal_status_is_reported_once() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    living.ends(&id, ClientStatus::Failed);
    within(5, "the report arrives", || cluster.client_status(&id) == ClientStatus::Failed).await;
    // A user requests a restart after the end.
    living.report(&id, ClientStatus::Running, "restarted");
    sleep(seconds(60)).await;
    assert_eq!(cluster.reports(&id), [ClientStatus::Running, ClientStatus::Failed]);
}

#[tokio::test(start_paused = true)]
async fn flaw_5_lagging_list_removes_nothing() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    (0..3).for_each(|server| cluster.freeze(server));
    let ids = cluster.place_many(&living.id, "job", 5);
    (0..3).for_each(|server| cluster.thaw(server));
    for id in &ids {
        runs(&cluster, id).await;
    }
    // All servers but the leader fall back, and answer at once from then on.
    for _ in 0..30 {
        cluster.fault("Node.GetClientAllocs", 1, &Fault::EmptyList(2));
        living.report(&ids[0], ClientStatus::Running, &format!("{:?}", tokio::time::Instant::now()));
        sleep(seconds(20)).await;
    }
    assert_eq!((living.bench.ids(), living.bench.see(|seen| seen.removed.len())), (ids, 0));
}

#[tokio::test(start_paused = true)]
async fn flaw_6_the_first_list_after_a_start_is_the_leaders() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    (0..3).for_each(|server| cluster.freeze(server));
    let ids = cluster.place_many(&living.id, "job", 5);
    (0..3).for_each(|server| cluster.thaw(server));
    for id in &ids {
        runs(&cluster, id).await;
    }
    // The agent and the leader start together, while the other servers have no state.
    let bench = living.end().await;
    cluster.write(|state| state.index += 1);
    (0..3).for_each(|server| cluster.freeze(server));
    cluster.lead(None);
    let second = live(pool(Lan::new(&cluster), &["s1"]), identity(1), bench);
    sleep(seconds(20)).await;
    assert!(!second.contact.borrow().is_listed, "no leader has listed its allocations");
    cluster.lead(Some(2));
    within(60, "the node has a list", || second.contact.borrow().is_listed).await;
    sleep(seconds(60)).await;
    assert_eq!((second.bench.ids(), second.bench.see(|seen| seen.removed.len())), (ids, 0));
}

#[tokio::test(start_paused = true)]
async fn flaw_7_allocation_deleted_before_the_first_query_is_removed() {
    let (cluster, living) = world(Settings::default()).await;
    let (a, b) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &a).await;
    runs(&cluster, &b).await;
    for gone in [a, b] {
        let bench = living.bench.clone();
        // With the last one the list becomes empty, and the leader confirms it.
        cluster.write(|state| state.collect(&gone));
        let again = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
        within(5, "the allocation is gone", || !again.bench.ids().contains(&gone)).await;
        again.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn flaw_8_complete_allocation_does_not_run_again() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    living.ends(&id, ClientStatus::Complete);
    within(5, "the report arrives", || cluster.client_status(&id) == ClientStatus::Complete).await;
    let bench = living.end().await;
    // The bench remembers only that the allocation existed, and servers change it once more.
    bench.see(|seen| seen.ended.clear());
    cluster.write(|state| state.change(&id, |alloc| alloc.desired_description = "still wanted".to_owned()));
    bench.see(|seen| seen.started.clear());
    let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    within(5, "the node has a list", || second.contact.borrow().is_listed).await;
    sleep(seconds(30)).await;
    assert_eq!(
        second.bench.see(|seen| seen.started.get(&id).copied()),
        None,
        "servers know that it has ended"
    );
    assert_eq!(cluster.client_status(&id), ClientStatus::Complete);
}

#[tokio::test(start_paused = true)]
async fn flaw_9_unreported_end_is_reported_after_a_restart() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.fault("Node.UpdateAlloc", 3, &Fault::Error("boom".to_owned()));
    living.ends(&id, ClientStatus::Complete);
    sleep(seconds(1)).await;
    let bench = living.end().await;
    assert_eq!(cluster.client_status(&id), ClientStatus::Running);
    let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    within(60, "the report arrives", || cluster.client_status(&id) == ClientStatus::Complete).await;
    assert_eq!(second.bench.see(|seen| seen.started[&id]), 1);
}

/// The deadline to stop an allocation follows from the last answered heartbeat, whenever it is checked.
#[tokio::test(start_paused = true)]
async fn flaws_16_and_17_last_heartbeat_sets_the_deadline() {
    let (cluster, living) = world(Settings::default()).await;
    for _ in 0..20 {
        sleep(seconds(7)).await;
        let last = living.contact.borrow().last.unwrap().at;
        let seen = cluster.seen("Node.UpdateStatus").last().unwrap().at;
        assert!(last - seen < seconds(1), "{:?}", last - seen);
    }
    cluster.set_down(0, true);
    let last = living.contact.borrow().last.unwrap();
    sleep(seconds(300)).await;
    let contact = living.contact.borrow().clone();
    assert_eq!(
        (contact.last, contact.is_in_reach),
        (Some(last), false),
        "a failure does not change the last contact"
    );
}

#[tokio::test(start_paused = true)]
async fn flaw_46_wait_for_an_allocation_survives_servers() {
    let (cluster, other) = world(Settings { servers: 3, ..Settings::default() }).await;
    let id = cluster.place(&other.id, "job");
    runs(&cluster, &id).await;
    let (_node, description) = watch::channel(Arc::new(described()));
    let session =
        Session::new(pool(Lan::new(&cluster), &["s0"]), identity(2), description, Options::default());
    let queries = session.queries();
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    ready(&cluster, &identity(2).id).await;
    let wait = || {
        let (queries, id) = (queries.clone(), id.clone());
        tokio::spawn(async move {
            let mut newer = Newer::Now;
            loop {
                // Whatever has failed, the query is repeated until the condition holds.
                let Ok(answer) = queries.alloc(&id, newer).await else {
                    sleep(seconds(1)).await;
                    continue;
                };
                if answer.alloc.is_none_or(|alloc| alloc.client_status.is_terminal()) {
                    return;
                }
                newer = Newer::Than(answer.meta.index);
            }
        })
    };
    let (wait, given_up) = (wait(), wait());
    sleep(seconds(30)).await;
    given_up.abort();
    for server in [0, 1, 2] {
        cluster.set_down(server, true);
        sleep(seconds(3)).await;
        cluster.set_down(server, false);
    }
    assert!(!wait.is_finished());
    other.ends(&id, ClientStatus::Complete);
    within(60, "the wait ends", || wait.is_finished()).await;
    life.abort();
}

#[tokio::test(start_paused = true)]
async fn flaw_54_what_comes_with_a_reconnection_is_handed_over_whole() {
    let (cluster, living) = world(Settings { outlive: true, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.set_down(0, true);
    within(60, "the allocation is unknown", || cluster.client_status(&id) == ClientStatus::Unknown).await;
    let new = Job::new(with(job("job").value().clone(), "Version", Value::Uint(7)));
    cluster.write(|state| state.change(&id, |alloc| alloc.job = new));
    cluster.set_down(0, false);
    ready(&cluster, &living.id).await;
    within(30, "the report arrives", || cluster.client_status(&id) == ClientStatus::Running).await;
    let alloc = living.bench.see(|seen| seen.allocs[&id].clone());
    assert_eq!(
        (alloc.job.version(), alloc.client_status),
        (7, ClientStatus::Unknown),
        "job and status arrive together"
    );
    assert_eq!(alloc.desired_status, DesiredStatus::Run);
    assert_eq!(living.bench.see(|seen| seen.started[&id]), 1);
}
