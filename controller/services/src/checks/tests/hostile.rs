//! Targets that send without end, or send the agent elsewhere.

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use super::{shortage::https, *};

/// A certificate for localhost, which the machine does not trust.
const CERTIFICATE: &[u8] = include_bytes!("../../../../api/src/http/tests/tls/agent.pem");
const KEY: &[u8] = include_bytes!("../../../../api/src/http/tests/tls/agent-key.pem");

fn acceptor() -> TlsAcceptor {
    let certificates = CertificateDer::pem_slice_iter(CERTIFICATE).collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(KEY).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    TlsAcceptor::from(Arc::new(builder.with_single_cert(certificates, key).unwrap()))
}

/// Sends `first`, then `again` until the other side closes, whatever it receives.
async fn send_endlessly(stream: impl AsyncRead + AsyncWrite, first: &[u8], again: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = async {
        writer.write_all(first).await?;
        loop {
            writer.write_all(again).await?;
        }
    };
    let ended: std::io::Result<u64> = tokio::select! {
        ended = sent => ended,
        // A request ends only with its connection.
        ended = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await } => ended,
    };
    drop(ended);
}

/// A target that sends endlessly, in clear text and over TLS.
async fn endless(first: &'static [u8], again: &'static [u8]) -> [u16; 2] {
    let mut ports = [0; 2];
    for (port, tls) in ports.iter_mut().zip([None, Some(acceptor())]) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        *port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tls = tls.clone();
                tokio::spawn(async move {
                    let Some(tls) = tls else { return send_endlessly(stream, first, again).await };
                    if let Ok(stream) = tls.accept(stream).await {
                        send_endlessly(stream, first, again).await;
                    }
                });
            }
        });
    }
    ports
}

async fn result_of(kind: CheckKind, port: u16) -> CheckResult {
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    checks.up(&owner(), &[registration(Provider::Nomad, vec![check("c", kind, port)])]);
    next(&mut reports).await
}

fn grpc(tls: bool) -> CheckKind {
    CheckKind::Grpc { service: String::new(), tls, tls_skip_verify: true, tls_server_name: String::new() }
}

/// Heads that an HTTP client skips, and frames that it answers: neither ends by itself.
#[tokio::test]
async fn endless_responses_end_a_check() {
    let heads: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
    let [plain, encrypted] = endless(b"", heads).await;
    let mut post = http("/");
    if let CheckKind::Http { method, .. } = &mut post {
        *method = "POST".to_owned();
    }
    // An empty SETTINGS frame, and PING frames (RFC 9113).
    let ping = b"\0\0\x08\x06\0\0\0\0\0herdlet.";
    let [http2, encrypted_http2] = endless(b"\0\0\0\x04\0\0\0\0\0", ping).await;
    for (kind, port) in [
        (http("/"), plain),
        (post, plain),
        (https(true, ""), encrypted),
        (grpc(false), http2),
        (grpc(true), encrypted_http2),
    ] {
        let result = result_of(kind.clone(), port).await;
        assert_eq!(result.status, CheckStatus::Failure, "{kind:?}: {result:?}");
        assert!(result.output.ends_with("it sent more than 131072 bytes"), "{kind:?}: {result:?}");
    }
}

/// The agent reaches services that an isolated task cannot, such as those on the machine's loopback address.
#[tokio::test]
async fn redirect_to_another_service_is_the_response() {
    let (other, count) = serve(|_, _| response("500 Oops", "")).await;
    let location = format!("302 Found\r\nLocation: http://127.0.0.1:{other}/stolen");
    let (port, _) = serve(move |_, _| response(&location, "elsewhere")).await;
    let result = result_of(http("/"), port).await;
    assert_eq!(
        (result.status, result.output.as_str()),
        (CheckStatus::Success, "nomad: http 302 Found\nelsewhere")
    );
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn redirects_within_a_service_are_followed() {
    let (port, _) = serve(|request, _| match request.split_whitespace().nth(1).unwrap() {
        "/see-other" => response("303 See Other\r\nLocation: /there?x=1", ""),
        "/same-method" => response("307 Temporary Redirect\r\nLocation: there", ""),
        "/loop" => response("302 Found\r\nLocation: /loop", ""),
        _ => response("503 Service Unavailable", request),
    })
    .await;
    let post = |path: &str| {
        let mut kind = http(path);
        if let CheckKind::Http { method, body, .. } = &mut kind {
            "POST".clone_into(method);
            "ping".clone_into(body);
        }
        kind
    };
    for (kind, expected) in [
        (http("/see-other"), "\nGET /there?x=1 HTTP/1.1"),
        (post("/see-other"), "\nGET /there?x=1 HTTP/1.1"),
        (post("/same-method"), "\nPOST /there HTTP/1.1"),
        (http("/loop"), "/loop: too many redirects"),
    ] {
        let result = result_of(kind.clone(), port).await;
        assert_eq!(result.status, CheckStatus::Failure, "{kind:?}: {result:?}");
        assert!(result.output.contains(expected), "{kind:?}: {result:?}");
        assert!(!result.output.contains("GET") || !result.output.contains("content-length"), "{result:?}");
    }
}

#[tokio::test]
async fn redirect_to_tls_of_the_host_is_followed_and_verified() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let encrypted = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor().accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
            let _ = stream.write_all(response("200 OK", "").as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    let location = format!("301 Moved Permanently\r\nLocation: https://127.0.0.1:{encrypted}/");
    let (port, _) = serve(move |_, _| response(&location, "")).await;
    let mut plain = http("/");
    if let CheckKind::Http { tls_skip_verify, .. } = &mut plain {
        *tls_skip_verify = true;
    }
    let result = result_of(plain, port).await;
    assert_eq!(result.status, CheckStatus::Failure, "{result:?}");
    assert!(result.output.contains("its certificate is not one that this machine trusts"), "{result:?}");
    for name in ["", "localhost"] {
        assert_eq!(result_of(https(false, name), encrypted).await.status, CheckStatus::Failure);
        assert_eq!(result_of(https(true, name), encrypted).await.status, CheckStatus::Success);
    }
}
