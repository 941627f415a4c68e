//! Forwarding to servers on loopback addresses.

use std::fs;

use super::*;

/// A query for the address of a name.
fn query(name: &str) -> Vec<u8> {
    let mut query = vec![0x47, 0x11, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// The answer of a server with this code, without records.
fn answered(query: &[u8], code: u8) -> Vec<u8> {
    let mut answer = query.to_vec();
    (answer[2], answer[3]) = (0x81, 0x80 | code);
    answer
}

/// A server that answers with each of these codes in turn; first it sends what is not an answer.
async fn server(codes: &'static [u8]) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut bytes = [0; 512];
        for code in codes {
            let (length, peer) = socket.recv_from(&mut bytes).await.unwrap();
            let query = &bytes[..length];
            let mut other = answered(query, 0);
            other[1] ^= 1;
            let elsewhere = answered(&self::query("other.example"), 0);
            for wrong in [query.to_vec(), other, elsewhere, vec![0]] {
                socket.send_to(&wrong, peer).await.unwrap();
            }
            socket.send_to(&answered(query, *code), peer).await.unwrap();
        }
    });
    address
}

fn forwarder(port: u16, text: &str) -> (Forwarder, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("resolv.conf");
    fs::write(&path, text).unwrap();
    (
        Forwarder::with_servers_of(
            &path,
            (vec!["172.26.80.1".parse().unwrap(), "fd00:37::1".parse().unwrap()], port),
        ),
        dir,
    )
}

#[tokio::test]
async fn answer_of_a_server_of_the_machine_is_returned_and_no_other_one() {
    let address = server(&[3, 2]).await;
    let (forwarder, _dir) = forwarder(address.port(), "nameserver 127.0.0.1\n");
    let query = query("web.example");
    let answer = forwarder.answer(&query, Over::Udp).await.unwrap();
    assert_eq!(answer, answered(&query, 3), "with the number of the client");
    let answer = forwarder.answer(&query, Over::Udp).await.unwrap();
    assert_eq!(answer, answered(&query, 2), "no other server has an answer");
}

#[tokio::test]
async fn query_without_a_server_fails() {
    let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    for text in ["", "nameserver 127.0.0.1\n", "nameserver 172.26.80.1\nnameserver fe80::1%eth0\n"] {
        let (forwarder, _dir) = forwarder(closed, text);
        for over in [Over::Udp, Over::Tcp] {
            let answer = forwarder.answer(&query("web.example"), over).await.unwrap();
            assert_eq!((code(&answer), &answer[..2]), (Some(2), &[0x47, 0x11][..]), "{text}");
        }
    }
}

#[tokio::test]
async fn queries_over_tcp_are_forwarded_over_tcp() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let query = read(&mut stream, MESSAGE_MAX).await.unwrap();
        write(&mut stream, &answered(&query, 0)).await.unwrap();
    });
    let (forwarder, _dir) = forwarder(port, "nameserver 127.0.0.1\n");
    let query = query("web.example");
    assert_eq!(forwarder.answer(&query, Over::Tcp).await.unwrap(), answered(&query, 0));
}

#[test]
fn servers_are_those_of_the_file_but_the_forwarder_itself() {
    let (forwarder, _dir) = forwarder(53, "");
    let text = "# nameserver 192.0.2.9\nnameserver 172.26.80.1\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\nnameserver\n\
                nameserver fd00:37::1\nnameserver 2001:db8::1\nnameserver 192.0.2.1\nnameserver 192.0.2.2\nsearch example.org\n";
    let servers: Vec<String> =
        forwarder.upstreams.servers_in(text).iter().map(SocketAddr::to_string).collect();
    assert_eq!(servers, ["127.0.0.53:53", "[2001:db8::1]:53", "192.0.2.1:53"]);
}

#[test]
fn only_queries_for_other_zones_are_forwarded() {
    for (name, expected) in [
        ("web.example", true),
        ("herdlet.example", true),
        ("web.service.herdlet", false),
        ("WEB.service.HERDLET", false),
        ("herdlet", false),
    ] {
        assert_eq!(message::is_of_others(&query(name)), expected, "{name}");
    }
    let answer = answered(&query("web.example"), 0);
    for other in [&answer[..], &[], &query("web.example")[..20]] {
        assert!(!message::is_of_others(other), "{other:?}");
    }
}
