//! Many streams over one connection: yamux, with what Nomad's peers expect of it.
//!
//! In: a connection whose first byte has passed. Out: streams that we open, streams that the peer opens ([`Incoming`]), and why it
//! ended. A task of its own drives it until the peer goes, [`Mux::close`] is called or the last handle is dropped.
//!
//! ```text
//!   Mux::open ──► ┌────────┐ ◄──► yamux ◄──► frame::Watched ◄──► socket
//!   Incoming  ◄── │ driver │
//!                 └────────┘
//! ```
//!
//! Everything is bounded: [`STREAMS`] of each side, on a server twice those of its client, 256 KiB of unread bytes in each. Who opens more
//! is told so by a reset of the stream. That is a bound on bytes and not quite on memory: a peer that sends them one by one makes us keep
//! some 64 for each. And two peers of this crate that both write without reading could wait for each other for ever, since it does not read
//! while it can't answer; a Go peer reads always. The peer's pings are answered; we send some while there is traffic, but none to learn
//! whether an idle peer lives: that is what TCP (`connect.rs`) and deadlines of calls are for.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, BufStream},
    sync::{Semaphore, mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::Lost,
    frame::{Seen, WINDOW, Watched},
    stream::Stream,
};

/// Streams of each side at a time: as many as Go's peers leave unacknowledged.
pub const STREAMS: usize = 256;

/// Streams of its clients that a server has at a time: as many again may have ended for the client, which opens others, and not yet for us.
const STREAMS_SERVED: usize = 2 * STREAMS;

/// Streams that the crate keeps, with those that were dropped and not yet forgotten. It gives the connection up at one more.
const STREAMS_KEPT: usize = 4 * STREAMS;

/// How long a peer may take to read our farewell.
const FAREWELL: Duration = Duration::from_secs(5);

/// Room that each connection has for what it reads, always: a heartbeat's answer or a few small frames.
const READ_BYTES: usize = 1_024;

/// The same for what it writes: a heartbeat, or a report on an allocation.
const WRITE_BYTES: usize = 2 * 1_024;

/// What bytes go over: TCP, TLS, or anything in tests.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Which side of the connection we are: who has dialled is the client, and numbers its streams oddly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We have dialled.
    Client,
    /// The peer has.
    Server,
}

/// Streams that the peer opens. Where nobody receives them they are reset.
pub type Incoming = mpsc::Receiver<Box<Stream>>;

/// A handle of a connection. With the last one that is dropped it is closed.
#[derive(Debug, Clone)]
pub struct Mux {
    open: mpsc::Sender<oneshot::Sender<yamux::Stream>>,
    room: Arc<Semaphore>,
    /// How many streams of the peer there may be, and room for them.
    peers: usize,
    peers_room: Arc<Semaphore>,
    close: CancellationToken,
    ended: watch::Receiver<Option<Lost>>,
    seen: Arc<Seen>,
    /// Cancelled once streams carry nothing any more.
    gone: CancellationToken,
}

impl Mux {
    /// Begins to drive a connection, on the present runtime.
    pub fn start(io: impl Io, side: Side) -> (Self, Incoming) {
        let (open, opens) = mpsc::channel(STREAMS);
        let peers = match side {
            Side::Client => STREAMS,
            Side::Server => STREAMS_SERVED,
        };
        let (incoming, streams) = mpsc::channel(peers);
        let (close, gone) = (CancellationToken::new(), CancellationToken::new());
        let (end, ended) = watch::channel(None);
        // A frame's head and a short body in one write, and several of them in one read. Long bodies pass by.
        let (io, seen) = Watched::new(BufStream::with_capacity(READ_BYTES, WRITE_BYTES, io));
        let mode = match side {
            Side::Client => yamux::Mode::Client,
            Side::Server => yamux::Mode::Server,
        };
        let connection = yamux::Connection::new(io, config(), mode);
        let room = |streams| Arc::new(Semaphore::new(streams));
        let mux =
            Self { open, room: room(STREAMS), peers, peers_room: room(peers), close, ended, seen, gone };
        let driver = Driver {
            connection,
            opens,
            closing: mux.close.clone(),
            gone: mux.gone.clone(),
            seen: Arc::clone(&mux.seen),
            incoming,
            room: Arc::clone(&mux.peers_room),
        };
        tokio::spawn(async move {
            // Streams end with the driver, however it ends.
            let _gone = driver.gone.clone().drop_guard();
            let known = Arc::clone(&driver.seen);
            let why = driver.run().await;
            known.ends(why);
            end.send_replace(known.end());
        });
        (mux, streams)
    }

    /// Opens a stream, of which the peer learns with the first byte that is written. Waits while there are [`STREAMS`] of ours.
    ///
    /// # Errors
    /// When the connection is no more.
    pub async fn open(&self) -> Result<Stream, Lost> {
        let opened = async {
            let room = Arc::clone(&self.room).acquire_owned().await.ok()?;
            let (reply, stream) = oneshot::channel();
            self.open.send(reply).await.ok()?;
            Some(Stream::new(stream.await.ok()?, room, Arc::clone(&self.seen), &self.gone))
        };
        tokio::select! {
            biased;
            // Whoever has the streams that fill the room may keep them.
            () = self.gone.cancelled() => {}
            stream = opened => if let Some(stream) = stream {
                return Ok(stream);
            },
        }
        match self.lost() {
            Some(why) => Err(why),
            None => Err(self.ended().await),
        }
    }

    /// Whether a stream can be opened without waiting for another one to end.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.room.available_permits() > 0
    }

    /// Whether the peer has streams that it has opened.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.peers_room.available_permits() < self.peers
    }

    /// Takes leave and closes. Streams end.
    pub fn close(&self) {
        self.seen.ends(Lost::Closed);
        self.close.cancel();
    }

    /// Waits until the connection is no more, our farewell included, and says why.
    pub async fn ended(&self) -> Lost {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or(Lost::Closed)
    }

    /// Why the connection is no more, or is about to be; none while it can be used.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        // Without a word the driver ends only by a panic.
        self.seen.end().or_else(|| self.ended.has_changed().is_err().then_some(Lost::Closed))
    }

    /// How many bytes the peer has sent: whether it still says anything.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.seen.received()
    }
}

fn config() -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(STREAMS_KEPT);
    // No more than each stream has from the beginning: see `WINDOW`.
    config.set_max_connection_receive_window(Some(STREAMS_KEPT * WINDOW as usize));
    config
}

struct Driver<T> {
    connection: yamux::Connection<Watched<BufStream<T>>>,
    opens: mpsc::Receiver<oneshot::Sender<yamux::Stream>>,
    closing: CancellationToken,
    gone: CancellationToken,
    seen: Arc<Seen>,
    incoming: mpsc::Sender<Box<Stream>>,
    /// For streams of the peer.
    room: Arc<Semaphore>,
}

enum Event {
    Opened(yamux::Stream),
    Came(yamux::Stream),
    Ended(Lost),
}

impl<T: Io> Driver<T> {
    async fn run(mut self) -> Lost {
        let mut asked = None;
        loop {
            let is_asked = asked.is_some();
            tokio::select! {
                // Whoever takes leave drops its streams as well: the peer hears of an end, not of resets.
                biased;
                // Where all handles are gone, or one of them says so.
                () = self.closing.cancelled() => break,
                reply = self.opens.recv(), if !is_asked => match reply {
                    Some(reply) => asked = Some(reply),
                    None => break,
                },
                event = next(&mut self.connection, is_asked) => match event {
                    // Who has asked may have gone: then it is reset, before the peer has heard of it.
                    Event::Opened(stream) => asked = asked.take().and_then(|reply: oneshot::Sender<_>| {
                        let _ = reply.send(stream);
                        None
                    }),
                    Event::Came(stream) => self.came(stream),
                    Event::Ended(why) => return why,
                },
            }
        }
        self.seen.ends(Lost::Closed);
        self.gone.cancel();
        let farewell = poll_fn(|cx| self.connection.poll_close(cx));
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
        Lost::Closed
    }

    fn came(&self, stream: yamux::Stream) {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!(stream = %stream.id(), "the peer opens too many streams; this one is reset");
            return;
        };
        let mut stream = Stream::new(stream, room, Arc::clone(&self.seen), &self.gone);
        stream.acknowledge();
        // There is room for as many as have a permit.
        let _ = self.incoming.try_send(Box::new(stream));
    }
}

/// Drives the connection until something has happened.
async fn next<T: Io>(connection: &mut yamux::Connection<Watched<BufStream<T>>>, open: bool) -> Event {
    poll_fn(|cx| {
        if open && let Poll::Ready(opened) = connection.poll_new_outbound(cx) {
            return Poll::Ready(opened.map_or_else(|error| Event::Ended(lost(error)), Event::Opened));
        }
        connection.poll_next_inbound(cx).map(|came| match came {
            Some(Ok(stream)) => Event::Came(stream),
            Some(Err(error)) => Event::Ended(lost(error)),
            None => Event::Ended(Lost::Ended),
        })
    })
    .await
}

fn lost(error: yamux::ConnectionError) -> Lost {
    use yamux::{ConnectionError, FrameDecodeError};
    if let ConnectionError::Io(error) | ConnectionError::Decode(FrameDecodeError::Io(error)) = error {
        return error.into();
    }
    if matches!(error, ConnectionError::Closed) { Lost::Ended } else { Lost::Violation(error.to_string()) }
}

#[cfg(test)]
mod tests;
