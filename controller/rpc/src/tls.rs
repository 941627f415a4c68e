//! TLS of RPC connections. Both sides show a certificate and look at the other's.
//!
//! In: certificates and a key in PEM. Out: encrypted streams. A server's certificate must be signed by the authority and, where
//! `verify_server_hostname` is set, be for the name `server.<region>.nomad`, not for that of a machine.
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

/// Why certificates can't be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read.
    #[error("read {path}")]
    Read {
        /// Which.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Of the authority, the certificate or the key one is no PEM, or empty.
    #[error("use the {0}: its file has none (PEM)")]
    Empty(&'static str),
    /// The key is another one's.
    #[error("use the certificate: the key is not its own")]
    OtherKey,
    /// They are of no kind that can be used.
    #[error("use the certificates")]
    Unfit(#[source] rustls::Error),
    /// Nobody could prove to be a client of ours.
    #[error("use the authority: {0}")]
    Authority(String),
    /// There can be no server of such a region.
    #[error("ask for a certificate of the region")]
    Region(#[source] InvalidDnsNameError),
}

/// Texts of certificates and keys, in PEM.
pub struct Pem {
    /// Who has signed the other side's certificate: one or more.
    pub authority: Vec<u8>,
    /// Ours, with those between it and its authority behind it.
    pub certificate: Vec<u8>,
    /// The key of ours.
    pub key: Zeroizing<Vec<u8>>,
}

impl Pem {
    /// Reads files: Nomad's `ca_file`, `cert_file` and `key_file`.
    ///
    /// # Errors
    /// When one of them can't be read.
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
        // Bundles of machines have some that nobody can use.
        match roots.add_parsable_certificates(certificates(&self.authority, "authority")?) {
            (0, _) => Err(TlsError::Empty("authority")),
            (_, 0) => Ok(roots),
            (_, unused) => {
                tracing::warn!(unused, "of the authority, some certificates can't be used");
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

/// What is asked of a server's certificate, beside that the authority has signed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// That it is for `server.<region>.nomad` (`verify_server_hostname = true`). Without it any certificate of the authority will do, also
    /// a client's.
    ServerOfRegion,
    /// Nothing.
    AuthorityOnly,
}

/// TLS as the one who dials. Clones share everything: one is enough for all nodes of a region that have one certificate.
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
    /// TLS to servers of a region.
    ///
    /// # Errors
    /// When the texts can't be used, or the region can't be part of a name that is asked for.
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
        // Connections last: there is little to save, and tickets of each server would be kept.
        config.resumption = Resumption::disabled();
        let name = match verify {
            Verify::ServerOfRegion => format!("server.{region}.nomad"),
            // Not looked at, nor sent.
            Verify::AuthorityOnly => "server.nomad".to_owned(),
        };
        config.enable_sni = verify == Verify::ServerOfRegion;
        let name = ServerName::try_from(name).map_err(TlsError::Region)?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Shakes hands over a connection on which the byte for TLS was sent.
    ///
    /// # Errors
    /// When that fails, or the server's certificate isn't as it should be.
    pub async fn connect(&self, io: impl Io) -> io::Result<impl Io> {
        self.connector.connect(self.name.clone(), io).await
    }
}

/// TLS as the one who is dialled. Clients must show a certificate of the authority.
#[derive(Clone)]
pub struct ServerTls(TlsAcceptor);

impl ServerTls {
    /// TLS with these texts.
    ///
    /// # Errors
    /// When they can't be used.
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

    /// Shakes hands over a connection on which the byte for TLS has come.
    ///
    /// # Errors
    /// When that fails, or the client shows no certificate as it should be.
    pub async fn accept(&self, io: impl Io) -> io::Result<impl Io> {
        self.0.accept(io).await
    }
}

/// Asks for a certificate of the authority, for whomever it is.
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
