//! The node's HTTP API over a real socket, with stand-in servers that record calls.

mod elsewhere;
pub(super) mod test_env;
mod writes;

use std::sync::atomic::Ordering;

use futures_util::StreamExt as _;
use herdlet_api::http::routes::{NodeAnswer, Route};
use herdlet_nomad::wire::Secret;
use reqwest::Method;

use super::*;
use crate::{
    snapshot::tests::{SECRET, migrate_token},
    test_recordings::text,
};
use test_env::{Node, map};

#[tokio::test]
async fn cluster_requests_are_forwarded_to_servers() {
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
    assert_eq!(answer.text().await.unwrap(), r#"[{"ID":"web"}]"#);
    let (method, body) = node.last_call();
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

#[tokio::test(start_paused = true)]
async fn unreachable_servers_are_reported_in_time() {
    let node = Node::new(false).await;
    node.cluster.is_unreachable.store(true, Ordering::SeqCst);
    let late = (500, "no server answered within 10 s".to_owned());
    for path in ["/v1/nodes", "/v1/nodes?index=5&wait=20s", "/v1/event/stream"] {
        assert_eq!(node.get(path).await, late, "{path}");
    }
}

#[tokio::test]
async fn missing_objects_are_404_and_errors_keep_codes() {
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
async fn node_requests_are_answered_locally_or_forwarded() {
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
    let read = node.ask(Method::GET, &cat, "", "").await;
    for (name, value) in [
        ("content-type", "text/plain; charset=utf-8"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    ] {
        assert_eq!(read.headers()[name], value, "a task's file is not a page of this origin");
    }
    assert!(node.cluster.asked.lock().unwrap().is_empty());
    // Requests about another node and its allocation.
    node.answers("ClientStats.Stats", map(&[("HostStats", map(&[("Uptime", Value::Uint(5))]))]));
    assert_eq!(node.get("/v1/client/stats?node_id=n2").await, (200, r#"{"Uptime":5}"#.to_owned()));
    assert_eq!(node.last_call().1.get("NodeID"), Some(&text("n2")));
    let other = "388af656-e88b-e8d9-abc8-1d2f2efb981b";
    node.answers("ClientAllocations.Restart", map(&[("Index", Value::Uint(0))]));
    let path = format!("/v1/client/allocation/{other}/restart");
    let restarted = node.ask(Method::PUT, &path, "", r#"{"TaskName":"web","AllTasks":false}"#).await;
    assert_eq!(restarted.text().await.unwrap(), r#"{"Index":0}"#);
    assert_eq!(node.last_call().1.get("TaskName"), Some(&text("web")));
}

#[tokio::test]
async fn agent_describes_itself() {
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
    let (status, metrics) = node.get("/v1/metrics").await;
    assert!(status == 200 && metrics.contains(r#""Gauges":[]"#), "{metrics}");
    let page = node.http.get(format!("{}/v1/metrics", node.url)).header("accept", "text/plain");
    for page in
        [page.send().await.unwrap().text().await.unwrap(), node.get("/v1/metrics?format=prometheus").await.1]
    {
        assert_eq!(page, "Text\n");
    }
    assert_eq!(node.get("/v1/agent/host").await, (403, "Permission denied".to_owned()));
}

#[tokio::test]
async fn tokens_without_permission_get_nothing() {
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
        // A fresh node each time, so that the guesses do not reach the limit.
        let node = Node::new(true).await;
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
async fn disk_requires_its_migrate_token_or_file_access() {
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
async fn pages_require_a_token_or_open_config() {
    let node = Node::new(true).await;
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
    let shared = async |node: &Node, origin: &str, token: &str| {
        let request = node.http.get(format!("{}/v1/client/stats", node.url)).header("x-nomad-token", token);
        let request = if origin.is_empty() { request } else { request.header("origin", origin) };
        let answer = request.send().await.unwrap();
        answer.headers().get("access-control-allow-origin").map(|origin| origin.to_str().unwrap().to_owned())
    };
    assert_eq!(shared(&node, "http://a", "boss").await.as_deref(), Some("*"));
    assert_eq!(shared(&node, "", "boss").await, None);
    assert_eq!(shared(&node, "http://a", "").await, None);
    assert_eq!(shared(&node, "http://a", "guessed").await, None);
    assert_eq!(shared(&node, "https://ui.example:8443", "").await.as_deref(), Some("*"));
    // Without ACLs a token proves nothing.
    let open = Node::new(false).await;
    assert_eq!(shared(&open, "http://a", "boss").await, None);
    assert_eq!(shared(&open, "https://ui.example:8443", "").await.as_deref(), Some("*"));
}

/// Attacks by any page in a browser that can reach the port of a node without ACLs.
#[tokio::test]
async fn cross_origin_page_is_refused() {
    let (open, closed) = (Node::new(false).await, Node::new(true).await);
    let exec = format!("/v1/client/allocation/{}/exec?task=httpd&command=%5B%22id%22%5D", open.alloc);
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let ask = async |node: &Node, method: Method, path: &str, headers: &[(&str, &str)]| {
        let mut request = node.http.request(method, format!("{}{path}", node.url)).body("{}");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap().status().as_u16()
    };
    for (node, origin, token, expected) in [
        (&open, "http://evil.example", "", 403),
        (&open, "null", "", 403),
        (&open, "http://evil.example", "boss", 403),
        (&open, "", "", 101),
        (&open, &*open.url, "", 101),
        (&open, "https://ui.example:8443", "", 101),
        (&closed, "http://evil.example", "", 403),
        (&closed, "http://evil.example", "guessed", 403),
        (&closed, "http://evil.example", "boss", 101),
    ] {
        let exec = exec.replace(&open.alloc, &node.alloc);
        let mut headers = vec![("x-nomad-token", token)];
        headers.extend(upgrade);
        headers.extend((!origin.is_empty()).then_some(("origin", origin)));
        let asked = node.cluster.asked.lock().unwrap().len();
        assert_eq!(ask(node, Method::GET, &exec, &headers).await, expected, "{origin} {token}");
        assert!(
            expected == 101 || node.cluster.asked.lock().unwrap().len() == asked,
            "the call was not forwarded"
        );
    }
    for node in [&open, &closed] {
        node.answers("Job.Register", map(&[("Index", Value::Uint(1))]));
        node.answers("Job.List", map(&[("Jobs", Value::Nil)]));
    }
    let (page, name, plain) =
        (("origin", "http://evil.example"), ("host", "evil.example"), ("content-type", "text/plain"));
    let boss = ("x-nomad-token", "boss");
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        assert_eq!(ask(&open, method, "/v1/jobs", &[page, plain]).await, 403);
    }
    assert_eq!(ask(&open, Method::GET, "/v1/jobs", &[name]).await, 421);
    assert_eq!(
        ask(&open, Method::GET, "/v1/jobs", &[name, boss]).await,
        421,
        "there are no ACLs: any token would do"
    );
    assert_eq!(ask(&open, Method::GET, "/v1/jobs", &[("host", "ui.example")]).await, 200);
    assert_eq!(ask(&open, Method::GET, "/v1/jobs", &[]).await, 200, "a request like the command line's");
    assert_eq!(ask(&closed, Method::GET, "/v1/jobs", &[name, boss]).await, 200, "NOMAD_ADDR may be a name");
    assert_eq!(ask(&closed, Method::GET, "/v1/jobs", &[name]).await, 421);
    assert_eq!(ask(&closed, Method::GET, "/v1/jobs", &[name, ("x-nomad-token", "guessed")]).await, 421);
}

#[tokio::test]
async fn unknown_tokens_count_as_guesses() {
    let node = Node::new(true).await;
    let mut refused = 0;
    loop {
        match node.ask(Method::GET, "/v1/agent/self", "guessed", "").await.status().as_u16() {
            403 => refused += 1,
            other => break assert_eq!(other, 429),
        }
        assert!(refused < 10_000, "wrong tokens are not limited");
    }
    assert!(refused >= 10);
    assert_eq!(node.ask(Method::GET, "/v1/agent/self", "boss", "").await.status().as_u16(), 200);
    let anonymous = node.ask(Method::GET, "/v1/agent/self", "", "").await.status().as_u16();
    assert_eq!(anonymous, 403, "a request without a token is not a guess");
}

/// Guesses under a wrong host name, from a page or for a websocket count too, and so do forged task identities.
#[tokio::test]
async fn guesses_are_counted_wherever_the_answer_depends_on_the_token() {
    let exec = "/v1/client/allocation/x/exec?task=t&command=%5B%22id%22%5D";
    for (path, header, token, refused) in [
        ("/v1/jobs", ("host", "evil.example"), "guessed", 421),
        ("/v1/client/stats/none", ("origin", "http://evil.example"), "guessed", 404),
        (exec, ("accept", "*/*"), "guessed", 403),
        ("/v1/agent/self", ("accept", "*/*"), "e30.e30.Zm9yZ2Vk", 403),
        ("/v1/jobs", ("accept", "*/*"), "e30.e30.Zm9yZ2Vk", 403),
    ] {
        let node = Node::new(true).await;
        let denied = || Err("Permission denied".to_owned());
        for call in ["ACL.GetClaimPolicies", "Job.List"] {
            node.cluster.answers.lock().unwrap().insert(call.to_owned(), denied());
        }
        let mut answered = 0;
        loop {
            let request = node.http.get(format!("{}{path}", node.url)).header(header.0, header.1);
            match request.header("x-nomad-token", token).send().await.unwrap().status().as_u16() {
                429 => break,
                other => assert_eq!(other, refused, "{path}"),
            }
            answered += 1;
            assert!(answered < 10_000, "{path}: guesses are not limited");
        }
        let page = node.ground.telemetry.page(herdlet_agent::telemetry::Format::Text, Vec::new());
        let counted = format!("herdlet_authentication_failures_total{{reason=\"wrong\"}} {}", answered + 1);
        assert!(answered >= 10 && page.contains(&counted), "{path}: {page}");
    }
    // A valid token without the permission is not a guess.
    let node = Node::new(true).await;
    node.cluster.answers.lock().unwrap().insert("Job.List".to_owned(), Err("Permission denied".to_owned()));
    for _ in 0..50 {
        assert_eq!(node.ask(Method::GET, "/v1/jobs", "boss", "").await.status().as_u16(), 403);
    }
}

/// Browsers send their token in the first frame of a websocket.
#[tokio::test]
async fn a_guess_in_the_first_frame_of_a_websocket_is_counted() {
    let node = Node::new(true).await;
    let exec = format!(
        "{}/v1/client/allocation/{}/exec?task=httpd&command=%5B%22id%22%5D&ws_handshake=true",
        node.url.replace("http://", "ws://"),
        node.alloc
    );
    let closed = async |token: &str| {
        use tokio_tungstenite::tungstenite::Message;

        let (mut socket, _) = tokio_tungstenite::connect_async(&exec).await.unwrap();
        let first = format!("{{\"version\":1,\"auth_token\":\"{token}\"}}");
        futures_util::SinkExt::send(&mut socket, Message::text(first)).await.unwrap();
        let answer = socket.next().await.unwrap().unwrap();
        let Message::Close(Some(close)) = answer else { return (0, answer.to_string()) };
        (u16::from(close.code), close.reason.to_string())
    };
    let mut answered = 0;
    loop {
        let (code, reason) = closed("guessed").await;
        assert_eq!(code, 1008, "{reason}");
        if reason.contains("too many wrong tokens") {
            break;
        }
        assert_eq!(reason, "ACL token not found");
        answered += 1;
        assert!(answered < 10_000, "guesses are not limited");
    }
    let page = node.ground.telemetry.page(herdlet_agent::telemetry::Format::Text, Vec::new());
    let counted = format!("herdlet_authentication_failures_total{{reason=\"wrong\"}} {}", answered + 1);
    assert!(answered >= 10 && page.contains(&counted), "{page}");
    // A valid token is always accepted; here the driver then finds no such task.
    assert!(!closed("boss").await.1.contains("token"));
    assert_eq!(node.ask(Method::GET, "/v1/agent/self", "guessed", "").await.status().as_u16(), 429);
}

/// Rows whose call a server, or this node in its place, answers: verbs and paths.
fn rows() -> impl Iterator<Item = (Verb, &'static str)> {
    calls().map(|(route, _)| (route.verb, route.path))
}

fn calls() -> impl Iterator<Item = (&'static Route, &'static Call)> {
    routes::all().filter_map(|route| match &route.node {
        OnNode::Servers(call) | OnNode::Either(_, call) => Some((route, call)),
        OnNode::Itself(_) | OnNode::Stream(_) | OnNode::ServersOnly | OnNode::Nobody => None,
    })
}

/// Paths with the same call for reading and changing, and the call.
fn calls_of_both() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_changed = |(read, call): &(&Route, &Call)| {
        calls().any(|(route, other)| {
            route.verb == Verb::Put && (route.path, other.method) == (read.path, call.method)
        })
    };
    calls()
        .filter(|(route, _)| route.verb == Verb::Get)
        .filter(is_changed)
        .map(|(route, call)| (route.path, call.method))
}

/// Admission decides before routing which GET requests change something.
#[tokio::test]
async fn a_page_is_refused_each_get_that_changes_something() {
    let node = Node::new(false).await;
    let mut refused = Vec::new();
    for (_, path) in rows().filter(|(verb, _)| *verb == Verb::Get) {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let url = format!("{}/v1/{}", node.url, parts.collect::<Vec<_>>().join("/"));
        let request = node.http.get(url).header("sec-fetch-site", "same-site");
        let answer = request.send().await.unwrap();
        let code = answer.status().as_u16();
        // Other paths are denied without a token, or stream for ever.
        if code == 403 && answer.text().await.unwrap().contains("a web page of another origin") {
            refused.push(path);
        }
    }
    assert_eq!(refused, ["client/gc", "client/allocation/{AllocID}/gc"]);
    // Every other path with the same call for changes only reads by GET.
    let changing: Vec<_> = calls_of_both().collect();
    assert_eq!(
        changing,
        [
            ("client/gc", "ClientAllocations.GarbageCollectAll"),
            ("client/allocation/{AllocID}/gc", "ClientAllocations.GarbageCollect"),
            // It only reads; the body holds names of jobs.
            ("jobs/statuses", "Job.Statuses"),
        ]
    );
}

/// Each route of the table answers, whatever follows its request head.
#[tokio::test]
async fn no_route_loses_an_answer() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let node = Node::new(false).await;
    let address = node.url.trim_start_matches("http://").to_owned();
    let mut lost = Vec::new();
    let routes = rows().map(|(verb, path)| {
        let method = match verb {
            Verb::Get => "GET",
            Verb::Put => "PUT",
            Verb::Delete => "DELETE",
            Verb::Any => "PATCH",
        };
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        (method, parts.collect::<Vec<_>>().join("/"))
    });
    for (method, path) in routes {
        for body in [b"{}".to_vec(), vec![b' '; 200 * 1024]] {
            let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
            let length = body.len();
            let head = format!(
                "{method} /v1/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n"
            );
            let mut answer = [0; 9];
            let exchange = async {
                stream.write_all(head.as_bytes()).await?;
                tokio::task::yield_now().await;
                stream.write_all(&body).await?;
                stream.read_exact(&mut answer).await
            };
            if exchange.await.is_err() || &answer != b"HTTP/1.1 " {
                lost.push(format!("{method} {path} {length}"));
            }
        }
    }
    assert!(lost.is_empty(), "{lost:?}");
}

/// The node handles each route as its `node` field requires.
#[tokio::test]
async fn the_node_answers_as_its_column_says() {
    let node = Node::new(false).await;
    for route in routes::all() {
        let root = if route.path.starts_with(".well-known/") { "" } else { "/v1" };
        let parts = route.path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        let path = format!("{root}/{}", parts.collect::<Vec<_>>().join("/"));
        // If the row may concern this node or another one, request the other one.
        let path = format!("{path}{}server_id=s&node_id=", if path.contains('?') { "&" } else { "?" });
        let method = match route.verb {
            Verb::Get => Method::GET,
            Verb::Put => Method::PUT,
            Verb::Delete => Method::DELETE,
            Verb::Any => Method::PATCH,
        };
        node.cluster.asked.lock().unwrap().clear();
        let answer = node.ask(method.clone(), &path, "", "{}").await;
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        let asked = node.cluster.asked.lock().unwrap().pop().map(|(method, _)| method);
        let known = status != 405 && text != "resource not found";
        match &route.node {
            OnNode::Servers(call) | OnNode::Either(_, call) => {
                // For some the body is incomplete, and the stand-in does not record one of them.
                let is_other = status == 400 || call.method == "ACL.WhoAmI";
                let is_asked = asked.as_deref() == Some(call.method) || (asked.is_none() && is_other);
                assert!(is_asked, "{method} {path}: {status} {text} {asked:?}");
            }
            OnNode::Stream(_) => {
                let is_asked = asked.is_some() || status == 400;
                assert!(known && is_asked, "{method} {path}: {status} {text}");
            }
            OnNode::Itself(NodeAnswer::SetServers) => assert!(known, "{method} {path}: {status} {text}"),
            OnNode::Itself(_) => assert!(known && asked.is_none(), "{method} {path}: {status} {text}"),
            OnNode::ServersOnly => assert_eq!((status, &*text), (501, "Invalid method"), "{method} {path}"),
            OnNode::Nobody => assert!([404, 405].contains(&status), "{method} {path}: {status} {text}"),
        }
    }
}

const ELSEWHERE: &str = "388af656-e88b-e8d9-abc8-1d2f2efb981b";
