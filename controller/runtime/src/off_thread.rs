//! Work that blocks, on a thread of tokio's pool, also where no thread can be made for a while.
//!
//! In: a closure. Out: a future of its result; dropping it does not end the work. Where the machine refuses a thread (a limit of
//! processes) the pool keeps the work until it is given more: so it is given something, with growing delays, until the work has
//! begun; by one of all that wait, as one thread more is what all of them wait for. Nothing wakes for work that is done at once.

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

/// Longer than a thread needs to begin also on a busy machine; doubled with each try.
const FIRST_NUDGE: Duration = Duration::from_millis(250);

/// A limit may be lifted at any time; asking for a thread costs little.
const NUDGE_MAX: Duration = Duration::from_secs(5);

/// What the pool was given in vain it keeps until a thread is free. So much takes about a megabyte, and hours to gather; from then
/// on only new work asks for a thread.
const NUDGES_MAX: usize = 4_096;

/// How many nudges the pool keeps.
static NUDGES: AtomicUsize = AtomicUsize::new(0);

/// Begins `work` on a thread where it may block.
///
/// # Panics
/// When the pool has no thread at all and can't make one: keep one busy where that must not happen.
pub fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OffThread<T> {
    let begun = Arc::new(AtomicBool::new(false));
    let begins = Arc::clone(&begun);
    let running = give(move || {
        begins.store(true, Ordering::Relaxed);
        work()
    });
    OffThread { running, begun, delay: FIRST_NUDGE, nudge: None, nudges_seen: 0 }
}

#[expect(clippy::disallowed_methods, reason = "this is what others are to call instead")]
fn give<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Work on a thread; resolves to what it returns. An error means that it panicked, or that the async runtime ends.
#[derive(Debug)]
pub struct OffThread<T> {
    running: JoinHandle<T>,
    begun: Arc<AtomicBool>,
    delay: Duration,
    /// None before the first wait and once the work has begun.
    nudge: Option<Pin<Box<Sleep>>>,
    /// How many nudges there were when this last looked: where there are others now, somebody else has asked.
    nudges_seen: usize,
}

/// Work that does nothing. It is counted from when it is given to the pool until it was done, or dropped with the pool.
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
            // Whatever the pool is given makes it try for a thread, which takes the oldest work first.
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

    /// The pool's one thread stands for all that the machine allows; while it is busy nothing begins.
    fn one_thread() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap()
    }

    #[test]
    fn work_that_found_no_thread_is_asked_for_again_and_done_once() {
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
    fn of_many_that_wait_for_a_thread_one_asks() {
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
    async fn a_panic_is_told() {
        assert!(off_thread(|| panic!("at the disco")).await.unwrap_err().is_panic());
    }
}
