//! The number of consecutive results that change the status of a check.
//!
//! In: results of single runs. Out: those that determine the check's status. The rules are Consul's, where a warning
//! counts as a good result.

use herdlet_api_types::{job::Thresholds, service::CheckStatus};

use super::probe::ProbeResult;

/// Consecutive good or bad results.
#[derive(Debug)]
pub(super) struct Streak {
    thresholds: Thresholds,
    good: u32,
    bad: u32,
}

impl Streak {
    pub(super) fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, good: 0, bad: 0 }
    }

    /// The check's status after this run; `None` if it does not change.
    pub(super) fn take(&mut self, result: ProbeResult) -> Option<ProbeResult> {
        let Thresholds { success_before_passing, failures_before_critical, failures_before_warning } =
            self.thresholds;
        match result.status {
            CheckStatus::Pending => None,
            CheckStatus::Success | CheckStatus::Warning => {
                (self.good, self.bad) = (self.good.saturating_add(1), 0);
                (self.good >= success_before_passing).then_some(result)
            }
            CheckStatus::Failure => {
                (self.good, self.bad) = (0, self.bad.saturating_add(1));
                if self.bad >= failures_before_critical {
                    Some(result)
                } else if failures_before_warning > 0 && self.bad >= failures_before_warning {
                    Some(ProbeResult { status: CheckStatus::Warning, ..result })
                } else {
                    None
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter is a run: `s`uccess, `w`arning, `f`ailure; the result has the reported status, or `-` for none.
    fn statuses(thresholds: [u32; 3], runs: &str) -> String {
        let [success_before_passing, failures_before_critical, failures_before_warning] = thresholds;
        let thresholds =
            Thresholds { success_before_passing, failures_before_critical, failures_before_warning };
        let mut streak = Streak::new(thresholds);
        let run = |letter| match letter {
            's' => CheckStatus::Success,
            'w' => CheckStatus::Warning,
            _ => CheckStatus::Failure,
        };
        let mut reported = |status| {
            let result = ProbeResult { status, ..ProbeResult::failure(String::new()) };
            streak.take(result).map_or('-', |result| match result.status {
                CheckStatus::Success => 's',
                CheckStatus::Warning => 'w',
                CheckStatus::Failure => 'f',
                CheckStatus::Pending => '?',
            })
        };
        runs.chars().map(|letter| reported(run(letter))).collect()
    }

    #[test]
    fn results_in_a_row_change_the_status() {
        for (thresholds, runs, expected) in [
            ([0, 0, 0], "sfsws", "sfsws"),
            ([1, 1, 1], "sfsws", "sfsws"),
            ([3, 0, 0], "ssfsss", "--f--s"),
            ([0, 3, 0], "sffsfff", "s--s--f"),
            ([0, 3, 2], "sffff", "s-wff"),
            // Bad results are no progress towards passing.
            ([2, 3, 1], "ffsffsss", "ww-ww-ss"),
            // A warning that comes no earlier than the failure does not appear.
            ([0, 2, 2], "fff", "-ff"),
            ([2, 0, 0], "wws", "-ws"),
        ] {
            assert_eq!(statuses(thresholds, runs), expected, "{thresholds:?} {runs}");
        }
    }
}
