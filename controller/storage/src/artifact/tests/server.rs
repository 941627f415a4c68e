//! A file server on loopback with exact control over its responses.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
};

pub(super) struct Server {
    pub(super) address: SocketAddr,
    hits: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers a path with these bytes, including the header, and closes the connection; if there are none, keeps it
    /// open without an answer.
    pub(super) fn answering(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let hits = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&hits);
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let Some(Ok(request)) = lines.next() else { continue };
                while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let bytes = answer(&path);
                heard.lock().unwrap().push(path);
                if bytes.is_empty() {
                    silent.push(stream);
                } else {
                    // The client may already have closed the connection.
                    let _ = stream.write_all(&bytes);
                }
            }
        });
        Self { address, hits }
    }

    /// Serves one file under every path.
    pub(super) fn giving(body: Vec<u8>) -> Self {
        let answer = Self::ok(&body);
        Self::answering(move |_| answer.clone())
    }

    pub(super) fn ok(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    pub(super) fn status(status: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").into_bytes()
    }

    /// The requested paths.
    pub(super) fn hits(&self) -> Vec<String> {
        self.hits.lock().unwrap().clone()
    }
}
