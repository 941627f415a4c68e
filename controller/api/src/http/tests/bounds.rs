//! Access and limits.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use herdlet_agent::requests::RequestError;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use herdlet_api_types::JobKey;
use herdlet_plan::event::Command;

use super::*;
use crate::http::{ServeError, TokenError, error::ApiError, serve::REFUSALS_MAX};

fn token_file(ground: &ApiFixture, text: &str, mode: u32) -> PathBuf {
    let path = ground.dir.path().join("token");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[tokio::test]
async fn tcp_requires_the_token() {
    let ground = ApiFixture::new();
    let token = Token::read(&token_file(&ground, "0123456789abcdef0123\n", 0o600)).unwrap();
    assert_eq!(format!("{token:?}"), "Token(…)");
    let base = ground.tcp(router(Arc::clone(&ground.shared)), Some(token)).await;
    let http = reqwest::Client::new();
    let ask = || http.get(format!("{base}/v1/jobs"));
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status().as_u16();
    assert_eq!(status(ask()).await, 401);
    assert_eq!(status(ask().bearer_auth("0123456789abcdef0124")).await, 403);
    assert_eq!(status(ask().header("authorization", "Basic eDp5")).await, 401);
    assert_eq!(status(ask().bearer_auth("0123456789abcdef0123")).await, 200);
    assert_eq!(status(ask().header("x-nomad-token", "0123456789abcdef0123")).await, 200);
    assert_eq!(status(http.get(format!("{base}/nothing"))).await, 401, "every path needs a token");
    let keys = http.get(format!("{base}/.well-known/jwks.json")).send().await.unwrap();
    assert_eq!(keys.status().as_u16(), 200, "public keys need no token");
    assert_eq!(keys.headers()["cache-control"], "public, max-age=900");
    assert_eq!(keys.json::<serde_json::Value>().await.unwrap()["keys"][0]["alg"], "RS256");
    assert_eq!(status(http.post(format!("{base}/.well-known/jwks.json"))).await, 405);
}

#[test]
fn unfit_token_files_are_refused() {
    let ground = ApiFixture::new();
    let read = |text: &str, mode| Token::read(&token_file(&ground, text, mode));
    assert!(matches!(read("0123456789abcdef0123", 0o604), Err(TokenError::Public { .. })));
    assert!(matches!(read("short", 0o600), Err(TokenError::Unfit { .. })));
    assert!(matches!(read("0123456789 abcdef0123", 0o600), Err(TokenError::Unfit { .. })));
    assert!(matches!(read(&"x".repeat(5_000), 0o600), Err(TokenError::Unfit { .. })));
    assert!(matches!(Token::read(&ground.dir.path().join("none")), Err(TokenError::Read { .. })));
    assert!(matches!(Token::read(ground.dir.path()), Err(TokenError::Directory { .. })));
}

#[tokio::test]
async fn the_socket_is_private_and_never_stolen() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let mode = std::fs::metadata(ground.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(Listener::unix(&ground.socket()).await, Err(ServeError::Taken { .. })));
    ground.shared.closing.cancel();
    ground.tasks.close();
    ground.tasks.wait().await;
    assert!(!ground.socket().exists());
    // A socket that a killed agent left is replaced; a file is not.
    drop(std::os::unix::net::UnixListener::bind(ground.socket()).unwrap());
    assert!(Listener::unix(&ground.socket()).await.is_ok());
    std::fs::remove_file(ground.socket()).unwrap();
    std::fs::write(ground.socket(), "precious").unwrap();
    assert!(matches!(Listener::unix(&ground.socket()).await, Err(ServeError::Occupied { .. })));
}

/// An agent whose socket had been deleted could not be reached until it was restarted.
#[tokio::test]
async fn a_socket_that_is_deleted_is_made_again() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let reached = async || {
        let reached = async {
            while UnixStream::connect(ground.socket()).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
    };
    reached().await;
    std::fs::remove_file(ground.socket()).unwrap();
    reached().await;
    std::fs::remove_dir_all(ground.socket().parent().unwrap()).unwrap();
    reached().await;
    let mode = std::fs::metadata(ground.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A file that another process has put there is neither replaced nor removed at the end.
    let precious = ground.dir.path().join("precious");
    std::fs::write(&precious, "").unwrap();
    std::fs::rename(precious, ground.socket()).unwrap();
    ground.shared.closing.cancel();
    ground.tasks.close();
    ground.tasks.wait().await;
    assert!(ground.socket().is_file());
}

#[tokio::test]
async fn a_huge_body_is_refused() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let body = vec![b' '; 9 * 1024 * 1024];
    let answer = ground.http().post("http://localhost/v1/herdlet/apply").body(body).send().await;
    // The refusal comes while the client is still sending, which it may see as a broken connection.
    if let Ok(answer) = answer {
        assert_eq!(answer.status().as_u16(), 413);
    }
    assert_eq!(ground.get("/healthz").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn a_write_to_a_full_disk_is_answered_503_with_the_cause() {
    use axum::response::IntoResponse as _;

    let ground = ApiFixture::new();
    ground.store.send_replace(StoreHealth::Degraded {
        since: herdlet_runtime::Now { boot_ns: 0, wall_ns: 0 },
        failures: 2,
        error: "write the accepted files: No space left on device (os error 28)".to_owned(),
    });
    let began = tokio::time::Instant::now();
    let command = Command::Delete { job: JobKey { namespace: "default".into(), id: "web".into() } };
    let error = ground.shared.request(command).await.unwrap_err();
    assert!(began.elapsed() <= Duration::from_secs(6));
    let message = error.to_string();
    for part in ["nothing was changed", "No space left on device", &*ground.dir.path().to_string_lossy()] {
        assert!(message.contains(part), "{message}");
    }
    let response = error.into_response();
    assert_eq!(response.status(), 503);
    assert!(response.headers().get(herdlet_api_types::api::EFFECT_HEADER).is_none());
    let open = ApiError::from(RequestError::Open("full".to_owned())).into_response();
    assert_eq!(open.status(), 503);
    assert_eq!(open.headers()[herdlet_api_types::api::EFFECT_HEADER], herdlet_api_types::api::EFFECT_OPEN);
}

#[tokio::test]
async fn refused_connection_gets_503() {
    let ground = ApiFixture::new();
    ground.unix(Limits { connections_max: 2, ..Limits::default() }).await;
    let open = async || UnixStream::connect(ground.socket()).await.unwrap();
    let (first, _second) = (open().await, open().await);
    let mut third = open().await;
    third.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    third.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    drop(first);
    // The slot becomes free once the server has noticed the close.
    let freed = async {
        while ground
            .http()
            .get("http://localhost/healthz")
            .send()
            .await
            .is_ok_and(|answer| answer.status() != 200)
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.unwrap();
}

// Each refused connection stayed open for a second: a client that connected in a loop used up all of the
// agent's file descriptors, and no task could start.
#[tokio::test]
async fn few_refused_connections_get_an_answer() {
    let ground = ApiFixture::new();
    ground.unix(Limits { connections_max: 1, ..Limits::default() }).await;
    let open = async || UnixStream::connect(ground.socket()).await.unwrap();
    let _served = open().await;
    let mut others = Vec::new();
    let began = std::time::Instant::now();
    for _ in 0..4 * REFUSALS_MAX {
        others.push(open().await);
        tokio::task::yield_now().await;
    }
    // Each refusal takes a second at most, and then frees its slot.
    let rounds = 1 + usize::try_from(began.elapsed().as_secs()).unwrap();
    let mut refused = 0;
    for other in &mut others {
        let mut answer = Vec::new();
        let _ = other.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await;
        let _ = other.read_to_end(&mut answer).await;
        refused += usize::from(answer.starts_with(b"HTTP/1.1 503 "));
    }
    assert!((1..=rounds * REFUSALS_MAX).contains(&refused), "{refused} of {} in {rounds} s", others.len());
}

#[tokio::test]
async fn body_without_a_token_is_not_read() {
    let ground = ApiFixture::new();
    let token = Token::read(&token_file(&ground, "0123456789abcdef0123\n", 0o600)).unwrap();
    let base = ground.tcp(router(Arc::clone(&ground.shared)), Some(token)).await;
    let mut stream = tokio::net::TcpStream::connect(base.trim_start_matches("http://")).await.unwrap();
    let head = "POST /v1/herdlet/apply HTTP/1.1\r\nhost: x\r\ncontent-length: 8000000\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    // The rest of the body never comes, and the answer must still arrive.
    let mut answer = [0; 12];
    let answered = tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await;
    assert!(answered.is_ok_and(|read| read.is_ok()));
    assert_eq!(&answer, b"HTTP/1.1 401");
}

#[tokio::test]
async fn network_connections_do_not_exhaust_the_socket() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
    let address = listener.address().unwrap();
    let limits = Limits { connections_max: 4, ..Limits::default() };
    ground.serve(listener, router(Arc::clone(&ground.shared)), None, limits);
    let mut held = Vec::new();
    for _ in 0..8 {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"GET /he").await;
        held.push(stream);
    }
    assert_eq!(ground.get("/healthz").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn slow_body_times_out() {
    let ground = ApiFixture::new();
    let (client, server) = tokio::io::duplex(4_096);
    let routes = router(Arc::clone(&ground.shared));
    let closing = ground.shared.closing.clone();
    let serving = tokio::spawn(crate::http::connection(server, routes, Limits::default(), closing));
    let (mut reading, mut writing) = tokio::io::split(client);
    let head = "POST /v1/herdlet/apply HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{";
    writing.write_all(head.as_bytes()).await.unwrap();
    let begun = tokio::time::Instant::now();
    let dripping = async {
        while writing.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let mut answer = String::new();
    tokio::select! {
        () = dripping => {}
        heard = reading.read_to_string(&mut answer) => drop(heard.unwrap()),
    }
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    drop((reading, writing));
    let _ = serving.await.unwrap();
}

#[tokio::test]
async fn deep_json_is_refused() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    for (open, close) in [("[", "]"), (r#"{"files":["#, "]}"), (r#"{"x":"#, "}")] {
        let body = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let answer = ground.http().post("http://localhost/v1/herdlet/apply").body(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 400);
    }
}

#[tokio::test]
async fn a_header_that_is_too_long_is_refused() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let bytes_max = Limits::default().header_bytes_max;
    for (length, code) in [(bytes_max - 200, 200), (bytes_max + 1, 431), (bytes_max * 3 / 2, 431)] {
        let request = ground.http().get("http://localhost/healthz").header("x-long", "x".repeat(length));
        assert_eq!(request.send().await.unwrap().status().as_u16(), code, "{length}");
    }
    let mut stream = UnixStream::connect(ground.socket()).await.unwrap();
    let field = "x".repeat(2 * bytes_max);
    let head = format!("GET /healthz HTTP/1.1\r\nconnection: close\r\nhost: {field}\r\n\r\n");
    // The refusal comes while the client is still sending, which it may see as a broken connection.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(ground.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_client_that_never_finishes_its_header_is_hung_up_on() {
    let ground = ApiFixture::new();
    ground.unix(Limits { header_max: Duration::from_millis(50), ..Limits::default() }).await;
    let mut slow = UnixStream::connect(ground.socket()).await.unwrap();
    slow.write_all(b"GET /healthz HTT").await.unwrap();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut rest)).await.unwrap();
    assert!(ended.is_ok());
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
}

#[tokio::test]
async fn too_many_header_fields_are_refused() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let mut stream = UnixStream::connect(ground.socket()).await.unwrap();
    let fields: String = (0..100).map(|index| format!("x-{index}: y\r\n")).collect();
    stream.write_all(format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{fields}\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}
