//! Registration, heartbeats, and failing servers.

use std::{sync::Arc, time::Duration};

use herdlet_nomad::{
    session::{Newer, Options, Session},
    wire::{
        ClientStatus, Eligibility, NodeEvent, NodeStatus, QueryOptions, WriteOptions, queries::NodeResponse,
        registration::GenericResponse,
    },
};
use herdlet_nomad_server::{Cluster, Fault, Lan, Settings};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::Bench,
    world::{described, identity, live, pool, ready, runs, seconds, within, world},
};

#[tokio::test(start_paused = true)]
async fn a_node_registers_and_is_ready() {
    let begun = Instant::now();
    let (cluster, living) = world(Settings::default()).await;
    assert!(begun.elapsed() < seconds(11), "{:?}", begun.elapsed());
    let contact = living.contact.borrow().clone();
    assert!(contact.is_registered && contact.is_in_reach && contact.has_leader && contact.is_listed);
    assert_eq!((contact.servers, contact.nodes), (1, 1));
    assert!(contact.last.is_some() && contact.ttl >= seconds(10) && contact.ttl < seconds(20));
    let node = cluster.read(|state| state.nodes[&living.id].node.clone());
    assert_eq!(node.attributes["nomad.version"], "1.6.5");
    assert_eq!(node.scheduling_eligibility, Eligibility::Eligible);
    living.end().await;
}

#[tokio::test(start_paused = true)]
async fn heartbeats_over_an_hour_are_as_many_as_the_ttl_says() {
    let (cluster, living) = world(Settings::default()).await;
    let begun = Instant::now();
    let before = cluster.seen("Node.UpdateStatus").len();
    for number in 0..60 {
        // Other calls succeed all the time: they must not trigger heartbeats.
        let id = cluster.place(&living.id, "job");
        runs(&cluster, &id).await;
        living.report(&id, ClientStatus::Running, &number.to_string());
        sleep(seconds(50)).await;
    }
    let took = begun.elapsed().as_secs();
    let beats = (cluster.seen("Node.UpdateStatus").len() - before) as u64;
    assert!((took / 20..=took / 10 + 1).contains(&beats), "{beats} in {took} s");
    let beats = cluster.seen("Node.UpdateStatus");
    for pair in beats.windows(2) {
        let between = pair[1].at - pair[0].at;
        assert!(between >= seconds(10) && between < seconds(21), "{between:?}");
    }
    assert_eq!(cluster.seen("Node.Register").len(), 1);
    assert_eq!(cluster.status(&living.id), Some(NodeStatus::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_purged_node_registers_again() {
    for tokens in [false, true] {
        let (cluster, living) = world(Settings { tokens, ..Settings::default() }).await;
        cluster.write(|state| state.purge(&living.id));
        assert_eq!(cluster.status(&living.id), None);
        ready(&cluster, &living.id).await;
        let tries = cluster.seen("Node.Register");
        assert_eq!(tries.len(), if tokens { 3 } else { 2 }, "denied by its token once");
        if tokens {
            let waited = tries[2].at - tries[1].at;
            assert!(waited < seconds(3), "{waited:?} until it showed what it shows at first");
        }
        let id = cluster.place(&living.id, "job");
        runs(&cluster, &id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_secret_is_refused_and_tried_again() {
    let (cluster, living) = world(Settings::default()).await;
    living.end().await;
    let thief = herdlet_nomad::identity::Identity { secret: "other".into(), ..identity(1) };
    let lan = Lan::new(&cluster);
    let second = live(pool(lan, &["s0"]), thief, Bench::default());
    sleep(seconds(100)).await;
    let tries = cluster.seen("Node.Register").len() - 1;
    assert!((3..=7).contains(&tries), "{tries}");
    assert!(!second.contact.borrow().is_registered && !second.contact.borrow().is_in_reach);
    assert_eq!(
        cluster
            .seen("Node.GetClientAllocs")
            .iter()
            .filter(|seen| seen.at > Instant::now() - seconds(90))
            .count(),
        0
    );
    second.end().await;
    // A registered node that learns of a wrong secret when it asks for allocations registers again.
    let third = live(pool(Lan::new(&cluster), &["s0"]), identity(1), Bench::default());
    ready(&cluster, &third.id).await;
    let before = cluster.seen("Node.Register").len();
    cluster.fault("Node.GetClientAllocs", 1, &Fault::Error("node secret ID does not match".to_owned()));
    let id = cluster.place(&third.id, "job");
    runs(&cluster, &id).await;
    within(120, "the node registers", || cluster.seen("Node.Register").len() > before).await;
}

#[tokio::test(start_paused = true)]
async fn server_list_is_replaced_by_the_servers_answer() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let pool = pool(Lan::new(&cluster), &["s0"]);
    let living = live(Arc::clone(&pool), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    assert_eq!(pool.servers().len(), 3);
    cluster.set_addresses(vec!["s2:4647".to_owned()]);
    sleep(seconds(25)).await;
    assert_eq!(pool.servers(), ["s2:4647".parse().unwrap()]);
    sleep(seconds(25)).await;
    assert_eq!(cluster.seen("Node.UpdateStatus").last().unwrap().server, 2);
}

#[tokio::test(start_paused = true)]
async fn failed_server_is_left_before_the_ttl_ends() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let living = live(pool(Lan::new(&cluster), &["s0", "s1", "s2"]), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    let used = cluster.seen("Node.UpdateStatus").last().unwrap().server;
    cluster.set_down(used, true);
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    sleep(seconds(60)).await;
    assert_eq!(cluster.status(&living.id), Some(NodeStatus::Ready));
    assert_eq!(living.bench.see(|seen| seen.again), 1, "only at the start");
    assert_ne!(cluster.seen("Node.UpdateStatus").last().unwrap().server, used);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_costs_no_heartbeat() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    for _ in 0..5 {
        cluster.fault("Node.UpdateStatus", 1, &Fault::Hang);
        for _ in 0..600 {
            sleep(Duration::from_millis(100)).await;
            assert_eq!(cluster.status(&living.id), Some(NodeStatus::Ready));
        }
    }
    assert_eq!(living.bench.see(|seen| seen.again), 1, "only at the start");
}

#[tokio::test(start_paused = true)]
async fn cluster_without_a_leader_stops_nothing() {
    let (cluster, living) = world(Settings { servers: 3, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    cluster.lead(None);
    living.report(&id, ClientStatus::Running, "meanwhile");
    let before = cluster.seen("Node.UpdateStatus").len();
    sleep(seconds(300)).await;
    let tries = cluster.seen("Node.UpdateStatus").len() - before;
    assert!((5..=60).contains(&tries), "{tries}");
    assert!(living.contact.borrow().is_registered && !living.contact.borrow().is_in_reach);
    assert!(living.contact.borrow().wants_servers > 0);
    assert_eq!(living.bench.ids(), std::slice::from_ref(&id));
    cluster.lead(Some(2));
    let described = |text: &str| cluster.alloc(&id).unwrap().client_description == text;
    within(60, "the report comes", || described("meanwhile")).await;
    ready(&cluster, &living.id).await;
}

#[tokio::test(start_paused = true)]
async fn changed_node_registers_at_once() {
    let (cluster, living) = world(Settings::default()).await;
    let registrations = || cluster.seen("Node.Register").len();
    for number in 0..5 {
        let mut node = described();
        node.meta.insert("number".to_owned(), number.to_string());
        living.node.send_replace(Arc::new(node));
        sleep(Duration::from_millis(200)).await;
    }
    sleep(seconds(12)).await;
    assert_eq!(registrations(), 2, "one registration for all changes");
    assert_eq!(cluster.read(|state| state.nodes[&living.id].node.meta["number"].clone()), "4");
    // Servers refuse this description.
    let mut node = described();
    node.datacenter.clear();
    living.node.send_replace(Arc::new(node));
    sleep(seconds(200)).await;
    assert_eq!(cluster.status(&living.id), Some(NodeStatus::Ready));
    assert!(registrations() >= 6);
    living.node.send_replace(Arc::new(described()));
    within(60, "the description arrives", || {
        cluster.read(|state| state.nodes[&living.id].node.meta.is_empty())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reconnected_node_reports_what_still_runs() {
    for outlive in [true, false] {
        let (cluster, living) = world(Settings { outlive, ..Settings::default() }).await;
        let id = cluster.place(&living.id, "job");
        runs(&cluster, &id).await;
        cluster.set_down(0, true);
        within(60, "the node is missed", || cluster.status(&living.id) != Some(NodeStatus::Ready)).await;
        let expected = if outlive { ClientStatus::Unknown } else { ClientStatus::Lost };
        assert_eq!(cluster.client_status(&id), expected);
        assert_eq!(living.bench.ids(), std::slice::from_ref(&id), "the allocation keeps running");
        cluster.set_down(0, false);
        let contact = living.contact.clone();
        within(60, "a heartbeat is answered", || contact.borrow().is_in_reach && contact.borrow().losses > 0)
            .await;
        // Servers make the node ready with a heartbeat after the reports.
        within(2, "the node is ready", || cluster.status(&living.id) == Some(NodeStatus::Ready)).await;
        let expected = if outlive { ClientStatus::Running } else { ClientStatus::Complete };
        within(30, "the report arrives", || cluster.client_status(&id) == expected).await;
        sleep(seconds(60)).await;
        assert_eq!(contact.borrow().losses, 1, "becoming ready is not a lost contact");
    }
}

/// Servers become unreachable with the heartbeat that was to make the node ready, for longer than its TTL.
#[tokio::test(start_paused = true)]
async fn a_second_outage_is_a_second_loss() {
    let (cluster, living) = world(Settings { outlive: true, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let losses = || living.contact.borrow().losses;
    for loss in 1..=3 {
        cluster.set_down(0, true);
        let is_away = || cluster.status(&living.id) == Some(NodeStatus::Disconnected);
        within(60, "the node is missed", is_away).await;
        cluster.set_down(0, false);
        within(60, "the loss is counted", || losses() == loss).await;
    }
    within(30, "the report arrives", || cluster.client_status(&id) == ClientStatus::Running).await;
    ready(&cluster, &living.id).await;
    sleep(seconds(60)).await;
    assert_eq!(losses(), 3);
}

#[tokio::test(start_paused = true)]
async fn restarted_agent_is_ready_after_its_reports() {
    let (cluster, living) = world(Settings { outlive: true, ..Settings::default() }).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let bench = living.end().await;
    within(60, "the node is missed", || cluster.client_status(&id) == ClientStatus::Unknown).await;
    let living = live(pool(Lan::new(&cluster), &["s0"]), identity(1), bench);
    within(3, "the node is ready", || cluster.status(&living.id) == Some(NodeStatus::Ready)).await;
    assert_eq!(cluster.client_status(&id), ClientStatus::Running);
    assert_eq!(living.contact.borrow().losses, 0);
}

#[tokio::test(start_paused = true)]
async fn node_events_are_batched_and_repeated_on_failure() {
    let (cluster, living) = world(Settings::default()).await;
    cluster.fault("Node.EmitEvents", 1, &Fault::Error("boom".to_owned()));
    for number in 0..12 {
        living.reports.event(NodeEvent { message: number.to_string(), ..NodeEvent::default() });
    }
    let event_count = || cluster.read(|state| state.nodes[&living.id].events.len());
    within(30, "the events arrive", || event_count() == 10).await;
    assert_eq!(cluster.seen("Node.EmitEvents").len(), 2);
    assert_eq!(cluster.read(|state| state.nodes[&living.id].events[0].message.clone()), "2");
}

#[tokio::test(start_paused = true)]
async fn ineligible_node_is_notified() {
    let (cluster, living) = world(Settings::default()).await;
    assert_eq!(living.contact.borrow().eligibility, Eligibility::Eligible);
    cluster.write(|state| {
        let stored = state.nodes.get_mut(&living.id).unwrap();
        stored.node.scheduling_eligibility = Eligibility::Ineligible;
    });
    let is_ineligible = || living.contact.borrow().eligibility == Eligibility::Ineligible;
    within(25, "the node learns of it", is_ineligible).await;
    // The node keeps its eligibility when servers have forgotten it.
    cluster.write(|state| state.purge(&living.id));
    ready(&cluster, &living.id).await;
    assert!(is_ineligible());
    let kept = cluster.read(|state| state.nodes[&living.id].node.scheduling_eligibility.clone());
    assert_eq!(kept, Eligibility::Ineligible);
}

#[tokio::test(start_paused = true)]
async fn other_allocations_and_nodes_are_queried() {
    let (cluster, other) = world(Settings { tokens: true, ..Settings::default() }).await;
    let (_description, node) = watch::channel(Arc::new(described()));
    let pool = pool(Lan::new(&cluster), &["s0"]);
    let session = Session::new(pool, identity(2), node, Options::default());
    let queries = session.queries();
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    let id = cluster.place(&other.id, "job");
    runs(&cluster, &id).await;
    let before = queries.alloc(&id, Newer::Now).await.unwrap();
    assert_eq!(before.alloc.unwrap().client_status, ClientStatus::Running);
    let (asked, next) = (Instant::now(), queries.alloc(&id, Newer::Than(before.meta.index)));
    let stop = async {
        sleep(seconds(40)).await;
        other.report(&id, ClientStatus::Failed, "");
    };
    let (after, ()) = tokio::join!(next, stop);
    assert_eq!(after.unwrap().alloc.unwrap().client_status, ClientStatus::Failed);
    assert!(asked.elapsed() < seconds(41));
    assert_eq!(queries.alloc(&"none".into(), Newer::Now).await.unwrap().alloc, None);
    let node = queries.node(&other.id, Newer::Now).await.unwrap().node.unwrap();
    assert!(node.id == other.id && node.secret_id.is_empty());
    // Servers before 1.7 do not support identities.
    let error = queries.sign(&[], 1).await.unwrap_err();
    assert!(error.to_string().contains("can't find method Alloc.SignIdentities"), "{error}");
    life.abort();
}

/// From 1.11 on, by `NodeIdentity.Renew`.
#[tokio::test(start_paused = true)]
async fn renewed_identity_is_no_missed_heartbeat() {
    let cluster = Cluster::start(Settings { tokens: true, signs: true, ..Settings::default() });
    let (_description, node) = watch::channel(Arc::new(described()));
    let session = Session::new(pool(Lan::new(&cluster), &["s0"]), identity(1), node, Options::default());
    let (queries, contact) = (session.queries(), session.contact());
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    ready(&cluster, &identity(1).id).await;
    let first = queries.signed();
    assert!(!first.is_empty());
    sleep(seconds(60)).await;
    assert_eq!(queries.signed(), first);
    queries.renew_identity();
    within(30, "another identity", || queries.signed() != first).await;
    let second = queries.signed();
    sleep(seconds(60)).await;
    assert_eq!((queries.signed(), contact.borrow().losses), (second, 0));
    life.abort();
}

/// The server accepts calls but answers none: neither heartbeats nor blocking queries.
#[tokio::test(start_paused = true)]
async fn hanging_server_blocks_nothing() {
    let cluster = Cluster::start(Settings { servers: 3, ..Settings::default() });
    let living = live(pool(Lan::new(&cluster), &["s0", "s1", "s2"]), identity(1), Bench::default());
    ready(&cluster, &living.id).await;
    let id = cluster.place(&living.id, "job");
    runs(&cluster, &id).await;
    let used = cluster.seen("Node.UpdateStatus").last().unwrap().server;
    cluster.set_hung(used, true);
    let new = cluster.place(&living.id, "new");
    living.report(&id, ClientStatus::Complete, "");
    within(40, "the allocation runs", || cluster.client_status(&new) == ClientStatus::Running).await;
    within(15, "the report arrives", || cluster.client_status(&id) == ClientStatus::Complete).await;
    // A second server hangs; one is left.
    let used = cluster.seen("Node.UpdateStatus").last().unwrap().server;
    cluster.set_hung(used, true);
    for _ in 0..1_200 {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(cluster.status(&living.id), Some(NodeStatus::Ready));
    }
    let last = cluster.place(&living.id, "last");
    within(40, "the allocation runs", || cluster.client_status(&last) == ClientStatus::Running).await;
}

#[tokio::test(start_paused = true)]
async fn blocking_queries_leave_room_for_the_watch() {
    let cluster = Cluster::start(Settings::default());
    let (_description, node) = watch::channel(Arc::new(described()));
    let session = Session::new(pool(Lan::new(&cluster), &["s0"]), identity(1), node, Options::default());
    let queries = session.queries();
    let elsewhere = cluster.place(&identity(2).id, "elsewhere");
    // The session sends no queries before the node is registered.
    let waits: Vec<_> = (0..300)
        .map(|_| {
            let (queries, id) = (queries.clone(), elsewhere.clone());
            tokio::spawn(async move { queries.alloc(&id, Newer::Than(1_000)).await.map(|_| ()) })
        })
        .collect();
    sleep(seconds(30)).await;
    assert_eq!(cluster.seen("Alloc.GetAlloc").len(), 0);
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    ready(&cluster, &identity(1).id).await;
    for _ in 0..5 {
        let id = cluster.place(&identity(1).id, "job");
        runs(&cluster, &id).await;
    }
    assert!(cluster.seen("Alloc.GetAlloc").len() > 100);
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    life.abort();
}

/// Custom messages with the common options.
#[tokio::test(start_paused = true)]
async fn generic_queries_are_sent() {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Ask<'a> {
        #[serde(rename = "NodeID")]
        node_id: &'a str,
        #[serde(flatten)]
        options: QueryOptions,
    }
    #[derive(serde::Serialize)]
    #[serde(rename_all = "PascalCase")]
    struct Tell<'a> {
        node_events: std::collections::BTreeMap<&'a str, Vec<NodeEvent>>,
        #[serde(flatten)]
        options: WriteOptions,
    }
    let cluster = Cluster::start(Settings { tokens: true, ..Settings::default() });
    let (_description, node) = watch::channel(Arc::new(described()));
    let session = Session::new(pool(Lan::new(&cluster), &["s0"]), identity(1), node, Options::default());
    let queries = session.queries();
    let life = tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
    let id = identity(1).id;
    let asked = queries.ask("Node.GetNode", Newer::Now, |options| Ask { node_id: id.as_str(), options });
    let answer: NodeResponse = asked.await.unwrap();
    assert_eq!(answer.node.unwrap().id, id);
    let event = || NodeEvent { message: "hello".to_owned(), ..NodeEvent::default() };
    let tell = |options| Tell { node_events: [(id.as_str(), vec![event()])].into(), options };
    let reply: GenericResponse = queries.send_once("Node.EmitEvents", tell).await.unwrap();
    assert!(reply.index > 0);
    assert_eq!(cluster.read(|state| state.nodes[&id].events[0].message.clone()), "hello");
    let refused = queries.send_once::<_, GenericResponse>("Node.NoSuch", tell).await.unwrap_err();
    assert!(refused.to_string().contains("can't find method Node.NoSuch"), "{refused}");
    life.abort();
}
