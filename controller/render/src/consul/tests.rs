//! One read of a stand-in for Consul.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use herdlet_services::catalog::ConsulConfig;

use super::*;
use crate::region::AccessToken;

/// Templates read the partition of Consul's agent, although the task had logged in at another.
#[tokio::test]
async fn a_read_is_in_the_namespace_and_the_partition_of_the_block() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4_096];
        let length = stream.read(&mut request).unwrap();
        let answer = b"HTTP/1.1 404 Not Found\r\nX-Consul-Index: 7\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let config = ConsulConfig::resolve(Some(&address), None, |_| None).unwrap();
    let data = ConsulData::new(ConsulReader::new(&config).unwrap(), "of-agent".to_owned());
    let request = RegionRequest {
        query: Query::Consul { function: "key", arguments: vec!["a".to_owned()] },
        namespace: "default".to_owned(),
        partition: "east".to_owned(),
        token: AccessToken::default(),
        newer: Newer::Now,
    };
    let found = data.answer(&request).await;
    let request = server.join().unwrap();
    assert!(request.contains("ns=default") && request.contains("partition=east"), "{request}");
    assert!(found.is_ok_and(|found| matches!(found.answer, Answer::Absent)));
}
