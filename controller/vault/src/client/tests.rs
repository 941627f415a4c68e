//! The client against a stand-in for a server, and against OpenBao.

use std::time::Duration;

use herdlet_base::http_client::Credentials;
use serde_json::{Value, json};

use super::*;
use crate::{config::Verification, error::LeaseFailure, lease::LeaseKind};

mod openbao;
mod redirects;
mod stand_in;

use stand_in::{AUTHORITY, CLIENT, CLIENT_KEY, Reply, Request, StandIn};

const TOKEN: &str = "hvs.T0KEN-of-the-task";
const IDENTITY: &str = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ0YXNrIn0.c2lnbmF0dXJl";

fn token() -> SecretText {
    SecretText::new(TOKEN.to_owned())
}

fn config(address: &str) -> VaultConfig {
    VaultConfig::new(address).ok().unwrap()
}

fn client(config: VaultConfig) -> VaultClient {
    VaultClient::new(config).unwrap()
}

fn path(text: &str) -> VaultPath {
    VaultPath::parse(text).unwrap()
}

/// The error of a call; its result has no `Debug`.
fn error<T>(result: Result<T, VaultError>) -> VaultError {
    result.err().unwrap()
}

fn later(error: &VaultError) -> bool {
    matches!(error.class(), FailureClass::Later { .. })
}

fn auth() -> Value {
    json!({ "auth": {
        "client_token": "hvs.new", "accessor": "acc", "policies": ["default", "web"],
        "lease_duration": 3600, "renewable": true,
    } })
}

/// A server whose every answer is this one.
async fn always(reply: Reply) -> (StandIn, VaultClient) {
    let server = StandIn::start(move |_| reply.clone()).await;
    let client = client(config(&server.address));
    (server, client)
}

#[tokio::test]
async fn a_log_in_sends_identity_and_role() {
    let server = StandIn::start(|_| Reply::Json(200, auth())).await;
    let client = client(config(&server.address).with_namespace("team/").unwrap_or_else(|_| panic!()));
    let identity = SecretText::new(IDENTITY.to_owned());
    let login = JwtLogin { mount: "/jwt-nomad/", role: Some("web"), identity: &identity };
    let grant = client.log_in(login).await.ok().unwrap();
    assert_eq!((grant.token.reveal(), &*grant.accessor), ("hvs.new", "acc"));
    assert_eq!(grant.policies, ["default", "web"]);
    assert_eq!(grant.terms, LeaseTerms { duration: Duration::from_secs(3600), kind: LeaseKind::Renewable });
    let login = JwtLogin { mount: "jwt", role: None, identity: &identity };
    assert!(client.log_in(login).await.is_ok());
    let [first, second] = &server.requests()[..] else { panic!() };
    assert_eq!(first.line, "POST /v1/auth/jwt-nomad/login");
    assert_eq!(first.json(), json!({ "jwt": IDENTITY, "role": "web" }));
    assert_eq!(first.header("x-vault-namespace"), Some("team"));
    assert_eq!((first.header("x-vault-request"), first.header("x-vault-token")), (Some("true"), None));
    assert_eq!((&*second.line, second.json()), ("POST /v1/auth/jwt/login", json!({ "jwt": IDENTITY })));
}

#[tokio::test]
async fn a_mount_cannot_lead_elsewhere() {
    let (server, client) = always(Reply::Json(200, auth())).await;
    let identity = SecretText::new(IDENTITY.to_owned());
    for mount in ["../../sys", "jwt?x=", "jwt\n"] {
        let login = JwtLogin { mount, role: None, identity: &identity };
        assert_eq!(error(client.log_in(login).await).class(), FailureClass::Request, "{mount:?}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn statuses_have_classes() {
    let later = |seconds: Option<u64>| FailureClass::Later { retry_after: seconds.map(Duration::from_secs) };
    for (status, header, class) in [
        (403, "x: y", FailureClass::Token),
        (404, "x: y", FailureClass::Absent),
        (400, "x: y", FailureClass::Request),
        (405, "x: y", FailureClass::Request),
        (412, "x: y", later(None)),
        (429, "retry-after: 7", later(Some(7))),
        (429, "retry-after: 99999999999", later(Some(600))),
        (429, "retry-after: Fri, 31 Dec 1999 23:59:59 GMT", later(None)),
        (429, "retry-after: -1", later(None)),
        (500, "x: y", later(None)),
        (502, "x: y", later(None)),
        (503, "retry-after: 2", later(Some(2))),
        (304, "x: y", later(None)),
    ] {
        let body = json!({ "errors": ["Vault is sealed"] });
        let (_server, client) = always(Reply::With(status, header.to_owned(), body)).await;
        let error = error(client.look_up(&token()).await);
        assert_eq!(error.class(), class, "{status} {header}: {error}");
        let has_why = status == 304 || error.to_string().contains("Vault is sealed");
        assert!(has_why, "{error}");
    }
}

#[tokio::test]
async fn a_sealed_server_loses_no_lease() {
    let sealed = Reply::Json(503, json!({ "errors": ["Vault is sealed"] }));
    let (_server, client) = always(sealed).await;
    let failure = error(client.renew_token(&token(), None).await).lease_failure();
    assert_eq!(failure, LeaseFailure::Later { retry_after: None });
    let failure = error(client.renew_lease(&token(), "db/1", None).await).lease_failure();
    assert_eq!(failure, LeaseFailure::Later { retry_after: None });
}

#[tokio::test]
async fn nothing_listens() {
    let error = error(client(config("http://127.0.0.1:1")).look_up(&token()).await);
    assert!(later(&error) && error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_ends_at_the_time_limit() {
    for reply in [Reply::Hang, Reply::Drip] {
        let server = StandIn::start(move |_| reply.clone()).await;
        let mut config = config(&server.address);
        config.timeout = Duration::from_millis(300);
        let error = error(client(config).look_up(&token()).await);
        assert!(later(&error) && error.to_string().ends_with("the time is up"), "{error}");
    }
}

#[tokio::test]
async fn garbage_is_an_error() {
    let deep = format!("HTTP/1.1 200 x\r\n\r\n{}", "[".repeat(1_000_000));
    for bytes in [
        &b""[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 x\r\n\r\n{\"auth\": ",
        b"HTTP/1.1 200 x\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 x\r\n\r\n",
        b"HTTP/1.1 200 x\r\ncontent-length: 100\r\n\r\n{}",
        b"HTTP/1.1 200 x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 999 x\r\n\r\n",
        deep.as_bytes(),
    ] {
        let (_server, client) = always(Reply::Raw(bytes.to_vec())).await;
        let error = error(client.renew_token(&token(), None).await);
        assert!(later(&error), "{error}");
        let (_server, client) = always(Reply::Raw(bytes.to_vec())).await;
        assert!(client.read(&token(), &path("secret/web")).await.is_err());
    }
    for value in [json!(null), json!([]), json!("x"), json!({ "data": 3, "auth": [] })] {
        let (_server, client) = always(Reply::Json(200, value)).await;
        assert!(client.look_up(&token()).await.is_err());
        assert!(client.unwrap_token(&token()).await.is_err());
        assert!(client.renew_lease(&token(), "x", None).await.is_err());
        assert!(client.mount_of(&token(), &path("secret/web")).await.is_err());
    }
}

#[tokio::test]
async fn a_body_without_end_is_cut() {
    let (_server, client) = always(Reply::Endless).await;
    let failed = error(client.read(&token(), &path("secret/web")).await);
    assert!(failed.to_string().contains("it is longer than"), "{failed}");
    // Of an error only the beginning is read.
    let raw = [&b"HTTP/1.1 500 x\r\n\r\n"[..], &vec![b'a'; 1 << 20]].concat();
    let (_server, client) = always(Reply::Raw(raw)).await;
    let failed = error(client.read(&token(), &path("secret/web")).await);
    assert!(later(&failed) && failed.to_string().len() < 500);
}

#[tokio::test]
async fn messages_repeat_no_secret() {
    let echo = |request: &Request| {
        // The token is in the headers, and all else in the body.
        let token = request.header("x-vault-token");
        let sent = format!("\u{1b}[31m{} {token:?}\n{}", request.line, request.body);
        let path = request.line.contains("sys/internal");
        if path { Reply::Json(404, json!({})) } else { Reply::Json(400, json!({ "errors": [sent] })) }
    };
    let server = StandIn::start(echo).await;
    let client = client(config(&server.address));
    let identity = SecretText::new(IDENTITY.to_owned());
    let login = JwtLogin { mount: "jwt", role: Some("web"), identity: &identity };
    let data = SecretValue::new(json!({ "a": { "password": ["s3cret-value"] } }));
    let errors = [
        error(client.log_in(login).await),
        error(client.look_up(&token()).await),
        error(client.write(&token(), &path("secret/web"), data).await),
        error(client.unwrap_token(&token()).await),
    ];
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(text.contains("/v1/"), "the echo has arrived: {text}");
        for secret in [TOKEN, IDENTITY, "s3cret-value", "\u{1b}", "\n"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    // One is a part of another, and one is escaped.
    let data = json!({ "a": "part", "b": "begin-part-end", "c": "quote\"and\nline" });
    let text = error(client.write(&token(), &path("secret/web"), SecretValue::new(data)).await).to_string();
    assert!(text.contains("/v1/secret/web"), "{text}");
    for secret in ["begin", "end\"", "quote", "line"] {
        assert!(!text.contains(secret), "{text}");
    }
    // Answers with another status may have data.
    let data = json!({ "data": { "password": "s3cret-value" } });
    let (_server, refusing) = always(Reply::Json(400, data)).await;
    assert!(!error(refusing.look_up(&token()).await).to_string().contains("s3cret-value"));
    let broken = b"HTTP/1.1 200 x\r\n\r\n{\"data\": {\"password\": \"s3cret-value\" x".to_vec();
    let (_server, broken) = always(Reply::Raw(broken)).await;
    assert!(!error(broken.read(&token(), &path("a")).await).to_string().contains("s3cret-value"));
}

#[tokio::test]
async fn an_invalid_token_is_not_sent() {
    let (server, client) = always(Reply::Json(200, auth())).await;
    let token = SecretText::new("s3cret\r\nx-forged: 1".to_owned());
    let error = error(client.look_up(&token).await);
    assert!(error.class() == FailureClass::Request && !error.to_string().contains("s3cret"), "{error}");
    assert!(server.requests().is_empty());
}

/// A server with the key-value engine's version 2 at `secret`.
fn kv(request: &Request) -> Reply {
    match &*request.line {
        line if line.starts_with("GET /v1/sys/internal/ui/mounts/secret/") => {
            let data = json!({ "path": "secret/", "type": "kv", "options": { "version": "2" } });
            Reply::Json(200, json!({ "data": data }))
        }
        "GET /v1/secret/data/web" => {
            let data = json!({ "data": { "password": "x" }, "metadata": { "version": 3 } });
            Reply::Json(200, json!({ "data": data }))
        }
        "GET /v1/secret/data/deleted" => {
            let data = json!({ "data": null, "metadata": { "deletion_time": "2026-01-01T00:00:00Z" } });
            Reply::Json(200, json!({ "data": data }))
        }
        "GET /v1/secret/metadata/web?list=true" => {
            Reply::Json(200, json!({ "data": { "keys": ["a", "b/"] } }))
        }
        "POST /v1/secret/data/web" => Reply::Json(204, Value::Null),
        _ => Reply::Json(404, json!({ "errors": [] })),
    }
}

#[tokio::test]
async fn version_2_is_found_with_and_without_data() {
    let server = StandIn::start(kv).await;
    let client = client(config(&server.address));
    for written in ["secret/web", "secret/data/web", "/secret/web/"] {
        let secret = client.read_secret(&token(), &path(written)).await.ok().unwrap();
        assert!(secret.data.get("data").and_then(|data| data.get("password")) == Some(&json!("x")));
    }
    assert_eq!(client.list(&token(), &path("secret/web")).await, Ok(vec!["a".to_owned(), "b/".to_owned()]));
    for written in ["secret/deleted", "secret/none"] {
        let absent = error(client.read_secret(&token(), &path(written)).await);
        assert_eq!(absent.class(), FailureClass::Absent, "{absent}");
    }
    let data = SecretValue::new(json!({ "password": "y" }));
    assert!(client.write(&token(), &path("secret/web"), data).await.is_ok_and(|secret| secret.is_none()));
    assert_eq!(server.requests().last().unwrap().json(), json!({ "data": { "password": "y" } }));
}

#[tokio::test]
async fn an_unknown_mount_is_read_as_it_is_written() {
    for (status, is_plain) in [(403, true), (404, true), (400, true), (503, false), (429, false)] {
        let rule = move |request: &Request| match &*request.line {
            "GET /v1/secret/web" => Reply::Json(200, json!({ "data": { "a": "b" } })),
            _ => Reply::Json(status, json!({ "errors": [] })),
        };
        let server = StandIn::start(rule).await;
        let read = client(config(&server.address)).read_secret(&token(), &path("secret/web")).await;
        assert_eq!(read.is_ok(), is_plain, "{status}");
        // While it is not ready, the wrong path is not requested.
        assert_eq!(server.lines().len(), if is_plain { 2 } else { 1 }, "{status}");
    }
}

#[tokio::test]
async fn a_socket_is_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let server = StandIn::start_at(&dir.path().join("vault.sock"), |_| Reply::Json(200, auth()));
    let client = client(config(&server.address));
    assert!(client.renew_token(&token(), Some(Duration::from_secs(30))).await.is_ok());
    let [request] = &server.requests()[..] else { panic!() };
    assert_eq!(
        (&*request.line, request.header("x-vault-token")),
        ("POST /v1/auth/token/renew-self", Some(TOKEN))
    );
    assert_eq!(request.json(), json!({ "increment": 30 }));
}

fn credentials() -> Credentials {
    let identity = Some([CLIENT, CLIENT_KEY].concat().into());
    Credentials { authorities: Some(AUTHORITY.to_vec()), identity }
}

#[tokio::test]
async fn tls_verifies_name_and_authority_and_shows_a_certificate() {
    let server = StandIn::start_tls(|_| Reply::Json(200, auth())).await;
    let named = || config(&server.address).with_server_name("server.vault.test").ok().unwrap();
    let renew = async |config: VaultConfig| client(config).renew_token(&token(), None).await;

    assert!(renew(VaultConfig { credentials: credentials(), ..named() }).await.is_ok());
    let host = server.address.trim_start_matches("https://");
    assert_eq!(server.requests()[0].header("host"), Some(host), "the name is for TLS only");

    let other = config(&server.address).with_server_name("other.vault.test").ok().unwrap();
    let unnamed = VaultConfig { credentials: credentials(), ..config(&server.address) };
    let no_identity = Credentials { authorities: Some(AUTHORITY.to_vec()), identity: None };
    for refused in [
        VaultConfig { credentials: credentials(), ..other },
        unnamed,
        VaultConfig { credentials: no_identity, ..named() },
        named(),
    ] {
        let error = error(renew(refused).await);
        assert!(later(&error), "{error}");
    }
    assert_eq!(server.requests().len(), 1);

    let unverified = VaultConfig {
        credentials: credentials(),
        verification: Verification::Skipped,
        ..config(&server.address)
    };
    assert!(renew(unverified).await.is_ok());
}

#[tokio::test]
async fn requests_at_once_are_limited() {
    let (arrived, mut count) = tokio::sync::watch::channel(0_usize);
    let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    // Counts connections that have no answer yet.
    let (opened, server) = (gate.clone(), async move {
        let most = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let sender = std::sync::Arc::new(arrived);
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (sender, gate, most) = (sender.clone(), gate.clone(), most.clone());
            tokio::spawn(async move {
                let open = most.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
                sender.send_modify(|count| *count = open.max(*count));
                let _permit = gate.acquire().await;
                most.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                drop(stream);
            });
        }
    });
    let server = tokio::spawn(server);
    let client = std::sync::Arc::new(client(config(&address)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let client = client.clone();
        tasks.spawn(async move { client.look_up(&token()).await.is_err() });
    }
    count.wait_for(|count| *count == transport::CONCURRENT_MAX).await.unwrap();
    opened.add_permits(1000);
    assert!(tasks.join_all().await.into_iter().all(|failed| failed));
    assert_eq!(*count.borrow(), transport::CONCURRENT_MAX);
    server.abort();
}
