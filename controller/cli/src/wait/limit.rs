//! A time limit for a whole command, for all its requests together.
//!
//! In: the text of `--timeout`. Out: the time after which the command gives up. It must not know what the command does.

use std::time::Duration;

use herdlet_api_types::parse_duration;
use tokio::time::{Instant, sleep_until};

use crate::failure::{Failure, TIMED_OUT};

/// The deadline of a command; none without limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    max: Duration,
    until: Option<Instant>,
}

/// Parses a limit such as `30s` or `5m`; `0` means none.
pub(crate) fn limit(text: &str) -> Result<Duration, String> {
    let nanos = parse_duration(text).map_err(|error| error.to_string())?;
    let nanos = u64::try_from(nanos).map_err(|_| "must not be negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}

impl Limit {
    /// A limit from now on; none if `max` is zero.
    pub(crate) fn from_now(max: Duration) -> Self {
        // A deadline beyond the range of `Instant` is no limit.
        let until = if max.is_zero() { None } else { Instant::now().checked_add(max) };
        Self { max, until }
    }

    /// Waits for the deadline; never returns without one.
    pub(crate) async fn reached(self) {
        match self.until {
            Some(until) => sleep_until(until).await,
            None => std::future::pending().await,
        }
    }

    /// Runs `work` until the deadline. `what` reads after "failed to".
    pub(crate) async fn within<T, E: Into<Failure>>(
        self,
        what: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            done = work => done.map_err(Into::into),
            () = self.reached() => {
                let failure = Failure::new(format!("failed to {what} within {:?}: the agent does not answer", self.max));
                let hint = "a requested change may still take effect; check with: herdlet status";
                Err(failure.code(TIMED_OUT).hint(hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_units() {
        assert_eq!(limit("0"), Ok(Duration::ZERO));
        assert_eq!(limit("1m30s"), Ok(Duration::from_secs(90)));
        assert!(limit("-1s").is_err());
        assert!(limit("7").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn one_limit_bounds_several_steps() {
        let limit = Limit::from_now(Duration::from_secs(3));
        let step = |seconds| async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<_, Failure>(seconds)
        };
        assert_eq!(limit.within("take a step", step(2)).await.ok(), Some(2));
        let began = Instant::now();
        let late = limit.within("take a step", step(2)).await.err();
        assert_eq!(late.map(|late| late.code), Some(TIMED_OUT));
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        let endless = Limit::from_now(Duration::ZERO);
        assert_eq!(endless.within("take a step", step(1_000_000)).await.ok(), Some(1_000_000));
    }
}
