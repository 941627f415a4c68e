//! A registry on loopback that answers as a test wants, and lies if it wants.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use reqwest::Url;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Barrier,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// The authority of the certificate for localhost that the API's tests have.
pub(crate) const AUTHORITY: &[u8] = include_bytes!("../../../../api/src/http/tests/tls/authority.pem");
const CERTIFICATE: &[u8] = include_bytes!("../../../../api/src/http/tests/tls/agent.pem");
const KEY: &[u8] = include_bytes!("../../../../api/src/http/tests/tls/agent-key.pem");

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentRequest {
    pub(crate) method: String,
    /// Path and query.
    pub(crate) target: String,
    /// By lower-case names; the values of repeated ones are joined.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl SentRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }
}

/// An answer.
#[derive(Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// How much of the body is sent before the connection is closed; all of it if absent.
    pub(crate) cut_at: Option<usize>,
    /// All requests with the same one are answered together.
    pub(crate) barrier: Option<Arc<Barrier>>,
    pub(crate) then: Then,
}

/// What follows the body.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Then {
    #[default]
    Close,
    /// There is no answer at all.
    Nothing,
    /// The connection stays open and silent.
    Silence,
    /// The body is repeated without end, in chunks.
    Repeat,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

type Answer = dyn Fn(&SentRequest) -> Reply + Send + Sync;

/// A registry, which ends with the test.
pub(crate) struct StandIn {
    pub(crate) url: Url,
    received: Arc<Mutex<Vec<SentRequest>>>,
    _task: AbortOnDropHandle<()>,
}

impl StandIn {
    pub(crate) async fn start(answer: impl Fn(&SentRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::listen(Arc::new(answer), None).await
    }

    /// With TLS, as `localhost`.
    pub(crate) async fn start_tls(answer: impl Fn(&SentRequest) -> Reply + Send + Sync + 'static) -> Self {
        let certificates = CertificateDer::pem_slice_iter(CERTIFICATE).collect::<Result<_, _>>().unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(certificates, PrivateKeyDer::from_pem_slice(KEY).unwrap())
            .unwrap();
        Self::listen(Arc::new(answer), Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn listen(answer: Arc<Answer>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = match tls {
            Some(_) => format!("https://localhost:{port}/"),
            None => format!("http://127.0.0.1:{port}/"),
        };
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&received);
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (answer, tls, received) = (Arc::clone(&answer), tls.clone(), Arc::clone(&received));
                // The client may close the connection at any time.
                tokio::spawn(async move {
                    match tls {
                        None => serve(tcp, &*answer, &received).await,
                        Some(_) if !begins_with_tls(&tcp).await => {
                            let plain =
                                SentRequest { target: "without TLS".to_owned(), ..SentRequest::default() };
                            received.lock().unwrap().push(plain);
                            Ok(())
                        }
                        Some(tls) => match tls.accept(tcp).await {
                            Ok(stream) => serve(stream, &*answer, &received).await,
                            Err(_) => Ok(()),
                        },
                    }
                });
            }
        });
        Self { url: Url::parse(&url).unwrap(), received: kept, _task: AbortOnDropHandle::new(task) }
    }

    pub(crate) fn received(&self) -> Vec<SentRequest> {
        self.received.lock().unwrap().clone()
    }

    /// Paths and queries in the order of their arrival.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.received().into_iter().map(|request| request.target).collect()
    }
}

/// Whether the first byte is that of a handshake (RFC 8446, section 5.1).
async fn begins_with_tls(tcp: &TcpStream) -> bool {
    let mut first = [0];
    tcp.peek(&mut first).await.is_ok() && first == [22]
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    answer: &Answer,
    received: &Mutex<Vec<SentRequest>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let mut request = parse(&String::from_utf8_lossy(&head));
    let mut body = vec![0; request.header("content-length").parse().unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    request.body = String::from_utf8_lossy(&body).into_owned();
    received.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    if let Some(barrier) = &reply.barrier {
        barrier.wait().await;
    }
    if reply.then == Then::Nothing {
        return Ok(());
    }
    let mut text = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
    for (name, value) in &reply.headers {
        text += &format!("{name}: {value}\r\n");
    }
    match reply.then {
        Then::Repeat => text += "Transfer-Encoding: chunked\r\n",
        _ if reply.headers.iter().any(|(name, _)| *name == "Content-Length") => {}
        Then::Close | Then::Nothing | Then::Silence => {
            text += &format!("Content-Length: {}\r\n", reply.body.len())
        }
    }
    stream.write_all(format!("{text}\r\n").as_bytes()).await?;
    if reply.then == Then::Repeat {
        loop {
            stream.write_all(format!("{:x}\r\n", reply.body.len()).as_bytes()).await?;
            stream.write_all(&reply.body).await?;
            stream.write_all(b"\r\n").await?;
        }
    }
    stream.write_all(&reply.body[..reply.cut_at.unwrap_or(reply.body.len()).min(reply.body.len())]).await?;
    stream.flush().await?;
    if reply.then == Then::Silence {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await
}

fn parse(head: &str) -> SentRequest {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
    let mut request = SentRequest {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        ..SentRequest::default()
    };
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let known = request.headers.entry(name.to_ascii_lowercase()).or_default();
        if !known.is_empty() {
            known.push_str(", ");
        }
        known.push_str(value.trim());
    }
    request
}
