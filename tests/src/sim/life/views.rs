//! The agent publishes a state: invariants of what users see.
//!
//! In: a view. Out: the known state, or a violation.

use std::sync::Arc;

use herdlet_api_types::{
    job::Job,
    view::{AllocView, Reason},
};
use herdlet_plan::turn::View;

use super::Life;
use crate::sim::{coverage::Kind, deployments};
impl Life {
    pub(super) fn show(&mut self, view: View) -> Result<(), String> {
        match view {
            View::Alloc(view) => {
                self.promises.show(&view)?;
                self.machine.templates.show(&view)?;
                if view.convergence.message.contains("waits for its turn to restart") {
                    self.met.note(Kind::RestartTurn);
                }
                self.may_have_lost(&view)?;
                let passed = |since| self.clock.since(since, self.now_ns);
                self.rollouts.show(self.allocs.get(&view.spec.id), &view, &passed)?;
                if let Some(was) = self.allocs.get(&view.spec.id) {
                    if was.spec.job_version != view.spec.job_version {
                        self.met.note(Kind::InPlace);
                    }
                    if was.spec.desired_description != view.spec.desired_description
                        && view.spec.desired_description.contains("rescheduled")
                    {
                        self.met.note(Kind::Reschedule);
                    }
                }
                self.trace.alloc(self.now_ns, &view);
                if view.spec.deployment.is_some_and(|part| part.canary) {
                    self.met.note(Kind::Canary);
                    self.machine.canaries.insert(view.spec.id);
                } else if self.machine.canaries.contains(&view.spec.id) {
                    self.machine.promoted.insert(view.spec.id);
                }
                self.allocs.insert(view.spec.id, view);
            }
            View::AllocGone(id) => {
                self.promises.forget(id);
                self.trace.alloc_gone(self.now_ns, id);
                self.allocs.remove(&id);
            }
            View::Job(view) => {
                self.job_views += 1;
                for (reason, kind) in [
                    (Reason::Port, Kind::PortTaken),
                    (Reason::Capacity, Kind::Crowded),
                    (Reason::Constraint, Kind::Unfit),
                ] {
                    if view.convergence.reason == Some(reason) {
                        self.met.note(kind);
                    }
                }
                self.trace.job(self.now_ns, &view);
                let was = self.jobs.insert(view.key.clone(), Arc::clone(&view));
                deployments::show(was.as_deref(), &view)?;
                let is_newer = was.as_ref().is_none_or(|was| was.version < view.version);
                if is_newer && deployments::went_back(&view).is_some() {
                    // The revert was not requested, and is the desired state from now on.
                    self.met.note(Kind::AutoRevert);
                    if let Some(wanted) = self.wanted.get_mut(&*view.key.id) {
                        *wanted = Job::clone(&view.job);
                    }
                }
                match was {
                    Some(was) => self.rollouts.show_job(was),
                    // The child was not requested by name, and is desired from now on.
                    None if self.launches.show_new(&view) => {
                        self.wanted.insert(view.key.id.to_string(), Job::clone(&view.job));
                    }
                    None => {}
                }
            }
            View::JobGone(key) => {
                self.trace.note(self.now_ns, || format!("job {} is forgotten", key.id));
                self.launches.forget(&key);
                self.jobs.remove(&key);
            }
            View::Volume(_) | View::VolumeGone(_) | View::Node(_) => {}
        }
        Ok(())
    }

    /// A directory may be reported as gone only if it existed, as far as the agent can know.
    fn may_have_lost(&self, view: &AllocView) -> Result<(), String> {
        let id = view.spec.id;
        let mut events = view.tasks.iter().flat_map(|task| task.events.iter());
        match events.find(|event| event.message.ends_with("directory is gone")) {
            Some(event) if !self.machine.robbed.contains(&id) && !self.machine.forgotten.contains(&id) => {
                Err(format!("{} wrongly reports that its {}", view.spec.name(), event.message))
            }
            Some(_) | None => Ok(()),
        }
    }
}
