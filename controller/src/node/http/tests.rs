//! The node's HTTP API over a real socket, with servers that say what they were asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_nomad::wire::Secret;
use reqwest::Method;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    http::tests::Ground,
    node::snapshot::tests::{SECRET, migrate_token},
    node::{
        acl::{Mode, Resolver, Settings},
        asking::Question,
        serve::{
            Parts,
            meta::{DynamicMeta, MetaRefused, MetaView},
        },
    },
    test_recordings::text,
    test_views::{alloc_view, job, job_view},
};

fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| (text(name), value.clone())).collect())
}

#[derive(Default)]
struct Cluster {
    /// What each call is answered.
    answers: Mutex<BTreeMap<String, Result<Value, String>>>,
    asked: Mutex<Vec<(String, Value)>>,
    has_acls: bool,
}

impl Servers for Arc<Cluster> {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        let body = question.body("here", Duration::from_secs(300));
        let token = body.get("SecretID").and_then(Value::as_text).unwrap_or_default();
        let answer = match &*question.method {
            method if method.starts_with("ACL.") && !self.has_acls => Err("ACL support disabled".to_owned()),
            "ACL.ResolveToken" if token == "boss" => {
                Ok(map(&[("Token", map(&[("Type", text("management"))]))]))
            }
            "ACL.ResolveToken" => Ok(map(&[("Token", Value::Nil)])),
            "ACL.GetPolicies" => Ok(map(&[("Policies", Value::Nil)])),
            "ACL.WhoAmI" => Err("ACL token not found".to_owned()),
            method => {
                self.asked.lock().unwrap().push((method.to_owned(), body));
                let known = self.answers.lock().unwrap().get(method).cloned();
                known.unwrap_or_else(|| Err(format!("rpc: can't find method {method}")))
            }
        };
        async move { answer.map(Answer).map_err(|error| ServerError::new(error).into()) }.boxed()
    }

    fn addresses(&self) -> Vec<String> {
        vec!["10.0.0.2:4647".to_owned(), "10.0.0.1:4647".to_owned()]
    }
}

struct NoMeta;

impl DynamicMeta for NoMeta {
    fn read(&self) -> MetaView {
        MetaView { meta: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]), ..MetaView::default() }
    }

    fn apply(&self, _: BTreeMap<String, Option<String>>) -> BoxFuture<'_, Result<MetaView, MetaRefused>> {
        async { Err(MetaRefused::Invalid("a key is empty".to_owned())) }.boxed()
    }
}

struct Node {
    ground: Ground,
    cluster: Arc<Cluster>,
    url: String,
    http: reqwest::Client,
    alloc: String,
}

impl Node {
    async fn new(has_acls: bool) -> Self {
        let ground = Ground::new();
        let web = job("web", "front", "httpd");
        let view = alloc_view(&web, 0, 7);
        let alloc = view.spec.id.to_string();
        ground.show(5, &[job_view(&web, 0)], &[view]);
        let cluster = Arc::new(Cluster { has_acls, ..Cluster::default() });
        let servers: Arc<dyn Servers> = Arc::new(Arc::clone(&cluster));
        let service = Arc::new(NodeService::new(Parts {
            reach: ground.shared.reach(),
            acl: Resolver::new(Arc::clone(&servers), Settings { mode: Mode::Cluster, ..Settings::default() }),
            meta: Arc::new(NoMeta),
            agent: "n1".to_owned(),
            remote_exec: true,
            debug: false,
            closing: CancellationToken::new(),
        }));
        let api = NodeApi {
            shared: Arc::clone(&ground.shared),
            service,
            servers,
            snapshots: Snapshots::new(ground.shared.reach().paths, SECRET.into(), CancellationToken::new()),
            standing: Box::new(Standing::default),
        };
        let url = ground.tcp(router(Arc::new(api)), None).await;
        Self { ground, cluster, url, http: reqwest::Client::new(), alloc }
    }

    fn answers(&self, method: &str, answer: Value) {
        self.cluster.answers.lock().unwrap().insert(method.to_owned(), Ok(answer));
    }

    async fn ask(&self, method: Method, path: &str, token: &str, body: &str) -> reqwest::Response {
        let request = self.http.request(method, format!("{}{path}", self.url));
        request.header("x-nomad-token", token).body(body.to_owned()).send().await.unwrap()
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.ask(Method::GET, path, "", "").await;
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    fn asked(&self) -> (String, Value) {
        self.cluster.asked.lock().unwrap().pop().expect("servers were asked")
    }
}

#[tokio::test]
async fn what_is_of_the_cluster_is_asked_of_servers() {
    let node = Node::new(false).await;
    let listed = map(&[
        ("Jobs", Value::List(vec![map(&[("ID", text("web")), ("Meta", Value::Nil)])])),
        ("Index", Value::Uint(12)),
        ("KnownLeader", Value::Bool(true)),
        ("LastContact", Value::Int(3_000_000)),
        ("NextToken", text("more")),
    ]);
    node.answers("Job.List", listed);
    let path =
        "/v1/jobs?prefix=w&namespace=*&index=7&wait=10s&stale&per_page=2&filter=a%20%3D%3D+b&meta=true";
    let answer = node.ask(Method::GET, path, "boss", "").await;
    for (name, value) in
        [("index", "12"), ("knownleader", "true"), ("lastcontact", "3"), ("nexttoken", "more")]
    {
        assert_eq!(answer.headers()[format!("x-nomad-{name}")], value);
    }
    assert_eq!(answer.text().await.unwrap(), r#"[{"ID":"web","Meta":null}]"#);
    let (method, body) = node.asked();
    assert_eq!(method, "Job.List");
    for (name, value) in [
        ("Region", text("here")),
        ("Namespace", text("*")),
        ("AuthToken", text("boss")),
        ("MinQueryIndex", Value::Uint(7)),
        ("MaxQueryTime", Value::Int(10_000_000_000)),
        ("AllowStale", Value::Bool(true)),
        ("Prefix", text("w")),
        ("PerPage", Value::Int(2)),
        ("Filter", text("a == b")),
        ("Fields", map(&[("Meta", Value::Bool(true))])),
    ] {
        assert_eq!(body.get(name), Some(&value), "{name}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_errors_keep_their_codes() {
    let node = Node::new(false).await;
    node.answers("Job.GetJob", map(&[("Job", Value::Nil)]));
    assert_eq!(node.get("/v1/job/web").await, (404, "job not found".to_owned()));
    for (error, status, says) in [
        ("rpc error: Permission denied", 403, "Permission denied"),
        ("rpc error: ACL token not found", 403, "ACL token not found"),
        ("rpc error: RPC Error:: 400,bad id", 400, "bad id"),
        ("Unknown allocation \"x\"", 404, "Unknown allocation \"x\""),
        ("No cluster leader", 500, "No cluster leader"),
    ] {
        node.cluster.answers.lock().unwrap().insert("Node.List".to_owned(), Err(error.to_owned()));
        assert_eq!(node.get("/v1/nodes").await, (status, says.to_owned()));
    }
    for (method, path, status) in [
        (Method::GET, "/v1/nope", 404),
        (Method::GET, "/v1/herdlet/status", 404),
        (Method::GET, "/ui/", 404),
        (Method::DELETE, "/v1/nodes", 405),
        (Method::PATCH, "/v1/nodes", 405),
        (Method::PUT, "/v1/jobs", 501),
        (Method::POST, "/v1/job/web/plan", 501),
        (Method::GET, "/v1/jobs?index=x", 400),
        (Method::GET, "/v1/jobs?stale=perhaps", 400),
        (Method::PUT, "/v1/search", 400),
    ] {
        assert_eq!(node.ask(method, path, "", "{").await.status().as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn changes_are_told_to_servers() {
    let node = Node::new(false).await;
    node.answers("Job.Deregister", map(&[("EvalID", text("e1")), ("Index", Value::Uint(9))]));
    let answer = node.ask(Method::DELETE, "/v1/job/web?purge=true", "", "").await;
    assert_eq!(answer.text().await.unwrap(), r#"{"EvalID":"e1","Index":9}"#);
    let (_, body) = node.asked();
    assert_eq!((body.get("JobID"), body.get("Purge")), (Some(&text("web")), Some(&Value::Bool(true))));
    assert_eq!(body.get("MinQueryIndex"), None, "nothing is waited for");
    node.answers("Node.UpdateDrain", map(&[]));
    let drain =
        r#"{"DrainSpec":{"Deadline":3600000000000,"IgnoreSystemJobs":true},"MarkEligible":false,"Other":1}"#;
    assert_eq!(node.ask(Method::POST, "/v1/node/n2/drain", "", drain).await.status(), 200);
    let (_, body) = node.asked();
    let strategy =
        map(&[("Deadline", Value::Int(3_600_000_000_000)), ("IgnoreSystemJobs", Value::Bool(true))]);
    assert_eq!((body.get("NodeID"), body.get("DrainStrategy")), (Some(&text("n2")), Some(&strategy)));
    assert_eq!(body.get("Other"), None);
}

#[tokio::test]
async fn what_is_of_this_node_is_answered_here_and_of_another_by_servers() {
    let node = Node::new(false).await;
    let (status, meta) = node.get("/v1/client/metadata?node_id=n1").await;
    assert_eq!((status, &*meta), (200, r#"{"Dynamic":{},"Meta":{"rack":"r1"},"Static":{}}"#));
    let changed = node.ask(Method::POST, "/v1/client/metadata", "", r#"{"Meta":{"":"x"}}"#).await;
    assert_eq!(
        (changed.status().as_u16(), changed.text().await.unwrap()),
        (400, "a key is empty".to_owned())
    );
    let (status, stats) = node.get("/v1/client/stats").await;
    assert!(status == 200 && stats.contains("\"CPUTicksConsumed\""), "{stats}");
    let local =
        node.ground.shared.paths.task(&node.alloc.parse().map(herdlet_api_types::AllocId).unwrap(), "httpd");
    std::fs::create_dir_all(local.join("local")).unwrap();
    std::fs::write(local.join("local/text"), "one\n").unwrap();
    let (status, listed) = node.get(&format!("/v1/client/fs/ls/{}?path=httpd/local", node.alloc)).await;
    let listed: Json = serde_json::from_str(&listed).unwrap();
    assert_eq!((status, &listed[0]["Name"], &listed[0]["Size"]), (200, &"text".into(), &4.into()));
    assert!(listed[0]["ModTime"].as_str().is_some_and(|time| time.ends_with('Z')), "{listed}");
    let cat = format!("/v1/client/fs/cat/{}?path=httpd/local/text", node.alloc);
    assert_eq!(node.get(&cat).await, (200, "one\n".to_owned()));
    assert!(node.cluster.asked.lock().unwrap().is_empty());
    // What is elsewhere.
    node.answers("ClientStats.Stats", map(&[("HostStats", map(&[("Uptime", Value::Uint(5))]))]));
    assert_eq!(node.get("/v1/client/stats?node_id=n2").await, (200, r#"{"Uptime":5}"#.to_owned()));
    assert_eq!(node.asked().1.get("NodeID"), Some(&text("n2")));
    let other = "388af656-e88b-e8d9-abc8-1d2f2efb981b";
    node.answers("ClientAllocations.Restart", map(&[("Index", Value::Uint(0))]));
    let path = format!("/v1/client/allocation/{other}/restart");
    let restarted = node.ask(Method::PUT, &path, "", r#"{"TaskName":"web","AllTasks":false}"#).await;
    assert_eq!(restarted.text().await.unwrap(), r#"{"Index":0}"#);
    assert_eq!(node.asked().1.get("TaskName"), Some(&text("web")));
    assert_eq!(node.get(&format!("/v1/client/fs/logs/{other}?task=web&type=stdout")).await.0, 404);
}

#[tokio::test]
async fn the_agent_tells_of_itself() {
    let node = Node::new(false).await;
    let this: Json = serde_json::from_str(&node.get("/v1/agent/self").await.1).unwrap();
    assert_eq!(this["stats"]["client"]["node_id"], "n1");
    assert_eq!(this["config"]["Server"]["Enabled"], false);
    assert_eq!(node.get("/v1/agent/servers").await.1, r#"["10.0.0.1:4647","10.0.0.2:4647"]"#);
    assert_eq!(
        node.get("/v1/agent/health").await,
        (200, r#"{"client":{"message":"ok","ok":true}}"#.to_owned())
    );
    assert_eq!(node.get("/v1/agent/health?type=server").await.0, 500);
    assert_eq!(node.get("/v1/metrics").await.0, 200);
    assert_eq!(node.get("/v1/agent/host").await, (403, "Permission denied".to_owned()));
}

#[tokio::test]
async fn nothing_is_told_to_tokens_that_may_not() {
    let node = Node::new(true).await;
    let alloc = &node.alloc;
    for path in [
        format!("/v1/client/fs/logs/{alloc}?task=httpd&type=stdout"),
        format!("/v1/client/fs/cat/{alloc}?path=alloc"),
        format!("/v1/client/fs/stream/{alloc}?path=alloc"),
        format!("/v1/client/fs/readat/{alloc}?path=alloc&offset=0&limit=1"),
        format!("/v1/client/fs/ls/{alloc}?path=/"),
        format!("/v1/client/fs/stat/{alloc}?path=/"),
        format!("/v1/client/allocation/{alloc}/stats"),
        format!("/v1/client/allocation/{alloc}/checks"),
        format!("/v1/client/allocation/{alloc}/gc"),
        format!("/v1/client/allocation/{alloc}/exec?task=httpd&command=%5B%22sh%22%5D"),
        "/v1/client/stats".to_owned(),
        "/v1/client/gc".to_owned(),
        "/v1/client/metadata".to_owned(),
        "/v1/agent/self".to_owned(),
        "/v1/agent/servers".to_owned(),
        "/v1/agent/monitor".to_owned(),
        "/v1/agent/host".to_owned(),
    ] {
        assert_eq!(node.get(&path).await, (403, "Permission denied".to_owned()), "{path}");
        let unknown = node.ask(Method::GET, &path, "guessed", "").await;
        assert_eq!(unknown.status().as_u16(), 403, "{path}");
        assert_eq!(unknown.text().await.unwrap(), "ACL token not found", "{path}");
        let request = node.http.get(format!("{}{path}", node.url)).bearer_auth("boss");
        let allowed = request.send().await.unwrap().status().as_u16();
        assert!(allowed != 403, "{path}");
    }
    for path in ["restart", "signal"] {
        let path = format!("/v1/client/allocation/{alloc}/{path}");
        assert_eq!(node.ask(Method::PUT, &path, "", "{}").await.status().as_u16(), 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_is_given_to_who_has_its_migrate_token_or_may_read_files() {
    for (has_acls, token, expected) in [
        (true, migrate_token(SECRET, ""), 403),
        (true, Secret::default(), 403),
        (true, "boss".into(), 200),
        (false, Secret::default(), 200),
    ] {
        let node = Node::new(has_acls).await;
        let path = |id: &str| format!("/v1/client/allocation/{id}/snapshot");
        let status = |path: String, token: Secret| {
            let node = &node;
            async move { node.ask(Method::GET, &path, token.reveal(), "").await.status().as_u16() }
        };
        assert_eq!(status(path(&node.alloc), token.clone()).await, expected, "{has_acls}");
        let right = migrate_token(SECRET, &node.alloc);
        assert_eq!(status(path(&node.alloc), right.clone()).await, 200, "{has_acls}");
        let other = "00000000-0000-0000-0000-000000000009";
        let of_other = migrate_token(SECRET, other);
        assert_eq!(status(path(other), of_other).await, 404);
    }
}
