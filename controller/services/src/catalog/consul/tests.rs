//! Tests with a stub of a Consul agent, for situations that a real one does not produce on demand, and with a real one
//! if `HERDLET_TEST_CONSUL` is the path of its program.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex as StdMutex},
    time::Duration,
};

use herdlet_api_types::{
    AllocId, Duration as Span, fixture,
    job::{CheckKind, Provider},
    service::{CheckStatus, RegisteredCheck},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::catalog::CatalogEvent;

mod clusters;
mod tokens;

const PATIENCE: Duration = Duration::from_secs(180);

fn alloc(n: u8) -> AllocId {
    AllocId::from_hash([n; 16])
}

fn owner(n: u8) -> ServiceOwner {
    ServiceOwner { alloc: alloc(n), task: None }
}

fn registration(n: u8, name: &str, checks: Vec<RegisteredCheck>) -> Registration {
    Registration {
        id: format!("_herdlet-task-{}-group-g-{name}-http", alloc(n)),
        provider: Provider::Consul,
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 8080,
        tags: vec!["a".to_owned(), "b".to_owned()],
        meta: BTreeMap::from([("team".to_owned(), "x".to_owned())]),
        checks,
        ..fixture::registration("", alloc(n))
    }
}

/// The agent forgot a service whose removal an earlier agent had not confirmed, and logged its token out.
#[tokio::test]
async fn the_removal_of_services_of_an_earlier_agent_must_be_confirmed() {
    let (sender, _events) = mpsc::channel(1);
    let built_in = Arc::new(crate::catalog::BuiltIn::new(sender));
    let consul = Arc::new(Consul::absent());
    let catalogs = crate::catalog::Catalogs {
        built_in,
        consuls: Arc::new(ConsulClusters::with_default(Arc::clone(&consul))),
    };
    assert!(catalogs.down(&owner(1), &[]).await.is_ok(), "no request is sent");
    for _ in 0..2 {
        consul.may_hold(&owner(1), 1);
        assert!(catalogs.down(&owner(1), &[]).await.is_err(), "no Consul has confirmed it");
    }
}

fn tcp_check(id: &str, port: u16) -> RegisteredCheck {
    RegisteredCheck {
        name: "alive".to_owned(),
        port,
        interval: Span::from_secs(1),
        timeout: Span::from_secs(1),
        ..fixture::registered_check(&format!("_herdlet-check-{id}"))
    }
}

/// The mark of [`consul`].
fn mark() -> Mark {
    let place = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
    Mark::new(InstanceId("0123456789abcdef".to_owned()), &place)
}

fn consul(address: &str, token: Option<&str>) -> Consul {
    let config = ConsulConfig::resolve(Some(address), token.map(str::to_owned), |_| None).unwrap();
    Consul::new(&config, InstanceId("0123456789abcdef".to_owned())).unwrap()
}

/// A stub's response to method, path and body: status and JSON.
type Answers = Arc<dyn Fn(&str, &str, &str) -> (u16, Value) + Send + Sync>;

/// Serves one response per connection and records all requests.
async fn stand_in(answers: Answers) -> (String, Arc<StdMutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(StdMutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answers, log) = (Arc::clone(&answers), Arc::clone(&log));
            tokio::spawn(async move {
                let mut request = Vec::new();
                let (head, body) = loop {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    if body.len() >= length.unwrap_or(0) {
                        break (head.to_owned(), body.to_owned());
                    }
                };
                let mut words = head.split(' ');
                let (method, path) = (words.next().unwrap(), words.next().unwrap());
                log.lock().unwrap().push(format!("{method} {path}"));
                let (status, json) = answers(method, path, &body);
                let json = json.to_string();
                let text = format!(
                    "HTTP/1.1 {status} Status\r\nX-Consul-Index: 7\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{json}",
                    json.len()
                );
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn an_answer_without_end_is_not_taken_into_memory() {
    let long = "x".repeat(33 * 1024 * 1024);
    let (address, _) = stand_in(Arc::new(move |_, _, _| (200, json!({ "a": long.as_str() })))).await;
    let error =
        consul(&address, None).up(&owner(1), &[registration(1, "web", Vec::new())]).await.unwrap_err();
    assert!(error.to_string().contains("is longer than"), "{error}");
}

#[tokio::test]
async fn unreachable_agent_fails_early_and_is_retryable() {
    let consul = consul("127.0.0.1:1", Some("s3cret-t0ken"));
    let wanted = [registration(1, "web", Vec::new())];
    for error in [
        consul.up(&owner(1), &wanted).await.unwrap_err(),
        consul.inspect(&owner(1), &wanted).await.map(drop).unwrap_err(),
        consul.down(&owner(1), &wanted).await.unwrap_err(),
    ] {
        assert_eq!(error.class(), Class::Retry);
        assert!(error.to_string().contains("refused"), "{error}");
        assert!(!format!("{error} {error:?} {consul:?}").contains("s3cret"));
    }
    assert!(consul.holds(&owner(1)), "the removal is not confirmed");
}

#[tokio::test]
async fn a_unix_socket_is_spoken_to() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("consul.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let (consul, served) = (consul(&format!("unix://{}", path.display()), Some("t0ken")), async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            stream.read_buf(&mut request).await.unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.unwrap();
        String::from_utf8(request).unwrap().to_lowercase()
    });
    let wanted = [registration(1, "web", Vec::new())];
    let owner = owner(1);
    let (seen, request) = tokio::join!(consul.inspect(&owner, &wanted), served);
    assert_eq!(seen.unwrap(), Observation::Absent);
    assert!(
        request.contains("get /v1/agent/services?filter=") && request.contains("x-consul-token: t0ken"),
        "{request}"
    );
}

#[tokio::test]
async fn refused_registration_affects_no_other() {
    let (address, asked) = stand_in(Arc::new(|method, _, body| match method {
        "PUT" if body.contains("\"bad\"") => (400, json!("Invalid check")),
        "PUT" if body.contains("\"denied\"") => (403, json!("Permission denied")),
        "PUT" => (200, Value::Null),
        _ => (200, json!({})),
    }))
    .await;
    let consul = consul(&address, None);
    let wanted = ["bad", "denied", "good"].map(|name| registration(1, name, Vec::new()));
    let error = consul.up(&owner(1), &wanted).await.unwrap_err();
    // The stub lists nothing, so the third counts as missing.
    assert_eq!(error.failures.len(), 3);
    assert_eq!(error.class(), Class::Retry);
    assert!(
        error.to_string().contains("good-http is not in Consul, although it accepted the request"),
        "{error}"
    );
    assert!(error.to_string().contains("400") && error.to_string().contains("Permission denied"), "{error}");
    assert_eq!(asked.lock().unwrap().iter().filter(|line| line.starts_with("PUT")).count(), 3);
    let error = consul.up(&owner(1), &wanted[..1]).await.unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
}

#[tokio::test]
async fn only_changed_registrations_are_repeated() {
    let wanted = registration(1, "web", vec![tcp_check("1", 9)]);
    let mut held = entry::body(&wanted, &mark());
    held["Service"] = held["Name"].clone();
    // Order does not matter, and Go's null is an empty list.
    held["Tags"] = json!(["b", "a"]);
    let checks = json!({"_herdlet-check-1": {"CheckID": "_herdlet-check-1", "ServiceID": wanted.id, "Status": "critical", "Output": ""}});
    for (change, same) in [
        (json!({}), true),
        (json!({"Port": 1}), false),
        (json!({"Address": ""}), false),
        (json!({"Tags": null}), false),
        (
            json!({"Meta": {"herdlet-instance": "0123456789abcdef", "herdlet-alloc": alloc(1).to_string()}}),
            false,
        ),
        (json!({"Service": "other"}), false),
        (json!({"EnableTagOverride": true}), false),
        // Consul adds some itself.
        (json!({"TaggedAddresses": {"lan_ipv4": {"Address": "127.0.0.1", "Port": 8080}}}), true),
        (json!({"TaggedAddresses": {"edge": {"Address": "127.0.0.1", "Port": 8080}}}), false),
    ] {
        let mut entry = held.clone();
        for (key, value) in change.as_object().unwrap() {
            entry[key] = value.clone();
        }
        let (entries, checks) = (json!({ wanted.id.clone(): entry }), checks.clone());
        let (address, asked) = stand_in(Arc::new(move |method, path, _| {
            (
                200,
                if method == "PUT" {
                    Value::Null
                } else if path.contains("checks") {
                    checks.clone()
                } else {
                    entries.clone()
                },
            )
        }))
        .await;
        let consul = consul(&address, None);
        let seen = consul.inspect(&owner(1), std::slice::from_ref(&wanted)).await.unwrap();
        assert_eq!(seen == Observation::Present, same, "{change}: {seen:?}");
        // The stub's listing never changes.
        assert_eq!(consul.up(&owner(1), std::slice::from_ref(&wanted)).await.is_ok(), same, "{change}");
        let puts = asked.lock().unwrap().iter().filter(|line| line.starts_with("PUT")).count();
        assert_eq!(puts, usize::from(!same), "{change}");
    }
}

#[tokio::test]
async fn a_service_that_stays_after_its_removal_is_an_error() {
    let wanted = registration(1, "web", Vec::new());
    let mut held = entry::body(&wanted, &mark());
    held["Service"] = held["Name"].clone();
    let entries = json!({ wanted.id.clone(): held });
    let (address, _) = stand_in(Arc::new(move |method, path, _| match method {
        "PUT" => (404, json!("unknown service ID")),
        _ if path.contains("checks") => (200, json!({})),
        _ => (200, entries.clone()),
    }))
    .await;
    let error = consul(&address, None).down(&owner(1), &[wanted]).await.unwrap_err();
    assert!(error.to_string().ends_with("Consul still has it"), "{error}");
    assert_eq!(error.class(), Class::Retry);
}

#[tokio::test(start_paused = true)]
async fn watch_makes_no_request_while_nothing_is_registered() {
    let (address, asked) = stand_in(Arc::new(|_, _, _| (500, json!("no leader")))).await;
    let consul = Arc::new(consul(&address, None));
    let (sender, mut events) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let watch = tokio::spawn(Arc::clone(&consul).watch(sender, stop.clone()));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(asked.lock().unwrap().is_empty());
    let _ = consul.inspect(&owner(1), &[registration(1, "web", Vec::new())]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let count = asked.lock().unwrap().len();
    assert!((20..300).contains(&count), "{count}");
    assert!(events.try_recv().is_err());
    stop.cancel();
    watch.await.unwrap();
}

/// A real agent in development mode.
struct Agent {
    child: Child,
    address: String,
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent {
    async fn start(acl: bool) -> Option<Self> {
        let program = std::env::var_os("HERDLET_TEST_CONSUL").map(PathBuf::from).filter(|path| path.exists());
        let Some(program) = program else {
            assert!(
                std::env::var_os("HERDLET_TEST_REQUIRE").is_none_or(|value| value != "1"),
                "HERDLET_TEST_REQUIRE=1 requires Consul"
            );
            eprintln!("left out: HERDLET_TEST_CONSUL names no program");
            return None;
        };
        // It exits at once if one of its ports has been taken meanwhile; then another test's agent may answer there.
        for _ in 0..5 {
            if let Some(agent) = Self::launch(&program, acl).await {
                return Some(agent);
            }
        }
        panic!("Consul exits again and again");
    }

    /// An agent that answers; `None` if it has exited.
    async fn launch(program: &Path, acl: bool) -> Option<Self> {
        let free = || async { TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port() };
        let (http, server, serf) = (free().await, free().await, free().await);
        let node = format!("test-node-{}-{http}", std::process::id());
        let acl = format!(
            r#"acl {{ enabled = {acl} default_policy = "deny" tokens {{ master = "{MASTER}" agent = "{MASTER}" }} }}"#
        );
        let ports =
            format!("ports {{ dns = -1 grpc = -1 serf_wan = -1 server = {server} serf_lan = {serf} }}");
        let child = Command::new(program)
            .args(["agent", "-dev", "-bind=127.0.0.1", &format!("-node={node}")])
            .arg(format!("-http-port={http}"))
            .args(["-hcl", &format!("disable_update_check = true {ports} {acl}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut agent = Self { child, address: format!("http://127.0.0.1:{http}") };
        let ready = async {
            while agent.get("/v1/agent/self").await["Config"]["NodeName"] != json!(node) {
                if agent.child.try_wait().unwrap().is_some() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            true
        };
        let ready = tokio::time::timeout(PATIENCE, ready).await.unwrap();
        ready.then_some(agent)
    }

    async fn get(&self, path: &str) -> Value {
        let request =
            reqwest::Client::new().get(format!("{}{path}", self.address)).header("X-Consul-Token", MASTER);
        match request.send().await {
            Ok(response) => response.json().await.unwrap_or(Value::Null),
            Err(_) => Value::Null,
        }
    }

    async fn put(&self, path: &str, body: Value) -> Value {
        let request =
            reqwest::Client::new().put(format!("{}{path}", self.address)).header("X-Consul-Token", MASTER);
        request.json(&body).send().await.unwrap().json().await.unwrap_or(Value::Null)
    }

    async fn services(&self) -> Vec<String> {
        self.get("/v1/agent/services").await.as_object().unwrap().keys().cloned().collect()
    }
}

const MASTER: &str = "6d6e8b8e-0000-4000-8000-000000000001";

#[tokio::test]
async fn real_agent_registers_and_deregisters() {
    let Some(agent) = Agent::start(false).await else { return };
    let consul = consul(&agent.address, None);
    let kind = CheckKind::Http {
        path: "/health".to_owned(),
        method: "GET".to_owned(),
        protocol: "http".to_owned(),
        header: BTreeMap::from([("X-A".to_owned(), vec!["b".to_owned()])]),
        body: String::new(),
        tls_skip_verify: false,
        tls_server_name: String::new(),
    };
    let http_check = RegisteredCheck { kind, ..tcp_check("h", 9) };
    let wanted =
        [registration(1, "web", vec![tcp_check("t", 9), http_check]), registration(1, "api", Vec::new())];
    let mut of_task = registration(1, "side", Vec::new());
    of_task.task = Some("side".to_owned());
    let task_owner = ServiceOwner { alloc: alloc(1), task: of_task.task.clone() };
    agent.put("/v1/agent/service/register", json!({"ID": "_nomad-task-foreign", "Name": "foreign"})).await;

    assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Absent);
    for _ in 0..2 {
        consul.up(&owner(1), &wanted).await.unwrap();
        assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Present);
    }
    consul.up(&task_owner, std::slice::from_ref(&of_task)).await.unwrap();
    // A group and its tasks don't affect each other.
    consul.up(&owner(1), &wanted).await.unwrap();
    assert_eq!(agent.services().await.len(), 4);
    assert_eq!(
        consul.inspect(&task_owner, std::slice::from_ref(&of_task)).await.unwrap(),
        Observation::Present
    );

    // Changed content, and one service less.
    let mut fewer = vec![wanted[0].clone()];
    fewer[0].port = 1;
    fewer[0].checks.remove(0);
    assert!(matches!(consul.inspect(&owner(1), &fewer).await.unwrap(), Observation::Foreign { .. }));
    consul.up(&owner(1), &fewer).await.unwrap();
    assert_eq!(consul.inspect(&owner(1), &fewer).await.unwrap(), Observation::Present);
    assert_eq!(agent.get("/v1/agent/checks").await.as_object().unwrap().len(), 1);

    // External removals and changes are seen.
    agent.put(&format!("/v1/agent/service/deregister/{}", fewer[0].id), Value::Null).await;
    assert_eq!(consul.inspect(&owner(1), &fewer).await.unwrap(), Observation::Absent);
    consul.up(&owner(1), &fewer).await.unwrap();

    for _ in 0..2 {
        consul.down(&owner(1), &wanted).await.unwrap();
        assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Absent);
    }
    // The leftovers of an instance are removed, and nothing else.
    assert_eq!(consul.sweep(&BTreeSet::new()).await.unwrap(), 0, "the service must not be removed");
    let another = self::consul(&agent.address, None);
    assert_eq!(another.sweep(&BTreeSet::from([of_task.id.clone()])).await.unwrap(), 0);
    assert_eq!(another.sweep(&BTreeSet::new()).await.unwrap(), 1);
    assert_eq!(agent.services().await, ["_nomad-task-foreign"]);
}

/// Tags changed by others were overwritten when another service changed.
#[tokio::test]
async fn tags_changed_by_others_stay_until_the_service_changes() {
    let Some(agent) = Agent::start(true).await else { return };
    let consul = consul(&agent.address, Some(MASTER));
    let mark = |tag: &str| BTreeMap::from([("herdlet-tags".to_owned(), tag.to_owned())]);
    let open = |tag: &str| Registration {
        tags: vec![tag.to_owned()],
        meta: mark(tag),
        enable_tag_override: true,
        tagged_addresses: BTreeMap::from([("edge".to_owned(), "203.0.113.7".to_owned())]),
        ..registration(1, "web", Vec::new())
    };
    let other = |port| Registration { port, ..registration(1, "api", Vec::new()) };
    consul.up(&owner(1), &[open("own"), other(1)]).await.unwrap();
    let id = open("own").id;
    let node = agent.get("/v1/catalog/service/web").await[0].clone();
    let tags = async || agent.get("/v1/agent/services").await[&id]["Tags"].clone();
    let mut service = agent.get("/v1/agent/services").await[&id].clone();
    assert_eq!(service["TaggedAddresses"]["edge"], json!({ "Address": "203.0.113.7", "Port": 8080 }));
    service["Tags"] = json!(["theirs"]);
    let body = json!({ "Node": node["Node"], "Address": node["Address"], "SkipNodeUpdate": true, "Service": service });
    // The agent adopts them when it next compares itself with the whole catalogue; a changed token triggers that. A
    // pending update of the agent may still overwrite the change.
    let tags_arrive = async {
        for token in ["", MASTER].into_iter().cycle() {
            if tags().await == json!(["theirs"]) {
                return;
            }
            assert_eq!(agent.put("/v1/catalog/register", body.clone()).await, json!(true));
            agent.put("/v1/agent/token/default", json!({ "Token": token })).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, tags_arrive).await.expect("tags from the agent");
    for port in [2, 3] {
        let wanted = [open("own"), other(port)];
        consul.up(&owner(1), &wanted).await.unwrap();
        assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Present);
        assert_eq!(tags().await, json!(["theirs"]));
    }
    // A restarted agent with a token registers again; the changed tags must survive that too.
    let another = self::consul(&agent.address, Some(MASTER));
    another.up(&owner(1), &[open("own"), other(3)]).await.unwrap();
    assert_eq!(tags().await, json!(["theirs"]));
    another.up(&owner(1), &[open("new"), other(3)]).await.unwrap();
    assert_eq!(tags().await, json!(["new"]));
}

#[tokio::test]
async fn a_real_agent_is_watched_for_drift_and_health() {
    let Some(agent) = Agent::start(false).await else { return };
    let consul = Arc::new(consul(&agent.address, None));
    let (sender, mut events) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let watch = tokio::spawn(Arc::clone(&consul).watch(sender, stop.clone()));
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let wanted = [registration(1, "web", vec![tcp_check("t", target.local_addr().unwrap().port())])];
    consul.up(&owner(1), &wanted).await.unwrap();
    let result = |event: Option<CatalogEvent>| match event {
        Some(CatalogEvent::Check(report)) => report.result,
        other => panic!("{other:?}"),
    };
    let first = result(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap());
    assert_eq!(
        (first.status, first.check.as_str(), first.service.as_str()),
        (CheckStatus::Success, "alive", "web")
    );
    drop(target);
    let second = result(tokio::time::timeout(PATIENCE, events.recv()).await.unwrap());
    assert_eq!(second.status, CheckStatus::Failure);
    assert!(second.output.contains("refused"), "{}", second.output);

    // Removed externally: reported once, and long before the periodic inspection, which would take two minutes for four
    // of them.
    let started = std::time::Instant::now();
    for _ in 0..4 {
        agent.put(&format!("/v1/agent/service/deregister/{}", wanted[0].id), Value::Null).await;
        let removed = async { while events.recv().await.unwrap() != CatalogEvent::Changed(owner(1)) {} };
        tokio::time::timeout(PATIENCE, removed).await.unwrap();
        let again = async { while !matches!(events.recv().await.unwrap(), CatalogEvent::Changed(_)) {} };
        assert!(tokio::time::timeout(Duration::from_secs(1), again).await.is_err());
        consul.up(&owner(1), &wanted).await.unwrap();
    }
    assert!(started.elapsed() < Duration::from_secs(80), "{:?}", started.elapsed());
    assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Present);
    consul.down(&owner(1), &wanted).await.unwrap();
    stop.cancel();
    watch.await.unwrap();
}

#[tokio::test]
async fn real_agent_with_acls_refuses_one_of_two_services() {
    let Some(agent) = Agent::start(true).await else { return };
    let token = agent
        .put("/v1/acl/token", json!({"ServiceIdentities": [{"ServiceName": "web"}], "Local": true}))
        .await;
    let wanted = [registration(1, "other", Vec::new()), registration(1, "web", Vec::new())];
    let consul_with_token = consul(&agent.address, token["SecretID"].as_str());
    let error = consul_with_token.up(&owner(1), &wanted).await.unwrap_err();
    assert_eq!((error.failures.len(), error.class()), (1, Class::Retry));
    assert!(error.to_string().contains("service:write"), "{error}");
    assert_eq!(agent.services().await, [wanted[1].id.clone()]);
    consul_with_token.down(&owner(1), &wanted[1..]).await.unwrap();
    assert!(agent.services().await.is_empty());
    // Without a token nothing can be listed or registered.
    let error = consul(&agent.address, None).up(&owner(1), &wanted).await.unwrap_err();
    assert_eq!(error.failures.len(), 2);
}
