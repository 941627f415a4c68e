//! The Task API: who is let in, what a task's identity may do, and what one task can do to another.

use std::sync::Mutex;

use herdlet_agent::task_sockets::{TaskApi as _, TaskSocket};
use herdlet_api_types::{
    AllocId,
    alloc::{ClientStatus, Desired},
    variable::{VariableItems, VariableKey},
};
use herdlet_base::clock;
use herdlet_manifest::fixture::{alloc_view, job, job_view, registration};
use herdlet_services::catalog::ServiceOwner;
use herdlet_variables::{Actor, Check};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::http::{
    LocalAuthority, TaskApiServer,
    task_api::{Authority, Principal, Unidentified},
};

/// Two allocations with a socket each. A token is its claims as JSON text, with `signed:` before them.
struct Env {
    ground: ApiFixture,
    view: AllocView,
    closed: CancellationToken,
}

fn now() -> i64 {
    clock::wall_now().0 / 1_000_000_000
}

impl Env {
    fn new() -> Self {
        let ground = ApiFixture::new();
        let web = job("web", "front", "httpd");
        let view = alloc_view(&web, 0, 7);
        ground.show(5, &[job_view(&web, 0)], &[view.clone(), alloc_view(&web, 1, 8)]);
        let env = Self { ground, view, closed: CancellationToken::new() };
        let path = env.ground.dir.path().join("token");
        std::fs::write(&path, OPERATOR).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let verify = Box::new(|token: &str| {
            if token == "unknown" {
                return Err(Unidentified::Failed("read the keys".to_owned()));
            }
            let claims = token.strip_prefix("signed:").and_then(|claims| serde_json::from_str(claims).ok());
            claims.ok_or(Unidentified::Rejected)
        });
        let known = (Arc::clone(&env.ground.shared.model), env.ground.shared.restored.clone());
        env.serve("one", Arc::new(LocalAuthority::new(verify, known, Some(Token::read(&path).unwrap()))));
        env
    }

    fn serve(&self, name: &str, authority: Arc<dyn Authority>) {
        let server = TaskApiServer {
            router: router(Arc::clone(&self.ground.shared)),
            authority,
            closing: self.ground.shared.closing.clone(),
        };
        let listener = std::os::unix::net::UnixListener::bind(self.path(name)).unwrap();
        let closed = self.closed.clone();
        server.open(TaskSocket { alloc: self.view.spec.id, task: "httpd".to_owned(), listener, closed });
    }

    fn path(&self, name: &str) -> PathBuf {
        self.ground.dir.path().join(name)
    }

    fn claims(&self) -> Value {
        json!({
            "nomad_namespace": "default", "nomad_job_id": "web", "nomad_allocation_id": self.view.spec.id.to_string(),
            "nomad_task": "httpd", "sub": "global:default:web:front:httpd:default", "aud": ["nomadproject.io"],
            "iat": now(), "nbf": now(), "jti": "1",
        })
    }

    /// A token with these claims instead of the usual ones.
    fn token(&self, other: Value) -> String {
        let mut claims = self.claims();
        claims.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
        format!("signed:{claims}")
    }

    async fn ask(&self, (socket, method): (&str, &str), path: &str, header: (&str, &str)) -> (u16, String) {
        let http = reqwest::Client::builder().unix_socket(self.path(socket)).build().unwrap();
        let request = http.request(method.parse().unwrap(), format!("http://localhost{path}"));
        let answer = request.header(header.0, header.1).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn get(&self, path: &str, token: &str) -> (u16, String) {
        self.ask(("one", "GET"), path, (TOKEN, token)).await
    }

    async fn put(&self, namespace: &str, path: &str) {
        let key = VariableKey { namespace: namespace.to_owned(), path: path.to_owned() };
        let items = VariableItems([("password".to_owned(), format!("of {path}"))].into());
        let variables = &self.ground.shared.variables;
        variables.put(&Actor::agent(), key, items, (Check::Nothing, String::new())).await.unwrap();
    }
}

const OPERATOR: &str = "0123456789abcdef0123";
const TOKEN: &str = "x-nomad-token";

#[tokio::test]
async fn nobody_is_served_without_a_token_that_holds() {
    let env = Env::new();
    let valid = env.token(json!({}));
    let get = |header: (&'static str, String)| {
        let env = &env;
        async move { env.ask(("one", "GET"), "/v1/vars", (header.0, &header.1)).await.0 }
    };
    for (header, value, code) in [
        ("x-other", "x".to_owned(), 401),
        (TOKEN, String::new(), 401),
        ("authorization", "Basic eDp5".to_owned(), 401),
        ("authorization", "Bearer ".to_owned(), 401),
        (TOKEN, "anonymous".to_owned(), 403),
        (TOKEN, "unknown".to_owned(), 500),
        (TOKEN, valid.replace("signed:", "forged:"), 403),
        (TOKEN, valid.clone(), 200),
        ("authorization", format!("Bearer {valid}"), 200),
        (TOKEN, OPERATOR.to_owned(), 200),
    ] {
        assert_eq!(get((header, value.clone())).await, code, "{header}: {value}");
    }
    // The parser of requests answers before anything else.
    let mut stream = tokio::net::UnixStream::connect(env.path("one")).await.unwrap();
    stream.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let mut stream = tokio::net::UnixStream::connect(env.path("one")).await.unwrap();
    let request = b"GET /v1/vars HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-nomad-token: \xff\xfe\r\n\r\n";
    stream.write_all(request).await.unwrap();
    answer.clear();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn an_identity_holds_for_its_time_and_its_allocation() {
    let env = Env::new();
    for (claims, code) in [
        (json!({ "exp": now() + 60 }), 200),
        // Clocks differ by up to a minute.
        (json!({ "exp": now() - 20 }), 200),
        (json!({ "exp": now() - 120 }), 403),
        (json!({ "nbf": now() + 20 }), 200),
        (json!({ "nbf": now() + 120 }), 403),
        (json!({ "aud": ["vault.io"] }), 403),
        (json!({ "aud": [] }), 403),
        (json!({ "nomad_allocation_id": AllocId::from_hash([9; 16]).to_string() }), 403),
        (json!({ "nomad_allocation_id": "rubbish" }), 403),
        (json!({ "nomad_namespace": "prod" }), 403),
        (json!({ "nomad_job_id": "other" }), 403),
        (json!({ "nomad_task": "other" }), 403),
        (json!({ "nomad_task": null }), 403),
        // The other allocation's task has the same rights as through its own socket.
        (json!({ "nomad_allocation_id": AllocId::from_hash([8; 16]).to_string() }), 200),
    ] {
        assert_eq!(env.get("/v1/vars", &env.token(claims.clone())).await.0, code, "{claims}");
    }
    // It stops, and keeps its rights until it has ended, also those of cached tokens.
    let token = env.token(json!({}));
    let mut view = env.view.clone();
    assert_eq!(env.get("/v1/vars", &token).await.0, 200);
    Arc::make_mut(&mut view.spec).desired = Desired::Stop;
    env.ground.show(6, &[], std::slice::from_ref(&view));
    assert_eq!(env.get("/v1/vars", &token).await.0, 200);
    view.status = ClientStatus::Complete;
    env.ground.show(7, &[], std::slice::from_ref(&view));
    assert_eq!(env.get("/v1/vars", &token).await.0, 403);
}

#[tokio::test]
async fn a_task_reads_the_variables_of_its_job_and_services_of_its_namespace() {
    let env = Env::new();
    let token = env.token(json!({}));
    for path in ["nomad/jobs/web", "nomad/jobs/web/front/httpd", "nomad/jobs/other", "secret"] {
        env.put("default", path).await;
    }
    env.put("prod", "nomad/jobs/web").await;
    let owner = ServiceOwner { alloc: env.view.spec.id, task: None };
    env.ground.shared.catalog.up(&owner, vec![registration(&env.view, "front", "s1")]);
    for (path, code) in [
        ("/v1/var/nomad/jobs/web", 200),
        ("/v1/var/nomad%2Fjobs%2Fweb", 200),
        ("/v1/var/nomad/jobs/web/front", 404),
        ("/v1/var/nomad/jobs/web/front/httpd", 200),
        ("/v1/var/nomad/jobs/other", 403),
        ("/v1/var/nomad/jobs/web/../other", 403),
        ("/v1/var/secret", 403),
        ("/v1/var/none", 403),
        ("/v1/var/nomad/jobs/web?namespace=prod", 403),
        ("/v1/var/nomad/jobs/web?namespace=*", 403),
        ("/v1/vars?namespace=prod", 403),
        ("/v1/services", 200),
        ("/v1/services?namespace=prod", 403),
        ("/v1/service/front", 200),
        ("/v1/service/front?namespace=prod", 403),
        ("/v1/service/front/s1", 403),
        ("/v1/agent/health", 200),
        ("/v1/status/leader", 200),
        ("/v1/regions", 200),
        ("/v1/agent/self", 403),
        ("/v1/jobs", 403),
        ("/v1/job/web", 403),
        ("/v1/nodes", 403),
        ("/v1/allocations", 403),
        ("/v1/acl/token/self", 403),
        ("/v1/metrics", 403),
        ("/v1/herdlet/status", 403),
        ("/metrics", 403),
        ("/ui", 403),
        ("/", 403),
    ] {
        let (status, text) = env.get(path, &token).await;
        assert_eq!(status, code, "{path}: {text}");
    }
    let listed = |text: String| -> Vec<String> {
        let found: Vec<Value> = serde_json::from_str(&text).unwrap();
        found.iter().map(|one| one["Path"].as_str().unwrap().to_owned()).collect()
    };
    let own = ["nomad/jobs/web", "nomad/jobs/web/front/httpd"];
    for query in ["", "?namespace=*", "?prefix=nomad"] {
        assert_eq!(listed(env.get(&format!("/v1/vars{query}"), &token).await.1), own, "{query}");
    }
    assert_eq!(listed(env.get("/v1/vars?prefix=secret", &token).await.1), [""; 0]);
    assert_eq!(listed(env.get("/v1/vars?namespace=*", OPERATOR).await.1).len(), 5);
    assert!(env.get("/v1/services?namespace=*", &token).await.1.contains("front"));
    // It changes nothing, not even its own.
    for (method, path) in [
        ("PUT", "/v1/var/nomad/jobs/web"),
        ("DELETE", "/v1/var/nomad/jobs/web"),
        ("PUT", "/v1/jobs"),
        ("DELETE", "/v1/service/front/s1"),
    ] {
        assert_eq!(env.ask(("one", method), path, (TOKEN, &token)).await.0, 403, "{method} {path}");
    }
    assert_eq!(env.get("/v1/var/nomad/jobs/web", &token).await.0, 200);
    // An operator's token has all rights here, too.
    assert_eq!(env.get("/v1/jobs", OPERATOR).await.0, 200);
    let path = "/v1/var/nomad/jobs/web";
    assert_eq!(env.ask(("one", "DELETE"), path, (TOKEN, OPERATOR)).await.0, 204);
}

/// Counts look-ups, and accepts one token.
#[derive(Default)]
struct Counting(Mutex<u32>);

impl Authority for Counting {
    fn known(&self, token: &str) -> Option<Principal> {
        (token == "cached").then_some(Principal::Operator)
    }

    fn identify<'a>(
        &'a self,
        token: &'a str,
    ) -> futures_util::future::BoxFuture<'a, Result<Principal, Unidentified>> {
        *self.0.lock().unwrap() += 1;
        Box::pin(async move {
            match token {
                "down" => Err(Unidentified::Failed("no server answers".to_owned())),
                _ => Err(Unidentified::Rejected),
            }
        })
    }
}

#[tokio::test]
async fn look_ups_of_unknown_tokens_are_limited_for_each_socket() {
    let env = Env::new();
    let counting = Arc::new(Counting::default());
    for socket in ["two", "three"] {
        env.serve(socket, Arc::clone(&counting) as Arc<dyn Authority>);
    }
    let down = env.ask(("two", "GET"), "/v1/vars", (TOKEN, "down")).await;
    assert_eq!(down, (500, "failed to check the token: no server answers".to_owned()));
    let mut codes = std::collections::BTreeMap::<u16, u32>::new();
    for _ in 0..200 {
        *codes.entry(env.ask(("two", "GET"), "/v1/vars", (TOKEN, "guess")).await.0).or_default() += 1;
    }
    let asked = *counting.0.lock().unwrap();
    assert_eq!(codes.get(&403).copied(), Some(asked - 1), "{codes:?}");
    assert!(codes.get(&429).is_some_and(|refused| *refused > 0), "{codes:?}");
    // Known tokens and other sockets are not affected.
    assert_eq!(env.ask(("two", "GET"), "/v1/vars", (TOKEN, "cached")).await.0, 200);
    assert_eq!(env.ask(("three", "GET"), "/v1/vars", (TOKEN, "guess")).await.0, 403);
}

#[tokio::test]
async fn a_task_that_holds_all_connections_of_its_socket_delays_only_itself() {
    let env = Env::new();
    env.serve("two", Arc::new(Counting::default()));
    let connect = || tokio::net::UnixStream::connect(env.path("two"));
    let mut held = Vec::new();
    for _ in 0..64 {
        held.push(connect().await.unwrap());
    }
    let mut late = connect().await.unwrap();
    let request = b"GET /v1/vars HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-nomad-token: cached\r\n\r\n";
    late.write_all(request).await.unwrap();
    assert_eq!(env.get("/v1/vars", OPERATOR).await.0, 200);
    let mut answer = String::new();
    // It waits for its turn in the kernel's queue, and gets it.
    drop(held);
    late.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_closed_socket_serves_nobody() {
    let env = Env::new();
    assert_eq!(env.get("/v1/vars", OPERATOR).await.0, 200);
    env.closed.cancel();
    let refused = async || {
        let mut answer = String::new();
        let Ok(mut stream) = tokio::net::UnixStream::connect(env.path("one")).await else { return true };
        let _ = stream.read_to_string(&mut answer).await;
        false
    };
    let ends = async {
        while !refused().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, ends).await.unwrap();
}

#[tokio::test]
async fn a_header_beyond_the_bound_is_answered() {
    let env = Env::new();
    let head = format!("GET /v1/vars HTTP/1.1\r\nhost: x\r\n{TOKEN}: {}\r\n\r\n", "x".repeat(100 * 1_024));
    let ask = async {
        let (mut reader, mut writer) =
            tokio::net::UnixStream::connect(env.path("one")).await.unwrap().into_split();
        let mut answer = String::new();
        // The answer comes while the header is still being sent.
        let (_, read) = tokio::join!(writer.write_all(head.as_bytes()), async {
            let mut line = [0; 13];
            reader.read_exact(&mut line).await.map(|_| String::from_utf8_lossy(&line).into_owned())
        });
        answer.push_str(&read.unwrap());
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, ask).await.unwrap();
    assert_eq!(answer, "HTTP/1.1 431 ");
    assert_eq!(env.get("/v1/vars", OPERATOR).await.0, 200);
}
