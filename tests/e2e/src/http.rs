//! One HTTP request over a unix socket or loopback TCP, to poll an API without starting a program each time.
//!
//! In: a peer, method, path, headers, body. Out: status and body, or `None` if nobody answers.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Maximum wait for an answer, as for all events.
const TIMEOUT: Duration = super::wait::PATIENCE;

/// Maximum wait of one of several tries. A connection that began while its network was repaired can stay silent for minutes.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);

/// The address of an API.
#[derive(Debug, Clone)]
pub enum Peer {
    Socket(PathBuf),
    /// A port of 127.0.0.1.
    Port(u16),
    /// A port of 127.0.0.1 that requires a token.
    Guarded(u16, &'static str),
}

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    /// Parses the body as JSON.
    ///
    /// # Panics
    /// If it isn't JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("the body is not JSON ({error}): {}", self.body))
    }
}

/// Sends a GET request.
pub fn get(peer: &Peer, path: &str) -> Option<Answer> {
    request(peer, "GET", path, &[], "")
}

/// Sends a GET request with a short timeout to a port of 127.0.0.1: for tests that poll a task until it answers.
pub fn poll_task(port: u16, path: &str) -> Option<Answer> {
    let stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), TRY_TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TRY_TIMEOUT)).ok()?;
    talk(stream, &written("GET", path, &[], ""))
}

/// A pending request on a unix socket.
#[derive(Debug)]
pub struct PendingHttp(UnixStream);

impl PendingHttp {
    /// Returns whether the response, or the end of the connection, has arrived.
    pub fn is_answered(&self) -> bool {
        let mut waited = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut waited, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Returns the response; `None` if the connection broke before it was complete.
    pub fn answer(self) -> Option<Answer> {
        read_answer(self.0)
    }
}

/// Sends a request to a unix socket without waiting for the response. `None` if nobody listens.
pub fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Option<PendingHttp> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.write_all(written(method, path, &[("Content-Type", "application/json")], body).as_bytes()).ok()?;
    Some(PendingHttp(stream))
}

/// Sends a request. `None` if nobody listens or the connection breaks.
pub fn request(
    peer: &Peer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<Answer> {
    let text = written(method, path, headers, body);
    match peer {
        Peer::Socket(path) => {
            let stream = UnixStream::connect(path).ok()?;
            stream.set_read_timeout(Some(TIMEOUT)).ok()?;
            talk(stream, &text)
        }
        Peer::Port(port) => over_tcp(*port, &text),
        Peer::Guarded(port, token) => {
            let headers: Vec<_> = headers.iter().copied().chain([("X-Nomad-Token", *token)]).collect();
            over_tcp(*port, &written(method, path, &headers, body))
        }
    }
}

fn over_tcp(port: u16, text: &str) -> Option<Answer> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    talk(stream, text)
}

/// Returns the mode of the socket.
pub fn socket_mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::symlink_metadata(path).ok().map(|found| found.permissions().mode() & 0o777)
}

fn written(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
    text
}

fn talk(mut stream: impl Read + Write, text: &str) -> Option<Answer> {
    stream.write_all(text.as_bytes()).ok()?;
    read_answer(stream)
}

fn read_answer(mut stream: impl Read) -> Option<Answer> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked =
        head.lines().any(|line| line.to_ascii_lowercase().replace(' ', "") == "transfer-encoding:chunked");
    let body = if chunked { joined(body) } else { body.to_owned() };
    Some(Answer { status, body })
}

/// Decodes a chunked body (RFC 9112, section 7.1).
fn joined(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((len, rest)) = body.split_once("\r\n") {
        let len = usize::from_str_radix(len.trim(), 16).unwrap_or(0);
        if len == 0 || rest.len() < len {
            break;
        }
        let Some(chunk) = rest.get(..len) else { break };
        out.push_str(chunk);
        body = rest.get(len..).unwrap_or_default().trim_start_matches("\r\n");
    }
    out
}
