//! Time for the turn loop: a reading of the clocks, and an alarm for the next wake.
//!
//! Out: [`Now`], which worlds receive as an argument and never read themselves. [`BootClock`] reads the machine's
//! clocks; [`TokioClock`] follows tokio's (pausable) time in tests. This module must not know what the loop waits
//! for.

use std::future::Future;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Nanoseconds since boot, suspend included (`CLOCK_BOOTTIME`, clock_gettime(2)). Deadlines use this.
    pub boot_ns: u64,
    /// Nanoseconds since the Unix epoch (`CLOCK_REALTIME`). For display only; it may jump in both directions.
    pub wall_ns: i64,
}

impl Now {
    /// The boot time in nanoseconds that is `delay` after this reading; saturates instead of overflowing.
    #[must_use]
    pub fn after(self, delay: Duration) -> u64 {
        self.boot_ns.saturating_add(nanos(delay))
    }

    /// The time from `earlier_boot_ns` to this reading; zero if `earlier_boot_ns` is later.
    #[must_use]
    pub fn since(self, earlier_boot_ns: u64) -> Duration {
        Duration::from_nanos(self.boot_ns.saturating_sub(earlier_boot_ns))
    }
}

/// A source of time.
pub trait Clock: Clone + Send + Sync + 'static {
    /// The alarm that belongs to this clock.
    type Alarm: Alarm;

    /// Reads the time.
    fn now(&self) -> Now;

    /// Creates an alarm. Must be called inside a tokio runtime.
    fn alarm(&self) -> Self::Alarm;
}

/// Waits for a boot time.
pub trait Alarm: Send + 'static {
    /// Resolves once the clock has reached `at_boot_ns`, at once if that has passed. Cancel safe: it may be dropped
    /// and called again with another time. It may resolve slightly early, so the caller must check the clock.
    fn until(&mut self, at_boot_ns: u64) -> impl Future<Output = ()> + Send;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    type Alarm = BootAlarm;

    fn now(&self) -> Now {
        Now {
            boot_ns: u64::try_from(timespec_ns(clock_gettime(ClockId::Boottime))).unwrap_or(0),
            wall_ns: timespec_ns(clock_gettime(ClockId::Realtime)),
        }
    }

    fn alarm(&self) -> BootAlarm {
        match boot_timer() {
            Ok(timer) => BootAlarm::Timer { timer, set_ns: None },
            Err(error) => {
                tracing::debug!(%error, "no boot time timer, wakes will be late after a suspend");
                BootAlarm::Sleep
            }
        }
    }
}

/// An alarm on `CLOCK_BOOTTIME`: a wake that fell due while the machine was suspended fires on resume. Tokio's own
/// timers (`CLOCK_MONOTONIC`) would be late by the length of the suspend.
#[derive(Debug)]
pub enum BootAlarm {
    /// A timerfd(2), set again only when the requested time changes.
    Timer {
        /// The timer.
        timer: AsyncFd<OwnedFd>,
        /// The boot time for which the timer is set, if it is set.
        set_ns: Option<u64>,
    },
    /// Tokio's timer, where timerfd is not available (some sandboxes).
    Sleep,
}

impl Alarm for BootAlarm {
    async fn until(&mut self, at_boot_ns: u64) {
        match self {
            Self::Timer { timer, set_ns } => {
                if at_boot_ns <= BootClock.now().boot_ns {
                    return;
                }
                if *set_ns != Some(at_boot_ns) {
                    // The descriptor stays ready while the old expiration is unread; setting the timer clears it.
                    *set_ns = None;
                    if let Err(error) = set_timer(timer, at_boot_ns) {
                        tracing::warn!(%error, "boot time timer cannot be set");
                        return sleep_until_boot(at_boot_ns).await;
                    }
                    *set_ns = Some(at_boot_ns);
                }
                // An error here means that the reactor is shutting down; the loop then checks the clock and
                // continues.
                while BootClock.now().boot_ns < at_boot_ns {
                    match timer.readable().await {
                        Ok(mut ready) => {
                            let read =
                                ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?));
                            if let Ok(Ok(_)) = read {
                                *set_ns = None;
                                return;
                            }
                        }
                        Err(_) => return sleep_until_boot(at_boot_ns).await,
                    }
                }
            }
            Self::Sleep => sleep_until_boot(at_boot_ns).await,
        }
    }
}

/// Boot time derived from tokio's time: follows `tokio::time::pause` and `advance`.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    start: Instant,
    start_now: Now,
}

impl TokioClock {
    /// Creates a clock that reads `start_now` now and advances with tokio's time.
    #[must_use]
    pub fn starting_at(start_now: Now) -> Self {
        Self { start: Instant::now(), start_now }
    }
}

impl Clock for TokioClock {
    type Alarm = TokioAlarm;

    fn now(&self) -> Now {
        let passed_ns = nanos(self.start.elapsed());
        Now {
            boot_ns: self.start_now.boot_ns.saturating_add(passed_ns),
            wall_ns: self.start_now.wall_ns.saturating_add(i64::try_from(passed_ns).unwrap_or(i64::MAX)),
        }
    }

    fn alarm(&self) -> TokioAlarm {
        TokioAlarm(*self)
    }
}

/// The alarm of a [`TokioClock`].
#[derive(Debug)]
pub struct TokioAlarm(TokioClock);

impl Alarm for TokioAlarm {
    async fn until(&mut self, at_boot_ns: u64) {
        sleep_at_most(Duration::from_nanos(at_boot_ns.saturating_sub(self.0.now().boot_ns))).await;
    }
}

/// The nanoseconds of a duration, at most `u64::MAX` (584 years).
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

async fn sleep_until_boot(at_boot_ns: u64) {
    sleep_at_most(Duration::from_nanos(at_boot_ns.saturating_sub(BootClock.now().boot_ns))).await;
}

/// Sleeps for at most a year: tokio's timer wheel spans about 2.2 years. Waking early is harmless because the loop
/// checks the clock.
async fn sleep_at_most(delay: Duration) {
    const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);
    if !delay.is_zero() {
        tokio::time::sleep(delay.min(DELAY_MAX)).await;
    }
}

#[expect(unsafe_code, reason = "tokio's registration requires a guarantee about the descriptor's ownership")]
fn boot_timer() -> std::io::Result<AsyncFd<OwnedFd>> {
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    // SAFETY: an `OwnedFd` returns the same descriptor for as long as it lives and owns it, and the `AsyncFd` drops it
    // only after its registration.
    Ok(unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?)
}

fn set_timer(timer: &AsyncFd<OwnedFd>, at_boot_ns: u64) -> rustix::io::Result<()> {
    let it_value = Timespec {
        // Never truncates: `u64::MAX` nanoseconds are 1.8e10 seconds.
        tv_sec: i64::try_from(at_boot_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at_boot_ns % 1_000_000_000).unwrap_or(0),
    };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    timerfd_settime(timer.get_ref(), TimerfdTimerFlags::ABSTIME, &once).map(drop)
}

fn timespec_ns(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_are_read() {
        let (first, second) = (BootClock.now(), BootClock.now());
        assert!(second.boot_ns >= first.boot_ns && first.boot_ns > 0);
        assert!(first.wall_ns > 1_700_000_000_000_000_000, "after 2023");
        assert_eq!(first.after(Duration::MAX), u64::MAX);
        assert_eq!(first.since(u64::MAX), Duration::ZERO);
    }

    #[tokio::test]
    async fn boot_alarm_fires_and_can_be_set_again() {
        let mut alarm = BootClock.alarm();
        assert!(matches!(alarm, BootAlarm::Timer { .. }));
        let now = BootClock.now();
        alarm.until(now.boot_ns).await;
        // Dropped while waiting for a distant time, then set to a near one.
        let far = now.after(Duration::from_secs(100 * 365 * 24 * 3_600));
        tokio::time::timeout(Duration::from_millis(2), alarm.until(far)).await.unwrap_err();
        for _ in 0..3 {
            let at = BootClock.now().after(Duration::from_millis(3));
            alarm.until(at).await;
            assert!(BootClock.now().boot_ns >= at);
        }
        tokio::time::timeout(Duration::from_millis(2), alarm.until(u64::MAX)).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_follows_paused_time() {
        let clock = TokioClock::starting_at(Now { boot_ns: 5, wall_ns: 7 });
        assert_eq!(clock.now(), Now { boot_ns: 5, wall_ns: 7 });
        clock.alarm().until(5 + 3_600_000_000_000).await;
        assert_eq!(clock.now(), Now { boot_ns: 5 + 3_600_000_000_000, wall_ns: 7 + 3_600_000_000_000 });
    }
}
