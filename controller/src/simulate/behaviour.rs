//! The behaviour of simulated tasks: how long they run, and how they end.

use std::{str::FromStr, sync::Mutex, time::Duration};

use herdlet_api_types::{job::JobType, parse_duration, task::ExitResult};
use herdlet_rpc::pool::Chance;

/// The behaviour of tasks. Random values are drawn for each attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Behaviour {
    /// How long tasks run. By default, tasks of batch jobs run for ten seconds, and others for
    /// ever.
    pub run_for: Option<Span>,
    /// Percentage of tasks that end with [`exit_code`](Self::exit_code); the others end with 0.
    pub fail_percent: f64,
    /// The exit code of failing tasks.
    pub exit_code: i32,
    /// Percentage of starts that fail.
    pub start_fail_percent: f64,
    pub start_for: Option<Span>,
}

/// A duration or a range of durations: `10s`, `10s..5m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    least: Duration,
    most: Duration,
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        let length = |text: &str| match parse_duration(text) {
            Ok(nanos) if nanos >= 0 => Ok(Duration::from_nanos(nanos.unsigned_abs())),
            Ok(_) | Err(_) => {
                Err(format!("expected a duration such as 10s, or two such as 10s..5m, found {text:?}"))
            }
        };
        let (least, most) = (length(least)?, length(most)?);
        if least > most {
            return Err(format!("the first of {text} must not be longer than the second"));
        }
        Ok(Self { least, most })
    }
}

/// Draws the results of attempts.
#[derive(Debug)]
pub(super) struct AttemptScript {
    behaviour: Behaviour,
    chance: Mutex<Chance>,
}

impl AttemptScript {
    pub(super) fn new(behaviour: Behaviour) -> Self {
        Self { behaviour, chance: Mutex::new(Chance::new()) }
    }

    /// How long a start takes, or the error if it fails.
    pub(super) fn start(&self) -> Result<Duration, &'static str> {
        if self.happens(self.behaviour.start_fail_percent) {
            return Err("simulated failure (--start-fail)");
        }
        Ok(self.behaviour.start_for.map(|span| self.within(span)).unwrap_or_default())
    }

    /// When and how a task of such a job ends by itself; none if it never does.
    pub(super) fn end(&self, kind: JobType) -> Option<(Duration, ExitResult)> {
        let length = match (self.behaviour.run_for, kind) {
            (Some(span), _) => self.within(span),
            (None, JobType::Batch | JobType::Sysbatch) => BATCH_RUNS_FOR,
            (None, JobType::Service | JobType::System) => return None,
        };
        let code = if self.happens(self.behaviour.fail_percent) { self.behaviour.exit_code } else { 0 };
        Some((length, ExitResult { code, ..ExitResult::default() }))
    }

    fn within(&self, span: Span) -> Duration {
        span.least + self.below(span.most - span.least)
    }

    fn happens(&self, percent: f64) -> bool {
        percent > 0.0 && self.below(Duration::from_secs(100)).as_secs_f64() < percent
    }

    fn below(&self, max: Duration) -> Duration {
        self.chance.lock().unwrap_or_else(std::sync::PoisonError::into_inner).below(max)
    }
}

const BATCH_RUNS_FOR: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_one_length_or_two() {
        let second = Duration::from_secs;
        assert_eq!("10s".parse(), Ok(Span { least: second(10), most: second(10) }));
        assert_eq!("10s..1m".parse(), Ok(Span { least: second(10), most: second(60) }));
        for text in ["", "x", "10", "1m..10s", "-1s", "1s.."] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn so_many_of_a_hundred_fail() {
        let fate = AttemptScript::new(Behaviour {
            fail_percent: 30.0,
            exit_code: 4,
            run_for: Some("1s..2s".parse().unwrap()),
            ..Behaviour::default()
        });
        let ends: Vec<_> = (0..1_000).map(|_| fate.end(JobType::Service).unwrap()).collect();
        let failed = ends.iter().filter(|(_, exit)| exit.code == 4).count();
        assert!((200..400).contains(&failed), "{failed}");
        assert!(ends.iter().all(|(length, _)| (1..=2).contains(&length.as_secs())));
        let calm = AttemptScript::new(Behaviour::default());
        assert!(
            calm.end(JobType::Service).is_none()
                && calm.end(JobType::Batch).is_some()
                && calm.start().is_ok()
        );
    }
}
