//! Addresses as HOST:PORT.

use std::{fmt, str::FromStr};

use thiserror::Error;

use super::ConfigError;

/// A host (name or address) and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// Name or address; IPv6 without brackets.
    pub host: String,
    pub port: u16,
}

/// The text is not HOST:PORT.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected HOST:PORT such as 127.0.0.1:4680 or [::1]:4680, found \"{0}\"")]
pub struct HostPortError(String);

pub(super) fn host_port(flag: &'static str, text: Option<String>) -> Result<Option<HostPort>, ConfigError> {
    let parsed = text.map(|text| text.parse::<HostPort>()).transpose();
    parsed.map_err(|error| ConfigError::Flag { flag, why: error.to_string() })
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let error = || HostPortError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(error)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').filter(|inner| inner.contains(':')).ok_or_else(error)?,
            None if host.contains(':') => return Err(error()),
            None => host,
        };
        let plain = |char: char| char.is_ascii_alphanumeric() || ".-_:%".contains(char);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(error());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| error())? })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}
