//! Decides which work may begin while the machine is under pressure: the highest priority first, lower ones after a
//! delay.
//!
//! In: a priority, and a function that reports whether there is pressure. Out: a [`Turn`] that can be awaited. Work
//! begins at once if nothing of higher priority waits or has just begun (the function is not called then), or if
//! there is no pressure. This module must not know what the work is.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The head start of work that has begun, before anything of lower priority follows. The kernel's shortest pressure
/// average covers the same time: until then it may still rise because of the work that has just begun.
const HEAD_START: Duration = Duration::from_secs(10);

/// The longest wait for higher priorities, which may never stop arriving.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// The kernel updates its averages every two seconds.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The queue of one kind of work; cheap to clone.
#[derive(Clone)]
pub struct Pace {
    is_pressed: Arc<dyn Fn() -> bool + Send + Sync>,
    line: Arc<Mutex<Line>>,
}

#[derive(Default)]
struct Line {
    /// The number of turns that have not begun, by priority.
    waiting: BTreeMap<u8, usize>,
    /// When the last turn of each priority began.
    begun: BTreeMap<u8, Instant>,
    /// When `is_pressed` was last called, and its answer.
    looked: Option<(Instant, bool)>,
    /// The number of turns that had to wait so far.
    held: u64,
}

impl Pace {
    /// Creates a queue that calls `is_pressed`, at most once a second, while work waits in it. `is_pressed` must not
    /// block.
    #[must_use]
    pub fn new(is_pressed: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { is_pressed: Arc::new(is_pressed), line: Arc::default() }
    }

    /// The number of turns that had to wait so far.
    #[must_use]
    pub fn held_total(&self) -> u64 {
        self.line().held
    }

    /// Joins the queue. A turn that is dropped before it begins leaves it.
    pub(crate) fn join(&self, priority: u8) -> Turn {
        *self.line().waiting.entry(priority).or_default() += 1;
        Turn { pace: self.clone(), priority }
    }

    fn may_begin(&self, priority: u8) -> bool {
        let mut line = self.line();
        let now = Instant::now();
        if line.is_first(priority, now) {
            return true;
        }
        match line.looked {
            Some((at, pressed)) if now.duration_since(at) < LOOK_EVERY => !pressed,
            _ => {
                let pressed = (self.is_pressed)();
                line.looked = Some((now, pressed));
                !pressed
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").finish_non_exhaustive()
    }
}

impl Line {
    /// Whether no higher priority waits and every one that has begun has had its head start.
    fn is_first(&self, priority: u8, now: Instant) -> bool {
        let above = (Bound::Excluded(priority), Bound::Unbounded);
        let gets_going = |at: &Instant| now.duration_since(*at) < HEAD_START;
        self.waiting.range(above).next().is_none() && !self.begun.range(above).any(|(_, at)| gets_going(at))
    }
}

/// A place in the queue.
#[derive(Debug)]
pub(crate) struct Turn {
    pace: Pace,
    priority: u8,
}

impl Turn {
    /// Waits until the work may begin.
    pub(crate) async fn come(&self) {
        if self.pace.may_begin(self.priority) {
            return;
        }
        self.pace.line().held += 1;
        let held_at = Instant::now();
        while held_at.elapsed() < WAIT_MAX && !self.pace.may_begin(self.priority) {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Marks the work as begun and leaves the queue.
    pub(crate) fn begin(self) {
        self.pace.line().begun.insert(self.priority, Instant::now());
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut line = self.pace.line();
        if let Some(waiting) = line.waiting.get_mut(&self.priority) {
            *waiting -= 1;
            if *waiting == 0 {
                line.waiting.remove(&self.priority);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;

    /// A machine whose pressure a test sets; counts the queries.
    #[derive(Clone, Default)]
    struct Machine {
        pressed: Arc<AtomicBool>,
        asked: Arc<AtomicUsize>,
    }

    impl Machine {
        fn pressed() -> Self {
            let machine = Self::default();
            machine.pressed.store(true, Ordering::SeqCst);
            machine
        }

        fn pace(&self) -> Pace {
            let machine = self.clone();
            Pace::new(move || {
                machine.asked.fetch_add(1, Ordering::SeqCst);
                machine.pressed.load(Ordering::SeqCst)
            })
        }
    }

    /// Returns after how many seconds the work begins.
    async fn begins_after(pace: &Pace, priority: u8) -> u64 {
        let joined = Instant::now();
        let turn = pace.join(priority);
        turn.come().await;
        turn.begin();
        joined.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn pressure_starts_lower_priorities_one_by_one() {
        let machine = Machine::pressed();
        let pace = machine.pace();
        let (high, low, other, middle) = tokio::join!(
            begins_after(&pace, 80),
            begins_after(&pace, 20),
            begins_after(&pace, 80),
            begins_after(&pace, 50)
        );
        assert_eq!((high, other, middle, low), (0, 0, 10, 20));
        assert_eq!(pace.held_total(), 2);
        assert!(
            machine.asked.load(Ordering::SeqCst) <= 21,
            "at most one query a second for all waiting turns"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn equal_priorities_do_not_wait_without_pressure() {
        let machine = Machine::default();
        let pace = machine.pace();
        assert_eq!(tokio::join!(begins_after(&pace, 20), begins_after(&pace, 80)), (0, 0));
        let machine = Machine::pressed();
        let pace = machine.pace();
        for _ in 0..200 {
            assert_eq!(begins_after(&pace, 50).await, 0);
        }
        assert_eq!(machine.asked.load(Ordering::SeqCst), 0, "pressure is not queried while nothing waits");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_work_begins_after_the_pressure() {
        let machine = Machine::pressed();
        let pace = machine.pace();
        assert_eq!(begins_after(&pace, 80).await, 0);
        let low = tokio::spawn({
            let pace = pace.clone();
            async move { begins_after(&pace, 20).await }
        });
        sleep(Duration::from_millis(3_500)).await;
        assert_eq!(pace.held_total(), 1);
        machine.pressed.store(false, Ordering::SeqCst);
        assert_eq!(low.await.ok(), Some(4));
    }

    #[tokio::test(start_paused = true)]
    async fn no_work_waits_forever() {
        let pace = Machine::pressed().pace();
        let busy = tokio::spawn({
            let pace = pace.clone();
            async move {
                loop {
                    begins_after(&pace, 80).await;
                    sleep(Duration::from_secs(5)).await;
                }
            }
        });
        tokio::task::yield_now().await;
        assert_eq!(begins_after(&pace, 20).await, 30);
        busy.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_waiter_blocks_no_other() {
        let pace = Machine::pressed().pace();
        let above = pace.join(80);
        let below = tokio::time::timeout(Duration::from_secs(2), begins_after(&pace, 20));
        assert!(below.await.is_err());
        assert_eq!(pace.held_total(), 1);
        drop(above);
        assert_eq!(begins_after(&pace, 20).await, 0);
    }
}
