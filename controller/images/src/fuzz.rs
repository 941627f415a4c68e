//! The fuzz target of documents, and the invariants that must hold for any of them.
//!
//! In: bytes, from a fuzzer (`tests/fuzz/run document`), from its corpus or from damaged examples (the tests below): what a registry or
//! an archive has as index, manifest or config. Out: nothing, or a panic that names the broken invariant. Compiled only for tests and
//! fuzzing.

use crate::{
    config::ImageConfig,
    document::{Document, LAYERS_MAX, Manifest},
    platform::Platforms,
};

/// Reads a document as each of its kinds.
///
/// # Panics
/// If an invariant is broken.
pub fn feed(data: &[u8]) {
    match Document::read(data, None) {
        Ok(Document::Index(index)) => {
            if let Ok(chosen) = index.choose(&Platforms::of_machine()) {
                assert!(index.entries.contains(chosen), "the choice is an entry");
            }
        }
        Ok(Document::Manifest(manifest)) => check(&manifest),
        Err(error) => assert!(error.to_string().len() < 4096, "an error is short"),
    }
    if let Ok(config) = ImageConfig::read_alone(data) {
        let read = ImageConfig::read(data, config.diff_ids.len());
        assert_eq!(read.as_ref(), Ok(&config), "both readers agree");
        assert!(ImageConfig::read(data, config.diff_ids.len() + 1).is_err(), "a manifest has as many layers");
    }
}

fn check(manifest: &Manifest) {
    assert!(manifest.layers.len() <= LAYERS_MAX, "layers are bounded");
    let sum = manifest.contents().try_fold(0_u64, |sum, content| sum.checked_add(content.size));
    assert!(sum.is_some_and(|sum| i64::try_from(sum).is_ok()), "sizes have a sum");
    assert!(manifest.contents().count() <= manifest.layers.len());
}

/// Valid examples.
pub fn seeds() -> Vec<Vec<u8>> {
    let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
    let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest("a"), "size": 7},
        "layers": [{"mediaType": layer, "digest": digest("b"), "size": 8}, {"mediaType": layer, "digest": digest("b"), "size": 8}],
    });
    let of_docker = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest("a"), "size": 7},
        "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "digest": digest("c"), "size": 9}],
    });
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest("d"), "size": 5,
             "platform": {"architecture": "amd64", "os": "linux"}},
            {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest("e"), "size": 5,
             "platform": {"architecture": "arm64", "os": "linux", "variant": "v8"},
             "annotations": {"org.opencontainers.image.ref.name": "app:1"}},
        ],
    });
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Env": ["A=b"], "Cmd": ["sh"], "User": "1:2", "Volumes": {"/v": {}}, "StopSignal": "SIGINT",
                   "Healthcheck": {"Test": ["CMD", "true"], "Interval": 1_000_000_000}},
        "rootfs": {"type": "layers", "diff_ids": [digest("f"), digest("0")]},
    });
    [manifest, of_docker, index, config].iter().map(|document| document.to_string().into_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_breaks_no_invariant() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fuzz/corpus/document");
        let mut fed = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            feed(&std::fs::read(entry.unwrap().path()).unwrap());
            fed += 1;
        }
        assert!(fed >= seeds().len(), "the corpus has the seeds");
    }

    #[test]
    fn seeds_are_valid() {
        let seeds = seeds();
        let (config, documents) = seeds.split_last().unwrap();
        assert!(documents.iter().all(|seed| Document::read(seed, None).is_ok()));
        assert!(ImageConfig::read(config, 2).is_ok());
    }

    /// Damaged examples: bytes changed, removed, repeated. `HERDLET_TEST_MUTATIONS` sets how many.
    #[test]
    fn damaged_documents_break_no_invariant() {
        let number = std::env::var("HERDLET_TEST_MUTATIONS").ok().and_then(|number| number.parse().ok());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below.max(1)
        };
        let seeds = seeds();
        seeds.iter().for_each(|seed| feed(seed));
        for _ in 0..number.unwrap_or(5_000_u32) {
            let mut bytes = seeds[random(seeds.len())].clone();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(5) {
                    0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    1 => bytes[at] = b"0123456789{}[],:\"\\"[random(18)],
                    2 => bytes.truncate(at.max(1)),
                    3 => {
                        bytes.remove(at);
                        bytes.push(b'}');
                    }
                    _ => {
                        let part = bytes[at..(at + random(300)).min(bytes.len())].to_vec();
                        bytes.splice(at..at, part);
                    }
                }
            }
            feed(&bytes);
        }
    }
}
