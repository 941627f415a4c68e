//! The result of a wait, from the agent's own verdicts.
//!
//! In: the goal, and the agent's jobs and allocations at a commit. Out: the result; none while the wait continues.

use herdlet_api_types::{
    AllocId,
    alloc::{ClientStatus, Desired},
    view::{AllocView, ConvergenceState},
};

use super::{Goal, WaitTarget, Waited, Waiting};
use crate::watch::Shown;

impl Waiting {
    /// The result; none while the wait continues.
    pub(super) fn verdict(&self, shown: &Shown) -> Option<Waited> {
        let verdicts: Vec<_> = self.wanted.iter().map(|wanted| self.verdict_on(wanted, shown)).collect();
        let is_superseded = |one: &&Waited| matches!(one, Waited::Superseded(_) | Waited::Reverted(_));
        if let Some(superseded) = verdicts.iter().flatten().find(is_superseded) {
            return Some(superseded.clone());
        }
        // A failure is reported only when the other jobs have ended too.
        if verdicts.iter().any(Option::is_none) {
            return None;
        }
        let failed = verdicts.into_iter().flatten().filter_map(|one| match one {
            Waited::Failed(why) => Some(why),
            Waited::Reached
            | Waited::Reverted(_)
            | Waited::Superseded(_)
            | Waited::TimedOut
            | Waited::Interrupted => None,
        });
        let failed: Vec<String> = failed.collect();
        Some(if failed.is_empty() { Waited::Reached } else { Waited::Failed(failed.join("; ")) })
    }

    fn verdict_on(&self, wanted: &WaitTarget, shown: &Shown) -> Option<Waited> {
        let Some(job) = shown.jobs.get(&wanted.job) else {
            return Some(match self.goal {
                Goal::Deleted => Waited::Reached,
                Goal::Converged | Goal::Healthy | Goal::Complete => {
                    Waited::Failed(format!("job {} was deleted", wanted.job))
                }
            });
        };
        if self.goal == Goal::Deleted {
            // A wait for a deletion ends if the job is applied again.
            let is_another = self.index > 0 && !job.deleting;
            let message = || format!("job {} was applied again meanwhile", wanted.job);
            return is_another.then(|| Waited::Superseded(message()));
        }
        if job.deleting {
            return Some(Waited::Failed(format!("job {} is being deleted", wanted.job)));
        }
        if let Some(version) = wanted.version.filter(|version| job.version > *version) {
            // An automatic revert creates the next version, which may fail and be reverted too. A version after that is from
            // another client.
            let failed_at = |version| job.deployments.iter().find(|known| known.job_version == version);
            let reverted = |version| failed_at(version).filter(|known| known.reverted_to.is_some());
            let last = (version..job.version).map_while(reverted).last();
            let last = last.filter(|known| known.job_version + 1 == job.version);
            if let Some((failed, to)) = last.and_then(|known| Some((known, known.reverted_to?))) {
                let came_of_it = match job.convergence.state {
                    // Waits until the old version has converged.
                    ConvergenceState::Progressing | ConvergenceState::Waiting => return None,
                    ConvergenceState::Converged => format!("version {to} is back"),
                    ConvergenceState::Failed => {
                        format!("version {to} did not come back: {}", job.convergence.message)
                    }
                };
                return Some(Waited::Reverted(format!(
                    "{}: {}; {came_of_it}",
                    wanted.job, failed.description
                )));
            }
            let message = format!("version {} of job {} was applied meanwhile", job.version, wanted.job);
            return Some(Waited::Superseded(message));
        }
        if !wanted.allocs.is_empty() {
            return verdict_on_allocs(&wanted.allocs, shown);
        }
        if job.job.stop && self.goal != Goal::Converged {
            return Some(Waited::Failed(format!("job {} is stopped", wanted.job)));
        }
        let allocs = shown.allocs_of(&wanted.job);
        let converged = match job.convergence.state {
            ConvergenceState::Failed => {
                return Some(Waited::Failed(format!("{}: {}", wanted.job, job.convergence.message)));
            }
            ConvergenceState::Converged => true,
            ConvergenceState::Progressing | ConvergenceState::Waiting => false,
        };
        // A failed allocation that has a successor does not count.
        let is_current =
            |view: &&&AllocView| view.spec.job_version == job.version && view.spec.desired == Desired::Run;
        let current = || allocs.iter().filter(is_current);
        let reached = match self.goal {
            Goal::Converged => converged,
            Goal::Healthy => converged && current().all(|view| view.healthy != Some(false)),
            Goal::Complete => converged && current().all(|view| view.status == ClientStatus::Complete),
            Goal::Deleted => false,
        };
        reached.then_some(Waited::Reached)
    }
}

/// The result for single allocations; none while the wait continues.
fn verdict_on_allocs(allocs: &[AllocId], shown: &Shown) -> Option<Waited> {
    let mut reached = true;
    for alloc in allocs {
        let Some(view) = shown.allocs.get(alloc) else {
            return Some(Waited::Failed(format!("allocation {} is gone", alloc.short())));
        };
        let name = view.spec.name();
        if view.spec.desired != Desired::Run {
            return Some(Waited::Failed(format!(
                "{name} was stopped meanwhile: {}",
                view.spec.desired_description
            )));
        }
        match view.convergence.state {
            ConvergenceState::Failed => {
                return Some(Waited::Failed(format!("{name}: {}", view.convergence.message)));
            }
            ConvergenceState::Converged => {}
            ConvergenceState::Progressing | ConvergenceState::Waiting => reached = false,
        }
    }
    reached.then_some(Waited::Reached)
}
