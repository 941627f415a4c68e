//! An image of 200 MB pulled from a registry on loopback, unpacked and synced: with one layer, and with ten.
//!
//! Half of each file can be compressed, as in images of programs. Beside it, the machine writes and syncs as many bytes, and Docker and Podman
//! pull the same image, if they are there. Needs root.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::fd::AsFd as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    engine::{Engines, Kind},
    program::program,
};
use herdlet_images::{
    Reference,
    digest::Digest,
    platform::Platforms,
    registry::{Endpoint, Pace},
    store::{LayerLimits, PullOrder, Store, StoreSettings},
};
use herdlet_unpack::{Unpacker, fixture::TarText};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use super::{ground::BenchDirs, table::Table};

const BYTES: usize = 200_000_000;
const FILE_BYTES: usize = 100_000;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

type Contents = BTreeMap<String, (&'static str, Vec<u8>)>;

/// The time of a pull, for one layer and for ten.
pub(super) fn pull(table: &mut Table, dirs: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let written = written(dirs);
    for layers in [1, 10] {
        let contents = Arc::new(contents(layers));
        let taken = pulled(dirs, &contents, layers);
        let measure = format!("image of 200 MB pulled and unpacked, {layers} layers");
        let machine =
            format!("written and synced {:.2} s{}", written.as_secs_f64(), pulled_by_engines(&contents));
        table.row(
            &measure,
            format!("{:.2} s", taken.as_secs_f64()),
            "faster than Docker and Podman",
            machine,
        );
    }
}

/// The times of Docker and Podman, with the bytes synced.
fn pulled_by_engines(contents: &Arc<Contents>) -> String {
    let Some(engines) = Engines::apart(&["docker", "podman"]) else { return String::new() };
    let machine = std::fs::read_to_string(engines.folder().join("machine.pid")).expect("a process");
    let network = format!("/proc/{}/ns/net", machine.trim());
    let port = serve(contents, Some(Path::new(&network)));
    let taken = Kind::DAEMONS.map(|kind| {
        let image = format!("127.0.0.1:{port}/app");
        let path = match kind {
            Kind::Docker => format!("/images/create?fromImage={image}&tag=1"),
            Kind::Podman | Kind::Builtin => {
                format!("/v4.0.0/libpod/images/pull?reference={image}:1&tlsVerify=false")
            }
        };
        let began = Instant::now();
        let answer = engines.engine(kind).request("POST", &path, &serde_json::Value::Null);
        assert!(answer.status == 200 && !answer.body.contains("error"), "{kind}: {}", answer.body);
        rustix::fs::sync();
        format!(", {kind} {:.2} s", began.elapsed().as_secs_f64())
    });
    taken.concat()
}

fn pulled(dirs: &BenchDirs, contents: &Arc<Contents>, layers: usize) -> Duration {
    let port = serve(contents, None);
    let dir = dirs.dir();
    let command = vec![OsString::from(program()), OsString::from("unpack")];
    let unpacker = Unpacker { command, env: Vec::new() };
    let settings = StoreSettings { unpacker, limits: LayerLimits::default() };
    let store = Store::with(&dir.path().join("images"), settings).expect("a store");
    let url = format!("http://127.0.0.1:{port}/").parse().expect("an address");
    let order = PullOrder {
        image: Reference::parse("bench.example/app:1").expect("a name"),
        endpoints: vec![Endpoint { url, credentials: None, authorities: None }],
        pace: Pace::default(),
        platforms: Platforms::of_machine(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let began = Instant::now();
    let pull = async { store.pull(order, &Default::default(), &Default::default()).await };
    let image = runtime.expect("a runtime").block_on(pull).expect("an image");
    let taken = began.elapsed();
    assert_eq!(image.layers.len(), layers);
    taken
}

/// What the machine takes for the bytes alone.
fn written(dirs: &BenchDirs) -> Duration {
    let (dir, bytes) = (dirs.dir(), content(0, BYTES));
    let began = Instant::now();
    let mut file = File::create(dir.path().join("bytes")).expect("a file");
    file.write_all(&bytes).expect("space on the disk");
    file.sync_all().expect("a disk");
    began.elapsed()
}

/// The image, by the paths of its registry.
fn contents(layers: usize) -> Contents {
    let mut contents = Contents::new();
    let (mut described, mut diff_ids) = (Vec::new(), Vec::new());
    let mut add = |bytes: Vec<u8>, media_type: &str| {
        let digest = Digest::of_bytes(&bytes);
        let descriptor = json!({"mediaType": media_type, "digest": digest.as_str(), "size": bytes.len()});
        contents.insert(format!("/v2/app/blobs/{digest}"), ("application/octet-stream", bytes));
        descriptor
    };
    for layer in 0..layers {
        let files = BYTES / FILE_BYTES / layers;
        let tar = (0..files).fold(TarText::new(), |tar, file| {
            tar.file(&format!("usr/{layer}/{}/{file}", file % 20), &content(layer * files + file, FILE_BYTES))
        });
        let tar = tar.finish();
        diff_ids.push(Digest::of_bytes(&tar).to_string());
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&tar).expect("memory");
        let packed = encoder.finish().expect("memory");
        described.push(add(packed, "application/vnd.oci.image.layer.v1.tar+gzip"));
    }
    let config =
        json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = add(config.to_string().into_bytes(), "application/vnd.oci.image.config.v1+json");
    let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": described});
    let manifest = manifest.to_string().into_bytes();
    let digest = Digest::of_bytes(&manifest);
    contents.insert(format!("/v2/app/manifests/{digest}"), (MANIFEST, manifest.clone()));
    contents.insert("/v2/app/manifests/1".to_owned(), (MANIFEST, manifest));
    contents.insert("/v2/".to_owned(), ("application/json", b"{}".to_vec()));
    contents
}

/// Half noise, half text.
fn content(seed: usize, len: usize) -> Vec<u8> {
    let mut state = u64::try_from(seed).unwrap_or_default();
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    let mut bytes: Vec<u8> =
        (0..len / 8).flat_map(|at| if at % 2 == 0 { next() } else { *b"the text" }).collect();
    bytes.resize(len, b'.');
    bytes
}

/// A registry, until the process ends, in a network namespace. Returns its port.
fn serve(contents: &Arc<Contents>, network: Option<&Path>) -> u16 {
    let contents = Arc::clone(contents);
    let listen = || {
        if let Some(path) = network {
            let namespace = File::open(path).expect("a network");
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root, in a thread that nobody else uses");
        }
        TcpListener::bind("127.0.0.1:0").expect("a port")
    };
    let listener = std::thread::scope(|scope| scope.spawn(listen).join().expect("a listener"));
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let contents = Arc::clone(&contents);
            // The client may leave at any time.
            std::thread::spawn(move || answer(stream, &contents));
        }
    });
    port
}

fn answer(mut stream: TcpStream, contents: &Contents) -> std::io::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let Some((media_type, bytes)) = contents.get(path) else {
        return stream.write_all(b"HTTP/1.1 404 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let len = bytes.len();
    let head = format!(
        "HTTP/1.1 200 x\r\nContent-Type: {media_type}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(bytes)
}
