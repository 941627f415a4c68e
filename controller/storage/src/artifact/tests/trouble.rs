//! Failing servers, networks, disks and agents.

use super::*;

#[tokio::test]
async fn incomplete_download_is_refused() {
    let body = b"hello, world".to_vec();
    let whole = Server::ok(&body);
    let head_len = whole.len() - body.len();
    for len in head_len..whole.len() {
        let cut = whole[..len].to_vec();
        let (server, ground) = (Server::answering(move |_| cut.clone()), TestEnv::new());
        let error = ground.up(&[artifact(&server, "/a")]).await.unwrap_err();
        assert_eq!(error.verdict(), Verdict::Failed, "{error}");
        assert_eq!(ground.files().len(), 0, "cut at {len}");
    }
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec();
    for (answer, expected) in [
        (Server::status("404 Not Found"), "the server answers 404 Not Found"),
        (Server::status("503 Service Unavailable"), "the server answers 503"),
        (b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1\r\n\r\nx".to_vec(), "the server answers 206"),
        (chunked, "fetch http://"),
        (b"nonsense\r\n\r\n".to_vec(), "fetch http://"),
        (Server::ok(&vec![0; 2 << 20]), "it is larger than 1048576 bytes"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
            "too many redirects",
        ),
        (
            b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n".to_vec(),
            "fetch http://",
        ),
    ] {
        let (server, ground) = (Server::answering(move |_| answer.clone()), TestEnv::new());
        let error = herdlet_base::error::in_full(&ground.up(&[artifact(&server, "/a")]).await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert_eq!(ground.files().len(), 0);
    }
}

#[tokio::test]
async fn wrong_checksum_is_fatal() {
    let list = "d41d8cd98f00b204e9800998ecf8427e  a\n";
    let server = Server::answering(move |path| match path {
        "/SUMS" => Server::ok(list.as_bytes()),
        "/none" => Server::status("404 Not Found"),
        _ => Server::ok(b"hello"),
    });
    let ground = TestEnv::new();
    let at = |path: &str| format!("file:http://{}{path}", server.address);
    for (checksum, expected) in [
        ("md5:d41d8cd98f00b204e9800998ecf8427e".to_owned(), "its md5 is 5d41402abc4b2a76b9719d911017c592"),
        (at("/SUMS"), "its md5 is 5d41402abc4b2a76b9719d911017c592"),
        (at("/none"), "/none: the server answers 404"),
        ("file:/etc/passwd".to_owned(), "the address of its checksum list `file` is not supported"),
        ("md5:1".to_owned(), "its checksum must be md5:HEX"),
    ] {
        let mut wanted = artifact(&server, "/a");
        wanted.options.insert("checksum".to_owned(), checksum);
        let error = herdlet_base::error::in_full(&ground.up(&[wanted]).await.unwrap_err());
        assert!(error.contains(expected), "{error}");
        assert_eq!(ground.files().len(), 0);
    }
}

/// A failed artifact does not keep the others from being fetched, and those are not fetched again.
#[tokio::test]
async fn retry_fetches_only_missing_artifacts() {
    let server = Server::answering(|path| match path {
        "/bad" => Server::status("500 Internal Server Error"),
        _ => Server::ok(b"hello"),
    });
    let ground = TestEnv::new();
    let all = ["/1", "/bad", "/2", "/3", "/3"].map(|path| artifact(&server, path));
    for _ in 0..2 {
        ground.up(&all).await.unwrap_err();
    }
    let mut hits = server.hits();
    hits.sort();
    assert_eq!(hits, ["/1", "/2", "/3", "/bad", "/bad"]);
    assert!(!ground.has(&all));
}

#[tokio::test]
async fn hanging_server_is_waited_for_until_cancelled() {
    let (server, ground) = (Server::answering(|_| Vec::new()), TestEnv::new());
    let cancelled = CancellationToken::new();
    let all = [artifact(&server, "/a"), artifact(&server, "/b.tgz")];
    let (ended, ()) = tokio::join!(ground.up_until(&all, &cancelled), async {
        while server.hits().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cancelled.cancel();
    });
    assert_eq!(ended.unwrap_err().verdict(), Verdict::TryAgain);
    assert_eq!(ground.files().len(), 0);
    let hasty = TestEnv::with(Limits { http_time_max: Duration::from_millis(200), ..LIMITS });
    let error = hasty.up(&[artifact(&server, "/a")]).await.unwrap_err();
    assert!(error.to_string().contains("it took longer than"), "{error}");
}

/// The unpacking process ends when its agent stops waiting: after a cancellation, or because the agent was killed.
#[tokio::test]
async fn unpacking_ends_with_its_agent() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&vec![0; 16 << 20]).unwrap();
    let member = encoder.finish().unwrap();
    let server = Server::giving(member.repeat(128));
    let ground = TestEnv::with(Limits { http_bytes_max: 1 << 30, unpacked_bytes_max: 4 << 30, ..LIMITS });
    let cancelled = CancellationToken::new();
    let began = std::time::Instant::now();
    let wanted = [artifact(&server, "/big.gz")];
    let staged = ground.staged(&wanted[0]);
    let is_unpacking = || staged.join("tree/big").exists();
    let (ended, ()) = tokio::join!(ground.up_until(&wanted, &cancelled), async {
        while !is_unpacking() && began.elapsed() < Duration::from_secs(180) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancelled.cancel();
    });
    assert_eq!(ended.unwrap_err().verdict(), Verdict::TryAgain);
    assert_eq!(ground.files().len(), 0);
}

/// An agent was killed during a fetch: its remains are removed, and never count as the artifact.
#[tokio::test]
async fn remains_of_a_killed_fetch_are_removed() {
    let (server, ground) = (Server::giving(b"hello".to_vec()), TestEnv::new());
    let wanted = artifact(&server, "/a");
    let in_memory = ground.path("private/.staging/0123");
    for left in [ground.staged(&wanted), ground.staged(&wanted).with_file_name("0123"), in_memory] {
        fs::create_dir_all(left.join("tree/deep")).unwrap();
        fs::write(left.join("body"), "hel").unwrap();
    }
    assert!(!ground.has(std::slice::from_ref(&wanted)));
    ground.up(&[wanted]).await.unwrap();
    assert!(fs::read_dir(ground.temp.path().join(staging::NAME)).unwrap().next().is_none());
    let files: Vec<String> = ground.files().into_keys().collect();
    assert_eq!(files, [".artifacts", "local/a"]);
}

#[tokio::test]
async fn errors_contain_no_secret() {
    let server = Server::answering(|_| Server::status("403 Forbidden"));
    let ground = TestEnv::new();
    let secrets = ["us3r", "passw0rd", "t0ken", "k3y"];
    let mut wanted = fixture::artifact(&format!("http://us3r:passw0rd@{}/a?t=t0ken", server.address));
    wanted.headers.insert("X-Key".to_owned(), "k3y".to_owned());
    wanted.options.insert("token".to_owned(), "t0ken".to_owned());
    let mut bad_header = wanted.clone();
    bad_header.headers.insert("X-Key".to_owned(), "k3y\n".to_owned());
    let mut unreachable = wanted.clone();
    unreachable.source = "http://us3r:passw0rd@127.0.0.1:1/a?t=t0ken".to_owned();
    let mut listed = wanted.clone();
    listed
        .options
        .insert("checksum".to_owned(), format!("file:http://us3r:passw0rd@{}/t?t0ken", server.address));
    for wanted in [wanted, bad_header, unreachable, listed] {
        let error = ground.up(&[wanted]).await.unwrap_err();
        let (message, debug) = (herdlet_base::error::in_full(&error), format!("{error:?}"));
        assert!(
            !secrets.iter().any(|secret| message.contains(secret) || debug.contains(secret)),
            "{message} {debug}"
        );
    }
}
