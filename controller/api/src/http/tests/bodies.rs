//! Bodies that no handler reads: every answer arrives, on every route.

use std::collections::BTreeSet;

use axum::routing::post;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream},
    net::{TcpStream, UnixStream},
};

use super::*;
use crate::http::{routes, unread};

/// The paths of the local API: those of the table, and herdlet's own from the source of the router. Segments in braces are
/// replaced.
fn paths() -> BTreeSet<String> {
    let router = include_str!("../../http.rs");
    let own = router.split("#[cfg(test)]").last().unwrap().split(".route(").skip(1);
    let own =
        own.filter_map(|route| Some(route.trim_start().strip_prefix('"')?.split('"').next()?.to_owned()));
    let of_nomad = routes::all().map(|route| {
        let root = if route.path.starts_with(".well-known/") { "" } else { "/v1" };
        format!("{root}/{}", route.path)
    });
    let filled = |path: String| {
        let parts = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        parts.collect::<Vec<_>>().join("/")
    };
    own.chain(of_nomad).map(filled).collect()
}

fn head(method: &str, path: &str, length: usize) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n")
}

/// Sends head and body in two writes. Returns the answer's first line, or nothing if the answer was lost.
async fn exchanged<S>(mut stream: S, method: &str, path: &str, body: &[u8]) -> Option<String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(head(method, path, body.len()).as_bytes()).await.ok()?;
    tokio::task::yield_now().await;
    stream.write_all(body).await.ok()?;
    let mut answer = Vec::new();
    let mut piece = [0; 1_024];
    while !answer.windows(4).any(|window| window == b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(length) => answer.extend_from_slice(&piece[..length]),
        }
    }
    Some(String::from_utf8_lossy(&answer).lines().next()?.to_owned())
}

/// 28 of 400 answers were lost, and half of those to larger bodies.
#[tokio::test]
async fn unread_body_loses_no_answer_on_any_route() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let tcp = ground.tcp(router(Arc::clone(&ground.shared)), None).await;
    let tcp = tcp.trim_start_matches("http://");
    let paths = paths();
    assert!(paths.len() > 80, "the table of routes has too few entries");
    let bodies: [&[u8]; 2] = [b"{}", &[b' '; 200 * 1024]];
    let mut lost = Vec::new();
    for path in &paths {
        for method in ["POST", "PUT", "DELETE", "GET"] {
            for body in bodies {
                let unix = UnixStream::connect(ground.socket()).await.unwrap();
                let by_unix = exchanged(unix, method, path, body).await;
                let by_tcp = exchanged(TcpStream::connect(tcp).await.unwrap(), method, path, body).await;
                for answer in [by_unix, by_tcp] {
                    if !answer.is_some_and(|line| line.starts_with("HTTP/1.1 ")) {
                        lost.push(format!("{method} {path} {}", body.len()));
                    }
                }
            }
        }
    }
    assert!(lost.is_empty(), "{} lost: {lost:?}", lost.len());
}

/// Serves a route that reads no body.
fn served(limits: Limits) -> (DuplexStream, CancellationToken) {
    let routes =
        Router::new().route("/", post(|| async { "done" })).layer(axum::middleware::from_fn(unread::finish));
    let (client, server) = tokio::io::duplex(1 << 20);
    let closing = CancellationToken::new();
    tokio::spawn(crate::http::connection(server, routes, limits, closing.clone()));
    (client, closing)
}

async fn answer(client: &mut DuplexStream) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"done") {
        answer.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test(start_paused = true)]
async fn connection_continues_after_a_small_body() {
    let (mut client, _closing) = served(Limits::default());
    for _ in 0..3 {
        client.write_all(head("POST", "/", 2).as_bytes()).await.unwrap();
        client.write_all(b"{}").await.unwrap();
        let answer = answer(&mut client).await;
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn large_or_late_body_closes_the_connection() {
    for (length, is_late) in [(2, true), (300 * 1024, false), (300 * 1024, true)] {
        let (mut client, _closing) = served(Limits::default());
        client.write_all(head("POST", "/", length).as_bytes()).await.unwrap();
        let body = vec![b' '; length];
        if !is_late {
            client.write_all(&body).await.unwrap();
        }
        let answer = answer(&mut client).await;
        assert!(answer.contains("connection: close"), "{answer}");
        if is_late {
            client.write_all(&body).await.expect("the rest of the body");
        }
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the agent's side has ended");
        // The server stops reading after a moment.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(client.write_all(b" ").await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn refused_body_is_not_requested() {
    let (mut client, _closing) = served(Limits::default());
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let answer = answer(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
}
