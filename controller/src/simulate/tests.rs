//! Simulated nodes with stand-in servers over loopback.

use std::sync::Mutex;

use herdlet_nomad::wire::{ClientStatus, NodeStatus};
use herdlet_nomad_server::{Cluster, Settings, state};

use super::*;

fn options(servers: &str, nodes: u32) -> Options {
    Options {
        servers: vec![servers.parse().unwrap()],
        nodes,
        name: "sim-".to_owned(),
        region: "global".to_owned(),
        tls: None,
        datacenter: "dc1".to_owned(),
        node_class: String::new(),
        node_pool: String::new(),
        cpu_mhz: 1_000,
        memory_mib: 1_000,
        drivers: vec!["docker".to_owned()],
        rate: 1_000,
        behaviour: Behaviour::default(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn simulated_nodes_run_and_stop_allocations() {
    let cluster = Cluster::start(Settings::default());
    let listeners = cluster.listen().await.unwrap();
    let done = CancellationToken::new();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let simulation = tokio::spawn({
        let (done, options, lines) = (done.clone(), options(&listeners[0].address, 20), Arc::clone(&lines));
        async move {
            simulate(options, done.cancelled(), |line| lines.lock().unwrap().push(line.to_string())).await
        }
    });
    let ready = |state: &state::State| {
        state.nodes.values().filter(|known| known.node.status == NodeStatus::Ready).count()
    };
    // A test fails after this time.
    let wait = Duration::from_secs(180);
    tokio::time::timeout(wait, cluster.until(|state| ready(state) == 20)).await.unwrap();
    let nodes: Vec<_> = cluster.read(|state| state.nodes.keys().cloned().collect());
    let allocs: Vec<_> = nodes.iter().flat_map(|node| cluster.place_many(node, "web", 3)).collect();
    let all_have = |status: ClientStatus| {
        move |state: &state::State| state.allocs.values().all(|alloc| alloc.client_status == status)
    };
    tokio::time::timeout(wait, cluster.until(all_have(ClientStatus::Running))).await.unwrap();
    let is_shown = || {
        let line = |line: &String| line.contains("20/20 nodes ready  60/60 allocations running");
        lines.lock().unwrap().iter().any(line)
    };
    let shown = async {
        while !is_shown() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(wait, shown).await.unwrap();
    for alloc in &allocs {
        cluster.stop(alloc);
    }
    tokio::time::timeout(wait, cluster.until(all_have(ClientStatus::Complete))).await.unwrap();
    done.cancel();
    let figures = simulation.await.unwrap().unwrap();
    assert_eq!((figures.nodes, figures.allocations, figures.running), (20, 60, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_names_why_no_node_is_ready() {
    let cluster = Cluster::start(Settings { hold: Duration::from_millis(10), ..Settings::default() });
    let listeners = cluster.listen().await.unwrap();
    // A port of a service that no longer exists on any machine.
    let gone = "127.0.0.1:1".to_owned();
    for (servers, region, why) in [
        (&gone, "global", "failed to reach a server: connect to 127.0.0.1:"),
        (&listeners[0].address, "eu", "No path to region"),
    ] {
        let done = CancellationToken::new();
        let options = Options { region: region.to_owned(), ..options(servers, 2) };
        let line = |figures: &Figures| {
            if figures.ping_error.is_some() {
                done.cancel();
            }
        };
        let figures =
            tokio::time::timeout(Duration::from_secs(180), simulate(options, done.cancelled(), line));
        let figures = figures.await.unwrap().unwrap();
        assert_eq!((figures.ready, figures.latency_ms), (0, None));
        assert!(figures.ping_error.as_ref().unwrap().starts_with(why), "{figures:?}");
        assert!(
            figures
                .to_string()
                .contains(&format!("0/2 nodes ready  0/0 allocations running  0 updates/s  ping: {why}"))
        );
    }
}

#[test]
fn too_many_nodes_are_refused_at_once() {
    let limit = |current, maximum| Rlimit { current: Some(current), maximum: Some(maximum) };
    assert_eq!(raised(100, limit(1_024, 4_096)), Ok(None));
    assert_eq!(raised(2_000, limit(1_024, 4_096)), Ok(Some(limit(2_128, 4_096))));
    let error = raised(5_000, limit(1_024, 4_096)).unwrap_err();
    assert!(error.contains("5128") && error.contains("4096") && error.contains("ulimit -Hn"), "{error}");
    let endless = Rlimit { current: None, maximum: None };
    assert_eq!(raised(u32::MAX, endless), Ok(None));
}
