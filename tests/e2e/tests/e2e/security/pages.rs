//! A third party's web page in a browser that can reach the agent. It can send any request, under any name
//! that it can make resolve to the agent, but the browser adds headers that a page can't change.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use herdlet_e2e::{host, http, wait};
use herdlet_nomad::wire::ClientStatus;

use crate::{
    common::{TOKEN, is_root, prepared_on_loopback},
    node::{NodeTest, service},
};

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const CLOSE: &str = "Connection: close\r\n";

/// Returns the status for a request with these header lines.
fn status(port: u16, request: &str, lines: &[&str]) -> u16 {
    request_with_body(port, request, lines).0
}

/// Returns the status and the available part of the response.
fn request_with_body(port: u16, request: &str, lines: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!("{request} HTTP/1.1\r\n{}\r\n", lines.concat());
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    if lines.contains(&UPGRADE) {
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        answer = String::from_utf8_lossy(&begin).into_owned();
    } else {
        stream.read_to_string(&mut answer).unwrap();
    }
    (answer.split(' ').nth(1).unwrap().trim().parse().unwrap(), answer)
}

/// Regression: without ACLs in the cluster, a page in a browser could execute commands as root, and read and
/// change everything under a name that resolved to the agent.
#[test]
fn a_node_without_acls_that_others_reach_warns_at_its_start() {
    if !is_root() {
        return;
    }
    let ground = NodeTest::start_at("0.0.0.0", "");
    let warns = || ground.agent.log().contains("can run commands as the agent's user");
    wait::until_true("a warning about the node's API", warns);
    ground.finish();
}

#[test]
fn foreign_page_gets_nothing_from_a_node_without_acls() {
    if !is_root() {
        return;
    }
    let ground = NodeTest::start_with("http: {allowed_hosts: [ui.example]}\n");
    let key = ground.submit(&service("web", 100_003));
    let alloc = ground.alloc(&key);
    ground.reaches(&alloc.id, &ClientStatus::Running);
    // Commands are in the same cgroup while they run.
    let before = ground.agent.single("web.g[0]", "t").pid;
    let port = ground.port;
    let own = format!("Host: 127.0.0.1:{port}\r\n");
    let exec = format!("GET /v1/client/allocation/{}/exec?task=t&command=%5B%22id%22%5D", alloc.id);
    for (origin, expected) in [
        ("Origin: http://evil.example\r\n", 403),
        ("Origin: http://evil.example:4646\r\n", 403),
        ("Origin: null\r\n", 403),
        ("Sec-Fetch-Site: cross-site\r\n", 403),
        (&*format!("Origin: http://127.0.0.1:{port}\r\n"), 101),
        ("Origin: https://ui.example\r\n", 101),
        // The command line.
        ("", 101),
    ] {
        assert_eq!(status(port, &exec, &[&own, UPGRADE, origin]), expected, "{origin}");
    }
    let restart = format!("PUT /v1/client/allocation/{}/restart", alloc.id);
    let (page, plain) =
        ("Origin: http://evil.example\r\n", "Content-Type: text/plain\r\nContent-Length: 2\r\n");
    for request in
        [&*restart, "POST /v1/jobs", "DELETE /v1/job/web", "PUT /v1/client/gc", "GET /v1/client/gc"]
    {
        assert_eq!(status(port, request, &[&own, CLOSE, page, plain, "\r\n{}"]), 403, "{request}");
    }
    for gc in ["/v1/client/gc".to_owned(), format!("/v1/client/allocation/{}/gc", alloc.id)] {
        for (method, lines, expected) in [
            ("GET", "Sec-Fetch-Site: same-site\r\nUser-Agent: Mozilla/5.0\r\n", 403),
            ("HEAD", "Sec-Fetch-Site: cross-site\r\n", 403),
            ("GET", "User-Agent: Mozilla/5.0\r\n", 403),
        ] {
            let code = status(port, &format!("{method} {gc}"), &[&own, CLOSE, lines]);
            assert_eq!(code, expected, "{method} {gc} {lines}");
        }
    }
    let by_command_line = "Accept-Encoding: gzip\r\nUser-Agent: Go-http-client/1.1\r\n";
    assert_eq!(status(port, "GET /v1/client/gc", &[&own, CLOSE, by_command_line]), 200);
    assert!(host::is_alive(before));
    for rebound in ["evil.example", "evil.example:4646", "127.0.0.1.evil.example"] {
        let host = format!("Host: {rebound}\r\n");
        for request in ["GET /v1/agent/self", "GET /v1/metrics", "GET /v1/client/stats", &*restart] {
            let (code, answer) = request_with_body(port, request, &[&host, CLOSE]);
            assert_eq!(code, 421, "{rebound} {request}");
            assert!(answer.contains("http.allowed_hosts"), "{answer}");
        }
        assert_eq!(status(port, &exec, &[&host, UPGRADE, &format!("Origin: http://{rebound}\r\n")]), 421);
    }
    let (code, answer) = request_with_body(port, "GET /v1/client/stats", &[&own, CLOSE, page]);
    assert!(code == 200 && !answer.to_ascii_lowercase().contains("access-control-allow-origin"), "{answer}");
    // The command line, scrapers and proxies, by address and by this machine's names.
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for host in
        ["127.0.0.1".to_owned(), "localhost".to_owned(), "[::1]".to_owned(), name, "ui.example".to_owned()]
    {
        for request in ["GET /v1/agent/self", "GET /v1/metrics"] {
            assert_eq!(
                status(port, request, &[&format!("Host: {host}:{port}\r\n"), CLOSE]),
                200,
                "{host} {request}"
            );
        }
    }
    assert_eq!(
        status(port, &restart, &[&own, CLOSE, "Content-Length: 0\r\n"]),
        200,
        "a request like the command line's"
    );
    wait::until_true("it was restarted", || !host::is_alive(before));
    ground.stop(&key);
    ground.finish();
}

#[test]
fn token_is_required_and_guesses_do_not_lock_out_its_owner() {
    if !is_root() {
        return;
    }
    let (mut agent, [api, metrics]) = prepared_on_loopback();
    agent.launch();
    let (rebound, page) = ("Host: evil.example\r\n", "Origin: http://evil.example\r\n");
    for _ in 0..3 {
        let (code, answer) = request_with_body(metrics, "GET /metrics", &[rebound, CLOSE]);
        assert!(code == 421 && answer.contains("http.allowed_hosts"), "{answer}");
        assert!(!answer.contains("token"), "this listener has no token: {answer}");
    }
    let log = agent.log();
    let reported: Vec<_> = log.lines().filter(|line| line.contains("unknown host name")).collect();
    let [line] = &*reported else { panic!("a name is logged once: {reported:?}") };
    for part in ["WARN", "evil.example", &format!("127.0.0.1:{metrics}"), "http.allowed_hosts"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert_eq!(status(metrics, "GET /metrics", &["Host: app.localhost\r\n", CLOSE]), 200);
    assert_eq!(status(api, "GET /v1/jobs", &[rebound, CLOSE, page]), 401);
    let right = format!("X-Nomad-Token: {TOKEN}\r\n");
    assert_eq!(
        status(api, "GET /v1/jobs", &[rebound, CLOSE, page, &right]),
        200,
        "a valid token is accepted: no page knows it"
    );
    let guess = |n: u32| {
        status(
            api,
            "GET /v1/jobs",
            &["Host: localhost\r\n", CLOSE, &format!("X-Nomad-Token: 0123456789abcde{n:05}\r\n")],
        )
    };
    let slowed = (0..10_000).find(|n| guess(*n) == 429).expect("guesses are limited");
    assert!(slowed >= 10, "a few wrong tokens are not limited");
    let ours = http::request(&http::Peer::Guarded(api, TOKEN), "GET", "/v1/jobs", &[], "").unwrap();
    assert_eq!(ours.status, 200, "a valid token from the same address is accepted");
    assert!(agent.log().contains("refused a request with a wrong token"), "{}", agent.log());
    assert!(
        agent.metric("herdlet_authentication_failures_total", "reason=\"wrong\"") >= f64::from(slowed + 1)
    );
    agent.finish();
}
