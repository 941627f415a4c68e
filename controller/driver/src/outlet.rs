//! The queue of a driver's reports to the agent.
//!
//! In: reports, from any part of the driver. Out: one stream at a time. Nothing is lost between two readers: the second receives
//! what the first did not take.

use std::sync::Arc;

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use tokio::sync::{Mutex, mpsc};

/// Capacity of the queue, so that the exits of a thousand tasks at once don't wait for each other.
const ROOM: usize = 1_024;

/// A bounded queue with one reader at a time.
#[derive(Debug)]
pub struct Outlet<T> {
    sender: mpsc::Sender<T>,
    receiver: Arc<Mutex<mpsc::Receiver<T>>>,
}

impl<T: Send + 'static> Outlet<T> {
    /// Adds an item. Waits while the queue is full.
    pub async fn send(&self, item: T) {
        // The send can't fail: `self` holds the receiver.
        let _ = self.sender.send(item).await;
    }

    /// Adds an item unless the queue is full. Returns whether it was added.
    pub fn try_send(&self, item: T) -> bool {
        self.sender.try_send(item).is_ok()
    }

    /// Streams the items not taken yet, and all later ones. A second stream waits until the first is dropped.
    pub fn stream(&self) -> BoxStream<'static, T> {
        let receiver = Arc::clone(&self.receiver);
        let opened = async move { receiver.lock_owned().await };
        let items = |mut receiver: tokio::sync::OwnedMutexGuard<mpsc::Receiver<T>>| {
            stream::poll_fn(move |context| receiver.poll_recv(context))
        };
        stream::once(opened).flat_map(items).boxed()
    }
}

impl<T> Default for Outlet<T> {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(ROOM);
        Self { sender, receiver: Arc::new(Mutex::new(receiver)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_later_reader_goes_on_where_the_earlier_one_stopped() {
        let outlet = Outlet::default();
        for item in 1..=3 {
            assert!(outlet.try_send(item));
        }
        let mut first = outlet.stream();
        assert_eq!(first.next().await, Some(1));
        let mut second = outlet.stream();
        drop(first);
        assert_eq!((second.next().await, second.next().await), (Some(2), Some(3)));
    }
}
