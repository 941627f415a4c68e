//! Watching allocations, with servers that lag, return wrong lists and lose state.

use herdlet_nomad::wire::ClientStatus;
use herdlet_nomad_server::{Cluster, Fault, Lan, Settings, state::job};
use tokio::time::{Instant, sleep};

use crate::{
    runner::Bench,
    world::{identity, live, pool, ready, runs, seconds, within, world},
};

#[tokio::test(start_paused = true)]
async fn allocations_come_change_and_go() {
    let (cluster, living) = world(Settings::default()).await;
    let (a, b) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &a).await;
    runs(&cluster, &b).await;
    cluster.stop(&a);
    within(5, "the allocation has stopped", || cluster.client_status(&a) == ClientStatus::Complete).await;
    assert_eq!(living.bench.ids(), [a.clone(), b.clone()], "its status is kept");
    cluster.write(|state| state.collect(&a));
    within(5, "the allocation is gone", || living.bench.ids() == [b.clone()]).await;
    // Our own reports move the index, but nothing is fetched for them.
    let fetched = cluster.seen("Alloc.GetAllocs").len();
    living.report(&b, ClientStatus::Running, "news");
    sleep(seconds(5)).await;
    assert_eq!(cluster.seen("Alloc.GetAllocs").len(), fetched);
}

#[tokio::test(start_paused = true)]
async fn a_stale_read_never_stops_anything() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let first = live(pool(Lan::new(&cluster), &["s0", "s1", "s2"]), identity(1), Bench::default());
    ready(&cluster, &first.id).await;
    // All servers' stale reads show no allocations; the leader's consistent reads are correct.
    (0..3).for_each(|server| cluster.freeze(server));
    let ids = [cluster.place(&first.id, "a"), cluster.place(&first.id, "b")];
    sleep(seconds(60)).await;
    assert_eq!(first.bench.ids(), [], "no server has listed them");
    (0..3).for_each(|server| cluster.thaw(server));
    for id in &ids {
        runs(&cluster, id).await;
    }
    // All servers lag behind the last writes.
    cluster.write(|state| (state.index, state.alloc_index) = (state.index + 10, state.alloc_index));
    (0..3).for_each(|server| cluster.freeze(server));
    for server in [0, 1, 2] {
        cluster.fault("Node.GetClientAllocs", 3, &Fault::EmptyList(server));
    }
    sleep(seconds(600)).await;
    assert_eq!((first.bench.ids(), first.bench.see(|seen| seen.removed.len())), (ids.to_vec(), 0));
    (0..3).for_each(|server| cluster.thaw(server));
    // The agent restarts while all servers but the leader lag: the first question goes to the leader.
    let bench = first.end().await;
    let third = cluster.place(&identity(1).id, "c");
    cluster.lead(Some(1));
    let second = live(pool(Lan::new(&cluster), &["s2"]), identity(1), bench);
    runs(&cluster, &third).await;
    assert_eq!((second.bench.ids().len(), second.bench.see(|seen| seen.removed.len())), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_list_with_a_lower_index_is_ignored() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    // The leader returns the same list, for some time.
    cluster.fault("Node.GetClientAllocs", 6, &Fault::EmptyList(3));
    // The report wakes blocked queries.
    living.report(&id, ClientStatus::Running, "x");
    let before = cluster.seen("Node.GetClientAllocs").len();
    sleep(seconds(59)).await;
    assert!(living.contact.borrow().disbelieved.is_some(), "the conflict is reported");
    sleep(seconds(600)).await;
    assert_eq!(living.bench.ids(), std::slice::from_ref(&id));
    let asked = cluster.seen("Node.GetClientAllocs").len() - before;
    assert!((7..=15).contains(&asked), "not without a pause: {asked}");
    assert!(living.bench.see(|seen| seen.indexes.windows(2).all(|pair| pair[0] < pair[1])));
    assert_eq!(living.contact.borrow().disbelieved, None);
    cluster.write(|state| state.collect(&id));
    within(5, "the last one is gone", || living.bench.ids().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn index_zero_does_not_cause_a_busy_loop() {
    let cluster = Cluster::start(Settings::default());
    cluster.fault("Node.GetClientAllocs", 30, &Fault::EmptyList(0));
    let living = live(pool(Lan::new(&cluster), &["s0"]), identity(1), Bench::default());
    sleep(seconds(20)).await;
    assert!(!living.contact.borrow().is_listed);
    let asked = cluster.seen("Node.GetClientAllocs").len();
    assert!((9..=20).contains(&asked), "{asked}");
    within(60, "the node accepts a list", || living.contact.borrow().is_listed).await;
}

#[tokio::test(start_paused = true)]
async fn allocation_deleted_during_downtime_is_removed() {
    let (cluster, living) = world(Settings::default()).await;
    let (kept, gone) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &kept).await;
    runs(&cluster, &gone).await;
    let bench = living.end().await;
    cluster.write(|state| state.collect(&gone));
    let fetched = cluster.seen("Alloc.GetAllocs").len();
    let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    within(5, "the allocation is gone", || second.bench.ids() == [kept.clone()]).await;
    assert_eq!(cluster.seen("Alloc.GetAllocs").len(), fetched, "known allocations are not fetched again");
}

#[tokio::test(start_paused = true)]
async fn missing_allocation_is_requested_again() {
    let (cluster, living) = world(Settings::default()).await;
    let known = cluster.place(&living.id, "a");
    runs(&cluster, &known).await;
    let applied = living.bench.see(|seen| seen.indexes.len());
    let expected = format!("{:08x}-0000-4000-8000-{:012x}", 2, 2);
    cluster.fault("Alloc.GetAllocs", 1, &Fault::Missing(vec![expected.into()]));
    let id = cluster.place(&living.id, "b");
    sleep(seconds(25)).await;
    assert_eq!((living.bench.ids().len(), living.bench.see(|seen| seen.indexes.len())), (1, applied));
    runs(&cluster, &id).await;
    // The allocation is collected between the list and the fetch.
    let (c, d) = (cluster.place(&living.id, "c"), cluster.place(&living.id, "d"));
    cluster.write(|state| state.collect(&c));
    runs(&cluster, &d).await;
    assert_eq!(living.bench.ids(), [known, id, d]);
}

#[tokio::test(start_paused = true)]
async fn locally_removed_allocation_is_not_fetched_again() {
    let (cluster, living) = world(Settings::default()).await;
    let (a, b) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &a).await;
    runs(&cluster, &b).await;
    // Simulates that the node collected the allocation or could not set it up.
    living.bench.see(|seen| seen.allocs.remove(&a));
    let fetched = cluster.seen("Alloc.GetAllocs").len();
    living.report(&b, ClientStatus::Running, "news");
    sleep(seconds(400)).await;
    assert_eq!((living.bench.ids(), cluster.seen("Alloc.GetAllocs").len()), (vec![b.clone()], fetched));
    cluster.stop(&a);
    within(5, "both are listed again", || living.bench.ids().len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_allocations_come_in_one_list() {
    let (cluster, living) = world(Settings::default()).await;
    let ids = cluster.place_many(&living.id, "job", 1_000);
    cluster.until(|state| ids.iter().all(|id| state.allocs[id].client_status == ClientStatus::Running)).await;
    assert_eq!(cluster.seen("Alloc.GetAllocs").len(), 4);
    assert!(cluster.seen("Node.UpdateAlloc").len() <= 2);
    let jobs: Vec<_> = living.bench.see(|seen| seen.allocs.values().map(|alloc| alloc.job.clone()).collect());
    assert!(
        jobs.windows(2).all(|pair| std::ptr::eq(pair[0].value(), pair[1].value())),
        "the allocations share their job"
    );
}

#[tokio::test(start_paused = true)]
async fn allocations_are_heard_of_though_answers_break_off() {
    let (cluster, living) = world(Settings { servers: 2, ..Settings::default() }).await;
    for fault in [Fault::Drop, Fault::Error("boom".to_owned()), Fault::Error("EOF".to_owned())] {
        cluster.fault("Alloc.GetAllocs", 2, &fault);
        cluster.fault("Node.GetClientAllocs", 2, &fault);
        let id = cluster.place(&living.id, "job");
        within(200, "the allocation runs", || cluster.client_status(&id) == ClientStatus::Running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_allocation_fails_alone() {
    let (cluster, living) = world(Settings::default()).await;
    let ids = cluster.write(|state| {
        let ids: Vec<_> = (0..300).map(|_| state.place(&living.id, &job("job"), "group")).collect();
        state.unreadable.insert(ids[100].clone());
        ids
    });
    for (at, id) in ids.iter().enumerate() {
        let expected = if at == 100 { ClientStatus::Failed } else { ClientStatus::Running };
        within(30, "the report arrives", || cluster.client_status(id) == expected).await;
    }
    let why = living.bench.see(|seen| seen.unreadable.clone());
    assert_eq!(why.len(), 1);
    assert!(why[0].0 == ids[100] && why[0].1.contains("CreateIndex"), "the path of the field: {why:?}");
    let fetched = cluster.seen("Alloc.GetAllocs").len();
    sleep(seconds(400)).await;
    assert_eq!((living.bench.ids().len(), cluster.seen("Alloc.GetAllocs").len()), (299, fetched));
}

/// Servers return an empty list with the index of all allocations to it.
#[tokio::test(start_paused = true)]
async fn purged_node_stops_allocations_and_removes_none() {
    let (cluster, living) = world(Settings::default()).await;
    let ids = cluster.place_many(&living.id, "job", 3);
    for id in &ids {
        runs(&cluster, id).await;
    }
    let purged = Instant::now();
    cluster.write(|state| state.purge(&living.id));
    within(3, "the node registers again", || cluster.status(&living.id).is_some()).await;
    ready(&cluster, &living.id).await;
    assert!(purged.elapsed() < seconds(15), "{:?}", purged.elapsed());
    for id in &ids {
        within(5, "the allocation has stopped", || cluster.client_status(id) == ClientStatus::Complete).await;
    }
    assert_eq!((living.bench.ids(), living.bench.see(|seen| seen.removed.len())), (ids, 0));
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_empty_list_is_ignored() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let bench = living.end().await;
    // Also for the first list after a start.
    cluster.fault("Node.GetClientAllocs", 1, &Fault::EmptyList(2_000_000));
    let second = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    within(30, "the node accepts a list", || second.contact.borrow().is_listed).await;
    cluster.fault("Node.GetClientAllocs", 1, &Fault::EmptyList(3_000_000));
    let other = cluster.place(&second.id, "other");
    runs(&cluster, &other).await;
    assert_eq!((second.bench.ids(), second.bench.see(|seen| seen.removed.len())), (vec![id, other], 0));
}

#[tokio::test(start_paused = true)]
async fn restored_servers_are_followed_after_minutes() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    let old = cluster.place(&living.id, "old");
    runs(&cluster, &old).await;
    let kept = cluster.read(Clone::clone);
    let lost = cluster.place_many(&living.id, "lost", 5);
    for id in &lost {
        runs(&cluster, id).await;
    }
    let begun = Instant::now();
    let new = cluster.write(|state| {
        state.restore(kept);
        state.place(&living.id, &job("new"), "group")
    });
    within(330, "the conflict is reported", || living.contact.borrow().disbelieved.is_some()).await;
    assert_eq!(living.bench.ids().len(), 6, "the list is not applied at once");
    within(1_500, "the new ones run", || cluster.client_status(&new) == ClientStatus::Running).await;
    assert!(begun.elapsed() > seconds(300), "{:?}", begun.elapsed());
    assert_eq!(living.bench.ids(), [old.clone(), new], "servers know no other allocation");
    assert_eq!(cluster.status(&living.id), Some(herdlet_nomad::wire::NodeStatus::Ready));
    within(5, "earlier reports are repeated", || cluster.reports(&old).len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn large_batches_are_split_and_too_large_ones_reported() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    let ids = cluster.write(|state| {
        state.most = 60;
        let ids: Vec<_> = (0..200).map(|_| state.place(&living.id, &job("job"), "group")).collect();
        state.huge.insert(ids[7].clone());
        ids
    });
    for (at, id) in ids.iter().enumerate() {
        let expected = if at == 7 { ClientStatus::Failed } else { ClientStatus::Running };
        within(30, "the report arrives", || cluster.client_status(id) == expected).await;
    }
    let why = living.bench.see(|seen| seen.unreadable.clone());
    assert!(why.len() == 1 && why[0].0 == ids[7] && why[0].1.contains("more than"), "{why:?}");
    let asked: Vec<_> = cluster.seen("Alloc.GetAllocs").iter().map(|seen| seen.server).collect();
    assert!(asked.windows(2).all(|pair| pair[0] == pair[1]), "other servers are not tried: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn unreadable_update_is_reported_and_the_older_copy_runs() {
    let (cluster, living) = world(Settings::default()).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.write(|state| state.unreadable.insert(id.clone()));
    cluster.stop(&id);
    within(5, "the runner is informed", || living.bench.see(|seen| seen.unreadable.len()) == 1).await;
    sleep(seconds(400)).await;
    assert_eq!(living.bench.see(|seen| seen.unreadable.len()), 1, "once");
    assert_eq!(cluster.reports(&id), [ClientStatus::Running]);
    cluster.write(|state| state.unreadable.clear());
    cluster.stop(&id);
    within(5, "the allocation is complete", || cluster.client_status(&id) == ClientStatus::Complete).await;
}

/// Each allocation comes with a copy of its job.
#[tokio::test(start_paused = true)]
async fn allocations_of_one_job_share_its_memory() {
    let (cluster, living) = world(Settings::default()).await;
    for _ in 0..10 {
        let id = cluster.place(&living.id, "job");
        runs(&cluster, &id).await;
    }
    let jobs: Vec<_> = living.bench.see(|seen| seen.allocs.values().map(|alloc| alloc.job.clone()).collect());
    assert_eq!(jobs.len(), 10);
    assert!(jobs.windows(2).all(|pair| std::ptr::eq(pair[0].value(), pair[1].value())));
}

/// Servers detect changes only while a query blocks, and each change wakes it.
#[tokio::test(start_paused = true)]
async fn server_collection_between_queries_is_no_alarm() {
    let (cluster, living) = world(Settings::default()).await;
    let (a, b) = (cluster.place(&living.id, "a"), cluster.place(&living.id, "b"));
    runs(&cluster, &a).await;
    runs(&cluster, &b).await;
    cluster.stop(&b);
    within(5, "the allocation has stopped", || cluster.client_status(&b) == ClientStatus::Complete).await;
    cluster.write(|state| state.collect_quietly(&b));
    within(400, "the allocation is gone", || living.bench.ids() == std::slice::from_ref(&a)).await;
    assert_eq!(living.contact.borrow().disbelieved, None);
}

/// In the handshake, in a header, in the middle of a list: incomplete messages have no effect.
#[tokio::test(start_paused = true)]
async fn connections_may_break_at_any_byte() {
    let cluster = Cluster::start(Settings { servers: 2, ..Settings::default() });
    let lan = Lan::new(&cluster);
    let living = live(pool(lan.clone(), &["s0", "s1"]), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    let mut placed = Vec::new();
    for bytes in (0..60).step_by(2).chain((60..6_000).step_by(307)) {
        (0..3).for_each(|more| lan.cut_after(bytes + more));
        for server in [0, 1] {
            cluster.set_down(server, true);
        }
        let id = cluster.place(&living.id, "job");
        sleep(seconds(1)).await;
        for server in [0, 1] {
            cluster.set_down(server, false);
        }
        within(200, "the allocation runs", || cluster.client_status(&id) == ClientStatus::Running).await;
        placed.push(id);
    }
    assert_eq!((living.bench.ids(), living.bench.see(|seen| seen.removed.len())), (placed, 0));
    assert!(living.bench.see(|seen| seen.started.values().all(|times| *times == 1)));
}
