//! Names of images.
//!
//! In: a name as people write it. Out: its registry, repository, tag and digest, in one notation (the rules of
//! `distribution/reference:normalize.go`).

use std::fmt;

/// Docker's registry, whose name is left out.
pub const DOCKER_HUB: &str = "docker.io";
const LATEST: &str = "latest";

/// The name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The registry, such as `docker.io`.
    pub registry: String,
    /// The repository in it, such as `library/redis`.
    pub repository: String,
    /// The tag; `latest` if neither tag nor digest is written.
    pub tag: Option<String>,
    /// The digest, `sha256:…`.
    pub digest: Option<String>,
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
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(wrong("the digest after `@` must be sha256: and 64 hexadecimal digits"));
        }
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
        let tag = tag.map(str::to_owned).or_else(|| digest.is_none().then(|| LATEST.to_owned()));
        Ok(Self { registry: registry.to_owned(), repository, tag, digest: digest.map(str::to_owned) })
    }

    /// Registry and repository.
    pub fn name(&self) -> String {
        format!("{}/{}", self.registry, self.repository)
    }

    /// What to pull from the repository: the digest, otherwise the tag.
    pub fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or(LATEST)
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

fn is_digest(text: &str) -> bool {
    text.strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_tag(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&text.len())
        && text.bytes().next().is_some_and(is_plain)
        && text.bytes().all(|byte| is_plain(byte) || byte == b'.' || byte == b'-')
}

fn is_component(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().next().is_some_and(is_plain)
        && text.bytes().next_back().is_some_and(is_plain)
        && text.bytes().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'_' | b'-'))
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

    #[test]
    fn only_latest_is_pulled_each_time() {
        let is_latest = |name: &str| Reference::parse(name).unwrap().is_latest();
        assert!(is_latest("redis") && is_latest("redis:latest"));
        assert!(!is_latest("redis:7") && !is_latest(&format!("redis@sha256:{}", "0".repeat(64))));
    }
}
