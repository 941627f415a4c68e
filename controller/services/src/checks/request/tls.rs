//! How a check verifies the certificate of its target.
//!
//! In: a request. Out: a configuration, each created when a check first needs it: loading the system's certificates
//! costs time and memory.

use std::sync::{Arc, OnceLock};

use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, InvalidDnsNameError, ServerName, UnixTime},
};
use rustls_platform_verifier::Verifier;

use super::{Request, Speaks};

/// Why a target cannot be asked by TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("{0:?} cannot be the name on a certificate")]
    Name(String, #[source] InvalidDnsNameError),
    #[error(transparent)]
    Config(#[from] rustls::Error),
}

/// One for each protocol, with and without verification.
#[derive(Debug, Default)]
pub(super) struct TlsConfigs([OnceLock<Arc<ClientConfig>>; 4]);

impl TlsConfigs {
    /// The configuration for a request, and the name on the certificate.
    pub(super) fn select(
        &self,
        request: &Request<'_>,
        host: &str,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), TlsError> {
        let name = if request.tls_server_name.is_empty() { host } else { request.tls_server_name };
        let name =
            ServerName::try_from(name.to_owned()).map_err(|error| TlsError::Name(name.to_owned(), error))?;
        let place = match (request.speaks, request.tls_skip_verify) {
            (Speaks::Http, false) => &self.0[0],
            (Speaks::Http, true) => &self.0[1],
            (Speaks::Grpc, false) => &self.0[2],
            (Speaks::Grpc, true) => &self.0[3],
        };
        if let Some(config) = place.get() {
            return Ok((Arc::clone(config), name));
        }
        let config = Arc::new(config(request)?);
        Ok((Arc::clone(place.get_or_init(|| config)), name))
    }
}

fn config(request: &Request<'_>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = if request.tls_skip_verify {
        Arc::new(AnyCertificate(Arc::clone(&provider)))
    } else {
        Arc::new(Verifier::new(Arc::clone(&provider))?)
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = vec![match request.speaks {
        Speaks::Http => b"http/1.1".to_vec(),
        Speaks::Grpc => b"h2".to_vec(),
    }];
    Ok(config)
}

/// Accepts every certificate, as a check with `tls_skip_verify` requests. The target must have its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
