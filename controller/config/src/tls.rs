//! Paths of TLS certificates.

use std::path::PathBuf;

/// Paths of certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The agent's certificate, followed by its intermediate certificates.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// CA certificates for clients; `None` if clients need no certificate.
    pub clients: Option<PathBuf>,
}
