//! TLS of RPC connections, with mutual authentication.
//!
//! In: certificates and a key in PEM. Out: encrypted streams. A server's certificate must be signed by the authority and, if
//! `verify_server_hostname` is set, be valid for `server.<region>.nomad` rather than for its host name.
//!
//! Facts: `hashicorp/nomad:helper/tlsutil/config.go`.

use std::{io, path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _,
    },
    server::{ParsedCertificate, WebPkiClientVerifier},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use zeroize::Zeroizing;

use crate::mux::Io;

/// Why certificates cannot be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The authority, certificate or key is empty or not PEM.
    #[error("use the {0}: its file does not hold one in PEM format")]
    Empty(&'static str),
    /// The key does not belong to the certificate.
    #[error("use the certificate: the key does not belong to it")]
    OtherKey,
    /// rustls does not accept the certificates.
    #[error("use the certificates")]
    Unfit(#[source] rustls::Error),
    /// The authority cannot verify any client.
    #[error("use the certificate authority: {0}")]
    Authority(String),
    /// The region cannot be part of a server name.
    #[error("verify certificates of the region: its name cannot be part of a host name")]
    Region(#[source] InvalidDnsNameError),
}

/// Certificates and key, in PEM.
pub struct Pem {
    /// The authorities that may sign the other side's certificate.
    pub authority: Vec<u8>,
    /// Our certificate, followed by its intermediates.
    pub certificate: Vec<u8>,
    /// The key of our certificate.
    pub key: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// Reads the files: Nomad's `ca_file`, `cert_file` and `key_file`.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| TlsError::Read { path: path.display().to_string(), source })
        };
        Ok(Self {
            authority: read(authority)?,
            certificate: read(certificate)?,
            key: Zeroizing::new(read(key)?),
        })
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        // Bundles of the operating system contain certificates that rustls rejects.
        match roots.add_parsable_certificates(certificates(&self.authority, "authority")?) {
            (0, _) => Err(TlsError::Empty("authority")),
            (_, 0) => Ok(roots),
            (_, unused) => {
                tracing::warn!(unused, "ignoring unusable certificates in the authority file");
                Ok(roots)
            }
        }
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        certificates(&self.certificate, "certificate")
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_slice(&self.key).map_err(|_| TlsError::Empty("key"))
    }
}

fn certificates(pem: &[u8], what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or(TlsError::Empty(what))
}

fn unfit(error: rustls::Error) -> TlsError {
    if matches!(error, rustls::Error::InconsistentKeys(_)) {
        TlsError::OtherKey
    } else {
        TlsError::Unfit(error)
    }
}

/// What a server's certificate must satisfy, beside being signed by the authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// It must be valid for `server.<region>.nomad` (`verify_server_hostname = true`). Otherwise any certificate of the authority is
    /// accepted, even a client's.
    ServerOfRegion,
    /// No further check.
    AuthorityOnly,
}

/// TLS for outgoing connections. Clones share the configuration; all nodes of a region with the same certificate can share one.
#[derive(Clone)]
pub struct ClientTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS to {:?}", self.name)
    }
}

impl ClientTls {
    /// TLS to the servers of a region.
    ///
    /// # Errors
    /// If the certificates cannot be used, or the region cannot be part of a server name.
    pub fn new(pem: &Pem, verify: Verify, region: &str) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unfit)?;
        let roots = pem.roots()?;
        let builder = match verify {
            Verify::ServerOfRegion => builder.with_root_certificates(roots),
            Verify::AuthorityOnly => {
                let verifier = Arc::new(AuthorityOnly { roots, provider });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let mut config = builder.with_client_auth_cert(pem.chain()?, pem.key()?).map_err(unfit)?;
        // Connections last long, so resumption saves little, and each server's tickets would take memory.
        config.resumption = Resumption::disabled();
        let name = match verify {
            Verify::ServerOfRegion => format!("server.{region}.nomad"),
            // Neither verified nor sent.
            Verify::AuthorityOnly => "server.nomad".to_owned(),
        };
        config.enable_sni = verify == Verify::ServerOfRegion;
        let name = ServerName::try_from(name).map_err(TlsError::Region)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Does the handshake on a connection over which the byte for TLS was sent.
    ///
    /// # Errors
    /// If the handshake fails or the server's certificate is refused.
    pub async fn connect(&self, io: impl Io) -> io::Result<impl Io> {
        self.connector.connect(self.name.clone(), io).await
    }
}

/// TLS for incoming connections. Clients must present a certificate of the authority.
#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

impl ServerTls {
    /// TLS with this certificate and key.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn new(pem: &Pem) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(pem.roots()?), Arc::clone(&provider))
                .build()
                .map_err(|error| TlsError::Authority(error.to_string()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unfit)?
            .with_client_cert_verifier(clients)
            .with_single_cert(pem.chain()?, pem.key()?)
            .map_err(TlsError::Unfit)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    /// Does the handshake on a connection whose byte for TLS was read.
    ///
    /// # Errors
    /// If the handshake fails or the client presents no valid certificate.
    pub async fn accept(&self, io: impl Io) -> io::Result<impl Io> {
        self.0.accept(io).await
    }
}

/// Accepts any certificate of the authority, for whatever name.
#[derive(Debug)]
struct AuthorityOnly {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AuthorityOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate =
            ParsedCertificate::try_from(end_entity).map_err(|_| CertificateError::BadEncoding)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
