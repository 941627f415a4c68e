//! Files of certificates.

use std::path::PathBuf;

/// Where certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Our certificate, with those between it and its authority behind it.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Authorities one of which must have signed a client's certificate; clients need none where absent.
    pub clients: Option<PathBuf>,
}
