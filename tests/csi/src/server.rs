//! gRPC over HTTP/2 on a Unix socket, for calls with one request and one response.
//!
//! In: requests. Out: the plugin's responses, or what a fault demands in their place.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use h2::{RecvStream, SendStream, server::SendResponse};
use herdlet_csi::error::Code;
use http::{HeaderMap, Request, Response};
use tokio::net::{UnixListener, UnixStream};

use crate::{
    faults::{self, Effect, Moment},
    plugin::Plugin,
};

/// A longer request is refused.
const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

type SendResult = Result<(), h2::Error>;

/// Serves until the process ends.
pub async fn serve(listener: UnixListener, plugin: Plugin) {
    let plugin = Arc::new(plugin);
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(stream, Arc::clone(&plugin)));
    }
}

async fn connection(stream: UnixStream, plugin: Arc<Plugin>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let (close, mut closed) = tokio::sync::mpsc::channel(1);
    loop {
        tokio::select! {
            _ = closed.recv() => return,
            accepted = connection.accept() => {
                let Some(Ok((request, response))) = accepted else { return };
                let call = Call { plugin: Arc::clone(&plugin), close: close.clone() };
                tokio::spawn(async move {
                    // The client may have closed its connection.
                    let _ = call.run(request, response).await;
                });
            }
        }
    }
}

struct Call {
    plugin: Arc<Plugin>,
    close: tokio::sync::mpsc::Sender<()>,
}

impl Call {
    async fn run(&self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> SendResult {
        let path = request.uri().path().to_owned();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let message = read(request.into_body()).await?;
        let fault = match faults::take(self.plugin.data(), &name) {
            Ok(fault) => fault,
            Err(error) => return send_status(&mut respond, Code::INTERNAL, &error.to_string()),
        };
        let Some(fault) = fault else { return send(&mut respond, self.plugin.call(&path, &message)) };
        if let (Moment::BeforeCall, Effect::Delay(time)) = (fault.moment, &fault.effect) {
            tokio::time::sleep(*time).await;
        } else if fault.moment == Moment::BeforeCall {
            return self.fail(fault.effect, respond).await;
        }
        let result = self.plugin.call(&path, &message);
        match (fault.moment, &fault.effect) {
            (Moment::BeforeCall, _) => send(&mut respond, result),
            (Moment::AfterCall, Effect::Delay(time)) => {
                tokio::time::sleep(*time).await;
                send(&mut respond, result)
            }
            (Moment::AfterCall, _) => self.fail(fault.effect, respond).await,
        }
    }

    async fn fail(&self, effect: Effect, mut respond: SendResponse<Bytes>) -> SendResult {
        match effect {
            Effect::Hang => std::future::pending().await,
            Effect::Die => std::process::abort(),
            Effect::Close => {
                let _ = self.close.send(()).await;
                Ok(())
            }
            Effect::Delay(_) | Effect::Nothing => send(&mut respond, Ok(Vec::new())),
            Effect::Status(code, text) => send_status(&mut respond, Code(code), &text),
            // A field of wire type 7, which does not exist.
            Effect::Garbage => send(&mut respond, Ok(vec![0xff; 64])),
            Effect::Truncated => {
                let mut body = respond.send_response(head(), false)?;
                body.send_data(Bytes::from_static(&[0, 0, 0, 0, 9, 8]), false)?;
                body.send_trailers(status(Code::OK, ""))
            }
            Effect::Endless => endless(respond.send_response(head(), false)?).await,
            Effect::Statusless => {
                let mut body = respond.send_response(head(), false)?;
                body.send_data(frame(&[]), true)
            }
            Effect::Html => {
                let mut head = Response::new(());
                head.headers_mut().insert("content-type", http::HeaderValue::from_static("text/html"));
                respond.send_response(head, false)?.send_data(Bytes::from_static(b"<html>"), true)
            }
        }
    }
}

async fn read(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut received = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        received.extend_from_slice(&chunk);
        if received.len() > REQUEST_BYTES_MAX {
            break;
        }
    }
    // Not compressed, and its length.
    received.drain(..received.len().min(5));
    Ok(received)
}

fn send(respond: &mut SendResponse<Bytes>, result: Result<Vec<u8>, (Code, String)>) -> SendResult {
    match result {
        Ok(message) => {
            let mut body = respond.send_response(head(), false)?;
            body.send_data(frame(&message), false)?;
            body.send_trailers(status(Code::OK, ""))
        }
        Err((code, text)) => send_status(respond, code, &text),
    }
}

fn send_status(respond: &mut SendResponse<Bytes>, code: Code, text: &str) -> SendResult {
    let mut head = head();
    head.headers_mut().extend(status(code, text));
    respond.send_response(head, true).map(drop)
}

/// Sends until the client ends the connection.
async fn endless(mut body: SendStream<Bytes>) -> SendResult {
    body.send_data(Bytes::from_static(&[0, 255, 255, 255, 255]), false)?;
    loop {
        body.reserve_capacity(16 * 1024);
        if body.capacity() > 0 {
            body.send_data(Bytes::from(vec![0; body.capacity()]), false)?;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn head() -> Response<()> {
    let mut head = Response::new(());
    head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    head
}

fn frame(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

fn status(code: Code, text: &str) -> HeaderMap {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && *byte != b'%';
    let escaped: String = text
        .bytes()
        .map(|byte| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", code.0.into());
    if let Ok(text) = escaped.parse() {
        headers.insert("grpc-message", text);
    }
    headers
}
