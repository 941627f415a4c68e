//! A stand-in for a server, as hostile as a test needs it.
//!
//! In: a function from requests to replies. Out: an address, and the requests that have arrived.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

pub(super) const AUTHORITY: &[u8] = include_bytes!("tls/authority.pem");
const SERVER: &[u8] = include_bytes!("tls/server.pem");
const SERVER_KEY: &[u8] = include_bytes!("tls/server-key.pem");
pub(super) const CLIENT: &[u8] = include_bytes!("tls/client.pem");
pub(super) const CLIENT_KEY: &[u8] = include_bytes!("tls/client-key.pem");

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// `GET /v1/x?y`.
    pub(super) line: String,
    /// Names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// What the server sends.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Json(u16, Value),
    /// A status with one more header line.
    With(u16, String, Value),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// Nothing, without an end.
    Hang,
    /// A head, then a byte now and then, without an end.
    Drip,
    /// A body without an end.
    Endless,
}

type Rule = dyn Fn(&Request) -> Reply + Send + Sync;

pub(super) struct StandIn {
    pub(super) address: String,
    requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    pub(super) async fn start(rule: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        Self::run(address, rule, async move |state| {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&state)));
            }
        })
    }

    /// With a certificate for `server.vault.test`, for clients with a certificate of the same authority only.
    pub(super) async fn start_tls(rule: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("https://{}", listener.local_addr().unwrap());
        let acceptor = acceptor();
        Self::run(address, rule, async move |state| {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, state).await;
                    }
                });
            }
        })
    }

    pub(super) fn start_at(path: &Path, rule: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let address = format!("unix://{}", path.display());
        Self::run(address, rule, async move |state| {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&state)));
            }
        })
    }

    fn run<F>(
        address: String,
        rule: impl Fn(&Request) -> Reply + Send + Sync + 'static,
        accept: impl FnOnce(Arc<ServerState>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let state = Arc::new(ServerState { requests: requests.clone(), rule: Box::new(rule) });
        Self { address, requests, task: tokio::spawn(accept(state)) }
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.line).collect()
    }
}

struct ServerState {
    requests: Arc<Mutex<Vec<Request>>>,
    rule: Box<Rule>,
}

fn acceptor() -> TlsAcceptor {
    let certificate = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(AUTHORITY)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let key = PrivateKeyDer::from_pem_slice(SERVER_KEY).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate(SERVER)], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Serves one request. Errors mean that the client has gone.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: Arc<ServerState>) {
    let Some(request) = read(&mut stream).await else { return };
    state.requests.lock().unwrap().push(request.clone());
    let reply = (state.rule)(&request);
    let _ = send(&mut stream, reply).await;
    let _ = stream.shutdown().await;
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let line = lines.next()?.trim_end_matches(" HTTP/1.1").to_owned();
    let header =
        |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<_, _> = lines.filter_map(header).collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = bytes[end..].to_vec();
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Request { line, headers, body: String::from_utf8(body).unwrap() })
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), reply: Reply) -> std::io::Result<()> {
    let head = |status: u16, more: &str| format!("HTTP/1.1 {status} x\r\nconnection: close\r\n{more}\r\n");
    match reply {
        Reply::Json(204, _) => stream.write_all(head(204, "").as_bytes()).await,
        Reply::Json(status, value) => stream.write_all(&whole(head(status, ""), &value)).await,
        Reply::With(status, header, value) => {
            stream.write_all(&whole(head(status, &format!("{header}\r\n")), &value)).await
        }
        Reply::Raw(bytes) => stream.write_all(&bytes).await,
        Reply::Hang => std::future::pending().await,
        Reply::Drip => {
            stream.write_all(head(200, "content-length: 1000\r\n").as_bytes()).await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        }
        Reply::Endless => {
            stream.write_all(head(200, "").as_bytes()).await?;
            loop {
                stream.write_all(&[b'a'; 1 << 16]).await?;
            }
        }
    }
}

/// Without a length: the body ends with the connection.
fn whole(head: String, value: &Value) -> Vec<u8> {
    [head.into_bytes(), value.to_string().into_bytes()].concat()
}
