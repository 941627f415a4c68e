//! A proxy on loopback that forwards requests, or answers them in ways that no server should.
//!
//! In: the port of a server, and a manner. Out: an address. The proxy ends with the test's process.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::wait;

/// How to answer a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Forwarded to the server.
    Passed,
    /// With status 500.
    Failed,
    /// With a body that is not JSON.
    Nonsense,
    /// With less than the announced length.
    Half,
    /// With JSON of unexpected types and without the expected header.
    WrongTypes,
    /// Not at all, until the manner changes.
    Hung,
    /// With a body of 256 MiB.
    Huge,
}

impl Manner {
    /// All faults.
    pub const FAULTS: [Self; 6] =
        [Self::Failed, Self::Nonsense, Self::Half, Self::WrongTypes, Self::Hung, Self::Huge];
}

#[derive(Debug, Clone)]
pub struct Proxy {
    port: u16,
    manner: Arc<Mutex<(Manner, u64)>>,
}

impl Proxy {
    /// Starts a proxy before the server on this port.
    ///
    /// # Panics
    /// If there is no free port.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let proxy = Self { port, manner: Arc::new(Mutex::new((Manner::Passed, 0))) };
        let serving = proxy.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let proxy = serving.clone();
                std::thread::spawn(move || drop(proxy.serve(stream, server)));
            }
        });
        proxy
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets how to answer from now on.
    pub fn set(&self, manner: Manner) {
        *self.state() = (manner, 0);
    }

    /// Returns the number of requests answered since the manner was set.
    pub fn answer_count(&self) -> u64 {
        self.state().1
    }

    fn state(&self) -> MutexGuard<'_, (Manner, u64)> {
        self.manner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one request and closes the connection.
    fn serve(&self, mut stream: TcpStream, server: u16) -> std::io::Result<()> {
        let request = read_request(&stream)?;
        let manner = self.state().0;
        let mut answer = |head: &str, body: &[u8], announced: usize| {
            let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {announced}\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(body)
        };
        // Counted before the answer is sent, because a test that waits for it may then change the manner.
        if manner != Manner::Passed {
            self.state().1 += 1;
        }
        match manner {
            Manner::Passed => {
                let mut onward = TcpStream::connect(("127.0.0.1", server))?;
                onward.write_all(&request)?;
                std::io::copy(&mut onward, &mut stream).map(drop)
            }
            Manner::Failed => answer("500 Internal Server Error", b"rpc error: No cluster leader", 28),
            Manner::Nonsense => answer("200 OK\r\nX-Consul-Index: soon", b"<html>it works</html>", 21),
            Manner::Half => answer("200 OK\r\nX-Consul-Index: 7", b"{\"a\": {\"ID\": \"a\", ", 4_000),
            Manner::WrongTypes => answer("200 OK", b"[{\"ID\": 5}, null, true]", 23),
            Manner::Hung => {
                while self.state().0 == Manner::Hung {
                    wait::pause(Duration::from_millis(20));
                }
                Ok(())
            }
            Manner::Huge => {
                let chunk = vec![b'x'; 1 << 20];
                let head = "HTTP/1.1 200 OK\r\nX-Consul-Index: 7\r\nConnection: close\r\n\r\n{\"";
                stream.write_all(head.as_bytes())?;
                // The client ends the connection when it has enough.
                (0..256).try_for_each(|_| stream.write_all(&chunk))
            }
        }
    }
}

/// Reads a whole request and adds `Connection: close`.
fn read_request(stream: &TcpStream) -> std::io::Result<Vec<u8>> {
    stream.set_read_timeout(Some(wait::PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut request = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if !lower.starts_with("connection:") {
            request.extend_from_slice(line.as_bytes());
        }
    }
    request.extend_from_slice(b"Connection: close\r\n\r\n");
    reader.take(length).read_to_end(&mut request)?;
    Ok(request)
}
