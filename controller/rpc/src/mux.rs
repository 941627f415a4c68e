//! Many streams over one connection: yamux, with the behaviour that Nomad's peers expect.
//!
//! In: a connection whose kind byte was already sent or read. Out: streams that we open, streams that the peer opens ([`Incoming`]), and
//! why the connection ended. A task drives the connection until the peer closes it, [`Mux::close`] is called or the last handle is dropped.
//!
//! ```text
//!   Mux::open ──► ┌────────┐ ◄──► yamux ◄──► frame::Watched ◄──► socket
//!   Incoming  ◄── │ driver │
//!                 └────────┘
//! ```
//!
//! Everything is bounded: [`STREAMS`] per side (twice as many incoming ones on a server), 256 KiB of unread bytes per stream. Streams
//! beyond the limit are reset. The limit on bytes is not quite one on memory: if a peer sends single bytes, each costs about 64 bytes.
//! Two peers of this crate that both write without reading could block each other for ever, since the driver does not read while it
//! cannot answer; Go peers always read. The driver answers the peer's pings. It sends pings only while there is traffic, and none to
//! detect that an idle peer is dead: TCP (`connect.rs`) and call deadlines do that.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, BufStream},
    sync::{Semaphore, mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::Lost,
    frame::{ConnectionState, WINDOW, Watched},
    stream::Stream,
};

/// Maximum number of streams per side: as many as a Go peer leaves unacknowledged.
pub const STREAMS: usize = 256;

/// Maximum number of client streams on a server. A client may open a new stream before we have released the ended one, up to as many
/// again.
const STREAMS_SERVED: usize = 2 * STREAMS;

/// Limit passed to the `yamux` crate, which also counts streams that were dropped but not yet closed. Exceeding it ends the connection.
const STREAMS_KEPT: usize = 4 * STREAMS;

/// How long a peer may take to read our GoAway.
const FAREWELL: Duration = Duration::from_secs(5);

/// Read buffer per connection, allocated permanently: enough for a heartbeat response or a few small frames.
const READ_BYTES: usize = 1_024;

/// Write buffer per connection: enough for a heartbeat or an allocation update.
const WRITE_BYTES: usize = 2 * 1_024;

/// The underlying connection: TCP, TLS, or anything in tests.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Our side of the connection. The dialling side is the client and uses odd stream ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We dialled.
    Client,
    /// The peer dialled.
    Server,
}

/// Streams that the peer opens. They are reset if nobody receives them.
pub type Incoming = mpsc::Receiver<Box<Stream>>;

/// A handle of a connection. Dropping the last one closes the connection.
#[derive(Debug, Clone)]
pub struct Mux {
    open: mpsc::Sender<oneshot::Sender<yamux::Stream>>,
    room: Arc<Semaphore>,
    /// The limit for the peer's streams, and the permits that are left.
    peers: usize,
    peers_room: Arc<Semaphore>,
    close: CancellationToken,
    ended: watch::Receiver<Option<Lost>>,
    seen: Arc<ConnectionState>,
    /// Cancelled when streams can no longer carry data.
    gone: CancellationToken,
}

impl Mux {
    /// Starts driving a connection on the current runtime.
    pub fn start(io: impl Io, side: Side) -> (Self, Incoming) {
        let (open, opens) = mpsc::channel(STREAMS);
        let peers = match side {
            Side::Client => STREAMS,
            Side::Server => STREAMS_SERVED,
        };
        let (incoming, streams) = mpsc::channel(peers);
        let (close, gone) = (CancellationToken::new(), CancellationToken::new());
        let (end, ended) = watch::channel(None);
        // Coalesces a frame header and a short body into one write, and several frames into one read. Long bodies bypass the buffer.
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
            // Streams end with the driver, even if it panics.
            let _gone = driver.gone.clone().drop_guard();
            let known = Arc::clone(&driver.seen);
            let why = driver.run().await;
            known.ends(why);
            end.send_replace(known.end());
        });
        (mux, streams)
    }

    /// Opens a stream. The peer learns of it with the first byte written. Waits while [`STREAMS`] of ours are open.
    ///
    /// # Errors
    /// If the connection has ended.
    pub async fn open(&self) -> Result<Stream, Lost> {
        let opened = async {
            let room = Arc::clone(&self.room).acquire_owned().await.ok()?;
            let (reply, stream) = oneshot::channel();
            self.open.send(reply).await.ok()?;
            Some(Stream::new(stream.await.ok()?, room, Arc::clone(&self.seen), &self.gone))
        };
        tokio::select! {
            biased;
            // Stop waiting even if the open streams are never dropped.
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

    /// Whether a stream can be opened without waiting.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.room.available_permits() > 0
    }

    /// Whether the peer has open streams.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.peers_room.available_permits() < self.peers
    }

    /// Sends GoAway and closes the connection. Streams end.
    pub fn close(&self) {
        self.seen.ends(Lost::Closed);
        self.close.cancel();
    }

    /// Waits until the connection is closed, GoAway included, and returns the reason.
    pub async fn ended(&self) -> Lost {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        why.unwrap_or(Lost::Closed)
    }

    /// Why the connection ended or is about to end; `None` while it can be used.
    #[must_use]
    pub fn lost(&self) -> Option<Lost> {
        // The driver reports a reason unless it panics.
        self.seen.end().or_else(|| self.ended.has_changed().is_err().then_some(Lost::Closed))
    }

    /// Number of bytes received: callers compare it to see whether the peer still sends anything.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.seen.received()
    }
}

fn config() -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(STREAMS_KEPT);
    // No more than each stream's initial window: see `WINDOW`.
    config.set_max_connection_receive_window(Some(STREAMS_KEPT * WINDOW as usize));
    config
}

struct Driver<T> {
    connection: yamux::Connection<Watched<BufStream<T>>>,
    opens: mpsc::Receiver<oneshot::Sender<yamux::Stream>>,
    closing: CancellationToken,
    gone: CancellationToken,
    seen: Arc<ConnectionState>,
    incoming: mpsc::Sender<Box<Stream>>,
    /// Permits for the peer's streams.
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
                // Checked first: callers that close a connection also drop their streams, and the peer should see GoAway rather than
                // resets.
                biased;
                // `Mux::close` was called; dropping all handles closes `opens`.
                () = self.closing.cancelled() => break,
                reply = self.opens.recv(), if !is_asked => match reply {
                    Some(reply) => asked = Some(reply),
                    None => break,
                },
                event = next(&mut self.connection, is_asked) => match event {
                    // If the caller was dropped, the stream is reset before the peer has seen it.
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
        // The channel has a slot for each permit.
        let _ = self.incoming.try_send(Box::new(stream));
    }
}

/// Drives the connection until an event occurs.
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
