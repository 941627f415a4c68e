//! Requests with foreign origins and host names over real sockets, wrong tokens, and many connections from one
//! address.

use reqwest::{Method, StatusCode};

use super::*;

const TOKEN: &str = "0123456789abcdef0123";
const PAGE: (&str, &str) = ("origin", "http://evil.example");
const NAME: (&str, &str) = ("host", "evil.example");

async fn status(url: String, method: Method, headers: &[(&str, &str)]) -> StatusCode {
    let mut request = reqwest::Client::new().request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status()
}

fn token(ground: &ApiFixture) -> Token {
    let path = ground.dir.path().join("token");
    std::fs::write(&path, TOKEN).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    Token::read(&path).unwrap()
}

#[tokio::test]
async fn metrics_are_refused_under_foreign_host_names() {
    let ground = ApiFixture::new();
    let base = ground.tcp(metrics_router(Arc::clone(&ground.shared)), None).await;
    let url = || format!("{base}/metrics");
    assert_eq!(status(url(), Method::GET, &[]).await, 200);
    assert_eq!(status(url(), Method::GET, &[NAME]).await, 421);
    assert_eq!(status(url(), Method::GET, &[("host", "ui.example")]).await, 200);
    let refused = reqwest::Client::new().get(url()).header(NAME.0, NAME.1).send().await.unwrap();
    assert_eq!(refused.headers()["x-content-type-options"], "nosniff");
    let text = refused.text().await.unwrap();
    assert!(
        text.contains("http.allowed_hosts") && !text.contains("token"),
        "this listener has no token: {text}"
    );
}

/// Forty clients that requested the metrics page in a loop blocked both of the agent's threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pages_of_metrics_are_made_one_at_a_time() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let mut ground = ApiFixture::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&now), Arc::clone(&most));
    Arc::get_mut(&mut ground.shared).unwrap().metrics = Box::new(move |_, _| {
        seen.1.fetch_max(seen.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        (0..100).for_each(|_| std::thread::yield_now());
        seen.0.fetch_sub(1, Ordering::SeqCst);
        String::new()
    });
    let base = ground.tcp(metrics_router(Arc::clone(&ground.shared)), None).await;
    let asks = (0..32).map(|_| tokio::spawn(status(format!("{base}/metrics"), Method::GET, &[])));
    for asked in asks.collect::<Vec<_>>() {
        assert_eq!(asked.await.unwrap(), 200);
    }
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_token_and_the_socket_need_no_name() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let base = ground.tcp(router(Arc::clone(&ground.shared)), Some(token(&ground))).await;
    let jobs = || format!("{base}/v1/jobs");
    let right = ("x-nomad-token", TOKEN);
    assert_eq!(status(jobs(), Method::GET, &[NAME, PAGE, right]).await, 200);
    assert_eq!(status(jobs(), Method::GET, &[NAME]).await, 401);
    assert_eq!(status(format!("{base}/.well-known/jwks.json"), Method::GET, &[NAME]).await, 200);
    // Changes pass admission. (Without a reader of the inbox, the answer would be 503.)
    let evaluated = format!("{base}/v1/client/gc");
    assert_eq!(
        status(evaluated, Method::PUT, &[NAME, PAGE, ("sec-fetch-site", "cross-site"), right]).await,
        200
    );
    let answer =
        ground.http().get("http://evil.example/v1/jobs").header(PAGE.0, PAGE.1).send().await.unwrap();
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn guesses_are_slowed_down_and_a_right_token_never() {
    let ground = ApiFixture::new();
    let base = ground.tcp(router(Arc::clone(&ground.shared)), Some(token(&ground))).await;
    let ask =
        async |given: &str| status(format!("{base}/v1/jobs"), Method::GET, &[("x-nomad-token", given)]).await;
    let mut guesses = 0;
    while ask("0123456789abcdef0124").await != StatusCode::TOO_MANY_REQUESTS {
        guesses += 1;
        assert!(guesses < 10_000, "wrong tokens are not limited");
    }
    assert!(guesses >= 10, "a few wrong tokens are not limited");
    assert_eq!(ask(TOKEN).await, 200);
    let page = ground.telemetry.page(herdlet_agent::telemetry::Format::Text, Vec::new());
    let counted = format!("herdlet_authentication_failures_total{{reason=\"wrong\"}} {}", guesses + 1);
    assert!(page.contains(&counted), "{page}");
}

#[tokio::test]
async fn connections_are_bounded_per_address() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let ground = ApiFixture::new();
    let listener = Listener::tcp("127.0.0.1:0").await.unwrap();
    let address = listener.address().unwrap();
    let limits = Limits { connections_max: 32, per_peer_max: 4, ..Limits::default() };
    ground.serve(listener, router(Arc::clone(&ground.shared)), None, limits);
    let from = async |ip: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{ip}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        (String::from_utf8_lossy(&answer).into_owned(), stream)
    };
    let mut held = Vec::new();
    for _ in 0..4 {
        let (answer, stream) = from("127.0.0.1").await;
        assert_eq!(answer, "HTTP/1.1 200");
        held.push(stream);
    }
    assert_eq!(from("127.0.0.1").await.0, "HTTP/1.1 429");
    assert_eq!(from("127.0.0.2").await.0, "HTTP/1.1 200");
}
