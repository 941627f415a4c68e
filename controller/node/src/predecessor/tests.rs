//! Successful and failed transfers of disks.

use std::{fs, os::unix::fs::MetadataExt as _, sync::Arc};

use axum::{
    Router,
    extract::{Path as Named, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
    routing::get,
};
use herdlet_agent::server_tokens::ServerTokens;
use herdlet_base::paths::Paths;
use herdlet_nomad::wire::Node;
use herdlet_unpack::Unpacker;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::Semaphore,
};

use super::*;
use crate::snapshot::{
    Snapshots, error_name,
    tests::{Disk, SECRET, migrate_token},
};

const SUCCESSOR: AllocId = AllocId(uuid::Uuid::from_bytes([9; 16]));

/// A mover for an otherwise empty node, with these paths.
pub(crate) fn mover(paths: &Paths, node: &str) -> Mover {
    Mover {
        paths: paths.clone(),
        tokens: Arc::new(ServerTokens::new(paths.clone())),
        node: node.to_owned().into(),
        region: "global".to_owned(),
        tls: None,
        unpacker: Unpacker::of_test("predecessor::tests::the_process_that_unpacks"),
        turns: Semaphore::new(mover::AT_ONCE),
    }
}

/// Serves snapshots like the API, and returns the address.
pub(crate) async fn serve(
    snapshots: Arc<Snapshots>,
    model: impl Fn(AllocId) -> Option<Arc<herdlet_api_types::alloc::Allocation>> + Send + Sync + 'static,
) -> String {
    type FindAlloc = Arc<dyn Fn(AllocId) -> Option<Arc<herdlet_api_types::alloc::Allocation>> + Send + Sync>;
    async fn answer(
        State((snapshots, model)): State<(Arc<Snapshots>, FindAlloc)>,
        Named(id): Named<String>,
        headers: HeaderMap,
    ) -> Response {
        let token = headers.get("x-nomad-token").and_then(|token| token.to_str().ok()).unwrap_or_default();
        if !snapshots.is_token(&id, &token.into()) {
            return (StatusCode::FORBIDDEN, "Permission denied").into_response();
        }
        snapshots.answer(&model(AllocId(id.parse().unwrap())).unwrap()).await
    }
    let model: FindAlloc = Arc::new(model);
    let router = Router::new()
        .route("/v1/client/allocation/{id}/snapshot", get(answer))
        .with_state((snapshots, model));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Answers one request with these bytes, then closes the connection.
async fn answering(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
    });
    address
}

struct TestEnv {
    _temp: tempfile::TempDir,
    mover: Mover,
}

impl TestEnv {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let paths = Paths { state: temp.path().join("state"), runtime: temp.path().join("run") };
        Self { mover: mover(&paths, "here"), _temp: temp }
    }

    async fn fetch(&self, previous: AllocId, address: &str, token: &Secret) -> Result<(), String> {
        let node = Node { http_addr: address.to_owned(), ..Node::default() };
        let unwanted = CancellationToken::new();
        let fetched = self.mover.fetch(previous, &node, SUCCESSOR, token, &unwanted).await;
        fetched.map_err(|error| error.to_string())
    }

    fn came(&self) -> std::path::PathBuf {
        self.mover.paths.allocs().join(format!(".came-{SUCCESSOR}"))
    }

    /// Checks that the archive is refused and leaves nothing behind.
    async fn is_refused(&self, archive: Vec<u8>) -> String {
        let length = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", archive.len());
        let address = answering([length.into_bytes(), archive].concat()).await;
        self.fails(&address).await
    }

    async fn fails(&self, address: &str) -> String {
        let why = self.fetch(AllocId::from_hash([1; 16]), address, &"token".into()).await.unwrap_err();
        let left: Vec<_> = fs::read_dir(self.mover.paths.allocs()).unwrap().collect();
        assert!(left.is_empty(), "{left:?} after {why}");
        why
    }
}

fn entry(name: &str, kind: tar::EntryType, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let padding = vec![0; content.len().next_multiple_of(512) - content.len()];
    [header.as_bytes(), content, &padding].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_is_fetched_whole_with_owners() {
    let (disk, ground) = (Disk::new(), TestEnv::new());
    let own = disk.paths.task(&disk.spec.id, "httpd").join("local/a/b/own");
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&own, Some(1234), Some(4321)).unwrap();
    }
    let (snapshots, spec) = (Arc::new(disk.snapshots()), Arc::clone(&disk.spec));
    let address = serve(snapshots, move |_| Some(Arc::clone(&spec))).await;
    let token = migrate_token(SECRET, &disk.spec.id.to_string());
    ground.fetch(disk.spec.id, &address, &token).await.unwrap();
    let own = ground.came().join("httpd/local/a/b/own");
    assert_eq!(fs::read_to_string(&own).unwrap(), "own");
    assert_eq!(
        fs::read_link(ground.came().join("httpd/local/a/link")).unwrap(),
        std::path::Path::new("b/own")
    );
    assert_eq!(fs::read(ground.came().join("alloc/data/large")).unwrap(), vec![7; 300_000]);
    let stat = own.metadata().unwrap();
    assert!(!is_root || (stat.uid(), stat.gid()) == (1234, 4321), "{stat:?}");
    assert_eq!(fs::read_dir(ground.mover.paths.allocs()).unwrap().count(), 1, "nothing else remains");
    // A disk that has already arrived is not requested again, as after a kill.
    ground.fetch(disk.spec.id, "127.0.0.1:1", &token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_transfer_without_its_token_is_refused() {
    let (disk, ground) = (Disk::new(), TestEnv::new());
    let (snapshots, spec) = (Arc::new(disk.snapshots()), Arc::clone(&disk.spec));
    let address = serve(snapshots, move |_| Some(Arc::clone(&spec))).await;
    let why = ground.fails(&address).await;
    assert!(why.contains("403"), "{why}");
    assert!(!why.contains("token"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_node_is_reported() {
    let ground = TestEnv::new();
    // The address of a machine that no longer exists.
    let why = ground.fails("127.0.0.1:1").await;
    assert!(why.contains("refused"), "{why}");
    fs::create_dir_all(ground.mover.paths.allocs()).unwrap();
    for address in ["", "user@127.0.0.1:80", "127.0.0.1:80/other?x=", "no address"] {
        let why = ground.fails(address).await;
        assert!(why.contains("find its node"), "{address:?}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_stream_leaves_nothing() {
    use tar::EntryType::{Directory, Regular};
    let ground = TestEnv::new();
    let whole =
        [entry("alloc/data", Directory, "", b""), entry("alloc/data/f", Regular, "", &[1; 4000])].concat();
    // The connection is lost, in a chunk or between two.
    for end in ["", "\r\n"] {
        let mut answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        answer.extend(format!("{:x}\r\n", whole.len() + 2 - end.len()).bytes());
        answer.extend(&whole);
        answer.extend(end.bytes());
        let why = ground.fails(&answering(answer).await).await;
        assert!(why.contains("fetch it from"), "{why}");
    }
    // The archive ends within a file.
    let why = ground.is_refused(whole[..1500].to_vec()).await;
    assert!(why.contains("unpack it"), "{why}");
    // The other node reports that it could not continue.
    let marker = error_name(&AllocId::from_hash([1; 16]).to_string());
    let why = ground.is_refused([whole, entry(&marker, Regular, "", b"disk on fire")].concat()).await;
    assert!(why.contains("disk on fire"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_archive_is_refused_as_a_whole() {
    use tar::EntryType::{Block, Fifo, Link, Regular, Symlink};
    let ground = TestEnv::new();
    for (name, kind, link, why_not) in [
        ("../out", Regular, "", "leads out"),
        ("/out", Regular, "", "leads out"),
        ("db/local/../../../out", Regular, "", "leads out"),
        ("db/local/link", Symlink, "/etc", "leads out"),
        ("db/local/link", Symlink, "../../../out", "leads out"),
        ("db/local/hard", Link, "/etc/passwd", "leads out"),
        ("db/local/sda", Block, "", "a device"),
        ("db/local/pipe", Fifo, "", "a fifo"),
    ] {
        let good = entry("alloc/data/f", Regular, "", b"good");
        let why = ground.is_refused([good, entry(name, kind, link, b"")].concat()).await;
        assert!(why.contains(why_not), "{name}: {why}");
    }
    // Through a link from the archive itself.
    let through = [entry("db/local/l", Symlink, "a", b""), entry("db/local/l/f", Regular, "", b"x")].concat();
    assert!(ground.is_refused(through).await.contains("a symbolic link is in the way"));
    // More than the free disk space.
    let huge = b"HTTP/1.1 200 OK\r\ncontent-length: 4611686018427387904\r\n\r\n".to_vec();
    let why = ground.fails(&answering(huge).await).await;
    assert!(why.contains("larger than"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unwanted_transfer_is_cancelled_at_once() {
    let ground = TestEnv::new();
    // A node that accepts the request and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = Node { http_addr: listener.local_addr().unwrap().to_string(), ..Node::default() };
    let unwanted = CancellationToken::new();
    let token = Secret::default();
    let fetch = ground.mover.fetch(AllocId::from_hash([1; 16]), &node, SUCCESSOR, &token, &unwanted);
    let stop = async {
        let connection = listener.accept().await.unwrap();
        unwanted.cancel();
        connection
    };
    let (fetched, _connection) = tokio::join!(fetch, stop);
    assert!(matches!(fetched, Err(MoveError::Unwanted)));
    assert_eq!(fs::read_dir(ground.mover.paths.allocs()).unwrap().count(), 0);
}

/// The entry point of `herdlet unpack` when this test binary is started as the unpacking process.
#[test]
fn the_process_that_unpacks() {
    let Some(order) = std::env::args().next_back().filter(|last| last.starts_with('{')) else { return };
    #[expect(clippy::disallowed_methods, reason = "as a program ends")]
    std::process::exit(i32::from(herdlet_unpack::execute(&order)));
}
