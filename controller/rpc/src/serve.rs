//! Incoming calls over a connection.
//!
//! In: streams that the peer opens, or a connection without streams. Out: calls to a [`Service`], sequential per stream, and its replies in
//! the format of Go's `net/rpc`. [`mux`](crate::mux) bounds the number of streams. An error or a panic in one call affects no other.
//!
//! Facts: `hashicorp/nomad:client/rpc.go` (`handleConn`), Go's `net/rpc/server.go` (`ServeRequest`).

use std::{future::Future, sync::Arc, time::Duration};

use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinSet,
};

use crate::{
    codec::{self, DecodeError, EncodeError, Limits},
    error::{MessageError, Refusal},
    framed::Framed,
    message::{self, PLAIN, Reader, Request, Response, STREAMING, StreamAck, StreamHeader},
    mux::{Incoming, Io, Mux},
};

/// How long a stream may take to send its kind byte.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// The caller.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address, for logs.
    pub address: String,
    /// The connection over which we can call the peer; `None` for connections without streams and for those of a [`pool`](crate::pool).
    pub mux: Option<Mux>,
}

/// The arguments of a call.
pub struct Call {
    /// `Service.Method`.
    pub method: String,
    body: Vec<u8>,
}

impl Call {
    /// A call with these arguments, for callers in the same process as the service.
    ///
    /// # Errors
    /// If they cannot be encoded.
    pub fn new<T: Serialize + ?Sized>(method: &str, arguments: &T) -> Result<Self, EncodeError> {
        Ok(Self { method: method.to_owned(), body: codec::encode(arguments)? })
    }

    /// Decodes the arguments.
    ///
    /// # Errors
    /// If they have another type.
    pub fn arguments<T: serde::de::DeserializeOwned>(&self) -> Result<T, DecodeError> {
        // The limits were checked on arrival.
        codec::decode(&self.body)
    }
}

/// Handles incoming calls.
pub trait Service: Send + Sync + 'static {
    /// Handles a call and returns the reply, encoded by [`answer`]. The future runs to completion even if the peer disconnects.
    fn call(&self, peer: &Peer, call: Call) -> impl Future<Output = Result<Vec<u8>, Refusal>> + Send;

    /// The limits for a call's arguments. Every open stream can hold that much, so raise them only for services that receive large
    /// arguments, as servers do.
    fn limits(&self) -> Limits {
        Limits::ARGUMENTS
    }

    /// Whether the streaming method exists.
    fn streams(&self, method: &str) -> bool;

    /// Handles an accepted streaming call: reads its arguments ([`Framed::arguments`]) and exchanges messages. The caller of this function
    /// finishes the stream.
    fn stream(
        &self,
        peer: &Peer,
        method: String,
        stream: &mut Framed<Box<dyn Io>>,
    ) -> impl Future<Output = ()> + Send;
}

/// A service without methods, for peers that only make calls.
#[derive(Debug, Clone, Copy)]
pub struct Unserved;

impl Service for Unserved {
    async fn call(&self, _: &Peer, _: Call) -> Result<Vec<u8>, Refusal> {
        Err(Refusal::UnknownService)
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    async fn stream(&self, _: &Peer, _: String, _: &mut Framed<Box<dyn Io>>) {}
}

/// Encodes a reply.
///
/// # Errors
/// If it cannot be encoded.
pub fn answer<T: Serialize + ?Sized>(reply: &T) -> Result<Vec<u8>, Refusal> {
    codec::encode(reply).map_err(|error| Refusal::Error(format!("failed to {error}")))
}

/// Serves the peer's streams until the connection ends, then waits for the calls in progress. Dropping this future drops them too.
pub async fn serve<S: Service>(mut incoming: Incoming, service: Arc<S>, peer: Peer) {
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            stream = incoming.recv() => match stream {
                Some(stream) => {
                    let (service, peer) = (Arc::clone(&service), peer.clone());
                    streams.spawn(async move { of_any_kind(stream, &*service, &peer).await });
                }
                None => break,
            },
            Some(served) = streams.join_next() => report(served),
        }
    }
    while let Some(served) = streams.join_next().await {
        report(served);
    }
}

fn report(served: Result<Result<(), MessageError>, tokio::task::JoinError>) {
    match served {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a peer's stream failed"),
        Err(error) => tracing::error!(%error, "the handler of a peer's stream panicked"),
    }
}

/// Serves one stream, whose first byte gives its kind.
async fn of_any_kind<S: Service>(mut stream: impl Io, service: &S, peer: &Peer) -> Result<(), MessageError> {
    let first = tokio::time::timeout(FIRST_BYTE, stream.read_u8()).await;
    match first.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))? {
        PLAIN => plain(stream, service, peer).await,
        STREAMING => streaming(stream, service, peer).await,
        // Unknown kind: the stream is reset.
        0 | 2..=4 | 6.. => Ok(()),
    }
}

/// Answers requests until the stream ends.
///
/// # Errors
/// If the stream is lost, or a request cannot be decoded.
pub async fn plain<S: Service>(stream: impl Io, service: &S, peer: &Peer) -> Result<(), MessageError> {
    let mut reader = Reader::new(stream);
    while let Some(header) = reader.next(Limits::HEADER).await? {
        let Request { seq, service_method } = codec::decode(&header)?;
        let body = reader.next(service.limits()).await?.ok_or(MessageError::Ended)?;
        let call = Call { method: service_method.clone(), body };
        let answered = service.call(peer, call).await;
        let goes_on = !matches!(answered, Err(Refusal::UnknownMethod | Refusal::UnknownService));
        let (error, body) = match answered {
            Ok(body) => (String::new(), body),
            // An empty map.
            Err(refusal) => (refusal.text(&service_method), vec![0x80]),
        };
        let mut bytes = codec::encode(&Response { error, seq, service_method })?;
        bytes.extend(body);
        message::write(reader.io(), &bytes).await?;
        if !goes_on {
            break;
        }
    }
    Ok(reader.io().shutdown().await?)
}

/// Serves a stream's single streaming call.
///
/// # Errors
/// If the stream is lost, or a message cannot be decoded.
pub async fn streaming<S: Service>(stream: impl Io, service: &S, peer: &Peer) -> Result<(), MessageError> {
    let stream: Box<dyn Io> = Box::new(stream);
    let mut framed = Framed::new(stream);
    let StreamHeader { method } = framed.read(Limits::HEADER).await?;
    if service.streams(&method) {
        framed.send(&StreamAck::default()).await?;
        service.stream(peer, method, &mut framed).await;
    } else {
        framed.send(&StreamAck { error: format!("Unknown rpc method: {method:?}") }).await?;
    }
    framed.finish().await
}

#[cfg(test)]
mod tests;
