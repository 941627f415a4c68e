//! Documents of images: what is read, what is skipped, and what is refused.

use serde_json::{Value as Json, json};

use super::*;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn digest(char: char) -> String {
    format!("sha256:{}", char.to_string().repeat(64))
}

fn read(document: &Json, declared: Option<&str>) -> Result<Document, DocumentError> {
    Document::read(document.to_string().as_bytes(), declared)
}

fn refusal(document: &Json, declared: Option<&str>) -> String {
    read(document, declared).unwrap_err().to_string()
}

fn descriptor(media_type: &str, char: char, size: u64) -> Json {
    json!({"mediaType": media_type, "digest": digest(char), "size": size})
}

fn manifest(layers: &[Json]) -> Json {
    let config = descriptor("application/vnd.oci.image.config.v1+json", 'c', 10);
    json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers})
}

/// An entry for a platform, which may be the empty text for none.
fn entry(char: char, platform: &str) -> Json {
    let mut entry = descriptor(OCI_MANIFEST, char, 500);
    let mut parts = platform.split('/');
    if !platform.is_empty() {
        entry["platform"] =
            json!({"os": parts.next(), "architecture": parts.next(), "variant": parts.next().unwrap_or("")});
    }
    entry
}

fn index(entries: &[Json]) -> Json {
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
}

fn index_of(entries: &[Json]) -> Index {
    match read(&index(entries), None).unwrap() {
        Document::Index(index) => index,
        Document::Manifest(manifest) => panic!("{manifest:?}"),
    }
}

fn machine() -> Platforms {
    Platforms::of_machine()
}

/// The machine's platform as documents write it.
fn here() -> String {
    machine().first()
}

#[test]
fn manifests_of_both_kinds_are_read() {
    let docker = json!({
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": descriptor("application/vnd.docker.container.image.v1+json", 'c', 1469),
        "layers": [descriptor("application/vnd.docker.image.rootfs.diff.tar.gzip", 'a', 2_219_949)],
    });
    let oci = manifest(&[
        descriptor(GZIP, 'a', 32),
        descriptor("application/vnd.oci.image.layer.v1.tar+zstd", 'b', 64),
        descriptor("application/vnd.oci.image.layer.v1.tar", 'd', 0),
    ]);
    let Document::Manifest(docker) = read(&docker, Some(DOCKER_MANIFEST)).unwrap() else { panic!() };
    assert_eq!((docker.config.size, docker.layers.len()), (1469, 1));
    assert_eq!(docker.layers[0].compression, Compression::Gzip);
    assert_eq!(docker.layers[0].descriptor.size, 2_219_949);
    for declared in [None, Some(OCI_MANIFEST), Some("application/json; charset=utf-8"), Some("")] {
        let Document::Manifest(read) = read(&oci, declared).unwrap() else { panic!() };
        let kinds: Vec<Compression> = read.layers.iter().map(|layer| layer.compression).collect();
        assert_eq!(kinds, [Compression::Gzip, Compression::Zstd, Compression::None], "{declared:?}");
    }
    let mut bare = oci.clone();
    bare.as_object_mut().unwrap().remove("mediaType");
    assert!(matches!(read(&bare, None), Ok(Document::Manifest(_))));
    assert!(matches!(read(&bare, Some(DOCKER_MANIFEST)), Ok(Document::Manifest(_))));
    assert!(matches!(read(&manifest(&[]), None), Ok(Document::Manifest(_))), "an image may be empty");
}

/// CVE-2021-41190: with other header fields the same bytes were another image.
#[test]
fn a_document_that_can_be_read_in_two_ways_is_refused() {
    let mut both = manifest(&[descriptor(GZIP, 'a', 1)]);
    both["manifests"] = json!([entry('b', "linux/amd64")]);
    let mut both_as_index = both.clone();
    both_as_index["mediaType"] = OCI_INDEX.into();
    let mut both_bare = both.clone();
    both_bare.as_object_mut().unwrap().remove("mediaType");
    for document in [&both, &both_as_index, &both_bare] {
        for declared in [None, Some("application/json")] {
            assert!(refusal(document, declared).contains("ambiguous"), "{document}");
        }
    }
    assert!(refusal(&manifest(&[]), Some(OCI_INDEX)).contains("ambiguous"));
    assert!(refusal(&index(&[]), Some(DOCKER_MANIFEST)).contains("ambiguous"));
    let sizes = manifest(&[descriptor(GZIP, 'a', 1), descriptor(GZIP, 'a', 2)]);
    assert!(refusal(&sizes, None).contains("two sizes"));
}

#[test]
fn what_is_no_image_is_refused_with_its_kind() {
    let mut chart = manifest(&[descriptor(GZIP, 'a', 1)]);
    chart["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json".into();
    assert!(refusal(&chart, None).contains("vnd.cncf.helm.config"));
    let mut other = manifest(&[]);
    other["mediaType"] = "application/vnd.example\u{1b}[31m".into();
    let text = refusal(&other, None);
    assert!(text.contains("vnd.example") && !text.contains('\u{1b}'), "{text}");
    assert!(refusal(&manifest(&[]), Some("text/html")).contains("text/html"));
    let encrypted = manifest(&[descriptor(GZIP, 'a', 1), descriptor(&format!("{GZIP}+encrypted"), 'b', 1)]);
    let text = refusal(&encrypted, None);
    assert!(text.contains("layer 2") && text.contains("+encrypted"), "{text}");
    let first = json!({"schemaVersion": 1, "name": "x", "fsLayers": [{"blobSum": digest('a')}]});
    assert_eq!(read(&first, None), Err(DocumentError::Schema1));
    let signed = Some("application/vnd.docker.distribution.manifest.v1+prettyjws");
    assert_eq!(read(&first, signed), Err(DocumentError::Schema1));
    assert_eq!(read(&first, Some(DOCKER_MANIFEST)), Err(DocumentError::Schema1));
}

#[test]
fn broken_and_oversized_documents_are_refused() {
    for text in ["", "null", "[]", "{}", "{\"schemaVersion\": 3}", "{\"schemaVersion\": \"2\"}", "\u{0}"] {
        assert!(Document::read(text.as_bytes(), None).is_err(), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(Document::read(format!("{{\"schemaVersion\": 2, \"layers\": {deep}").as_bytes(), None).is_err());
    let without_config = json!({"schemaVersion": 2, "layers": []});
    assert!(refusal(&without_config, None).contains("no config"));
    let large = format!("{}{}", manifest(&[]), " ".repeat(4 * 1024 * 1024));
    assert_eq!(Document::read(large.as_bytes(), None), Err(DocumentError::TooLarge));
    let many = vec![descriptor(GZIP, 'a', 1); LAYERS_MAX + 1];
    assert_eq!(read(&manifest(&many), None), Err(DocumentError::Layers { number: LAYERS_MAX + 1 }));
    assert!(read(&manifest(&many[1..]), None).is_ok());
    for (field, value) in [
        ("size", json!(-1)),
        ("size", json!(1.5)),
        ("size", json!(u64::MAX)),
        ("size", Json::Null),
        ("digest", json!("sha256:../../../etc/passwd")),
        ("digest", json!(format!("md5:{}", "0".repeat(32)))),
        ("digest", Json::Null),
        ("mediaType", json!("")),
    ] {
        let mut layer = descriptor(GZIP, 'a', 1);
        layer[field] = value.clone();
        assert!(read(&manifest(&[layer]), None).is_err(), "{field} {value}");
    }
    let half = i64::MAX.unsigned_abs() / 2 + 1;
    let sum = manifest(&[descriptor(GZIP, 'a', half), descriptor(GZIP, 'b', half)]);
    assert!(refusal(&sum, None).contains("the sum of its layers"));
    let mut config = manifest(&[]);
    config["config"]["size"] = (DOCUMENT_BYTES_MAX + 1).into();
    assert!(refusal(&config, None).contains("the config has"));
    let entry = json!([{"mediaType": OCI_MANIFEST, "digest": digest('a'), "size": DOCUMENT_BYTES_MAX + 1}]);
    let large = json!({"schemaVersion": 2, "manifests": entry});
    assert!(refusal(&large, None).contains("a document in the index has"));
}

#[test]
fn an_index_gives_the_image_of_the_machine() {
    let chosen = |entries: &[Json]| {
        let index = index_of(entries);
        index.choose(&machine()).map(|entry| entry.descriptor.digest.to_string())
    };
    assert_eq!(chosen(&[entry('a', "linux/s390x"), entry('b', &here())]), Ok(digest('b')));
    // The first of equal ones, as other engines choose.
    assert_eq!(chosen(&[entry('a', &here()), entry('b', &here())]), Ok(digest('a')));
    // One without a platform only if nothing else fits.
    assert_eq!(chosen(&[entry('a', ""), entry('b', &here())]), Ok(digest('b')));
    assert_eq!(chosen(&[entry('a', "linux/s390x"), entry('b', "")]), Ok(digest('b')));
    let mut empty = entry('a', "");
    empty["platform"] = json!({});
    assert_eq!(chosen(&[empty]), Ok(digest('a')));
    let error = chosen(&[entry('a', "linux/s390x"), entry('b', "windows/amd64")]).unwrap_err().to_string();
    assert!(error.contains(&here()) && error.contains("linux/s390x, windows/amd64"), "{error}");
    assert!(chosen(&[]).unwrap_err().to_string().contains("no platform"));
    let number = |number: usize| entry('a', &format!("os{number}/x"));
    let many: Vec<Json> = (0..30).map(number).collect();
    assert!(chosen(&many).unwrap_err().to_string().ends_with("os9/x and 20 others"));
}

/// The record of a build was taken for the image.
#[test]
fn attestations_and_other_documents_are_skipped() {
    let mut noted = entry('b', &here());
    noted["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let mut artifact = entry('d', &here());
    artifact["mediaType"] = "application/vnd.oci.artifact.manifest.v1+json".into();
    let mut named = entry('e', &here());
    named["annotations"] = json!({"org.opencontainers.image.ref.name": "1.0"});
    let index = index_of(&[entry('a', "unknown/unknown"), noted, artifact, named]);
    assert_eq!(index.entries.len(), 1);
    let chosen = index.choose(&machine()).unwrap();
    assert_eq!((chosen.descriptor.digest.as_str(), chosen.name.as_deref()), (&*digest('e'), Some("1.0")));
}

#[test]
fn an_index_may_contain_indexes() {
    let mut nested = descriptor(OCI_INDEX, 'a', 10);
    nested["urls"] = json!(["http://127.0.0.1:1/"]);
    assert_eq!(index_of(&[nested]).choose(&machine()).unwrap().descriptor.digest.as_str(), digest('a'));
}

#[test]
fn repeated_layers_are_transferred_once() {
    let layers = [descriptor(GZIP, 'a', 5), descriptor(GZIP, 'b', 6), descriptor(GZIP, 'a', 5)];
    let Document::Manifest(manifest) = read(&manifest(&layers), None).unwrap() else { panic!() };
    let contents: Vec<u64> = manifest.contents().map(|content| content.size).collect();
    assert_eq!((manifest.layers.len(), contents), (3, vec![5, 6]));
}
