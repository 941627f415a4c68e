//! Names of images.
//!
//! In: a name as people write it. Out: its registry, repository, tag and digest, in one notation (the rules of
//! `distribution/reference:normalize.go`).

use std::{fmt, net::Ipv6Addr};

use crate::digest::Digest;

/// Docker's registry, whose name is left out.
pub const DOCKER_HUB: &str = "docker.io";
const LATEST: &str = "latest";
/// The longest repository that registries accept.
const REPOSITORY_LEN_MAX: usize = 255;

/// The name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The registry, such as `docker.io`.
    pub registry: String,
    /// The repository in it, such as `library/redis`.
    pub repository: String,
    /// The tag; `latest` if neither tag nor digest is written.
    pub tag: Option<String>,
    pub digest: Option<Digest>,
}

/// A name that is no image's. Continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read the image name {name:?}: {why}")]
pub struct ReferenceError {
    name: String,
    why: &'static str,
}

impl Reference {
    /// Parses a name.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(name: &str) -> Result<Self, ReferenceError> {
        let wrong = |why| ReferenceError { name: name.to_owned(), why };
        let (rest, digest) = match name.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (name, None),
        };
        let digest = digest.map(Digest::parse).transpose().map_err(|_| {
            wrong("the digest after `@` must be sha256: and 64, or sha512: and 128 hexadecimal digits in lower case")
        })?;
        // A colon before the last slash belongs to a port.
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            Some(_) | None => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("the tag after `:` must be 1 to 128 letters, digits, `_`, `.` and `-`"));
        }
        let is_host = |host: &str| {
            host.contains(['.', ':']) || host == "localhost" || host.chars().any(char::is_uppercase)
        };
        let (registry, repository) = match path.split_once('/') {
            Some((host, repository)) if is_host(host) => (host, repository.to_owned()),
            Some(_) => (DOCKER_HUB, path.to_owned()),
            None => (DOCKER_HUB, format!("library/{path}")),
        };
        if !is_registry(registry) {
            return Err(wrong(
                "the registry must be the name or the address of a host, with a port if needed",
            ));
        }
        let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
        let repository = match registry {
            DOCKER_HUB if !repository.contains('/') => format!("library/{repository}"),
            _ => repository,
        };
        if !repository.split('/').all(is_component) {
            return Err(wrong(
                "a repository has lower-case letters, digits, `.`, `_` and `-` between slashes",
            ));
        }
        if repository.len() > REPOSITORY_LEN_MAX {
            return Err(wrong("the repository has more than 255 characters"));
        }
        let tag = tag.map(str::to_owned).or_else(|| digest.is_none().then(|| LATEST.to_owned()));
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }

    /// Registry and repository.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// What to pull from the repository: the digest, otherwise the tag.
    pub fn version(&self) -> &str {
        self.digest.as_ref().map(Digest::as_str).or(self.tag.as_deref()).unwrap_or(LATEST)
    }

    /// Whether the same name may be another image tomorrow by convention, so that it is pulled each time, as in Nomad.
    pub fn is_latest(&self) -> bool {
        self.digest.is_none() && self.tag.as_deref().is_none_or(|tag| tag == LATEST)
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Whether a text is `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn is_registry(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_label = |label: &str| {
        let is_plain = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        is_plain(label.bytes().next())
            && is_plain(label.bytes().next_back())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if let Some((address, port)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let is_end = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return is_end && address.parse::<Ipv6Addr>().is_ok();
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_tag(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_plain)
        && text.bytes().all(|byte| is_plain(byte) || byte == b'.' || byte == b'-')
}

/// Whether a text is one part of a path: letters and digits, with single separators between them.
fn is_component(text: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    let mut separators = text.split(is_plain).filter(|part| !part.is_empty());
    let is_separator = |part: &str| matches!(part, "." | "_" | "__") || part.bytes().all(|byte| byte == b'-');
    text.starts_with(is_plain) && text.ends_with(is_plain) && separators.all(is_separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_notation() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (written, normal) in [
            ("redis", "docker.io/library/redis:latest"),
            ("redis:7", "docker.io/library/redis:7"),
            ("grafana/loki:2.9.1", "docker.io/grafana/loki:2.9.1"),
            ("quay.io/x/y", "quay.io/x/y:latest"),
            ("localhost/bb:1", "localhost/bb:1"),
            ("localhost:5000/bb", "localhost:5000/bb:latest"),
            ("[::1]:5000/bb:1", "[::1]:5000/bb:1"),
            ("REGISTRY/a__b/c--d:1", "REGISTRY/a__b/c--d:1"),
            ("index.docker.io/redis", "docker.io/library/redis:latest"),
            (&format!("redis@{digest}"), &format!("docker.io/library/redis@{digest}")),
            (&format!("redis:7@{digest}"), &format!("docker.io/library/redis:7@{digest}")),
        ] {
            let read = Reference::parse(written).unwrap();
            assert_eq!(read.to_string(), normal);
            assert_eq!(Reference::parse(normal).unwrap(), read, "{written}");
        }
        for wrong in ["", "Redis", "a b", "redis:", "redis:-x", "redis@sha256:1", "x//y", "http://x/y"] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// The name becomes a part of an address, and another host got the request.
    #[test]
    fn a_registry_is_a_host_and_a_path_has_no_special_parts() {
        for wrong in [
            "a.b?c=/x",
            "a.b#/x",
            "user@a.b/x",
            "user:pass@a.b/x",
            "a.b:/x",
            "a.b:x/y",
            "a.b:65536/x",
            "a.b:+1/x",
            "a..b/x",
            ".b/x",
            "a.-b/x",
            "a b.c/x",
            "[::1/x",
            "[::g]/x",
            "[::1]x/y",
            "[::1]:/x",
            "a.b%2f/x",
            "a.b\\/x",
            "x/../y",
            "x/./y",
            "x/a..b",
            "x/a._b",
            "x/a___b",
            "x/%2e",
            "x/y\n",
            "a.b\r\nHost:c/x",
        ] {
            assert!(Reference::parse(wrong).is_err(), "{wrong}");
        }
        let longest = format!("x.io/{}", "a".repeat(255));
        assert!(Reference::parse(&longest).is_ok() && Reference::parse(&format!("{longest}a")).is_err());
        for hex in ["A".repeat(64), "a".repeat(63), format!("{}/", "a".repeat(63))] {
            assert!(Reference::parse(&format!("x@sha256:{hex}")).is_err(), "{hex}");
        }
        assert!(Reference::parse(&format!("x@sha512:{}", "a".repeat(128))).is_ok());
    }

    #[test]
    fn only_latest_is_pulled_each_time() {
        let is_latest = |name: &str| Reference::parse(name).unwrap().is_latest();
        assert!(is_latest("redis") && is_latest("redis:latest"));
        assert!(!is_latest("redis:7") && !is_latest(&format!("redis@sha256:{}", "0".repeat(64))));
    }
}
