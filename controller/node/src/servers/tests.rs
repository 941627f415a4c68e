//! Finding servers by name, in Consul, and again if none answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{Router, routing::get};
use herdlet_config::{Config, Flags, Surroundings};
use herdlet_nomad::wire::Eligibility;
use herdlet_rpc::{
    connect::Purpose,
    error::{DialError, Refusal},
    framed::Framed,
    mux::Io,
    pool::Chance,
    serve::{Call, Peer},
};
use herdlet_services::catalog::ConsulConfig;

use super::*;

struct Nothing;

impl Service for Nothing {
    async fn call(&self, _: &Peer, _: Call) -> Result<Vec<u8>, Refusal> {
        std::future::pending().await
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    async fn stream(&self, _: &Peer, _: String, _: &mut Framed<Box<dyn Io>>) {}
}

impl Dial for Nothing {
    async fn dial(&self, _: &Address, _: Purpose) -> Result<Box<dyn Io>, DialError> {
        std::future::pending().await
    }
}

fn cluster(servers: &[&str]) -> Cluster {
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "box" };
    // There is a cluster only if a server is configured.
    let flags = Flags { servers: vec!["192.0.2.1".to_owned()], ..Flags::default() };
    let cluster = Config::load(flags, &surroundings).unwrap().cluster.unwrap();
    Cluster { servers: servers.iter().map(|text| (*text).to_owned()).collect(), ..cluster }
}

fn pool() -> Arc<Pool<Nothing, Nothing>> {
    let chance = Chance::of(1);
    Arc::new(Pool::new(Arc::new(Nothing), "global".to_owned(), Vec::new(), Nothing, chance))
}

fn contact() -> Contact {
    Contact {
        is_registered: false,
        last: None,
        ttl: Duration::ZERO,
        is_in_reach: false,
        has_leader: false,
        servers: 0,
        nodes: 0,
        eligibility: Eligibility::Unsaid,
        is_listed: false,
        disbelieved: None,
        failures: 0,
        losses: 0,
        wants_servers: 0,
    }
}

fn texts(addresses: &[Address]) -> Vec<String> {
    let mut shown: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    shown.sort();
    shown
}

/// A Consul that knows one server, from the second query on.
async fn consul(port: u16) -> ConsulReader {
    let asked = Arc::new(AtomicUsize::new(0));
    let servers = move || {
        let is_first = asked.fetch_add(1, Ordering::Relaxed) == 0;
        let one = serde_json::json!([{"Address": "127.0.0.1", "ServiceAddress": "", "ServicePort": port}]);
        async move { axum::Json(if is_first { serde_json::json!([]) } else { one }) }
    };
    let router = Router::new()
        .route("/v1/catalog/service/nomad", get(servers))
        .route("/v1/catalog/datacenters", get(|| async { axum::Json(vec!["dc1"]) }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    ConsulReader::new(&ConsulConfig::resolve(Some(&address), None, |_| None).unwrap()).unwrap()
}

#[tokio::test]
async fn name_resolves_to_unique_addresses() {
    let found = find(&cluster(&["127.0.0.1", "127.0.0.1:4647", "[::1]:4747", "localhost:1"]), None).await;
    let found = texts(&found);
    assert!(
        found.contains(&"127.0.0.1:4647".to_owned()) && found.contains(&"[::1]:4747".to_owned()),
        "{found:?}"
    );
    assert!(
        found.contains(&"127.0.0.1:1".to_owned()) && !found.contains(&"localhost:1".to_owned()),
        "{found:?}"
    );
    assert_eq!(found.iter().filter(|text| *text == "127.0.0.1:4647").count(), 1);
    // Dialling resolves the name again.
    let unknown = find(&cluster(&["no-such-host.invalid"]), None).await;
    assert_eq!(texts(&unknown), ["no-such-host.invalid:4647"]);
}

#[tokio::test]
async fn consul_lists_servers_if_none_are_configured() {
    let consul = consul(4_747).await;
    assert!(find(&cluster(&["192.0.2.7"]), Some(&consul)).await.len() == 1, "Consul is not queried");
    assert!(find(&cluster(&[]), Some(&consul)).await.is_empty());
    assert_eq!(texts(&find(&cluster(&[]), Some(&consul)).await), ["127.0.0.1:4747"]);
    assert!(find(&Cluster { client_auto_join: false, ..cluster(&[]) }, Some(&consul)).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn discovered_servers_are_added() {
    let (pool, cancel) = (pool(), CancellationToken::new());
    let contacts = watch::Sender::new(contact());
    let cluster = cluster(&["192.0.2.1", "192.0.2.2"]);
    let follow = tokio::spawn(follow(Arc::clone(&pool), contacts.subscribe(), cluster, None, cancel.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(texts(&pool.servers()), ["192.0.2.1:4647", "192.0.2.2:4647"]);
    // A server reports only itself, and becomes unreachable.
    pool.set_servers(vec!["192.0.2.9".parse().unwrap()]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(texts(&pool.servers()), ["192.0.2.9:4647"]);
    contacts.send_modify(|contact| contact.wants_servers += 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(texts(&pool.servers()), ["192.0.2.1:4647", "192.0.2.2:4647", "192.0.2.9:4647"]);
    cancel.cancel();
    follow.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn discovery_is_retried_as_configured() {
    let contacts = watch::Sender::new(contact());
    let cluster = Cluster { retry_max: 3, ..cluster(&[]) };
    let began = tokio::time::Instant::now();
    let done = follow(pool(), contacts.subscribe(), cluster, None, CancellationToken::new()).await;
    assert_eq!(began.elapsed().as_secs(), 60);
    assert!(done.unwrap_err().to_string().contains("in 3 tries"));
}

#[test]
fn tls_needs_its_files() {
    let tls = herdlet_config::RpcTls {
        authority: "/nonexistent/ca.pem".into(),
        certificate: "/nonexistent/cert.pem".into(),
        key: "/nonexistent/key.pem".into(),
        verify_server_hostname: true,
    };
    let error = network(&Cluster { tls: Some(tls), ..cluster(&["a"]) }, "global").unwrap_err();
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
    assert!(network(&cluster(&["a"]), "global").is_ok());
}
