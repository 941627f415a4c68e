//! A leaving node: its servers drain it, and it never waits without limit for unresponsive ones.

use std::{future::pending, sync::Arc, time::Duration};

use herdlet_nomad::{
    session::{Drain, DrainError, Options, Queries, Session},
    wire::{AllocId, ClientStatus, Eligibility, NodeId},
};
use herdlet_nomad_server::{Cluster, Fault, Lan, Settings};
use herdlet_rpc::{pool::Chance, serve::Unserved};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    runner::Bench,
    world::{described, identity, pool, ready, runs, seconds, within},
};

const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

/// A node that can leave, with one running allocation.
struct World {
    cluster: Cluster,
    node: NodeId,
    queries: Queries<Unserved, Lan>,
    alloc: AllocId,
}

impl World {
    async fn new() -> Self {
        let cluster = Cluster::start(Settings { tokens: true, ttl_min: seconds(60), ..Settings::default() });
        let (_, description) = watch::channel(Arc::new(described()));
        let identity = identity(1);
        let node = identity.id.clone();
        let options = Options { chance: Chance::of(9), ..Options::default() };
        let session = Session::new(pool(Lan::new(&cluster), &["s0"]), identity, description, options);
        let queries = session.queries();
        tokio::spawn(session.run(Bench::default(), CancellationToken::new()));
        ready(&cluster, &node).await;
        let alloc = cluster.place(&node, "job");
        runs(&cluster, &alloc).await;
        Self { cluster, node, queries, alloc }
    }

    /// Starts leaving. `has_ended`: no allocation runs here any more.
    fn leaves(&self, how: Drain, has_ended: bool) -> JoinHandle<Result<(), DrainError>> {
        let ended = if has_ended { Some(Instant::now()) } else { None };
        self.leaves_with(how, ended)
    }

    /// Starts leaving; the allocations here end at `ended`, if ever.
    fn leaves_with(&self, how: Drain, ended: Option<Instant>) -> JoinHandle<Result<(), DrainError>> {
        let queries = self.queries.clone();
        let all_ended = move || async move {
            match ended {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::spawn(async move { queries.drain(how, all_ended).await })
    }

    async fn drains(&self) {
        within(30, "the node is draining", || self.is_draining()).await;
    }

    fn is_draining(&self) -> bool {
        self.cluster.read(|state| state.nodes[&self.node].node.drain_strategy.is_some())
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_node_is_drained() {
    let world = World::new().await;
    let left = world.leaves(Drain { deadline: HOUR, ignore_system_jobs: true, ..Drain::default() }, true);
    world.drains().await;
    let node = world.cluster.read(|state| state.nodes[&world.node].node.clone());
    let strategy = node.drain_strategy.unwrap();
    assert_eq!((strategy.deadline, strategy.ignore_system_jobs), (3_600_000_000_000, true));
    assert!(!strategy.started_at.is_zero() && !strategy.force_deadline.is_zero());
    assert_eq!(node.scheduling_eligibility, Eligibility::Ineligible);
    sleep(seconds(600)).await;
    assert!(!left.is_finished(), "servers decide when the drain ends");
    let asked = world.cluster.seen("Node.GetNode").len();
    assert!(asked <= 5, "the query is not repeated without need: {asked}");
    world.cluster.stop(&world.alloc);
    within(5, "the node has left", || left.is_finished()).await;
    left.await.unwrap().unwrap();
    assert_eq!(world.cluster.client_status(&world.alloc), ClientStatus::Complete);
}

/// Servers end a drain at its deadline, and stop the remaining allocations after that.
#[tokio::test(start_paused = true)]
async fn drain_deadline_waits_for_stopped_allocations() {
    for (ends_after, has_left) in [(seconds(25), true), (seconds(200), false)] {
        let world = World::new().await;
        let how = Drain { deadline: HOUR, ..Drain::default() };
        let left = world.leaves_with(how, Some(Instant::now() + ends_after));
        world.drains().await;
        world.cluster.write(|state| state.drain(&world.node, None));
        sleep(seconds(20)).await;
        assert!(!left.is_finished(), "its tasks have time to end");
        sleep(seconds(60)).await;
        let found = left.await.unwrap();
        assert!(if has_left { found.is_ok() } else { matches!(found, Err(DrainError::Left)) }, "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn forced_and_endless_drains_are_sent() {
    let world = World::new().await;
    let deadline =
        || world.cluster.read(|state| state.nodes[&world.node].node.drain_strategy.clone().unwrap());
    let left = world.leaves(Drain { deadline: HOUR, force: true, ..Drain::default() }, false);
    world.drains().await;
    assert_eq!((deadline().deadline, deadline().force_deadline.is_zero()), (-1_000_000_000, true));
    left.abort();
    world.cluster.write(|state| state.drain(&world.node, None));
    let left = world.leaves(Drain::default(), false);
    world.drains().await;
    assert_eq!((deadline().deadline, deadline().force_deadline.is_zero()), (0, true));
    sleep(seconds(100_000)).await;
    assert!(!left.is_finished());
}

#[tokio::test(start_paused = true)]
async fn drain_ends_at_its_deadline() {
    let world = World::new().await;
    let began = Instant::now();
    let left = world.leaves(Drain { deadline: Some(seconds(20)), ..Drain::default() }, false);
    assert!(matches!(left.await.unwrap(), Err(DrainError::Late)));
    assert!((20..=30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn unavailable_servers_do_not_block_a_drain() {
    let world = World::new().await;
    let how = Drain { deadline: HOUR, ..Drain::default() };
    world.cluster.fault("Node.UpdateDrain", 1, &Fault::Error("Permission denied".to_owned()));
    assert!(matches!(world.leaves(how, false).await.unwrap(), Err(DrainError::Refused(_))));
    world.cluster.set_down(0, true);
    let began = Instant::now();
    world.leaves(how, false).await.unwrap().unwrap_err();
    assert!(began.elapsed() <= seconds(16), "{:?}", began.elapsed());
    assert!(!world.is_draining());
}

#[tokio::test(start_paused = true)]
async fn servers_lost_during_a_drain_are_waited_for() {
    let how = Drain { deadline: HOUR, ..Drain::default() };
    for has_ended in [false, true] {
        let world = World::new().await;
        let left = world.leaves(how, has_ended);
        world.drains().await;
        world.cluster.set_down(0, true);
        let began = Instant::now();
        let result = left.await.unwrap();
        let waited = began.elapsed();
        // If everything here has ended, the node knows that by itself; otherwise it asks again until the limit.
        assert_eq!(result.is_ok(), has_ended, "{result:?}");
        assert!(if has_ended { waited <= seconds(45) } else { waited >= seconds(60) }, "{waited:?}");
        assert!(waited <= seconds(180), "{waited:?}");
    }
}
