//! The inbox of a runtime: many senders, and one loop that receives in chunks.
//!
//! It is bounded, so that a flood slows its source down instead of filling memory. It must not inspect events.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

/// An event and when it was sent. Boxed, because a channel allocates slots for dozens of items even while it is
/// empty.
type Arrival<E> = Box<(Instant, E)>;

/// The sending side; cheap to clone.
pub struct Inbox<E> {
    sender: mpsc::Sender<Arrival<E>>,
}

/// The receiving side, for [`crate::Runtime`].
pub struct Arrivals<E> {
    receiver: mpsc::Receiver<Arrival<E>>,
    chunk: Vec<Arrival<E>>,
}

/// Why an event was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// The runtime is shutting down.
    #[error("send an event to a runtime that has stopped")]
    Closed,
    /// The inbox is full; only [`Inbox::try_send`] returns this, the other methods wait.
    #[error("send an event to a full inbox")]
    Full,
}

impl<E> Clone for Inbox<E> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

impl<E: Send + 'static> Inbox<E> {
    /// Creates an inbox that holds at most `capacity` events (at least 1).
    #[must_use]
    pub fn with_capacity(capacity: usize) -> (Self, Arrivals<E>) {
        let (sender, receiver) = mpsc::channel(capacity.max(1));
        (Self { sender }, Arrivals { receiver, chunk: Vec::new() })
    }

    /// Sends an event, waiting for room. Events of one sender arrive in order.
    ///
    /// # Errors
    /// [`InboxError::Closed`] when the runtime has stopped; the event is dropped.
    pub async fn send(&self, event: E) -> Result<(), InboxError> {
        self.sender.send(arrival(event)).await.map_err(|_| InboxError::Closed)
    }

    /// Sends an event if there is room.
    ///
    /// # Errors
    /// [`InboxError::Full`] or [`InboxError::Closed`]; the event is dropped.
    pub fn try_send(&self, event: E) -> Result<(), InboxError> {
        self.sender.try_send(arrival(event)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => InboxError::Full,
            mpsc::error::TrySendError::Closed(_) => InboxError::Closed,
        })
    }

    /// Sends an event from a thread outside the async runtime, blocking while there is no room.
    ///
    /// # Errors
    /// [`InboxError::Closed`] when the runtime has stopped; the event is dropped.
    pub fn blocking_send(&self, event: E) -> Result<(), InboxError> {
        self.sender.blocking_send(arrival(event)).map_err(|_| InboxError::Closed)
    }

    /// The number of events in the inbox.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.sender.max_capacity() - self.sender.capacity()
    }

    /// Whether the runtime has stopped accepting events.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Resolves when the runtime has stopped accepting events.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

impl<E> Arrivals<E> {
    /// Takes the next event, if there is one, for callers that inspect events without running a loop.
    pub fn take(&mut self) -> Option<E> {
        self.receiver.try_recv().ok().map(|arrival| arrival.1)
    }

    /// Waits for at least one event and takes at most `chunk_max`; returns 0 when all senders are gone. Cancel safe:
    /// no event is lost when the future is dropped.
    pub(crate) async fn ready_chunk(&mut self, chunk_max: usize) -> usize {
        self.receiver.recv_many(&mut self.chunk, chunk_max).await
    }

    /// Takes the events that are there, at most `chunk_max`, without waiting; returns 0 if there are none.
    pub(crate) fn rest_chunk(&mut self, chunk_max: usize) -> usize {
        while self.chunk.len() < chunk_max {
            match self.receiver.try_recv() {
                Ok(arrival) => self.chunk.push(arrival),
                Err(mpsc::error::TryRecvError::Empty | mpsc::error::TryRecvError::Disconnected) => break,
            }
        }
        self.chunk.len()
    }

    /// Drains the chunk: each event with the time it has waited.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (Duration, E)> {
        self.chunk.drain(..).map(|arrival| {
            let (sent_at, event) = *arrival;
            (sent_at.elapsed(), event)
        })
    }

    /// The number of events in the inbox that are not in the chunk.
    pub(crate) fn depth(&self) -> usize {
        self.receiver.len()
    }

    /// Stops accepting events; the ones already accepted stay readable.
    pub(crate) fn close(&mut self) {
        self.receiver.close();
    }
}

fn arrival<E>(event: E) -> Arrival<E> {
    Box::new((Instant::now(), event))
}
