//! When a periodic job is launched.
//!
//! In: what the job says, up to which moment it was launched, the wall clock. Out: a launch, or when the next one is. A moment that
//! passed while no agent ran, or while the clock stood elsewhere, is launched once, late; of several that were missed one is. No moment is
//! launched twice, also where the clock is set back: up to a day the job waits until the clock is where it was. Where it is further back,
//! either clock was wrong, and the job begins anew. That is forgotten if the clock comes right before anything was due: a machine whose
//! clock is wrong for its first seconds launches nothing for it.

pub mod calendar;
pub mod cron;

use herdlet_api_types::{
    Duration, UnixNanos,
    job::{Job, Periodic},
};
use serde::{Deserialize, Serialize};

use calendar::Calendar;

/// A clock that stood so far ahead was wrong: nobody wants to wait until it is right once more.
const AHEAD_MAX: Duration = Duration::from_secs(24 * 3_600);

const SECOND: i64 = 1_000_000_000;

/// What is remembered of the launches of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launches {
    /// Moments up to this one were launched or let pass.
    pub until: UnixNanos,
    /// The clock was seen here, so far before `until` that this counts instead.
    #[serde(default)]
    pub anew: Option<UnixNanos>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing, ever.
    Never,
    /// Nothing before this moment.
    At(UnixNanos),
    /// A launch, for this moment.
    Launch(UnixNanos),
}

/// When the job would be launched first, were it accepted now; none where it never is.
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

    /// The same by what the clock shows now.
    pub fn seen(self, now: UnixNanos) -> Self {
        let is_ahead = |moment: UnixNanos| moment.0.saturating_sub(now.0) > AHEAD_MAX.as_nanos();
        let anew = self.anew.filter(|anew| !is_ahead(*anew)).unwrap_or(now);
        Self { until: self.until, anew: is_ahead(self.until).then_some(anew) }
    }

    /// What is to be done now.
    pub fn next(self, periodic: &Periodic, now: UnixNanos) -> Next {
        if !periodic.enabled {
            return Next::Never;
        }
        let Ok(calendar) = Calendar::of(periodic) else { return Next::Never };
        match calendar.next(self.anew.unwrap_or(self.until)) {
            None => Next::Never,
            Some(due) if due > now => Next::At(due),
            // Of several that are due the present stands for all: one launch, however long nobody was there.
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
    fn what_is_to_be_done() {
        let at = |minutes: i64| UnixNanos(HOUR + minutes * MINUTE);
        for (until, now, expected) in [
            (at(0), at(1), Next::At(at(5))),
            (at(0), at(5), Next::Launch(at(5))),
            (at(0), UnixNanos(at(5).0 - 1), Next::At(at(5))),
            (at(5), at(5), Next::At(at(10))),
            // One was missed: it is launched for its own moment, late.
            (at(0), at(9), Next::Launch(at(5))),
            // Several were: one launch, for the present second.
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
        let anew = Launches::until(ahead).seen(now);
        assert_eq!(anew, Launches { until: ahead, anew: Some(now) });
        let due = UnixNanos(HOUR + 5 * MINUTE);
        assert_eq!(anew.seen(due), anew, "it begins once");
        assert_eq!(anew.next(&every_five(), now), Next::At(due));
        assert_eq!(anew.next(&every_five(), due), Next::Launch(due));
        let further = UnixNanos(HOUR - 30 * day);
        assert_eq!(anew.seen(further).anew, Some(further), "it is set back once more");
        for ahead in [day, day / 2] {
            let launches = Launches::until(UnixNanos(HOUR + ahead));
            assert_eq!(launches.seen(UnixNanos(HOUR)), launches, "it may be a clock that was set back");
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
