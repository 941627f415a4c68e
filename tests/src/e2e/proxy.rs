//! A proxy on loopback that passes requests on, or answers them in ways that no server should.
//!
//! In: the port of a server, and how to be. Out: an address. It ends with the test's process.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::wait;

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// By the server.
    Passed,
    /// With status 500.
    Failed,
    /// With a body that is no JSON.
    Nonsense,
    /// With the first half of what was announced.
    Half,
    /// With JSON of other types than expected, and no header of its own.
    WrongTypes,
    /// Not at all, until the manner changes.
    Hung,
    /// With more than anybody wants to keep.
    Huge,
}

impl Manner {
    /// All that are faults.
    pub const FAULTS: [Self; 6] =
        [Self::Failed, Self::Nonsense, Self::Half, Self::WrongTypes, Self::Hung, Self::Huge];
}

/// The proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    port: u16,
    manner: Arc<Mutex<(Manner, u64)>>,
}

impl Proxy {
    /// Before the server on this port.
    ///
    /// # Panics
    /// When there is no port left.
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

    /// Its address.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// From now on requests are answered like this.
    pub fn set(&self, manner: Manner) {
        *self.state() = (manner, 0);
    }

    /// How many requests were answered like this.
    pub fn answered(&self) -> u64 {
        self.state().1
    }

    fn state(&self) -> MutexGuard<'_, (Manner, u64)> {
        self.manner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request and the end of the connection.
    fn serve(&self, mut stream: TcpStream, server: u16) -> std::io::Result<()> {
        let request = read_request(&stream)?;
        let manner = self.state().0;
        let mut answer = |head: &str, body: &[u8], announced: usize| {
            let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\nContent-Length: {announced}\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(body)
        };
        // Noted before it is told: whoever waits for it may change the manner then.
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
                // Whoever has had enough ends the connection.
                (0..256).try_for_each(|_| stream.write_all(&chunk))
            }
        }
    }
}

/// A whole request, changed so that it is the connection's last.
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
