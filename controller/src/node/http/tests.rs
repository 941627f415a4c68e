//! The node's HTTP API over a real socket, with servers that say what they were asked.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _, future::BoxFuture};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{framed::Framed, mux::Io};
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

/// A message with a payload, as streams have them.
fn payload(said: &str) -> Value {
    map(&[("Error", Value::Nil), ("Payload", text(said))])
}

#[derive(Default)]
struct Cluster {
    /// What each call is answered.
    answers: Mutex<BTreeMap<String, Result<Value, String>>>,
    asked: Mutex<Vec<(String, Value)>>,
    /// What each streaming call is answered: messages. Of commands what is typed first comes after them.
    streams: Mutex<BTreeMap<String, Vec<Value>>>,
    has_acls: bool,
}

impl Servers for Arc<Cluster> {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        let body = question.body("here", Duration::from_secs(300));
        let token = body.get("SecretID").and_then(Value::as_text).unwrap_or_default();
        let answer = match &*question.method {
            "ACL.ResolveToken" | "ACL.GetPolicies" | "ACL.WhoAmI" if !self.has_acls => {
                Err("ACL support disabled".to_owned())
            }
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

    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        let body = question.body("here", Duration::ZERO);
        self.asked.lock().unwrap().push((question.method.clone(), body));
        let messages = self.streams.lock().unwrap().get(&question.method).cloned();
        let Some(messages) = messages else {
            let error = ServerError::new(format!("Unknown rpc method: {:?}", question.method));
            return async { Err(error.into()) }.boxed();
        };
        let (ours, theirs): (Box<dyn Io>, Box<dyn Io>) = {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            (Box::new(ours), Box::new(theirs))
        };
        tokio::spawn(async move {
            let mut stream = Framed::new(theirs);
            for message in messages {
                stream.send(&message).await.unwrap();
            }
            if question.method == "Allocations.Exec" {
                let typed: Value = stream.receive().await.unwrap().unwrap();
                let data = typed.get("Stdin").unwrap().get("Data").unwrap().clone();
                let Value::Text(data) = data else { panic!("no text was typed") };
                stream.send(&payload(&format!("{{\"heard\":\"{data}\"}}"))).await.unwrap();
            }
            stream.finish().await.unwrap();
        });
        async { Ok(Framed::new(ours)) }.boxed()
    }

    fn set_addresses(&self, servers: Vec<Address>) {
        let servers = servers.iter().map(|server| text(&server.to_string())).collect();
        self.asked.lock().unwrap().push(("servers".to_owned(), Value::List(servers)));
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
        (
            "a: Job registration, dispatch, and scale are disabled by the scheduler configuration",
            403,
            CODES[0].0,
        ),
        ("stat /x: no such file or directory", 404, "stat /x: no such file or directory"),
        ("Unknown allocation \"x\"", 404, "Unknown allocation \"x\""),
        ("No cluster leader", 500, "No cluster leader"),
    ] {
        node.cluster.answers.lock().unwrap().insert("Node.List".to_owned(), Err(error.to_owned()));
        assert_eq!(node.get("/v1/nodes").await, (status, says.to_owned()));
    }
    for (method, path, status) in [
        (Method::GET, "/v1/nope", 404),
        (Method::GET, "/v1/herdlet/status", 404),
        (Method::DELETE, "/v1/nodes", 405),
        (Method::PATCH, "/v1/nodes", 405),
        (Method::PUT, "/v1/jobs", 400),
        (Method::POST, "/v1/job/web/plan", 400),
        (Method::GET, "/v1/job/web/plan", 405),
        (Method::PUT, "/v1/agent/join?address=a", 501),
        (Method::PUT, "/v1/agent/servers", 400),
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
    let exec = format!("{}/v1/client/allocation/{alloc}/exec?task=httpd&command=%5B%22sh%22%5D", node.url);
    let (mut socket, _) = tokio_tungstenite::connect_async(exec.replace("http://", "ws://")).await.unwrap();
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = socket.next().await.unwrap().unwrap()
    else {
        panic!()
    };
    assert_eq!((u16::from(close.code), &*close.reason), (1008, "Permission denied"));
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

#[tokio::test]
async fn jobs_are_registered_planned_and_validated_by_servers() {
    let node = Node::new(false).await;
    let job = r#"{"ID":"web","Namespace":"dev","TaskGroups":[{"Name":"front","Tasks":[{"Name":"httpd","Driver":"docker","Config":{"port":80}}]}]}"#;
    node.answers("Job.Register", map(&[("EvalID", text("e1")), ("Index", Value::Uint(9))]));
    let body = format!(
        r#"{{"Job":{job},"EnforceIndex":true,"JobModifyIndex":3,"Submission":{{"Source":"s","VariableFlags":{{"a":"b\nc d"}}}}}}"#
    );
    let answer = node.ask(Method::PUT, "/v1/jobs", "boss", &body).await;
    assert_eq!(answer.headers()["x-nomad-index"], "9");
    assert_eq!(answer.text().await.unwrap(), r#"{"EvalID":"e1","Index":9}"#);
    let (method, asked) = node.asked();
    let sent = asked.get("Job").unwrap();
    assert_eq!(
        (&*method, asked.get("Region"), asked.get("Namespace")),
        ("Job.Register", Some(&text("here")), Some(&text("dev")))
    );
    assert_eq!(sent.get("Priority"), Some(&Value::Int(50)));
    assert_eq!(
        (asked.get("EnforceIndex"), asked.get("JobModifyIndex")),
        (Some(&Value::Bool(true)), Some(&Value::Int(3)))
    );
    let flags = asked.get("Submission").unwrap().get("VariableFlags").unwrap();
    assert_eq!(flags.get("a"), Some(&text("b%0Ac+d")));
    for (path, call) in
        [("/v1/job/web/plan?namespace=ops", "Job.Plan"), ("/v1/validate/job?namespace=ops", "Job.Validate")]
    {
        node.answers(call, map(&[("Warnings", text("none"))]));
        let answer = node.ask(Method::POST, path, "", &format!(r#"{{"Job":{job},"Diff":true}}"#)).await;
        assert_eq!(answer.text().await.unwrap(), r#"{"Warnings":"none"}"#);
        let (method, asked) = node.asked();
        assert_eq!((&*method, asked.get("Namespace")), (call, Some(&text("ops"))));
        assert_eq!(asked.get("Job").unwrap().get("Namespace"), Some(&text("ops")));
    }
    for (path, body, says) in [
        ("/v1/jobs", "{}", "Job must be specified"),
        ("/v1/jobs", r#"{"Job":{}}"#, "Job ID hasn't been provided"),
        ("/v1/job/other", r#"{"Job":{"ID":"web"}}"#, "Job ID does not match name"),
        ("/v1/job/other/plan", r#"{"Job":{"ID":"web"}}"#, "Job ID does not match"),
        (
            "/v1/jobs",
            r#"{"Job":{"ID":"web"},"EvalPriority":101}"#,
            "Eval priority must be between 1 and 100 inclusively",
        ),
    ] {
        let answer = node.ask(Method::PUT, path, "", body).await;
        assert_eq!(
            (answer.status().as_u16(), answer.text().await.unwrap()),
            (400, says.to_owned()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn texts_of_jobs_are_read_here() {
    let node = Node::new(true).await;
    let body = r#"{"JobHCL":"job \"web\" {\n group \"g\" {\n task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"a\"\n}\n}\n}\n}"}"#;
    let refused = node.ask(Method::POST, "/v1/jobs/parse", "", body).await;
    assert_eq!(refused.status().as_u16(), 403);
    let read: Json = node.ask(Method::POST, "/v1/jobs/parse", "boss", body).await.json().await.unwrap();
    assert_eq!((&read["ID"], &read["TaskGroups"][0]["Tasks"][0]["Name"]), (&"web".into(), &"t".into()));
}

#[tokio::test]
async fn variables_have_their_own_answers() {
    let node = Node::new(false).await;
    node.answers(
        "Variables.Apply",
        map(&[("Output", map(&[("Path", text("a/b"))])), ("Index", Value::Uint(4))]),
    );
    let answer = node.ask(Method::PUT, "/v1/var/a/b?cas=7", "", r#"{"Path":"x","Items":{"Hash":"v"}}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (200, r#"{"Path":"a/b"}"#.to_owned())
    );
    let asked = node.asked().1;
    let variable = asked.get("Var").unwrap();
    assert_eq!((asked.get("Op"), variable.get("Path")), (Some(&text("cas")), Some(&text("a/b"))));
    assert_eq!(variable.get("ModifyIndex"), Some(&Value::Uint(7)));
    assert_eq!(variable.get("Items").unwrap().get("Hash"), Some(&text("v")));
    assert_eq!(node.ask(Method::DELETE, "/v1/var/a", "", "").await.status().as_u16(), 204);
    assert_eq!(node.asked().1.get("Op"), Some(&text("delete")));
    node.answers("Variables.Apply", map(&[("Conflict", map(&[("ModifyIndex", Value::Uint(8))]))]));
    let answer = node.ask(Method::PUT, "/v1/var/a", "", r#"{"Items":{"a":"v"}}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (409, r#"{"ModifyIndex":8}"#.to_owned())
    );
    assert_eq!(node.ask(Method::PUT, "/v1/var/a", "", "{}").await.status().as_u16(), 400);
}

#[tokio::test]
async fn what_is_written_is_wrapped_as_servers_take_it() {
    let node = Node::new(false).await;
    for (method, path, body, call, field, value) in [
        (
            Method::PUT,
            "/v1/namespace/dev",
            r#"{"Name":"dev"}"#,
            "Namespace.UpsertNamespaces",
            "Namespaces",
            Value::List(vec![map(&[("Name", text("dev"))])]),
        ),
        (
            Method::DELETE,
            "/v1/acl/token/t1",
            "",
            "ACL.DeleteTokens",
            "AccessorIDs",
            Value::List(vec![text("t1")]),
        ),
        (
            Method::PUT,
            "/v1/operator/scheduler/configuration?cas=5",
            r#"{"PauseEvalBroker":true}"#,
            "Operator.SchedulerSetConfiguration",
            "Config",
            map(&[("PauseEvalBroker", Value::Bool(true)), ("ModifyIndex", Value::Int(5))]),
        ),
        (Method::PUT, "/v1/job/web/dispatch/payload", "hello", "Job.Dispatch", "Payload", text("hello")),
        (
            Method::PUT,
            "/v1/job/web/versions/v1/tag",
            r#"{"Version":3,"Description":"d"}"#,
            "Job.TagVersion",
            "Tag",
            map(&[("Description", text("d")), ("Name", text("v1"))]),
        ),
        (
            Method::PUT,
            "/v1/job/web/dispatch?idempotency_token=i",
            r#"{"Meta":{"a":"b"}}"#,
            "Job.Dispatch",
            "IdempotencyToken",
            text("i"),
        ),
    ] {
        node.answers(call, map(&[]));
        let answer = node.ask(method, path, "", body).await;
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        let (asked, fields) = node.asked();
        let field = match (call, fields.get(field)) {
            ("Job.Dispatch", Some(Value::Bytes(bytes))) => Some(text(std::str::from_utf8(bytes).unwrap())),
            (_, field) => field.cloned(),
        };
        assert_eq!((&*asked, field), (call, Some(value)), "{path}");
    }
    let answer = node.ask(Method::PUT, "/v1/namespace/dev", "", r#"{"Name":"ops"}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (400, "Namespace name does not match request path".to_owned())
    );
    node.ask(Method::PUT, "/v1/agent/servers?address=10.0.0.1&address=10.0.0.2:99", "", "").await;
    assert_eq!(node.asked().1, Value::List(vec![text("10.0.0.1:4647"), text("10.0.0.2:99")]));
    node.answers("Job.List", map(&[("Jobs", Value::Nil)]));
    assert_eq!(node.get("/v1/jobs").await, (200, "[]".to_owned()));
    let compressed = snap::raw::Encoder::new().compress_vec(b"hello").unwrap();
    node.answers("Job.GetJob", map(&[("Job", map(&[("Payload", Value::Bytes(compressed))]))]));
    assert_eq!(node.get("/v1/job/web").await, (200, r#"{"Payload":"aGVsbG8="}"#.to_owned()));
}

#[tokio::test]
async fn pages_of_servers_may_ask_a_node() {
    let node = Node::new(false).await;
    let url = format!("{}/v1/client/stats", node.url);
    let asks = node
        .http
        .request(Method::OPTIONS, &url)
        .header("origin", "http://a")
        .header("access-control-request-headers", "x-nomad-token");
    let may = asks.send().await.unwrap();
    assert_eq!(
        (may.status().as_u16(), &may.headers()["access-control-allow-headers"]),
        (204, &"x-nomad-token".parse().unwrap())
    );
    let answer = node.http.get(&url).header("origin", "http://a").send().await.unwrap();
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    assert!(!node.http.get(&url).send().await.unwrap().headers().contains_key("access-control-allow-origin"));
}

const ELSEWHERE: &str = "388af656-e88b-e8d9-abc8-1d2f2efb981b";

#[tokio::test]
async fn what_goes_on_elsewhere_comes_through_servers() {
    let node = Node::new(false).await;
    let of = |call: &str, messages: Vec<Value>| {
        node.cluster.streams.lock().unwrap().insert(call.to_owned(), messages);
    };
    of("FileSystem.Logs", vec![payload("one "), payload(""), payload("two")]);
    let logs = format!(
        "/v1/client/fs/logs/{ELSEWHERE}?task=web&type=stdout&follow=true&plain=true&offset=3&origin=end"
    );
    let answer = node.ask(Method::GET, &logs, "boss", "").await;
    assert_eq!(answer.headers()["content-type"], "text/plain");
    assert_eq!(answer.text().await.unwrap(), "one two");
    let (method, asked) = node.asked();
    assert_eq!(method, "FileSystem.Logs");
    for (name, value) in [
        ("AllocID", text(ELSEWHERE)),
        ("AuthToken", text("boss")),
        ("Task", text("web")),
        ("LogType", text("stdout")),
        ("Follow", Value::Bool(true)),
        ("PlainText", Value::Bool(true)),
        ("Offset", Value::Int(3)),
        ("Origin", text("end")),
    ] {
        assert_eq!(asked.get(name), Some(&value), "{name}");
    }
    let failed = |why: &str, code: Value| map(&[("Error", map(&[("Message", text(why)), ("Code", code)]))]);
    for (message, status, says) in [
        (failed("Unknown allocation \"x\"", Value::Int(404)), 404, "Unknown allocation \"x\""),
        (failed("Permission denied", Value::Nil), 403, "Permission denied"),
    ] {
        of("FileSystem.Stream", vec![message]);
        assert_eq!(
            node.get(&format!("/v1/client/fs/cat/{ELSEWHERE}?path=a")).await,
            (status, says.to_owned())
        );
    }
    of("FileSystem.Stream", vec![payload("half"), failed("gone", Value::Int(500))]);
    let cut = node.http.get(format!("{}/v1/client/fs/stream/{ELSEWHERE}?path=a", node.url)).send().await;
    let is_cut = match cut {
        Ok(answer) => answer.text().await.is_err(),
        Err(_) => true,
    };
    assert!(is_cut, "nobody takes it for a whole file");
    for path in ["logs/x?type=stdout", "logs/x?task=a&type=both", "cat/x", "stream/x?path=a&origin=middle"] {
        assert_eq!(node.get(&format!("/v1/client/fs/{path}")).await.0, 400, "{path}");
    }
    let event = map(&[("Error", Value::Nil), ("Event", map(&[("Data", text("{}"))]))]);
    of("Event.Stream", vec![event.clone(), event]);
    assert_eq!(node.get("/v1/event/stream?topic=Job:web&topic=Node").await, (200, "{}\n{}\n".to_owned()));
    let topics = map(&[("Job", Value::List(vec![text("web")])), ("Node", Value::List(vec![text("*")]))]);
    assert_eq!(node.asked().1.get("Topics"), Some(&topics));
    of("Agent.Monitor", vec![payload("a line\n")]);
    assert_eq!(node.get("/v1/agent/monitor?node_id=n2&plain=true").await, (200, "a line\n".to_owned()));
}

#[tokio::test]
async fn commands_elsewhere_are_executed_through_servers() {
    let node = Node::new(false).await;
    let exited = r#"{"exited":true,"result":{}}"#;
    node.cluster.streams.lock().unwrap().insert("Allocations.Exec".to_owned(), vec![payload(exited)]);
    let url = node.url.replace("http://", "ws://");
    let url = format!(
        "{url}/v1/client/allocation/{ELSEWHERE}/exec?task=web&tty=true&command=%5B%22sh%22%5D&ws_handshake=true"
    );
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    let say = |text: &str| tokio_tungstenite::tungstenite::Message::text(text.to_owned());
    socket.send(say(r#"{"version":1,"auth_token":"boss"}"#)).await.unwrap();
    socket.send(say(r#"{"stdin":{"data":"aGk="}}"#)).await.unwrap();
    let mut heard = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        heard.push(message);
    }
    let close = heard.pop().unwrap();
    assert_eq!(heard, [say(exited), say(r#"{"heard":"hi"}"#)]);
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = close else { panic!("{close:?}") };
    assert_eq!(u16::from(close.code), 1000);
    let (method, asked) = node.asked();
    assert_eq!(
        (&*method, asked.get("AuthToken"), asked.get("Tty")),
        ("Allocations.Exec", Some(&text("boss")), Some(&Value::Bool(true)))
    );
    assert_eq!(asked.get("Cmd"), Some(&Value::List(vec![text("sh")])));
    // What is not known anywhere.
    node.cluster.streams.lock().unwrap().clear();
    let (mut socket, _) =
        tokio_tungstenite::connect_async(url.replace("&ws_handshake=true", "")).await.unwrap();
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = socket.next().await.unwrap().unwrap()
    else {
        panic!()
    };
    assert!(u16::from(close.code) == 1011 && close.reason.starts_with("Unknown rpc method"), "{close:?}");
}
