//! TLS on TCP: accepted clients, refusals, and changed certificates.

use std::os::unix::fs::PermissionsExt as _;

use herdlet_base::http_client::Credentials;
use herdlet_config::TlsFiles;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::http::{Tls, TlsError};

const AUTHORITY: &[u8] = include_bytes!("tls/authority.pem");
const AGENT: &[u8] = include_bytes!("tls/agent.pem");
const AGENT_KEY: &[u8] = include_bytes!("tls/agent-key.pem");
const CLIENT: &[u8] = include_bytes!("tls/client.pem");
const CLIENT_KEY: &[u8] = include_bytes!("tls/client-key.pem");

impl ApiFixture {
    fn secret(&self, name: &str, text: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn tls_files(&self) -> TlsFiles {
        let (certificate, key) = (self.secret("agent.pem", AGENT), self.secret("agent-key.pem", AGENT_KEY));
        TlsFiles { certificate, key, clients: None }
    }

    /// Serves with these files. Returns the address without scheme.
    async fn tls(&self, files: TlsFiles, limits: Limits) -> String {
        let listener = Listener::tcp("127.0.0.1:0").await.unwrap().with_tls(Tls::read(files).unwrap());
        let address = listener.address().unwrap();
        self.serve(listener, router(Arc::clone(&self.shared)), None, limits);
        address.to_string()
    }
}

fn client(address: &str, shows: Option<(&[u8], &[u8])>) -> Client {
    let identity = shows.map(|(certificate, key)| [certificate, key].concat().into());
    let credentials = Credentials { authorities: Some(AUTHORITY.to_vec()), identity };
    Client::trusting(Address::Url(format!("https://{address}")), None, &credentials).unwrap()
}

#[tokio::test]
async fn client_that_trusts_the_authority_connects_by_tls() {
    let ground = ApiFixture::new();
    let address = ground.tls(ground.tls_files(), Limits::default()).await;
    assert!(client(&address, None).jobs().await.is_ok());
    // The system's authorities have not signed this certificate.
    let stranger = Client::new(Address::Url(format!("https://{address}")), None).unwrap();
    let distrusts = stranger.jobs().await.unwrap_err().to_string();
    assert!(distrusts.contains("invalid peer certificate"), "{distrusts}");
    let plain = reqwest::get(format!("http://{address}/v1/jobs")).await.unwrap();
    assert_eq!(plain.status().as_u16(), 400);
    assert_eq!(plain.text().await.unwrap(), "this port speaks TLS: use https\n");
}

#[tokio::test]
async fn verified_clients_need_a_certificate() {
    let ground = ApiFixture::new();
    let clients = Some(ground.secret("clients.pem", AUTHORITY));
    let address = ground.tls(TlsFiles { clients, ..ground.tls_files() }, Limits::default()).await;
    assert!(client(&address, Some((CLIENT, CLIENT_KEY))).jobs().await.is_ok());
    let refused = client(&address, None).jobs().await.unwrap_err();
    assert!(
        herdlet_base::error::in_full(&refused).contains("fatal alert: CertificateRequired"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn certificates_are_reloaded_unless_invalid() {
    let ground = ApiFixture::new();
    let files = ground.tls_files();
    let (certificate, key) = (files.certificate.clone(), files.key.clone());
    let address = ground.tls(files, Limits::default()).await;
    let shown = async || {
        let authority = reqwest::Certificate::from_pem(AUTHORITY).unwrap();
        let http = reqwest::Client::builder().tls_info(true).tls_certs_only([authority]).build().unwrap();
        let answer = http.get(format!("https://{address}/v1/jobs")).send().await.unwrap();
        let info: &reqwest::tls::TlsInfo = answer.extensions().get().unwrap();
        info.peer_certificate().unwrap().to_vec()
    };
    let [agent, other] =
        [AGENT, CLIENT].map(|pem| CertificateDer::from_pem_slice(pem).unwrap().as_ref().to_vec());
    assert!(shown().await == agent);
    // Unusable files are ignored; so is a certificate that does not match the key, as while both are being
    // replaced.
    for text in [&b"nonsense"[..], AUTHORITY, CLIENT] {
        std::fs::write(&certificate, text).unwrap();
        assert!(shown().await == agent);
    }
    std::fs::write(&key, CLIENT_KEY).unwrap();
    assert!(shown().await == other, "certificate and key match now");
    std::fs::remove_file(&key).unwrap();
    assert!(shown().await == other);
}

#[tokio::test]
async fn stalled_handshake_frees_its_connection() {
    let ground = ApiFixture::new();
    let limits = Limits { connections_max: 1, header_max: Duration::from_millis(300), ..Limits::default() };
    let address = ground.tls(ground.tls_files(), limits).await;
    let mut silent = tokio::net::TcpStream::connect(&address).await.unwrap();
    let mut half = Vec::new();
    // The server closes the connection; until then it occupies the only slot.
    silent.write_all(&[0x16, 3, 1]).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut half)).await;
    assert!(ended.is_ok(), "the agent closes the connection");
    // On a busy machine, another client's handshake may also take longer than the limit.
    let let_in = async { while client(&address, None).jobs().await.is_err() {} };
    tokio::time::timeout(PATIENCE, let_in).await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named_with_why() {
    let ground = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &[u8], mode: u32| {
        let path = ground.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let why = |certificate: PathBuf, key: PathBuf, clients: Option<PathBuf>| {
        let error = Tls::read(TlsFiles { certificate, key, clients }).unwrap_err();
        assert!(matches!(&error, TlsError::Read { .. } | TlsError::Unfit { .. }));
        error.to_string()
    };
    let (good, key) = (at("c", AGENT, 0o644), at("k", AGENT_KEY, 0o640));
    let open = why(good.clone(), at("open", AGENT_KEY, 0o644), None);
    assert!(open.contains("open: every user can read it; run: chmod 600"), "{open}");
    let none = why(at("none", b"", 0o600), key.clone(), None);
    assert!(none.contains("none: there is no certificate in it"), "{none}");
    let other = why(good.clone(), at("other", CLIENT_KEY, 0o600), None);
    assert!(other.contains("other: it is not the key of the certificate in "), "{other}");
    let no_key = why(good.clone(), at("nokey", AGENT, 0o600), None);
    assert!(no_key.contains("there is no private key in it"), "{no_key}");
    let dir = why(ground.path().to_owned(), key.clone(), None);
    assert!(dir.ends_with(": it is not a regular file"), "{dir}");
    let gone = why(good, key, Some(ground.path().join("gone")));
    assert!(gone.starts_with("read ") && gone.ends_with("gone"), "{gone}");
}

#[test]
fn certificate_warnings_precede_expiry() {
    let ground = ApiFixture::new();
    let files = ground.tls_files();
    let tls = Tls::read(files.clone()).unwrap();
    let validity = tls.validity().unwrap();
    assert!(validity.from < validity.until);
    let at = |seconds: i64| UnixNanos(seconds * 1_000_000_000);
    assert!(tls.warnings(at(validity.from)).is_empty());
    let warnings = tls.warnings(at(validity.until - 3_600));
    assert!(warnings[0].contains("agent.pem expires in 1 hours, at "), "{warnings:?}");
    std::fs::write(&files.certificate, "nothing").unwrap();
    let warnings = tls.warnings(at(validity.from));
    assert!(warnings[0].starts_with("changed certificates are not used"), "{warnings:?}");
    ground.tls_files();
    assert!(tls.warnings(at(validity.from)).is_empty(), "mended");
}
