//! The last lines of a wait on standard error: its result, what has not converged and why, and the output of what
//! failed.

use std::time::Duration;

use herdlet_api_types::{
    JobKey,
    alloc::Desired,
    view::{AllocView, ConvergenceState, JobView},
};

use super::{WaitTarget, Waited, Waiting};
use crate::{client::Client, failed_allocs, watch::Shown};

impl Waiting {
    /// Prints the last line: the result, and what has not converged and why.
    pub(super) fn print_outcome(&self, waited: &Waited, shown: &Shown, took: Duration) {
        let names = self.names(shown);
        let goal = self.goal.as_str();
        let seconds = took.as_secs_f64();
        match waited {
            Waited::Reached => herdlet_base::stderr_line!("{names} {goal} in {seconds:.1} s"),
            Waited::Failed(why) => {
                herdlet_base::stderr_line!("not {goal}: {why}");
                for failed in self.of(shown, WaitTarget::has_failed) {
                    herdlet_base::stderr_line!("  {}", what_now(failed));
                }
            }
            Waited::Reverted(why) | Waited::Superseded(why) => {
                herdlet_base::stderr_line!("not {goal}: {why}")
            }
            Waited::TimedOut => {
                for failed in self.of(shown, WaitTarget::has_failed) {
                    herdlet_base::stderr_line!("{} has failed: {}", failed.key, failed.convergence.message);
                    herdlet_base::stderr_line!("  {}", what_now(failed));
                }
                herdlet_base::stderr_line!(
                    "not {goal} after {seconds:.0} s, still trying: {}",
                    self.open(shown)
                );
                if let Some(tried) = self.of(shown, |wanted, view| !wanted.has_failed(view)).first() {
                    herdlet_base::stderr_line!("  see why: herdlet explain {}", tried.key.argument());
                }
            }
            Waited::Interrupted => herdlet_base::stderr_line!(
                "interrupted; accepted changes stay in force: {}. Follow them with: herdlet status {}",
                self.open(shown),
                self.wanted.first().map(|wanted| wanted.job.argument()).unwrap_or_default(),
            ),
        }
    }

    /// What is waited for: jobs or, of some jobs, only single allocations.
    pub(super) fn names(&self, shown: &Shown) -> String {
        let mut names = Vec::new();
        for wanted in &self.wanted {
            let allocs = wanted.allocs.iter().filter_map(|id| shown.allocs.get(id));
            let before = names.len();
            names.extend(allocs.map(|view| view.spec.name()));
            if names.len() == before {
                names.push(wanted.job.to_string());
            }
        }
        names.join(", ")
    }

    /// What has not converged but still may, and why.
    fn open(&self, shown: &Shown) -> String {
        let tried = self.of(shown, |wanted, view| !wanted.has_failed(view));
        let is_tried = |job: &JobKey| tried.iter().any(|view| view.key == *job);
        let of_allocs = self.allocs(shown).into_iter().filter(|view| is_tried(&view.spec.job_key));
        let of_allocs = of_allocs.filter(|view| view.convergence.state != ConvergenceState::Converged);
        let mut open: Vec<String> =
            of_allocs.map(|view| format!("{}: {}", view.spec.name(), view.convergence.message)).collect();
        if open.is_empty() {
            let jobs = tried.iter().filter(|view| view.convergence.state != ConvergenceState::Converged);
            open.extend(jobs.map(|view| format!("{}: {}", view.key, view.convergence.message)));
        }
        if open.is_empty() { "nothing is pending".to_owned() } else { open.join("; ") }
    }

    /// Prints why the allocations of a failed roll-out failed, and their last output: the agent removes them in time.
    pub(super) async fn print_failed(&self, client: &Client, waited: &Waited, shown: &Shown) {
        match waited {
            Waited::Failed(_) | Waited::Reverted(_) => {}
            Waited::Reached | Waited::Superseded(_) | Waited::TimedOut | Waited::Interrupted => return,
        }
        for job in self.of(shown, |_, _| true) {
            let allocs = shown.allocs_of(&job.key);
            let mut failed = failed_allocs::of_rollout(job, allocs.iter().copied());
            if failed.is_empty() && job.convergence.state == ConvergenceState::Failed {
                let is_current =
                    |view: &&&AllocView| view.spec.desired == Desired::Run && failed_allocs::has_failed(view);
                failed.extend(allocs.iter().filter(is_current).copied());
            }
            for line in failed_allocs::report(client, &failed).await {
                herdlet_base::stderr_line!("  {line}");
            }
        }
    }
}

/// A hint for a failed job.
fn what_now(failed: &JobView) -> String {
    let key = failed.key.argument();
    let back = match failed.version {
        0 => String::new(),
        _ => format!("; go back to the previous version: herdlet rollback {key}"),
    };
    format!("see why: herdlet explain {key}; its output: herdlet logs {key}{back}")
}
