//! One gRPC call with a single request and a single response, over HTTP/2 on a Unix socket.
//!
//! In: a socket, a path, an encoded request, bounds. Out: the encoded response, or why there is none. Each call has a
//! connection of its own: a plugin that hangs, or that was replaced, affects no other call. If the deadline passes, the
//! connection is closed, which cancels the call in the plugin. Source of the protocol: `doc/PROTOCOL-HTTP2.md` of grpc/grpc.

use std::{
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    time::Duration,
};

use bytes::Bytes;
use herdlet_base::{http_client, safe_fs::proc_path};
use herdlet_runtime::off_thread;
use http::{
    HeaderMap, Request, StatusCode,
    header::{CONTENT_TYPE, HeaderName, TE, USER_AGENT},
};
use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;

use crate::error::{CallFailure, Code};

/// Limit for the headers and trailers of a response: a status with a message.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Where a call goes, and its bounds.
pub(crate) struct Exchange<'a> {
    pub(crate) socket: &'a Path,
    /// `/package.Service/Method`.
    pub(crate) path: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) response_bytes_max: usize,
}

impl Exchange<'_> {
    /// Sends a message and returns the response.
    pub(crate) async fn run(&self, message: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let overdue = |_| CallFailure::Overdue { deadline: self.deadline };
        tokio::time::timeout(self.deadline, self.run_unbounded(message)).await.map_err(overdue)?
    }

    async fn run_unbounded(&self, message: &[u8]) -> Result<Vec<u8>, CallFailure> {
        let request = self.request().map_err(|error| invalid(error.to_string()))?;
        let stream = connect(self.socket).await.map_err(|why| {
            let socket = self.socket.to_owned();
            CallFailure::Unreachable { socket, why }
        })?;
        let mut settings = h2::client::Builder::new();
        settings.enable_push(false).max_header_list_size(HEADERS_BYTES_MAX);
        let (sender, connection) = settings.handshake::<_, Bytes>(stream).await.map_err(interrupted)?;
        let response = async {
            let mut sender = sender.ready().await.map_err(interrupted)?;
            let (response, mut body) = sender.send_request(request, false).map_err(interrupted)?;
            body.send_data(frame(message)?, true).map_err(interrupted)?;
            self.read(response.await.map_err(interrupted)?).await
        };
        let connection = async {
            // The response reports its failure, too.
            let _ = connection.await;
            std::future::pending().await
        };
        tokio::select! {
            response = response => response,
            never = connection => never,
        }
    }

    fn request(&self) -> Result<Request<()>, http::Error> {
        Request::post(format!("http://localhost{}", self.path))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, http_client::USER_AGENT)
            .header(GRPC_TIMEOUT, format!("{}m", self.deadline.as_millis()))
            .body(())
    }

    async fn read(&self, response: http::Response<h2::RecvStream>) -> Result<Vec<u8>, CallFailure> {
        let (head, mut body) = response.into_parts();
        if head.status != StatusCode::OK {
            return Err(invalid(format!("its HTTP status is {}", head.status)));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("application/grpc") {
            return Err(invalid(format!("it is not gRPC; its content type is {kind:?}")));
        }
        // A response without a message has its status in the headers.
        if let Some(status) = status(&head.headers)? {
            status?;
        }
        let mut received = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(interrupted)?;
            if received.len() + chunk.len() > self.response_bytes_max + PREFIX_BYTES {
                return Err(invalid(format!("it is longer than {} bytes", self.response_bytes_max)));
            }
            body.flow_control().release_capacity(chunk.len()).map_err(interrupted)?;
            received.extend_from_slice(&chunk);
        }
        let trailers = body.trailers().await.map_err(interrupted)?.unwrap_or_default();
        status(&trailers)?.ok_or_else(|| invalid("it has no status".to_owned()))??;
        message(received)
    }
}

/// Connects to a socket. A plugin can write to the socket's directory: a link in place of the socket is not followed. The
/// path may be longer than the address of a socket can be.
async fn connect(path: &Path) -> Result<UnixStream, String> {
    let path = path.to_owned();
    let socket = off_thread(move || open(&path)).await.map_err(|error| error.to_string())??;
    let connected = UnixStream::connect(proc_path(socket.as_fd(), None)).await;
    connected.map_err(|error| error.to_string())
}

/// Opens a socket without connecting to it. Blocks as long as the file system does.
fn open(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let socket = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| error.to_string())?;
    let stat = rustix::fs::fstat(&socket).map_err(|error| error.to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err("it is not a socket".to_owned());
    }
    Ok(socket)
}

fn frame(message: &[u8]) -> Result<Bytes, CallFailure> {
    let length = u32::try_from(message.len()).map_err(|_| invalid("the request is too long".to_owned()))?;
    Ok([&[0], &length.to_be_bytes()[..], message].concat().into())
}

/// The only message of a body.
fn message(mut body: Vec<u8>) -> Result<Vec<u8>, CallFailure> {
    let prefix = body.first_chunk::<PREFIX_BYTES>().copied();
    let [compressed, length @ ..] = prefix.ok_or_else(|| invalid("it has no message".to_owned()))?;
    if compressed != 0 {
        return Err(invalid("its message is compressed".to_owned()));
    }
    let length = u32::from_be_bytes(length);
    if usize::try_from(length) != Ok(body.len() - PREFIX_BYTES) {
        let rest = body.len() - PREFIX_BYTES;
        return Err(invalid(format!("its message should have {length} bytes, and {rest} were received")));
    }
    Ok(body.split_off(PREFIX_BYTES))
}

/// The status in headers or trailers: `None` if there is none, an error if it can't be read.
fn status(headers: &HeaderMap) -> Result<Option<Result<(), CallFailure>>, CallFailure> {
    let Some(code) = headers.get("grpc-status") else { return Ok(None) };
    let number = code.to_str().ok().and_then(|code| code.parse().ok());
    let code = Code(number.ok_or_else(|| invalid(format!("its status is {code:?}")))?);
    if code == Code::OK {
        return Ok(Some(Ok(())));
    }
    let message = headers.get("grpc-message").map(|message| percent_decoded(message.as_bytes()));
    let message = message.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    Ok(Some(Err(CallFailure::Reported { code, message })))
}

/// Decodes `%XX`; anything else stays as it is.
fn percent_decoded(mut text: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut decoded = Vec::new();
    while let Some((&byte, rest)) = text.split_first() {
        let pair = rest.first_chunk::<2>().filter(|_| byte == b'%');
        let escaped = pair.and_then(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        decoded.push(escaped.unwrap_or(byte));
        text = if escaped.is_some() { rest.get(2..).unwrap_or_default() } else { rest };
    }
    decoded
}

fn invalid(why: String) -> CallFailure {
    CallFailure::Invalid { why }
}

/// A plugin that ends the connection may send a text with its reason. The error would contain it with escapes, in which
/// secrets are not found: only the reason is used.
fn interrupted(error: h2::Error) -> CallFailure {
    let reason = error.reason().filter(|_| error.is_go_away());
    CallFailure::Interrupted { why: reason.map_or_else(|| error.to_string(), |reason| reason.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_exactly_one_message() {
        assert_eq!(message(vec![0, 0, 0, 0, 2, 8, 1]), Ok(vec![8, 1]));
        assert_eq!(message(vec![0; 5]), Ok(vec![]));
        for (body, why) in [
            (vec![], "it has no message"),
            (vec![0, 0, 0, 0], "it has no message"),
            (vec![1, 0, 0, 0, 0], "its message is compressed"),
            (vec![0, 255, 255, 255, 255], "its message should have 4294967295 bytes, and 0 were received"),
            (vec![0, 0, 0, 0, 1, 8, 1], "its message should have 1 bytes, and 2 were received"),
        ] {
            assert_eq!(message(body), Err(invalid(why.to_owned())));
        }
    }

    #[test]
    fn statuses_are_numbers_with_an_encoded_message() {
        let with = |code: &str, message: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", code.parse().unwrap());
            headers.insert("grpc-message", message.parse().unwrap());
            status(&headers)
        };
        let reported =
            |code, message: &str| CallFailure::Reported { code: Code(code), message: message.into() };
        assert_eq!(status(&HeaderMap::new()), Ok(None));
        assert_eq!(with("0", ""), Ok(Some(Ok(()))));
        assert_eq!(with("5", "no%20volume%3A v%C3%A4"), Ok(Some(Err(reported(5, "no volume: vä")))));
        assert_eq!(with("13", "100% %4 %zz %ff"), Ok(Some(Err(reported(13, "100% %4 %zz \u{fffd}")))));
        assert_eq!(with("x", ""), Err(invalid("its status is \"x\"".to_owned())));
        assert_eq!(with("-1", ""), Err(invalid("its status is \"-1\"".to_owned())));
    }
}
