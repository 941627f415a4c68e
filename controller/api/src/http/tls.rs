//! TLS of the API's TCP listener.
//!
//! In: certificates and a key in PEM files, which are read again after a change. Out: encrypted connections, optionally only for
//! clients with a trusted certificate. Clients that speak plain HTTP get an error. Also warnings before a certificate expires.

mod validity;

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::{MetadataExt, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::UnixNanos;
use herdlet_base::ownership::{self, OwnershipError};
use herdlet_config::TlsFiles;
use rustls::{
    RootCertStore, ServerConfig,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use zeroize::Zeroizing;

pub use validity::Validity;

use super::lingering::Lingering;

/// Why certificates can't be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Another user could change the file.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    /// The file has the wrong content or permissions.
    #[error("use {path}: {why}")]
    Unfit { path: PathBuf, why: String },
}

/// TLS with the last usable state of the files.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    known: Mutex<LoadedTls>,
}

#[derive(Debug)]
struct LoadedTls {
    stamps: Vec<Stamp>,
    config: Arc<ServerConfig>,
    /// None if the certificates have no limit.
    validity: Option<Validity>,
    /// Why the present files are not used.
    refused: Option<String>,
}

/// Identifies the state of a file: inode and modification time.
type Stamp = Option<(u64, i64, i64)>;

impl Tls {
    /// Reads the certificates and the key.
    ///
    /// # Errors
    /// When a file can't be read or used, or every user may read the key.
    pub fn read(files: TlsFiles) -> Result<Self, TlsError> {
        let stamps = stamps(&files);
        let (config, validity) = config(&files)?;
        let known = LoadedTls { stamps, config: Arc::new(config), validity, refused: None };
        Ok(Self { files, known: Mutex::new(known) })
    }

    /// Reads the files again, also if they seem unchanged.
    ///
    /// # Errors
    /// Why they can't be used; the previous certificates stay in use.
    pub fn reload(&self) -> Result<(), String> {
        self.lock().stamps.clear();
        self.known().refused.clone().map_or(Ok(()), Err)
    }

    /// Performs the handshake. The caller limits its duration.
    ///
    /// # Errors
    /// When the client does not speak TLS, or nothing that we accept.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        const HANDSHAKE: u8 = 0x16;
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != HANDSHAKE {
            let mut stream = Lingering::new(stream);
            stream.write_all(PLAIN.as_bytes()).await?;
            stream.shutdown().await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let config = Arc::clone(&self.known().config);
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Whether every client that completes the handshake has a trusted certificate.
    pub(super) fn verifies_clients(&self) -> bool {
        self.files.clients.is_some()
    }

    /// The validity of the certificates in use; none if they have no limit.
    pub fn validity(&self) -> Option<Validity> {
        self.known().validity
    }

    /// Warnings for the admin.
    pub fn warnings(&self, now: UnixNanos) -> Vec<String> {
        let known = self.known();
        let certificate = self.files.certificate.display();
        let refused = known
            .refused
            .as_ref()
            .map(|why| format!("changed certificates are not used, but the old ones: failed to {why}"));
        let ends = known.validity.and_then(|validity| validity.warning(now));
        refused
            .into_iter()
            .chain(ends.map(|ends| format!("the certificate in {certificate} {ends}")))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, LoadedTls> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present state of the files, or the last usable one.
    fn known(&self) -> MutexGuard<'_, LoadedTls> {
        let stamps = stamps(&self.files);
        let mut known = self.lock();
        if known.stamps != stamps {
            known.stamps = stamps;
            match config(&self.files) {
                Ok((config, validity)) => {
                    tracing::info!(certificate = %self.files.certificate.display(), "reloaded the certificates");
                    known.config = Arc::new(config);
                    (known.validity, known.refused) = (validity, None);
                }
                Err(error) => {
                    let error = herdlet_base::error::in_full(&error);
                    tracing::error!(
                        error,
                        "failed to read changed certificates; the previous ones stay in use"
                    );
                    known.refused = Some(error);
                }
            }
        }
        known
    }
}

/// The answer to plain HTTP.
const PLAIN: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 32\r\n\r\n\
                     this port speaks TLS: use https\n";

fn stamps(files: &TlsFiles) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    };
    [&files.certificate, &files.key].into_iter().chain(&files.clients).map(stamp).collect()
}

fn config(files: &TlsFiles) -> Result<(ServerConfig, Option<Validity>), TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let unfit = |path: &Path| {
        let path = path.to_owned();
        move |error: rustls::Error| TlsError::Unfit { path, why: error.to_string() }
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit(&files.certificate))?;
    let builder = match &files.clients {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
    };
    let chain = certificates(&files.certificate)?;
    let validity = Validity::of(&chain);
    let config = builder.with_single_cert(chain, key(&files.key)?);
    let mut config = config.map_err(|error| {
        if !matches!(error, rustls::Error::InconsistentKeys(_)) {
            return unfit(&files.certificate)(error);
        }
        let why = format!("it is not the key of the certificate in {}", files.certificate.display());
        TlsError::Unfit { path: files.key.clone(), why }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((config, validity))
}

fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::Unfit { path: path.to_owned(), why: error.to_string() })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| TlsError::Unfit { path: path.to_owned(), why: error.to_string() })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unfit = |why: String| TlsError::Unfit { path: path.to_owned(), why };
    let (text, _) = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unfit(format!("it is not valid PEM: {error}")))?;
    if found.is_empty() { Err(unfit("there is no certificate in it (PEM)".to_owned())) } else { Ok(found) }
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let unfit = |why: String| TlsError::Unfit { path: path.to_owned(), why };
    let (text, mode) = read(path)?;
    if mode & 0o007 != 0 {
        return Err(unfit(format!("every user can read it; run: chmod 600 {}", path.display())));
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| unfit("there is no private key in it (PEM)".to_owned()))
}

/// A larger file is not a certificate file.
const BYTES_MAX: u64 = 1024 * 1024;

/// Reads a file and its mode. Does not block on a FIFO.
fn read(path: &Path) -> Result<(Zeroizing<Vec<u8>>, u32), TlsError> {
    let failed = |source| TlsError::Read { path: path.to_owned(), source };
    ownership::check_if_there(path)?;
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(TlsError::Unfit { path: path.to_owned(), why: "it is not a regular file".to_owned() });
    }
    if metadata.len() > BYTES_MAX {
        let why = format!("it has more than {BYTES_MAX} bytes");
        return Err(TlsError::Unfit { path: path.to_owned(), why });
    }
    // Large enough from the start: a vector that grows leaves copies behind that are not wiped.
    let capacity = usize::try_from(metadata.len()).unwrap_or_default().saturating_add(1);
    let mut bytes = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(metadata.len()).read_to_end(&mut bytes).map_err(failed)?;
    Ok((bytes, metadata.mode()))
}
