//! Media types of the documents and layers of images: those of OCI, and Docker's.
//!
//! In: a media type as a document or a registry writes it. Out: what it means here. Unknown ones mean nothing, and are refused.
//! Sources: the OCI image specification, `media-types.md`; `distribution/distribution:docs/content/spec/manifest-v2-2.md`.

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
/// What both ends of Docker's first format have in common.
const DOCKER_SCHEMA_1: &str = "application/vnd.docker.distribution.manifest.v1+";

/// Generic media types, which do not identify the content: some registries and archives give only these.
const GENERIC: [&str; 4] = ["", "application/json", "application/octet-stream", "text/plain"];

/// The documents that can be read, for the `Accept` header of a request.
pub const ACCEPT: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

/// What a document is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// Images of several platforms.
    Index,
    /// The image of one platform.
    Manifest,
    /// Docker's first format, which registries stopped serving in 2024.
    Schema1,
}

/// How a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// A media type without parameters, such as `; charset=utf-8`.
pub fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Whether a media type leaves open what the content is.
pub fn is_generic(media_type: &str) -> bool {
    GENERIC.contains(&media_type)
}

/// What a document with this media type is; nothing known if there is none.
pub fn document_kind(media_type: &str) -> Option<DocumentKind> {
    match media_type {
        OCI_INDEX | DOCKER_LIST => Some(DocumentKind::Index),
        OCI_MANIFEST | DOCKER_MANIFEST => Some(DocumentKind::Manifest),
        _ if media_type.starts_with(DOCKER_SCHEMA_1) => Some(DocumentKind::Schema1),
        _unknown => None,
    }
}

/// Whether a config with this media type describes a container. Old programs wrote a generic one.
pub fn is_config(media_type: &str) -> bool {
    matches!(media_type, OCI_CONFIG | DOCKER_CONFIG) || is_generic(media_type)
}

/// How a layer with this media type is compressed; none if it is no layer, or an encrypted one.
pub fn layer_compression(media_type: &str) -> Option<Compression> {
    // Layers that must not be copied are fetched from the registry like any other: never from addresses in the document.
    const PLAIN: [&str; 4] = [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.diff.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar",
    ];
    let rest = PLAIN.iter().find_map(|plain| media_type.strip_prefix(plain))?;
    match rest {
        "" => Some(Compression::None),
        "+gzip" | ".gzip" => Some(Compression::Gzip),
        "+zstd" | ".zstd" => Some(Compression::Zstd),
        _unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_by_media_type() {
        for (media_type, compression) in [
            ("application/vnd.oci.image.layer.v1.tar", Some(Compression::None)),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Some(Compression::Zstd)),
            ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Some(Compression::Gzip)),
            ("application/vnd.docker.image.rootfs.diff.tar", Some(Compression::None)),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(Compression::Gzip)),
            ("application/vnd.docker.image.rootfs.diff.tar.zstd", Some(Compression::Zstd)),
            ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Some(Compression::Gzip)),
            ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", None),
            ("application/vnd.oci.image.layer.v1.tar+xz", None),
            ("application/vnd.in-toto+json", None),
            ("", None),
        ] {
            assert_eq!(layer_compression(media_type), compression, "{media_type}");
        }
    }

    #[test]
    fn parameters_are_no_part_of_a_media_type() {
        assert_eq!(essence("application/json ; charset=utf-8"), "application/json");
        assert_eq!(document_kind(essence(OCI_INDEX)), Some(DocumentKind::Index));
        assert_eq!(
            document_kind("application/vnd.docker.distribution.manifest.v1+prettyjws"),
            Some(DocumentKind::Schema1)
        );
        assert_eq!(document_kind("application/vnd.oci.image.config.v1+json"), None);
    }
}
