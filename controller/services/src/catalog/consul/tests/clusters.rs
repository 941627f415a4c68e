//! Several Consuls, and namespaces of one.

use std::time::Instant;

use herdlet_api_types::job::ConsulAccess;

use super::*;
use crate::catalog::{BuiltIn, Catalogs};

fn access(cluster: &str, namespace: Option<&str>) -> ConsulAccess {
    let namespace = namespace.map(str::to_owned);
    ConsulAccess { namespace, ..ConsulAccess::of_cluster(cluster) }
}

/// A service of that place.
fn service(name: &str, place: Option<ConsulAccess>) -> Registration {
    Registration { consul: place, ..registration(1, name, Vec::new()) }
}

fn catalogs(addresses: &[(&str, &str, &str)]) -> Catalogs {
    let config = |address: &str, namespace: &str| {
        let config = ConsulConfig::resolve(Some(address), None, |_| None).unwrap();
        config.with_namespace(namespace.to_owned())
    };
    let configs =
        addresses.iter().map(|(name, address, namespace)| ((*name).to_owned(), config(address, namespace)));
    let clusters =
        ConsulClusters::new(&configs.collect(), &InstanceId("0123456789abcdef".to_owned())).unwrap();
    let (sender, _events) = mpsc::channel(1);
    Catalogs { built_in: Arc::new(BuiltIn::new(sender)), consuls: Arc::new(clusters) }
}

/// A Consul that keeps what is registered, by namespace.
async fn keeping() -> (String, Arc<StdMutex<Vec<String>>>) {
    keeping_in("").await
}

/// The same, if the token is of this namespace.
async fn keeping_in(namespace: &'static str) -> (String, Arc<StdMutex<Vec<String>>>) {
    let held = StdMutex::new(BTreeMap::<(String, String), Value>::new());
    stand_in(Arc::new(move |method, path, body| {
        let url = reqwest::Url::parse(&format!("http://x{path}")).unwrap();
        let scope: String =
            url.query_pairs().filter(|(name, _)| name == "ns").map(|(_, value)| value).collect();
        let scope = if scope.is_empty() { namespace.to_owned() } else { scope };
        let mut held = held.lock().unwrap();
        match (method, url.path()) {
            ("PUT", "/v1/agent/service/register") => {
                let mut entry: Value = serde_json::from_str(body).unwrap();
                entry["Service"] = entry["Name"].clone();
                held.insert((scope, entry["ID"].as_str().unwrap().to_owned()), entry);
                (200, json!({}))
            }
            ("PUT", path) => {
                let id = path.trim_start_matches("/v1/agent/service/deregister/");
                held.remove(&(scope, id.to_owned()));
                (200, json!({}))
            }
            (_, "/v1/agent/services") => {
                let here = held.iter().filter(|((namespace, _), _)| *namespace == scope);
                (
                    200,
                    here.map(|((_, id), entry)| (id.clone(), entry.clone()))
                        .collect::<serde_json::Map<_, _>>()
                        .into(),
                )
            }
            _ => (200, json!({})),
        }
    }))
    .await
}

fn registrations(asked: &StdMutex<Vec<String>>) -> Vec<String> {
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    asked.into_iter().filter(|line| line.starts_with("PUT")).collect()
}

#[tokio::test]
async fn each_service_is_in_its_consul_and_namespace() {
    let ((default, of_default), (eu, of_eu)) = (keeping().await, keeping().await);
    let catalogs = catalogs(&[("default", &default, ""), ("eu", &eu, "ops")]);
    let web = |place| service("web", place);
    let wanted = [
        web(None),
        service("api", Some(access("eu", None))),
        service("db", Some(access("eu", Some("team")))),
    ];
    catalogs.up(&owner(1), &wanted, &BTreeSet::new()).await.unwrap();
    assert_eq!(catalogs.inspect(&owner(1), &wanted).await, Ok(Observation::Present));
    let path = "PUT /v1/agent/service/register?replace-existing-checks=true";
    assert_eq!(registrations(&of_default), [path]);
    let mut there = registrations(&of_eu);
    there.sort();
    assert_eq!(there, [format!("{path}&ns=ops"), format!("{path}&ns=team")]);
    let counts = catalogs.consuls.counts(|_| true);
    assert_eq!((counts["default"].registered, counts["eu"].registered), (1, 2));

    // A service that moves leaves its place.
    let moved = [web(Some(access("eu", Some("team"))))];
    catalogs.up(&owner(1), &moved, &BTreeSet::new()).await.unwrap();
    assert_eq!(catalogs.inspect(&owner(1), &moved).await, Ok(Observation::Present));
    assert_eq!(registrations(&of_default).len(), 1);
    catalogs.down(&owner(1), &moved).await.unwrap();
    let counts = catalogs.consuls.counts(|_| true);
    assert_eq!((counts["default"], counts["eu"]), Default::default());
}

/// A Consul that is not Enterprise refuses requests with a namespace.
#[tokio::test]
async fn the_namespace_default_is_not_sent_unless_the_config_has_another() {
    let ((default, of_default), (eu, of_eu)) = (keeping().await, keeping().await);
    let catalogs = catalogs(&[("default", &default, ""), ("eu", &eu, "ops")]);
    let both = |cluster| {
        let mut place = access(cluster, Some("default"));
        place.partition = Some("default".to_owned());
        [service("web", Some(place))]
    };
    catalogs.up(&owner(1), &both("default"), &BTreeSet::new()).await.unwrap();
    let path = "PUT /v1/agent/service/register?replace-existing-checks=true";
    assert_eq!(registrations(&of_default), [path]);
    catalogs.up(&owner(1), &both("eu"), &BTreeSet::new()).await.unwrap();
    assert_eq!(registrations(&of_eu), [format!("{path}&ns=default")]);
    // The same holds for log-ins, which name only what the job names.
    let named =
        |cluster: &str, namespace| catalogs.consuls.named(Some(&access(cluster, namespace))).namespace;
    assert_eq!((named("default", Some("default")), named("eu", None)), (None, None));
    assert_eq!(named("eu", Some("default")).as_deref(), Some("default"));
}

#[tokio::test]
async fn a_consul_that_is_away_or_unknown_delays_no_other() {
    let (default, of_default) = keeping().await;
    let catalogs = catalogs(&[("default", &default, ""), ("eu", "http://127.0.0.1:1", "")]);
    let wanted = [
        service("web", None),
        service("api", Some(access("eu", None))),
        service("db", Some(access("us", None))),
    ];
    let began = Instant::now();
    let error = catalogs.up(&owner(1), &wanted, &BTreeSet::new()).await.unwrap_err().to_string();
    assert!(began.elapsed() < PATIENCE);
    assert!(
        error.contains("service db: the agent's config has no Consul `us`, only `default`, `eu`"),
        "{error}"
    );
    assert!(error.contains("no answer from http://127.0.0.1:1"), "{error}");
    assert_eq!(registrations(&of_default).len(), 1);
    let troubles = catalogs.consuls.troubles(UnixNanos(0), |_| true);
    assert!(troubles.len() == 1 && troubles.first().unwrap().contains("127.0.0.1:1"), "{troubles:?}");
    let failures = catalogs.consuls.failures();
    let of = |name: &str| failures.iter().filter(|one| one.0 == name).map(|one| one.2).sum::<u64>();
    assert!(of("default") == 0 && of("eu") > 0, "{failures:?}");
    let counts = catalogs.consuls.counts(|_| true);
    assert_eq!((counts["default"].registered, counts["eu"].pending), (1, 1));
    // The end of an owner does not wait for a Consul that the config lacks.
    let known = [service("db", Some(access("us", None)))];
    assert_eq!(catalogs.down(&owner(2), &known).await, Ok(()));
}

/// Namespaces appear with the first service in them.
#[tokio::test]
async fn work_for_each_place_reaches_those_that_follow() {
    let catalogs = catalogs(&[("default", "http://127.0.0.1:1", ""), ("eu", "http://127.0.0.1:1", "ops")]);
    let seen = StdMutex::new(Vec::new());
    let all = catalogs.consuls.for_each(async |place: crate::catalog::Place| {
        seen.lock().unwrap().push((place.access.cluster, place.access.namespace));
    });
    let until = async {
        while seen.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
        catalogs.consuls.find(Some(&access("default", Some("team"))));
        while seen.lock().unwrap().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = all => {}
        () = until => {}
    }
    let mut seen = seen.into_inner().unwrap();
    seen.sort();
    let place = |cluster: &str, namespace: Option<&str>| (cluster.to_owned(), namespace.map(str::to_owned));
    assert_eq!(seen, [place("default", None), place("default", Some("team")), place("eu", None)]);
}

/// Each place removed the services of the others, which had registered them, and registered its own again.
#[tokio::test]
async fn places_that_are_one_catalogue_leave_each_other_alone() {
    let (address, asked) = keeping_in("team").await;
    let catalogs = catalogs(&[("default", &address, "default"), ("local", &address, "")]);
    let places = [None, Some(access("local", None)), Some(access("default", Some("team")))];
    let names = ["web", "api", "db"];
    let wanted: Vec<_> =
        names.iter().zip(&places).map(|(name, place)| service(name, place.clone())).collect();
    catalogs.up(&owner(1), &wanted, &BTreeSet::new()).await.unwrap();
    assert_eq!(registrations(&asked).len(), 3);
    let consuls = places.map(|place| catalogs.consuls.find(place.as_ref()).unwrap());
    for _ in 0..2 {
        catalogs.up(&owner(1), &wanted, &BTreeSet::new()).await.unwrap();
        assert_eq!(catalogs.inspect(&owner(1), &wanted).await, Ok(Observation::Present));
        for consul in &consuls {
            assert_eq!(consul.sweep(&BTreeSet::new()).await, Ok(0));
        }
    }
    assert_eq!(registrations(&asked), [""; 0]);
    // Only the entries of the place itself are left over.
    let next = self::catalogs(&[("default", &address, ""), ("local", &address, "")]);
    for consul in ["default", "local"].map(|name| next.consuls.find(Some(&access(name, None))).unwrap()) {
        assert_eq!(consul.sweep(&BTreeSet::new()).await, Ok(1));
    }
    assert_eq!(consuls[2].inspect(&owner(1), &wanted[2..]).await, Ok(Observation::Present));
}

/// An entry of the Consul `default` was registered again after an upgrade if each place had a mark.
#[test]
fn entries_of_the_default_place_have_no_mark_of_a_place() {
    let meta = |place: ConsulAccess| {
        let mark = Mark::new(InstanceId("i".to_owned()), &place);
        entry::body(&service("web", None), &mark)["Meta"]["herdlet-consul"].clone()
    };
    let partition = |place: ConsulAccess| ConsulAccess { partition: Some("p".to_owned()), ..place };
    assert_eq!(meta(access("default", None)), Value::Null);
    assert_eq!(meta(access("eu", None)), "eu");
    assert_eq!(meta(access("default", Some("team"))), "default/team");
    assert_eq!(meta(partition(access("eu", None))), "eu//p");
}

/// All ordinary services were in a place without queries, and inspected every five seconds.
#[tokio::test]
async fn the_namespace_of_the_config_has_the_queries() {
    let (address, asked) = keeping().await;
    let catalogs = catalogs(&[("default", &address, "ops")]);
    let watched = |namespace| {
        let place = access("default", namespace);
        (catalogs.consuls.find(Some(&place)).unwrap(), [service("web", Some(place))])
    };
    for (namespace, scope, follows) in [(Some("team"), "ns=team", false), (None, "ns=ops", true)] {
        let (consul, wanted) = watched(namespace);
        let (sender, _events) = mpsc::channel(8);
        let stop = CancellationToken::new();
        let watch = tokio::spawn(Arc::clone(&consul).watch(sender, stop.clone()));
        asked.lock().unwrap().clear();
        consul.up(&owner(1), &wanted).await.unwrap();
        let has =
            |path: &str| asked.lock().unwrap().iter().any(|line| line.contains(path) && line.contains(scope));
        let until = async {
            while !has("/v1/agent/checks") || (follows && !has("/v1/agent/self")) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, until).await.unwrap();
        assert_eq!(has("/v1/agent/self"), follows, "{namespace:?}");
        stop.cancel();
        watch.await.unwrap();
    }
}

/// A service that had no token in its new place was deregistered in the old one.
#[tokio::test]
async fn an_untouched_service_stays_in_the_place_that_it_leaves() {
    let ((default, of_default), (eu, of_eu)) = (keeping().await, keeping().await);
    let catalogs = catalogs(&[("default", &default, ""), ("eu", &eu, "")]);
    let (here, there) = (service("web", None), service("web", Some(access("eu", None))));
    catalogs.up(&owner(1), std::slice::from_ref(&here), &BTreeSet::new()).await.unwrap();
    registrations(&of_default);
    let untouched = BTreeSet::from([here.id.clone()]);
    for _ in 0..2 {
        catalogs.up(&owner(1), std::slice::from_ref(&there), &untouched).await.unwrap();
        assert_eq!((registrations(&of_default), registrations(&of_eu)), (Vec::new(), Vec::new()));
    }
    // Nor is it left over.
    let consul = catalogs.consuls.find(None).unwrap();
    assert_eq!(consul.sweep(&BTreeSet::new()).await, Ok(0));
    catalogs.up(&owner(1), &[there], &BTreeSet::new()).await.unwrap();
    assert_eq!((registrations(&of_default).len(), registrations(&of_eu).len()), (1, 1));
    assert!(!consul.holds(&owner(1)));
}

/// The first registration of a job with services in two Consuls waited for both.
#[tokio::test]
async fn one_consul_that_answers_is_enough_for_the_first_registration() {
    let (default, _) = keeping().await;
    let catalogs = catalogs(&[("default", &default, ""), ("eu", "http://127.0.0.1:1", "")]);
    let (here, away) = (service("web", None), service("api", Some(access("eu", None))));
    let unknown = service("db", Some(access("us", None)));
    let ask = async |wanted: &[&Registration]| {
        let wanted: Vec<_> = wanted.iter().map(|one| (*one).clone()).collect();
        catalogs.ask(&owner(1), &wanted).await
    };
    assert_eq!(ask(&[&here, &away, &unknown]).await, Ok(()));
    assert_eq!(ask(&[]).await, Ok(()));
    assert_eq!(ask(&[&away, &unknown]).await.unwrap_err().failures.len(), 2);
}

/// The end of a job waited forever for a namespace that could hold nothing.
#[tokio::test]
async fn a_refused_namespace_delays_neither_other_services_nor_their_end() {
    let (address, asked) = stand_in(Arc::new(|method, path, _| match method {
        _ if path.contains("ns=") => (400, json!("Namespaces are a Consul Enterprise feature")),
        "PUT" => (200, json!(true)),
        _ => (200, json!({})),
    }))
    .await;
    let catalogs = catalogs(&[("default", &address, "")]);
    let team = service("db", Some(access("default", Some("team"))));
    let wanted = [service("web", None), team.clone()];
    assert_eq!(catalogs.ask(&owner(1), &wanted).await, Ok(()));
    let error = catalogs.up(&owner(1), &wanted, &BTreeSet::new()).await.unwrap_err().to_string();
    assert!(error.contains(&format!("Consul at {address} ns=team answers 400")), "{error}");
    // Its sweep ends, because a retry can't help.
    let consul = catalogs.consuls.find(team.consul.as_ref()).unwrap();
    assert_eq!(consul.sweep(&BTreeSet::new()).await.unwrap_err().class(), Class::Fatal);
    let held = registrations(&asked);
    assert!(held.iter().all(|line| !line.contains("ns=")), "{held:?}");
    assert_eq!(catalogs.down(&owner(1), &wanted).await, Ok(()));
    assert_eq!(catalogs.consuls.counts(|_| true)["default"], ServiceCounts::default());
}
