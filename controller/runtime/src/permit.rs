//! Limits of concurrency, rate and pace per kind of work.
//!
//! In: a kind and a priority. Out: a [`Permit`], once there is a place and the rate and the pace allow it. Waiters
//! are served by priority, the highest first, then in order of arrival. This module must not know what the work is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::pace::Pace;

/// The limits of one kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// How many may run at a time.
    pub concurrent: NonZeroU32,
    /// How many may begin over time; `None` is no limit.
    pub rate: Option<Rate>,
}

/// A limit of how many operations may begin over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many may begin at once after an idle period.
    pub burst: NonZeroU32,
    /// After what time one more may begin; zero counts as a nanosecond.
    pub period: Duration,
}

/// A permission to work; dropping it frees the place.
#[derive(Debug)]
pub struct Permit {
    _place: Slot,
}

/// The permits of all kinds; cheap to clone.
pub struct Permits<N> {
    limit_of: Arc<dyn Fn(N) -> Limit + Send + Sync>,
    kinds: Arc<Mutex<BTreeMap<N, Arc<PermitKind>>>>,
    paces: Arc<BTreeMap<N, Pace>>,
}

struct PermitKind {
    places: Arc<Places>,
    /// The lock serves those who wait for the rate in order.
    rate: Option<tokio::sync::Mutex<Limiter>>,
}

type Limiter = RateLimiter<NotKeyed, InMemoryState, TokioTime, NoOpMiddleware<Nanos>>;

impl<N> Clone for Permits<N> {
    fn clone(&self) -> Self {
        Self {
            limit_of: Arc::clone(&self.limit_of),
            kinds: Arc::clone(&self.kinds),
            paces: Arc::clone(&self.paces),
        }
    }
}

impl<N: Debug> Debug for Permits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permits").finish_non_exhaustive()
    }
}

impl<N: Ord + Copy> Permits<N> {
    /// Creates permits with the limits that `limit_of` returns; it is called once per kind, so every kind has a
    /// limit.
    #[must_use]
    pub fn new(limit_of: impl Fn(N) -> Limit + Send + Sync + 'static) -> Self {
        Self { limit_of: Arc::new(limit_of), kinds: Arc::default(), paces: Arc::default() }
    }

    /// Adds paces: each kind in `paces` keeps to its pace.
    #[must_use]
    pub fn paced(self, paces: BTreeMap<N, Pace>) -> Self {
        Self { paces: Arc::new(paces), ..self }
    }

    /// The number of operations of a kind that its pace has delayed so far.
    #[must_use]
    pub fn paced_total(&self, kind: N) -> u64 {
        self.paces.get(&kind).map_or(0, Pace::held_total)
    }

    /// Waits for the pace, then for a place, then for the rate. Dropping the future while it waits uses nothing up.
    pub async fn acquire(&self, kind: N, priority: u8) -> Permit {
        let turn = self.paces.get(&kind).map(|pace| pace.join(priority));
        if let Some(turn) = &turn {
            turn.come().await;
        }
        let kind = self.kind(kind);
        let place = Places::take(&kind.places, priority).await;
        if let Some(rate) = &kind.rate {
            let limiter = rate.lock().await;
            while let Err(not_until) = limiter.check() {
                // Tokio's timers have a resolution of 1 ms; a zero sleep would spin.
                let wait = not_until.wait_time_from(limiter.clock().now());
                tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
            }
        }
        if let Some(turn) = turn {
            turn.begin();
        }
        Permit { _place: place }
    }

    fn kind(&self, kind: N) -> Arc<PermitKind> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(kinds.entry(kind).or_insert_with(|| Arc::new(PermitKind::new((self.limit_of)(kind)))))
    }
}

impl PermitKind {
    fn new(limit: Limit) -> Self {
        let rate = limit.rate.and_then(|rate| {
            let quota = Quota::with_period(rate.period.max(Duration::from_nanos(1)))?.allow_burst(rate.burst);
            Some(tokio::sync::Mutex::new(RateLimiter::direct_with_clock(quota, TokioTime(Instant::now()))))
        });
        Self { places: Arc::new(Places::new(limit.concurrent)), rate }
    }
}

/// Places for work of one kind.
#[derive(Debug)]
struct Places(Mutex<Room>);

#[derive(Debug)]
struct Room {
    free: u32,
    /// The waiters: the highest priority first, then in order of arrival.
    waiting: BTreeMap<(Reverse<u8>, u64), oneshot::Sender<Slot>>,
    /// The number of waiters so far.
    came: u64,
}

/// A place, occupied until it is dropped.
#[derive(Debug)]
struct Slot(Option<Arc<Places>>);

impl Places {
    fn new(count: NonZeroU32) -> Self {
        Self(Mutex::new(Room { free: count.get(), waiting: BTreeMap::new(), came: 0 }))
    }

    async fn take(this: &Arc<Self>, priority: u8) -> Slot {
        let waits = {
            let mut room = this.room();
            if room.free > 0 {
                room.free -= 1;
                return Slot(Some(Arc::clone(this)));
            }
            room.came += 1;
            let (sender, waits) = oneshot::channel();
            let came = room.came;
            room.waiting.insert((Reverse(priority), came), sender);
            waits
        };
        match waits.await {
            Ok(place) => place,
            // Unreachable: a waiter is removed only when it is given a place, and the list lives as long as this
            // future.
            Err(_) => std::future::pending().await,
        }
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some(places) = self.0.take() else { return };
        let mut room = places.room();
        while let Some((_, next)) = room.waiting.pop_first() {
            match next.send(Self(Some(Arc::clone(&places)))) {
                Ok(()) => return,
                // The waiter has given up; disarm the returned place so that dropping it frees nothing.
                Err(mut returned) => returned.0 = None,
            }
        }
        room.free += 1;
    }
}

/// Tokio's time for governor, whose own clocks don't follow paused time.
#[derive(Debug, Clone)]
struct TokioTime(Instant);

impl Clock for TokioTime {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

    #[tokio::test(start_paused = true)]
    async fn only_so_many_at_a_time() {
        let permits = Permits::new(|_: &str| Limit { concurrent: TWO, rate: None });
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let start = Instant::now();
        let work: Vec<_> = (0..6)
            .map(|_| {
                let (permits, now, most) = (permits.clone(), Arc::clone(&now), Arc::clone(&most));
                tokio::spawn(async move {
                    let _permit = permits.acquire("mount", 0).await;
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                })
            })
            .collect();
        permits.acquire("kill", 0).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "another kind does not wait");
        for work in work {
            assert!(work.await.is_ok());
        }
        assert_eq!((most.load(Ordering::SeqCst), start.elapsed().as_secs()), (2, 30));
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_follows_paused_time() {
        let rate = Some(Rate { burst: TWO, period: Duration::from_secs(60) });
        let permits = Permits::new(move |()| Limit { concurrent: NonZeroU32::MAX, rate });
        let start = Instant::now();
        let mut began = Vec::new();
        for _ in 0..4 {
            drop(permits.acquire((), 0).await);
            began.push(start.elapsed().as_secs());
        }
        assert_eq!(began, [0, 0, 60, 120]);
        // A quiet time earns the burst again, and no more.
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let start = Instant::now();
        for _ in 0..3 {
            drop(permits.acquire((), 0).await);
        }
        assert_eq!(start.elapsed().as_secs(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_waiter_uses_no_permit() {
        let permits = Permits::new(|()| Limit { concurrent: NonZeroU32::MIN, rate: None });
        let held = permits.acquire((), 0).await;
        assert!(tokio::time::timeout(Duration::from_secs(1), permits.acquire((), 0)).await.is_err());
        drop(held);
        assert!(tokio::time::timeout(Duration::from_secs(1), permits.acquire((), 0)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_granted_by_priority_and_order() {
        let permits = Permits::new(|()| Limit { concurrent: NonZeroU32::MIN, rate: None });
        let held = permits.acquire((), 50).await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut work = Vec::new();
        for (name, priority) in [("a", 50), ("b", 20), ("c", 80), ("d", 50), ("e", 80)] {
            let (permits, served) = (permits.clone(), Arc::clone(&served));
            work.push(tokio::spawn(async move {
                let _permit = permits.acquire((), priority).await;
                served.lock().unwrap_or_else(PoisonError::into_inner).push(name);
            }));
            tokio::task::yield_now().await;
        }
        // A waiter that gives up is skipped.
        work[2].abort();
        tokio::task::yield_now().await;
        drop(held);
        for work in work {
            let _ = work.await;
        }
        assert_eq!(*served.lock().unwrap_or_else(PoisonError::into_inner), ["e", "a", "d", "b"]);
    }
}
