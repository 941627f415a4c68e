//! Calls over a connection, as the one who is called.
//!
//! In: streams that the peer opens, or a connection without streams. Out: calls to a [`Service`], one by one of each stream, and its
//! answers in the words of Go's `net/rpc`. How many streams there are at a time is bounded by [`mux`](crate::mux). What one call does, or a
//! panic in it, touches no other.
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

/// How long a stream may take to say what it is.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Who calls.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address, for logs.
    pub address: String,
    /// The connection over which it may be called in turn; none where it has no streams.
    pub mux: Option<Mux>,
}

/// The arguments of a call.
pub struct Call {
    /// `Service.Method`.
    pub method: String,
    body: Vec<u8>,
}

impl Call {
    /// A call with these arguments, for who has no connection between them and the service.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn new<T: Serialize + ?Sized>(method: &str, arguments: &T) -> Result<Self, EncodeError> {
        Ok(Self { method: method.to_owned(), body: codec::encode(arguments)? })
    }

    /// The arguments.
    ///
    /// # Errors
    /// When they have other types.
    pub fn arguments<T: serde::de::DeserializeOwned>(&self) -> Result<T, DecodeError> {
        // Its bounds were looked at when it came.
        codec::decode(&self.body)
    }
}

/// What can be called.
pub trait Service: Send + Sync + 'static {
    /// Does a call and says what is answered, as made by [`answer`]. Is not dropped before its end, also where the peer has gone.
    fn call(&self, peer: &Peer, call: Call) -> impl Future<Output = Result<Vec<u8>, Refusal>> + Send;

    /// What the arguments of a call may have. As many calls as there are streams may bring them at a time, so only who is told large
    /// things, as servers are, does well to take more.
    fn limits(&self) -> Limits {
        Limits::ARGUMENTS
    }

    /// Whether there is such a streaming method.
    fn streams(&self, method: &str) -> bool;

    /// Does a streaming call that was accepted: reads its arguments ([`Framed::arguments`]), and whatever else the method is about. The
    /// stream is finished afterwards.
    fn stream(
        &self,
        peer: &Peer,
        method: String,
        stream: &mut Framed<Box<dyn Io>>,
    ) -> impl Future<Output = ()> + Send;
}

/// Nothing can be called: for whoever only calls.
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

/// A reply to a call.
///
/// # Errors
/// When it can't be written.
pub fn answer<T: Serialize + ?Sized>(reply: &T) -> Result<Vec<u8>, Refusal> {
    codec::encode(reply).map_err(|error| Refusal::Error(format!("failed to {error}")))
}

/// Serves the streams that a peer opens, until its connection is no more; then waits for the calls that are under way. Dropped before, it
/// drops them too.
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
        Ok(Err(error)) => tracing::debug!(%error, "a stream of a peer ended"),
        Err(error) => tracing::error!(%error, "serving a stream of a peer has panicked"),
    }
}

/// Serves one stream, which says by its first byte of which kind it is.
async fn of_any_kind<S: Service>(mut stream: impl Io, service: &S, peer: &Peer) -> Result<(), MessageError> {
    let first = tokio::time::timeout(FIRST_BYTE, stream.read_u8()).await;
    match first.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))? {
        PLAIN => plain(stream, service, peer).await,
        STREAMING => streaming(stream, service, peer).await,
        // Of no kind that there is: it is reset.
        0 | 2..=4 | 6.. => Ok(()),
    }
}

/// Answers requests until there are no more.
///
/// # Errors
/// When the stream is no more, or a request can't be understood.
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

/// Serves the one streaming call for which a stream was opened.
///
/// # Errors
/// When the stream is no more, or what is asked for can't be understood.
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
