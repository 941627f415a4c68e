//! Why a registry did not give an image.

use std::{path::PathBuf, time::Duration};

use crate::{config::ConfigError, digest::Digest, document::DocumentError};

/// Why a registry did not give an image. Continues "failed to"; holds neither credentials nor the query of an address.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("use the registry {url}: its address must be a host, with a port if needed")]
    Endpoint { url: String },
    #[error("fetch the image: no host is configured for it")]
    NoHost,
    #[error("prepare for https with {host}: {why}")]
    Client { host: String, why: String },
    #[error("read the certificate authorities of {host} from {}: {why}", path.display())]
    Authorities { host: String, path: PathBuf, why: String },
    /// The registry has no such image.
    #[error("fetch it from {host}: it does not exist there{}", in_brackets(.text))]
    Missing { host: String, text: String },
    /// The credentials are missing, wrong or not sufficient.
    #[error("fetch it from {host}: access is denied{}; check the credentials of this registry", in_brackets(.text))]
    Denied { host: String, text: String },
    /// Too many requests.
    #[error("fetch it from {host}: it limits the number of requests{}", wait(.after))]
    Throttled { host: String, after: Option<Duration> },
    /// The host has a fault.
    #[error("fetch it from {host}: it answers {status}{}", in_brackets(.text))]
    Fault { host: String, status: u16, text: String, after: Option<Duration> },
    /// The host can't be reached, or the connection was lost.
    #[error("fetch it from {host}: {why}")]
    Connection { host: String, why: String },
    /// The host answers in a way that no registry does, or must not.
    #[error("fetch it from {host}: {why}")]
    Protocol { host: String, why: String },
    /// It does not continue a content; it may send it as a whole.
    #[error("fetch it from {host}: it does not send the missing part of the content")]
    Range { host: String },
    #[error("fetch it from {host}: it sends more than the {max} bytes of the content")]
    TooLarge { host: String, max: u64 },
    #[error("fetch it from {host}: what it sends does not have the digest {digest}")]
    Corrupt { host: String, digest: Digest },
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The caller does not want the image any more, or another of its layers can't be fetched.
    #[error("fetch the image: it was cancelled")]
    Cancelled,
    /// The file can't be written.
    #[error("write a layer: {0}")]
    Write(#[source] std::io::Error),
}

fn in_brackets(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn wait(after: &Option<Duration>) -> String {
    after.map_or_else(String::new, |after| format!("; try again in {} s", after.as_secs()))
}

impl RegistryError {
    /// Whether the host could not be reached, or was lost.
    pub(super) fn is_connection(&self) -> bool {
        matches!(self, Self::Connection { .. })
    }

    /// Whether the answer is none of a registry, such as that of a server that expects TLS.
    pub(super) fn is_protocol(&self) -> bool {
        matches!(self, Self::Protocol { .. })
    }

    /// Whether no host could answer: unreachable, with a fault, or limiting requests.
    pub fn is_unavailable(&self) -> bool {
        self.is_connection() || matches!(self, Self::Throttled { .. } | Self::Fault { .. })
    }

    /// Whether another pull has the same result, unless the registry or the configuration changes.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Throttled { .. }
            | Self::Fault { .. }
            | Self::Connection { .. }
            | Self::Range { .. }
            | Self::Corrupt { .. }
            | Self::Cancelled
            | Self::Authorities { .. }
            | Self::Write(_) => false,
            Self::Endpoint { .. }
            | Self::NoHost
            | Self::Client { .. }
            | Self::Missing { .. }
            | Self::Denied { .. }
            | Self::Protocol { .. }
            | Self::TooLarge { .. }
            | Self::Document(_)
            | Self::Config(_) => true,
        }
    }

    /// Whether another try of the same request may succeed, and after which pause at least.
    pub(super) fn pause(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } | Self::Fault { after, .. } => Some(after.unwrap_or_default()),
            Self::Connection { .. } | Self::Range { .. } => Some(Duration::ZERO),
            Self::Endpoint { .. }
            | Self::NoHost
            | Self::Client { .. }
            | Self::Missing { .. }
            | Self::Denied { .. }
            | Self::Protocol { .. }
            | Self::TooLarge { .. }
            | Self::Corrupt { .. }
            | Self::Document(_)
            | Self::Config(_)
            | Self::Cancelled
            | Self::Authorities { .. }
            | Self::Write(_) => None,
        }
    }
}
