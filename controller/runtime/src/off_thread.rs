//! Blocking work on a thread of tokio's pool, even where no thread can be created for a while.
//!
//! In: a closure. Out: a future of its result; dropping the future does not end the work. If the machine refuses to
//! create a thread (a process limit), the pool queues the work and tries again only when it is given more. So the
//! future gives it an empty task, with growing delays, until the work has begun. Of all waiting futures one does so
//! at a time, because one more thread serves them all. Work that is done at once needs no timer.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    task::{JoinError, JoinHandle},
    time::{Instant, Sleep, sleep},
};

/// Longer than a thread needs to start even on a busy machine; doubled with each attempt.
const FIRST_NUDGE: Duration = Duration::from_millis(250);

/// The limit may be lifted at any time, and asking for a thread is cheap.
const NUDGE_MAX: Duration = Duration::from_secs(5);

/// The pool queues each unsuccessful nudge until a thread is free. This many take about a megabyte, and hours to
/// accumulate; beyond that, only new work asks for a thread.
const NUDGES_MAX: usize = 4_096;

/// The number of nudges that the pool has queued.
static NUDGES: AtomicUsize = AtomicUsize::new(0);

/// Starts `work` on a thread where it may block.
///
/// # Panics
/// When the pool has no thread at all and cannot create one. To rule that out, keep a pool thread busy.
pub fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OffThread<T> {
    let begun = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    let running = give(move || {
        begins.store(true, Ordering::Relaxed);
        work()
    });
    OffThread { running, begun, delay: FIRST_NUDGE, nudge: None, nudges_seen: 0 }
}

#[expect(clippy::disallowed_methods, reason = "this is the function that callers use instead")]
fn give<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Work on a thread; resolves to its result. An error means that the work panicked, or that the async runtime is
/// shutting down.
#[derive(Debug)]
pub struct OffThread<T> {
    running: JoinHandle<T>,
    begun: Arc<AtomicBool>,
    delay: Duration,
    /// `None` before the first wait and once the work has begun.
    nudge: Option<Pin<Box<Sleep>>>,
    /// The number of queued nudges at the last check: if it has changed, another future has given one.
    nudges_seen: usize,
}

/// An empty task. It is counted from when it is given to the pool until it has run or is dropped with the pool.
struct Nudge;

impl Nudge {
    fn give() {
        NUDGES.fetch_add(1, Ordering::Relaxed);
        let nudge = Self;
        drop(give(move || drop(nudge)));
    }
}

impl Drop for Nudge {
    fn drop(&mut self) {
        NUDGES.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> Future for OffThread<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(done) = Pin::new(&mut self.running).poll(cx) {
            return Poll::Ready(done);
        }
        while !self.begun.load(Ordering::Relaxed) {
            let delay = self.delay;
            if self.nudge.is_none() {
                self.nudges_seen = NUDGES.load(Ordering::Relaxed);
            }
            let seen = self.nudges_seen;
            let nudge = self.nudge.get_or_insert_with(|| Box::pin(sleep(delay)));
            if nudge.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // Any new task makes the pool try to create a thread, which takes the oldest task first.
            let queued = NUDGES.load(Ordering::Relaxed);
            if queued == seen && queued < NUDGES_MAX {
                Nudge::give();
            }
            let delay = (delay * 2).min(NUDGE_MAX);
            nudge.as_mut().reset(Instant::now() + delay);
            self.delay = delay;
            self.nudges_seen = NUDGES.load(Ordering::Relaxed);
        }
        self.nudge = None;
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pool has a single thread, as on a machine that allows no more; nothing else starts while it is busy.
    fn one_thread() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap()
    }

    #[test]
    fn work_without_a_thread_is_retried_and_done_once() {
        one_thread().block_on(async {
            let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
            let holds = off_thread(move || busy.recv());
            let mut waits = off_thread(|| 7);
            assert!(tokio::time::timeout(FIRST_NUDGE * 4, &mut waits).await.is_err());
            assert!(waits.delay > FIRST_NUDGE && waits.nudge.is_some());
            free.send(()).unwrap();
            assert_eq!(waits.await.unwrap(), 7);
            holds.await.unwrap().unwrap();
        });
    }

    #[test]
    fn one_of_many_waiters_requests_a_thread() {
        const MANY: usize = 100;
        one_thread().block_on(async {
            let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
            let holds = off_thread(move || busy.recv());
            let waiting: Vec<_> = (0..MANY).map(|number| tokio::spawn(off_thread(move || number))).collect();
            sleep(FIRST_NUDGE * 8).await;
            let queued = NUDGES.load(Ordering::Relaxed);
            assert!((1..MANY).contains(&queued), "{queued}");
            free.send(()).unwrap();
            for (number, waits) in waiting.into_iter().enumerate() {
                assert_eq!(waits.await.unwrap().unwrap(), number);
            }
            holds.await.unwrap().unwrap();
        });
    }

    #[tokio::test]
    async fn work_that_has_begun_is_only_waited_for() {
        let (free, busy) = std::sync::mpsc::sync_channel::<()>(1);
        let mut waits = off_thread(move || busy.recv());
        while !waits.begun.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        assert!(tokio::time::timeout(FIRST_NUDGE * 2, &mut waits).await.is_err());
        assert_eq!((waits.delay, waits.nudge.is_none()), (FIRST_NUDGE, true));
        free.send(()).unwrap();
        waits.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn panic_is_reported() {
        assert!(off_thread(|| panic!("at the disco")).await.unwrap_err().is_panic());
    }
}
