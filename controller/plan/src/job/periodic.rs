//! When a periodic job is launched.
//!
//! In: the job's schedule, the moment up to which it was launched, the wall clock. Out: a launch, or the time of the
//! next one. A moment that passed while no agent ran, or while the clock was wrong, is launched once, late; several
//! missed moments cause one launch. No moment is launched twice, even if the clock is set back: the job waits until the
//! clock is where it was, for up to a day. If the clock is further back, one of both readings was wrong, and the
//! schedule restarts at the present time. The restart is dropped if the clock is corrected before a launch was due: a
//! machine whose clock is wrong for its first seconds launches nothing for it.

pub mod calendar;
pub mod cron;

use herdlet_api_types::{
    Duration, UnixNanos,
    job::{Job, Periodic},
};
use serde::{Deserialize, Serialize};

use calendar::Calendar;

/// A clock that was this far ahead was wrong: waiting for it would take too long.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3_600);

const SECOND: i64 = 1_000_000_000;

/// Stored state of a job's launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launches {
    /// Moments up to this one were launched or skipped.
    pub until: UnixNanos,
    /// Clock reading so far before `until` that it counts instead.
    #[serde(default)]
    pub anew: Option<UnixNanos>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, ever.
    Never,
    /// Nothing before this moment.
    At(UnixNanos),
    /// A launch, for this moment.
    Launch(UnixNanos),
}

/// When the job would first be launched if it were accepted now; `None` if never.
pub fn first_launch(job: &Job, now: UnixNanos) -> Option<UnixNanos> {
    match Launches::until(now).next(job.launches().filter(|_| !job.stop)?, now) {
        Next::At(at) | Next::Launch(at) => Some(at),
        Next::Never => None,
    }
}

impl Launches {
    /// Moments up to this one are over, and the clock is right.
    pub fn until(until: UnixNanos) -> Self {
        Self { until, anew: None }
    }

    /// Updates the state with the current clock reading.
    pub fn seen(self, now: UnixNanos) -> Self {
        let is_ahead = |moment: UnixNanos| moment.0.saturating_sub(now.0) > AHEAD_MAX.as_nanos();
        let first_reading = self.anew.filter(|first_reading| !is_ahead(*first_reading)).unwrap_or(now);
        Self { until: self.until, anew: is_ahead(self.until).then_some(first_reading) }
    }

    /// What to do now.
    pub fn next(self, periodic: &Periodic, now: UnixNanos) -> Next {
        if !periodic.enabled {
            return Next::Never;
        }
        let Ok(calendar) = Calendar::of(periodic) else { return Next::Never };
        match calendar.next(self.anew.unwrap_or(self.until)) {
            None => Next::Never,
            Some(due) if due > now => Next::At(due),
            // Several due moments become one launch at the present time, however long no agent ran.
            Some(due) if calendar.next(due).is_some_and(|second| second <= now) => {
                Next::Launch(UnixNanos(now.0 - now.0.rem_euclid(SECOND)))
            }
            Some(due) => Next::Launch(due),
        }
    }
}

#[cfg(test)]
mod tests {
    use std_alloc::{string::ToString, vec};

    use super::*;

    const MINUTE: i64 = 60 * SECOND;

    /// 2023-11-14T22:00:00Z.
    const HOUR: i64 = 1_699_999_200 * SECOND;

    fn every_five() -> Periodic {
        Periodic {
            crons: vec!["*/5 * * * *".to_string()],
            time_zone: "UTC".to_string(),
            enabled: true,
            prohibit_overlap: false,
        }
    }

    #[test]
    fn next_launch_follows_the_schedule() {
        let at = |minutes: i64| UnixNanos(HOUR + minutes * MINUTE);
        for (until, now, expected) in [
            (at(0), at(1), Next::At(at(5))),
            (at(0), at(5), Next::Launch(at(5))),
            (at(0), UnixNanos(at(5).0 - 1), Next::At(at(5))),
            (at(5), at(5), Next::At(at(10))),
            // One was missed: it is launched for its own moment, late.
            (at(0), at(9), Next::Launch(at(5))),
            // Several were missed: one launch, for the present second.
            (at(0), UnixNanos(at(17).0 + 3), Next::Launch(at(17))),
            (at(0), at(100_000), Next::Launch(at(100_000))),
            // The clock was set back by half an hour.
            (at(35), at(5), Next::At(at(40))),
        ] {
            let launches = Launches::until(until);
            assert_eq!(launches.next(&every_five(), now), expected, "{until:?} {now:?}");
        }
        let off = Periodic { enabled: false, ..every_five() };
        assert_eq!(Launches::until(at(0)).next(&off, at(100)), Next::Never);
        let never = Periodic { crons: vec!["0 0 31 2 *".to_string()], ..every_five() };
        assert_eq!(Launches::until(at(0)).next(&never, at(100)), Next::Never);
    }

    #[test]
    fn a_job_is_launched_first_at_the_next_moment() {
        let mut job = herdlet_api_types::fixture::job("n", herdlet_api_types::job::JobType::Batch, vec![]);
        assert_eq!(first_launch(&job, UnixNanos(HOUR)), None);
        job.periodic = Some(every_five());
        assert_eq!(first_launch(&job, UnixNanos(HOUR)), Some(UnixNanos(HOUR + 5 * MINUTE)));
        job.periodic = Some(Periodic { enabled: false, ..every_five() });
        assert_eq!(first_launch(&job, UnixNanos(HOUR)), None);
    }

    #[test]
    fn a_clock_that_was_years_ahead_does_not_stop_a_job_for_years() {
        let day = 24 * 60 * MINUTE;
        let (now, ahead) = (UnixNanos(HOUR + MINUTE), UnixNanos(HOUR + 400 * day));
        let corrected = Launches::until(ahead).seen(now);
        assert_eq!(corrected, Launches { until: ahead, anew: Some(now) });
        let due = UnixNanos(HOUR + 5 * MINUTE);
        assert_eq!(corrected.seen(due), corrected, "launches start over once");
        assert_eq!(corrected.next(&every_five(), now), Next::At(due));
        assert_eq!(corrected.next(&every_five(), due), Next::Launch(due));
        let further = UnixNanos(HOUR - 30 * day);
        assert_eq!(corrected.seen(further).anew, Some(further), "the clock is set back again");
        for ahead in [day, day / 2] {
            let launches = Launches::until(UnixNanos(HOUR + ahead));
            assert_eq!(launches.seen(UnixNanos(HOUR)), launches, "the clock may have been set back");
        }
        let launches = Launches::until(UnixNanos(HOUR + day));
        assert_eq!(launches.seen(UnixNanos(HOUR + 2 * day)), launches);
    }

    #[test]
    fn a_clock_that_is_wrong_at_first_launches_nothing() {
        let last = UnixNanos(HOUR);
        let booted = Launches::until(last).seen(UnixNanos(0));
        assert_eq!(booted.next(&every_five(), UnixNanos(0)), Next::At(UnixNanos(5 * MINUTE)));
        let now = UnixNanos(HOUR + MINUTE);
        assert_eq!(booted.seen(now), Launches::until(last));
        assert_eq!(booted.seen(now).next(&every_five(), now), Next::At(UnixNanos(HOUR + 5 * MINUTE)));
    }
}
