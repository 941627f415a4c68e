//! Connections over loopback, with TLS and without; silent clients and clients of another protocol.

use std::str::FromStr as _;

use tokio::net::TcpListener;
use zeroize::Zeroizing;

use super::*;
use crate::{
    call::Caller,
    error::{CallError, Lost},
    framed,
    testing::{Lab, WAIT},
    tls::{Pem, TlsError, Verify},
};

const AUTHORITY: &[u8] = include_bytes!("../tls/authority.pem");
const STRANGER: &[u8] = include_bytes!("../tls/stranger.pem");
const SERVER: (&[u8], &[u8]) = (include_bytes!("../tls/server.pem"), include_bytes!("../tls/server-key.pem"));
const CLIENT: (&[u8], &[u8]) = (include_bytes!("../tls/client.pem"), include_bytes!("../tls/client-key.pem"));

fn pem(authority: &[u8], (certificate, key): (&[u8], &[u8])) -> Pem {
    Pem {
        authority: authority.to_owned(),
        certificate: certificate.to_owned(),
        key: Zeroizing::new(key.to_owned()),
    }
}

/// A server, and the result of each connection it accepts.
async fn server(tls: Option<Pem>) -> (Address, tokio::sync::mpsc::Receiver<Result<(), AcceptError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::from_str(&listener.local_addr().unwrap().to_string()).unwrap();
    let tls = tls.map(|pem| ServerTls::new(&pem).unwrap());
    let (sender, results) = tokio::sync::mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((tcp, from)) = listener.accept().await {
            tune(&tcp).unwrap();
            let (tls, sender) = (tls.clone(), sender.clone());
            tokio::spawn(async move {
                let lab = Arc::new(Lab { name: "server", ..Lab::default() });
                let _ = sender.send(accept(tcp, tls.as_ref(), lab, from.to_string()).await).await;
            });
        }
    });
    (address, results)
}

async fn name(address: &Address, tls: Option<&ClientTls>) -> Result<String, CallError> {
    let io = dial(address, tls, Purpose::Streams)
        .await
        .map_err(|error| CallError::Unreachable(Arc::new(error)))?;
    let (mux, _incoming) = Mux::start(io, Side::Client);
    Caller::new(mux).call("Lab.Name", &(), WAIT).await?.decode()
}

#[tokio::test]
async fn servers_are_called_over_tcp() {
    let (address, _told) = server(None).await;
    assert_eq!(name(&address, None).await.unwrap(), "server");
    let io = dial(&address, None, Purpose::OneStream).await.unwrap();
    let mut stream = framed::begin(io, "Lab.Repeat", &1).await.unwrap();
    stream.send("x").await.unwrap();
    assert!(stream.receive::<framed::StreamFrame>().await.unwrap().is_some());
}

#[tokio::test]
async fn both_sides_show_certificates() {
    let (address, _told) = server(Some(pem(AUTHORITY, SERVER))).await;
    let tls = |verify, region| ClientTls::new(&pem(AUTHORITY, CLIENT), verify, region).unwrap();
    assert_eq!(name(&address, Some(&tls(Verify::ServerOfRegion, "global"))).await.unwrap(), "server");
    // The server's certificate does not match another region; only `verify_server_hostname` checks that.
    let error = name(&address, Some(&tls(Verify::ServerOfRegion, "moon"))).await.unwrap_err();
    assert!(is_refused(&error) && error.to_string().contains("not valid for name"), "{error}");
    for region in ["moon", "Süd_2 no name"] {
        assert_eq!(name(&address, Some(&tls(Verify::AuthorityOnly, region))).await.unwrap(), "server");
    }
    // An unknown authority is refused either way.
    for verify in [Verify::ServerOfRegion, Verify::AuthorityOnly] {
        let distrusts = ClientTls::new(&pem(STRANGER, CLIENT), verify, "global").unwrap();
        let error = name(&address, Some(&distrusts)).await.unwrap_err();
        assert!(is_refused(&error) && error.to_string().contains("UnknownIssuer"), "{error}");
    }
}

fn is_refused(error: &CallError) -> bool {
    matches!(error, CallError::Unreachable(why) if matches!(**why, DialError::Tls { .. }))
}

/// The client sends the server name only if it verifies it.
#[tokio::test(start_paused = true)]
async fn server_name_is_sent_only_if_verified() {
    for (verify, is_sent) in [(Verify::ServerOfRegion, true), (Verify::AuthorityOnly, false)] {
        let tls = ClientTls::new(&pem(AUTHORITY, CLIENT), verify, "global").unwrap();
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        assert!(tokio::time::timeout(WAIT, tls.connect(ours)).await.is_err());
        let mut hello = vec![0; 64 * 1024];
        let read = theirs.read(&mut hello).await.unwrap();
        assert_eq!(hello[..read].windows(5).any(|bytes| bytes == b"nomad"), is_sent, "{verify:?}");
    }
}

/// A machine-wide bundle may hold an entry that no longer counts as a certificate.
#[test]
fn an_authority_that_cannot_be_read_spoils_no_other() {
    let odd = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
    let with = |authority: &[u8]| ClientTls::new(&pem(authority, CLIENT), Verify::ServerOfRegion, "global");
    with(&[odd, AUTHORITY].concat()).unwrap();
    assert!(matches!(with(odd), Err(TlsError::Empty("authority"))));
}

/// One of a name's two addresses belongs to a network that drops all packets.
#[tokio::test(start_paused = true)]
async fn slow_address_leaves_time_for_the_next() {
    let began = tokio::time::Instant::now();
    let addresses = || ["[2001:db8::1]:4647", "192.0.2.1:4647"].map(|address| address.parse().unwrap());
    let connect = |address: SocketAddr| async move {
        if address.is_ipv6() { std::future::pending().await } else { Ok(address) }
    };
    let connected = first_that(addresses().into_iter(), connect).await.unwrap();
    assert_eq!(connected, addresses()[1]);
    assert_eq!(began.elapsed(), DIAL_ONE);
    let swallowed = |_| std::future::pending::<io::Result<()>>();
    let error = first_that(addresses().into_iter(), swallowed).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

/// With TLS 1.3, a client learns only after the handshake that its certificate was refused. The error must still name TLS.
#[tokio::test]
async fn refused_certificate_is_no_lost_connection() {
    let (address, _told) = server(Some(pem(STRANGER, SERVER))).await;
    let tls = ClientTls::new(&pem(AUTHORITY, CLIENT), Verify::ServerOfRegion, "global").unwrap();
    let error = name(&address, Some(&tls)).await.unwrap_err();
    assert!(matches!(&error, CallError::Lost(Lost::Tls(_))), "{error:?}");
}

#[tokio::test]
async fn plain_and_tls_do_not_mix() {
    let (address, mut results) = server(Some(pem(AUTHORITY, SERVER))).await;
    assert!(name(&address, None).await.unwrap_err().is_lost());
    assert_eq!(
        results.recv().await.unwrap().unwrap_err().to_string(),
        "accept a connection: the client uses no TLS"
    );
    let (address, mut results) = server(None).await;
    let tls = ClientTls::new(&pem(AUTHORITY, CLIENT), Verify::AuthorityOnly, "global").unwrap();
    assert!(name(&address, Some(&tls)).await.unwrap_err().is_lost());
    assert_eq!(
        results.recv().await.unwrap().unwrap_err().to_string(),
        "accept a connection: the client uses TLS"
    );
}

#[tokio::test(start_paused = true)]
async fn silent_or_unknown_client_is_closed() {
    let silent = |first: Option<u8>| async move {
        let (ours, mut theirs) = tokio::io::duplex(64);
        if let Some(first) = first {
            theirs.write_all(&[first]).await.unwrap();
        }
        accept(ours, None, Arc::new(Lab::default()), "test".to_owned()).await.unwrap_err()
    };
    assert!(matches!(silent(None).await, AcceptError::Silent(_)));
    for first in [0, 2, 3, b'G'] {
        assert!(matches!(silent(Some(first)).await, AcceptError::Kind(kind) if kind == first));
    }
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::from_str(&listener.local_addr().unwrap().to_string()).unwrap();
    drop(listener);
    let error = name(&address, None).await.unwrap_err();
    assert!(error.nothing_was_done(), "{error}");
    assert!(error.to_string().starts_with(&format!("reach a server: connect to {address}: ")), "{error}");
}

#[test]
fn invalid_certificates_are_reported() {
    let error = |pem: Pem, region: &str| ClientTls::new(&pem, Verify::ServerOfRegion, region).unwrap_err();
    assert!(matches!(error(pem(b"", CLIENT), "global"), TlsError::Empty("authority")));
    assert!(matches!(error(pem(AUTHORITY, (b"x", CLIENT.1)), "global"), TlsError::Empty("certificate")));
    assert!(matches!(error(pem(AUTHORITY, (CLIENT.0, b"x")), "global"), TlsError::Empty("key")));
    assert!(matches!(error(pem(AUTHORITY, (CLIENT.0, SERVER.1)), "global"), TlsError::OtherKey));
    assert!(matches!(error(pem(AUTHORITY, CLIENT), "no region"), TlsError::Region(_)));
}
