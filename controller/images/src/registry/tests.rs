//! Pulls from registries on loopback, honest ones and hostile ones.

mod access;
mod documents;
mod downloads;
pub(crate) mod stand_in;

use std::{collections::BTreeMap, fs::File, io::Read as _, sync::Arc};

use serde_json::json;

use self::stand_in::{AUTHORITY, Reply, SentRequest, StandIn, Then};
use super::*;
use crate::credentials::Secret;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// An image with three layers, as a registry has it: what each path has, with its media type.
#[derive(Clone)]
struct Image {
    contents: Arc<BTreeMap<String, (&'static str, Vec<u8>)>>,
    /// The name, of the index and of the manifest.
    index: Digest,
    manifest: Digest,
    layers: Vec<Vec<u8>>,
}

impl Image {
    fn new() -> Self {
        // Different in each byte's neighbourhood, so that a wrong position shows.
        let layer =
            |salt: u32| (0..100_000_u32 + salt).flat_map(|number| (number ^ salt).to_le_bytes()).collect();
        let layers: Vec<Vec<u8>> = [1, 2, 3].map(layer).into();
        let describe = |media_type: &str, bytes: &[u8]| json!({"mediaType": media_type, "digest": Digest::of_bytes(bytes).as_str(), "size": bytes.len()});
        let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of_bytes(layer).to_string()).collect();
        let config = json!({"os": "linux", "architecture": "amd64", "config": {"Cmd": ["/x"]}, "rootfs": {"diff_ids": diff_ids}});
        let config = config.to_string().into_bytes();
        let tar = "application/vnd.oci.image.layer.v1.tar";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": describe("application/vnd.oci.image.config.v1+json", &config),
            "layers": layers.iter().map(|layer| describe(tar, layer)).collect::<Vec<_>>(),
        });
        let manifest = manifest.to_string().into_bytes();
        let mut entry = describe(MANIFEST, &manifest);
        let platform = Platforms::of_machine().first();
        let (os, architecture) = platform.split_once('/').unwrap();
        entry["platform"] = json!({"os": os, "architecture": architecture});
        let index =
            json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}).to_string().into_bytes();
        let (of_index, of_manifest) = (Digest::of_bytes(&index), Digest::of_bytes(&manifest));
        let mut contents = BTreeMap::from([
            ("/v2/team/app/manifests/1".to_owned(), (INDEX, index.clone())),
            (format!("/v2/team/app/manifests/{of_index}"), (INDEX, index)),
            (format!("/v2/team/app/manifests/{of_manifest}"), (MANIFEST, manifest)),
        ]);
        for blob in layers.iter().chain([&config]) {
            let path = format!("/v2/team/app/blobs/{}", Digest::of_bytes(blob));
            contents.insert(path, ("application/octet-stream", blob.clone()));
        }
        Self { contents: Arc::new(contents), index: of_index, manifest: of_manifest, layers }
    }

    /// What an honest registry answers.
    fn answer(&self, request: &SentRequest) -> Reply {
        let path = request.target.split('?').next().unwrap_or_default();
        let Some((media_type, bytes)) = self.contents.get(path) else {
            return Reply::new(
                404,
                r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}"#,
            );
        };
        let from = request.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        let Some(from) = from.map(|from| from.parse::<usize>().unwrap()) else {
            return Reply::new(200, bytes.clone()).with("Content-Type", *media_type);
        };
        let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
        Reply::new(206, &bytes[from..]).with("Content-Range", range)
    }

    fn layer(&self, index: usize) -> Descriptor {
        let bytes = &self.layers[index];
        Descriptor { digest: Digest::of_bytes(bytes), size: u64::try_from(bytes.len()).unwrap() }
    }

    async fn serve(&self) -> StandIn {
        let image = self.clone();
        StandIn::start(move |request| image.answer(request)).await
    }
}

fn pace() -> Pace {
    Pace { first_pause: Duration::ZERO, ..Pace::default() }
}

fn endpoint(stand_in: &StandIn) -> Endpoint {
    Endpoint { url: stand_in.url.clone(), credentials: None, authorities: None }
}

fn password() -> Option<Credentials> {
    Some(Credentials { username: "user".to_owned(), secret: Secret::Password("pass".to_owned()) })
}

/// `user:pass` in base64.
const BASIC: &str = "Basic dXNlcjpwYXNz";

fn repository(endpoints: Vec<Endpoint>) -> Repository {
    Repository::new(&Reference::parse("reg.io/team/app:1").unwrap(), endpoints, pace()).unwrap()
}

fn of_one(stand_in: &StandIn) -> Repository {
    repository(vec![endpoint(stand_in)])
}

async fn resolve(repository: &Repository) -> Result<RemoteImage, RegistryError> {
    repository.resolve(&Platforms::of_machine()).await
}

/// Fetches one content into a file with this begin. Returns what the file has then.
async fn fetch(
    repository: &Repository,
    content: Descriptor,
    begin: &[u8],
) -> (Result<(), RegistryError>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layer");
    std::fs::write(&path, begin).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let fetched = repository.fetch(content, file, &watch::Sender::default(), &CancellationToken::new()).await;
    let mut bytes = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
    (fetched, bytes)
}

fn ranges(stand_in: &StandIn) -> Vec<String> {
    stand_in.received().iter().map(|request| request.header("range").to_owned()).collect()
}
