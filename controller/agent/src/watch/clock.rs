//! Reports that the wall clock was set.
//!
//! In: a kernel notification; setting the wall clock ends the wait of a timer on it (timerfd_create(2),
//! `TFD_TIMER_CANCEL_ON_SET`). Out: an event each time. Nothing runs in between.

use std::{io, time::Duration};

use herdlet_base::ready;
use herdlet_plan::event::Event;
use herdlet_runtime::Inbox;
use rustix::{
    fd::OwnedFd,
    io::Errno,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::planner::Input;

/// A timer that is not available now may be available later.
const RETRY_PERIOD: Duration = Duration::from_secs(30);

/// Sends an event each time, until the agent ends.
pub async fn watch(inbox: Inbox<Input>) {
    loop {
        let Err(error) = follow(&inbox).await else { return };
        tracing::warn!(%error, "failed to watch the wall clock; retrying");
        tokio::time::sleep(RETRY_PERIOD).await;
    }
}

/// Returns `Ok` when the agent ends.
async fn follow(inbox: &Inbox<Input>) -> io::Result<()> {
    let timer = timer()?;
    loop {
        // Also at the beginning, because the clock may have been set before.
        if inbox.send(Input::Event(Event::ClockSet)).await.is_err() {
            return Ok(());
        }
        was_set(&timer).await?;
        arm(timer.get_ref())?;
    }
}

async fn was_set(timer: &AsyncFd<OwnedFd>) -> io::Result<()> {
    loop {
        let mut ready = timer.readable().await?;
        let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?));
        match read {
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::CANCELED.raw_os_error()) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
}

fn timer() -> io::Result<AsyncFd<OwnedFd>> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Realtime, flags)?;
    arm(&timer)?;
    ready::register(timer, Interest::READABLE)
}

/// Sets the timer to a time that is never reached, so that only a change of the clock ends the wait.
fn arm(timer: &OwnedFd) -> io::Result<()> {
    let never = Timespec { tv_sec: i64::MAX / 2_000_000_000, tv_nsec: 0 };
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let flags = TimerfdTimerFlags::ABSTIME | TimerfdTimerFlags::CANCEL_ON_SET;
    timerfd_settime(timer, flags, &Itimerspec { it_interval: once, it_value: never })?;
    Ok(())
}
