//! An exec session: a websocket with Nomad's JSON frames, over the client's connection.

use base64::{Engine, engine::general_purpose::STANDARD};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use reqwest::{RequestBuilder, Upgraded, header};
use serde::Deserialize;
use serde_json::json;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, handshake::client::generate_key, protocol::Role},
};

use super::{Client, ClientError, Effect, Result};

pub struct ExecSocket {
    input: ExecInput,
    output: SplitStream<WebSocketStream<Upgraded>>,
}

/// The writing side of a session.
pub struct ExecInput(SplitSink<WebSocketStream<Upgraded>, Message>);

/// A frame of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecFrame {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The command exited with this code.
    Exited(i32),
}

impl ExecSocket {
    pub(super) async fn open(client: &Client, request: RequestBuilder) -> Result<Self> {
        let request = request
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header(header::SEC_WEBSOCKET_VERSION, "13")
            .header(header::SEC_WEBSOCKET_KEY, generate_key());
        let upgraded = client.send(request).await?.upgrade().await;
        let upgraded = upgraded.map_err(|error| super::broken(&error, Effect::Open))?;
        let socket = WebSocketStream::from_raw_socket(upgraded, Role::Client, None).await;
        let (input, output) = socket.split();
        Ok(Self { input: ExecInput(input), output })
    }

    /// Splits the session for concurrent use of both directions.
    pub fn split(self) -> (ExecInput, ExecOutput) {
        (self.input, ExecOutput(self.output))
    }
}

/// The reading side of a session.
pub struct ExecOutput(SplitStream<WebSocketStream<Upgraded>>);

impl ExecOutput {
    /// The next frame; none if the session ended without an exit code.
    ///
    /// # Errors
    /// The agent's error, or when the connection breaks.
    pub async fn next(&mut self) -> Result<Option<ExecFrame>> {
        while let Some(message) = self.0.next().await {
            match message.map_err(|error| gone(&error))? {
                Message::Text(text) => {
                    if let Some(frame) = read_frame(&text)? {
                        return Ok(Some(frame));
                    }
                }
                Message::Close(Some(close)) if !close.reason.is_empty() => {
                    let status = if u16::from(close.code) == 1011 { 500 } else { 400 };
                    return Err(ClientError::Status { status, message: close.reason.to_string() });
                }
                Message::Close(_) => return Ok(None),
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
        Ok(None)
    }
}

impl ExecInput {
    /// Sends bytes for standard input.
    ///
    /// # Errors
    /// When the connection is broken; the same below.
    pub async fn stdin(&mut self, bytes: &[u8]) -> Result<()> {
        self.send(&json!({ "stdin": { "data": STANDARD.encode(bytes) } })).await
    }

    /// Closes standard input.
    pub async fn end(&mut self) -> Result<()> {
        self.send(&json!({ "stdin": { "close": true } })).await
    }

    /// Sends the new size of the terminal.
    pub async fn resize(&mut self, height: u16, width: u16) -> Result<()> {
        self.send(&json!({ "tty_size": { "height": height, "width": width } })).await
    }

    /// Tells the agent that the client is still there.
    pub async fn heartbeat(&mut self) -> Result<()> {
        self.send(&json!({})).await
    }

    async fn send(&mut self, frame: &serde_json::Value) -> Result<()> {
        let sent = self.0.send(Message::text(frame.to_string())).await;
        sent.map_err(|error| gone(&error))
    }
}

fn read_frame(text: &str) -> Result<Option<ExecFrame>> {
    #[derive(Deserialize)]
    struct Frame {
        stdout: Option<Output>,
        stderr: Option<Output>,
        #[serde(default)]
        exited: bool,
        result: Option<Exit>,
        error: Option<Failed>,
    }
    #[derive(Deserialize)]
    struct Failed {
        message: String,
    }
    #[derive(Deserialize)]
    struct Output {
        #[serde(default)]
        data: String,
    }
    #[derive(Deserialize)]
    struct Exit {
        #[serde(default)]
        exit_code: i32,
    }
    let frame: Frame = serde_json::from_str(text).map_err(|error| unfit(error.to_string()))?;
    if let Some(Failed { message }) = frame.error {
        return Err(ClientError::Status { status: 500, message });
    }
    let bytes = |output: Output| STANDARD.decode(output.data).map_err(|error| unfit(error.to_string()));
    if frame.exited {
        return Ok(Some(ExecFrame::Exited(frame.result.map_or(0, |exit| exit.exit_code))));
    }
    if let Some(output) = frame.stdout {
        return Ok(Some(ExecFrame::Stdout(bytes(output)?)).filter(has_bytes));
    }
    if let Some(output) = frame.stderr {
        return Ok(Some(ExecFrame::Stderr(bytes(output)?)).filter(has_bytes));
    }
    Ok(None)
}

fn has_bytes(frame: &ExecFrame) -> bool {
    match frame {
        ExecFrame::Stdout(bytes) | ExecFrame::Stderr(bytes) => !bytes.is_empty(),
        ExecFrame::Exited(_) => true,
    }
}

fn unfit(why: String) -> ClientError {
    ClientError::Answer { what: "exec".to_owned(), why }
}

/// The connection broke, for instance because the agent ended. The command ends with its session.
fn gone(error: &tungstenite::Error) -> ClientError {
    ClientError::Broken { why: error.to_string(), effect: Effect::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_and_errors_are_complete() {
        let read = |text: &str| read_frame(text).unwrap();
        assert_eq!(read("{}"), None);
        assert_eq!(read(r#"{"stdout":{"data":"aGk="}}"#), Some(ExecFrame::Stdout(b"hi".to_vec())));
        assert_eq!(read(r#"{"exited":true,"result":{"exit_code":3}}"#), Some(ExecFrame::Exited(3)));
        let long = "no such file ".repeat(50);
        let refused = read_frame(&json!({ "error": { "message": long } }).to_string()).unwrap_err();
        assert_eq!(refused.to_string(), long);
    }
}
