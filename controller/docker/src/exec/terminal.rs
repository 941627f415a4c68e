//! Attaching to a command with a terminal.
//!
//! In: an engine's socket, the command's id. Out: its output, byte by byte as it comes. bollard takes a piece that begins with a byte of 0
//! to 2 for the head of a frame, whose length the program in the container then chooses.

use std::{io, path::Path};

use bollard::{container::LogOutput, errors::Error};
use futures_util::{StreamExt as _, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
};
use tokio_util::{bytes::Bytes, io::ReaderStream};

use super::{Input, Output};

const BODY: &str = r#"{"Detach":false,"Tty":true}"#;
/// The longest head of an answer, and the longest error.
const HEAD_MAX: usize = 16 * 1024;
const END: &[u8] = b"\r\n\r\n";

/// Starts the command and attaches to it.
///
/// # Errors
/// The engine's.
pub(super) async fn attach(socket: &Path, id: &str) -> Result<(Output, Input), Error> {
    let mut stream = UnixStream::connect(socket).await?;
    let len = BODY.len();
    let request = format!(
        "POST /exec/{id}/start HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{BODY}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::new();
    let end = loop {
        if let Some(at) = head.windows(END.len()).position(|part| part == END) {
            break at + END.len();
        }
        if head.len() >= HEAD_MAX || stream.read_buf(&mut head).await? == 0 {
            return Err(io::Error::other("the engine's answer has no end").into());
        }
    };
    let first = Bytes::copy_from_slice(head.get(end..).unwrap_or_default());
    let text = String::from_utf8_lossy(head.get(..end).unwrap_or_default()).into_owned();
    let status = text.split_ascii_whitespace().nth(1).and_then(|code| code.parse::<u16>().ok()).unwrap_or(0);
    // Engines of some age answer 200, and the connection is the terminal's all the same.
    if !matches!(status, 101 | 200) {
        return Err(refusal(status, first, stream).await);
    }
    let (output, input) = stream.into_split();
    let rest = ReaderStream::new(output).map(|piece| piece.map_err(Error::from));
    let pieces = stream::iter([Ok(first)]).chain(rest);
    let output = pieces.map(|piece| piece.map(|message| LogOutput::Console { message }));
    Ok((output.boxed(), Box::pin(input)))
}

/// The engine's error, a JSON object of which nothing follows.
async fn refusal(status_code: u16, first: Bytes, stream: UnixStream) -> Error {
    let mut body = first.to_vec();
    let mut stream = stream.take(HEAD_MAX as u64);
    while !body.trim_ascii_end().ends_with(b"}") {
        match stream.read_buf(&mut body).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    let text = String::from_utf8_lossy(&body);
    let object = text.find('{').zip(text.rfind('}')).and_then(|(from, to)| text.get(from..=to));
    let object = object.and_then(|object| serde_json::from_str::<serde_json::Value>(object).ok());
    let message = object.and_then(|object| Some(object.get("message")?.as_str()?.to_owned()));
    Error::DockerResponseServerError { status_code, message: message.unwrap_or_else(|| text.into_owned()) }
}
