//! The connections of one socket, as one future that handles one of them at a time.
//!
//! In: connections. Out: their progress, one step for each turn of the task that polls them. A step is what one connection
//! can do without waiting, usually one request. With a task for each connection, a socket with 32 busy clients would get
//! 32 turns while another socket gets one.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use futures_util::{FutureExt as _, future::BoxFuture, task::AtomicWaker};

/// The connections of one socket.
#[derive(Default)]
pub(super) struct Connections {
    open: BTreeMap<u64, Connection>,
    /// The number of the next one.
    next: u64,
    ready: Arc<Ready>,
}

/// What a connection did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It waits, or goes on later.
    Made,
    Ended,
}

struct Connection {
    /// Logs its own end.
    progress: BoxFuture<'static, ()>,
    alarm: Arc<Alarm>,
}

/// Connections that can go on, in the order in which that began.
#[derive(Default)]
struct Ready {
    queue: Mutex<VecDeque<u64>>,
    /// The task that polls the connections.
    task: AtomicWaker,
}

/// Wakes one connection.
struct Alarm {
    number: u64,
    /// Whether it is in the queue.
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.ready.queue().push_back(self.number);
        }
        self.ready.task.wake();
    }
}

impl Ready {
    fn queue(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Adds a connection. A panic ends only this one, as in a task of its own.
    pub(super) fn add<E: std::fmt::Display>(
        &mut self,
        connection: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let progress = AssertUnwindSafe(connection).catch_unwind().map(|ended| match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection to the Task API ended early"),
            Err(panic) => {
                tracing::error!(panic = message(&*panic), "a connection to the Task API panicked");
            }
        });
        let (number, ready) = (self.next, Arc::clone(&self.ready));
        self.next += 1;
        let alarm = Arc::new(Alarm { number, is_queued: AtomicBool::new(false), ready });
        alarm.wake_by_ref();
        self.open.insert(number, Connection { progress: progress.boxed(), alarm });
    }

    /// Waits until one of them ends. Between two steps it lets other tasks run, and the runtime find out what has arrived
    /// for them. Cancel-safe.
    pub(super) async fn turn(&mut self) {
        while poll_fn(|context| self.step(context)).await == Step::Made {
            tokio::task::yield_now().await;
        }
    }

    /// Lets the connection make a step that has been ready for longest.
    fn step(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        self.ready.task.register(context.waker());
        let Some(number) = self.ready.queue().pop_front() else { return Poll::Pending };
        // One that has ended may still have been woken.
        let Some(connection) = self.open.get_mut(&number) else { return Poll::Ready(Step::Made) };
        connection.alarm.is_queued.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&connection.alarm));
        let progress = connection.progress.poll_unpin(&mut Context::from_waker(&waker));
        if progress.is_pending() {
            return Poll::Ready(Step::Made);
        }
        self.open.remove(&number);
        Poll::Ready(Step::Ended)
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::atomic::AtomicU32};

    use super::*;

    /// Never waits: makes one step each time it is polled.
    async fn busy(steps: Arc<AtomicU32>) -> Result<(), Infallible> {
        loop {
            steps.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_socket_has_the_same_turns_however_many_clients_are_busy() {
        let steps: [Arc<AtomicU32>; 2] = Default::default();
        for (clients, steps) in [1, 32].into_iter().zip(&steps) {
            let mut connections = Connections::default();
            (0..clients).for_each(|_| connections.add(busy(Arc::clone(steps))));
            tokio::spawn(async move { connections.turn().await });
        }
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        let [one, many] = steps.map(|steps| steps.load(Ordering::Relaxed));
        assert!(one > 500 && many > 500, "{one} {many}");
        assert!(many <= one + 1, "{many} steps beside {one}");
    }

    #[tokio::test]
    async fn each_connection_gets_its_turn_and_ends() {
        let ended = Arc::new(AtomicU32::new(0));
        let mut connections = Connections::default();
        for number in 0..32 {
            let ended = Arc::clone(&ended);
            connections.add(async move {
                for _ in 0..number {
                    tokio::task::yield_now().await;
                }
                ended.fetch_add(1, Ordering::Relaxed);
                Ok::<(), Infallible>(())
            });
        }
        while connections.len() > 0 {
            connections.turn().await;
        }
        assert_eq!(ended.load(Ordering::Relaxed), 32);
    }

    #[tokio::test]
    async fn busy_connections_share_the_turns_of_their_socket() {
        let steps: [Arc<AtomicU32>; 3] = Default::default();
        let mut connections = Connections::default();
        steps.iter().for_each(|steps| connections.add(busy(Arc::clone(steps))));
        tokio::spawn(async move { connections.turn().await });
        for _ in 0..300 {
            tokio::task::yield_now().await;
        }
        let steps = steps.map(|steps| steps.load(Ordering::Relaxed));
        assert!(steps.iter().all(|own| (95..=105).contains(own)), "{steps:?}");
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_connection() {
        let mut connections = Connections::default();
        connections.add(async {
            if std::hint::black_box(true) { panic!("of a handler") } else { Ok::<(), Infallible>(()) }
        });
        connections.add(async { Ok::<(), Infallible>(()) });
        connections.turn().await;
        connections.turn().await;
        assert_eq!(connections.len(), 0);
    }
}
