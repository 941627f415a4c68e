//! Stores with images from registries on loopback and from archives. As root: others can't unpack layers.

mod collecting;
mod hostile;
mod loading;
mod pulling;

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
};

use herdlet_base::test_env::is_root;
use herdlet_unpack::fixture::TarText;
use serde_json::{Value as Json, json};

use super::*;
use crate::registry::{
    RegistryError,
    tests::stand_in::{Reply, SentRequest, StandIn, Then},
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Entry point of the unpacking process, if this test is started as it.
#[test]
fn the_process_that_unpacks() {
    let Some(order) = std::env::args().next_back().filter(|last| last.starts_with('{')) else { return };
    #[expect(clippy::disallowed_methods, reason = "as a program ends")]
    std::process::exit(i32::from(herdlet_unpack::execute(&order)));
}

fn unpacker() -> Unpacker {
    Unpacker::of_test("store::tests::the_process_that_unpacks")
}

/// A store in a temporary directory.
struct TestStore {
    temp: tempfile::TempDir,
    store: Store,
}

impl TestStore {
    fn new() -> Self {
        Self::with(LayerLimits::default())
    }

    fn with(limits: LayerLimits) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let store = open(temp.path(), limits);
        Self { temp, store }
    }

    /// Another agent's, in the same directory.
    fn again(&self) -> Store {
        open(self.temp.path(), LayerLimits::default())
    }

    fn count(&self, folder: &str) -> usize {
        fs::read_dir(self.store.dir().join(folder)).unwrap().count()
    }

    /// How many layers, downloads and staged directories there are.
    fn contents(&self) -> [usize; 3] {
        ["layers", "downloads", "staging"].map(|folder| self.count(folder))
    }

    async fn pull(&self, registry: &StandIn, name: &str) -> Result<Image, PullError> {
        pull(&self.store, registry, name).await
    }
}

fn open(dir: &Path, limits: LayerLimits) -> Store {
    Store::with(&dir.join("store"), StoreSettings { unpacker: unpacker(), limits }).unwrap()
}

async fn pull(store: &Store, registry: &StandIn, name: &str) -> Result<Image, PullError> {
    store.pull(order(registry, name), &watch::Sender::default(), &CancellationToken::new()).await
}

fn order(registry: &StandIn, name: &str) -> PullOrder {
    PullOrder {
        image: reference(name),
        endpoints: vec![Endpoint { url: registry.url.clone(), credentials: None, authorities: None }],
        pace: Pace { tries: 1, first_pause: Duration::ZERO, ..Pace::default() },
        platforms: Platforms::of_machine(),
    }
}

fn reference(name: &str) -> Reference {
    Reference::parse(&format!("reg.io/{name}")).unwrap()
}

/// An image as its maker has it.
#[derive(Clone, Default)]
struct MadeImage {
    config: Vec<u8>,
    manifest: Vec<u8>,
    /// As they are sent.
    layers: Vec<Vec<u8>>,
    diff_ids: Vec<Digest>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl MadeImage {
    fn new(name: &str, layers: &[(TarText, Packing)]) -> Self {
        let tars: Vec<Vec<u8>> = layers.iter().map(|(tar, _)| tar.clone().finish()).collect();
        let diff_ids: Vec<Digest> = tars.iter().map(|tar| Digest::of_bytes(tar)).collect();
        let layers: Vec<(Vec<u8>, Packing)> =
            tars.iter().zip(layers).map(|(tar, (_, packed))| (pack(tar, *packed), *packed)).collect();
        Self::with_layers(name, layers, diff_ids)
    }

    fn with_layers(name: &str, layers: Vec<(Vec<u8>, Packing)>, diff_ids: Vec<Digest>) -> Self {
        let config = json!({
            "os": "linux", "architecture": "amd64", "config": {"Cmd": [name], "Env": ["A=b"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let describe = |media_type: &str, bytes: &[u8]| json!({"mediaType": media_type, "digest": Digest::of_bytes(bytes), "size": bytes.len()});
        let described: Vec<Json> = layers
            .iter()
            .map(|(bytes, packed)| {
                let end = match packed {
                    Packing::Plain => "",
                    Packing::Gzip => "+gzip",
                    Packing::Zstd => "+zstd",
                };
                describe(&format!("application/vnd.oci.image.layer.v1.tar{end}"), bytes)
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": describe("application/vnd.oci.image.config.v1+json", &config),
            "layers": described,
        });
        let layers = layers.into_iter().map(|(bytes, _)| bytes).collect();
        Self { config, manifest: manifest.to_string().into_bytes(), layers, diff_ids }
    }

    fn id(&self) -> Digest {
        Digest::of_bytes(&self.config)
    }

    fn digest(&self) -> Digest {
        Digest::of_bytes(&self.manifest)
    }

    /// What a registry has of it, by path.
    fn contents(&self, name: &str) -> Vec<(String, &'static str, Vec<u8>)> {
        let (repository, tag) = name.split_once(':').unwrap();
        let blobs = self.layers.iter().chain([&self.config]).map(|bytes| {
            let path = format!("/v2/{repository}/blobs/{}", Digest::of_bytes(bytes));
            (path, "application/octet-stream", bytes.clone())
        });
        let manifests = [tag.to_owned(), self.digest().to_string()].map(|version| {
            (format!("/v2/{repository}/manifests/{version}"), MANIFEST, self.manifest.clone())
        });
        blobs.chain(manifests).collect()
    }
}

fn pack(tar: &[u8], packed: Packing) -> Vec<u8> {
    match packed {
        Packing::Plain => tar.to_vec(),
        Packing::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(tar).unwrap();
            encoder.finish().unwrap()
        }
        Packing::Zstd => ruzstd::encoding::compress_to_vec(tar, ruzstd::encoding::CompressionLevel::Fastest),
    }
}

type Contents = BTreeMap<String, (&'static str, Vec<u8>)>;

fn contents(images: &[(&str, &MadeImage)]) -> Contents {
    let all = images.iter().flat_map(|(name, image)| image.contents(name));
    all.map(|(path, media_type, bytes)| (path, (media_type, bytes))).collect()
}

/// What an honest registry answers.
fn answer(contents: &Contents, request: &SentRequest) -> Reply {
    let Some((media_type, bytes)) = contents.get(&request.target) else {
        return Reply::new(404, r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "unknown"}]}"#);
    };
    let from = request.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
    match from.map(|from| from.parse::<usize>().unwrap()) {
        None => Reply::new(200, bytes.clone()).with("Content-Type", *media_type),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Reply::new(206, &bytes[from..]).with("Content-Range", range)
        }
    }
}

async fn serve(images: &[(&str, &MadeImage)]) -> StandIn {
    let contents = contents(images);
    StandIn::start(move |request| answer(&contents, request)).await
}

/// How often contents were requested.
fn blobs(registry: &StandIn) -> usize {
    registry.targets().iter().filter(|target| target.contains("/blobs/")).count()
}

fn base() -> (TarText, Packing) {
    let tar = TarText::new().directory("bin").file("bin/sh", &noise(200_000)).symlink("lib", "/usr/lib");
    (tar, Packing::Gzip)
}

fn upper() -> (TarText, Packing) {
    let tar = TarText::new()
        .directory("bin")
        .file("bin/.wh.sh", b"")
        .file("etc/.wh..wh..opq", b"")
        .file("etc/motd", b"hello");
    (tar, Packing::Zstd)
}

/// Bytes that no program compresses.
fn noise(len: u32) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn claims(owner: &str, images: &[&MadeImage]) -> Claims {
    Claims { owner: owner.to_owned(), images: images.iter().map(|image| image.id()).collect() }
}
