//! The agent answers a request: what users want from then on.
//!
//! In: a reply, with the request that it answers. Out: the new desired state, or a violation.

use herdlet_api_types::{JobKey, job::Job};
use herdlet_plan::event::{Command, Reply};

use super::Life;
use crate::sim::coverage::Kind;
impl Life {
    pub(super) fn answer(&mut self, request: u64, reply: &Reply) -> Result<(), String> {
        self.trace.reply(self.now_ns, reply);
        let Some(command) = self.asked.remove(&request) else { return Ok(()) };
        if matches!(reply, Reply::Refused(_)) {
            return Ok(());
        }
        self.accepted(command, reply)
    }

    fn accepted(&mut self, command: Command, reply: &Reply) -> Result<(), String> {
        match command {
            Command::Apply { jobs, .. } => {
                if jobs.iter().any(|job| self.wanted.contains_key(&job.id)) {
                    self.met.note(Kind::Update);
                }
                jobs.iter().for_each(|job| self.launches.apply(job));
                self.wanted.extend(jobs.into_iter().map(|job| (job.id.clone(), job)));
            }
            Command::ApplyFolder { .. } => return Err("folders are not simulated".to_owned()),
            Command::Stop { job } => self.is_decided(&job, Kind::StopJob),
            Command::Start { job } => self.is_decided(&job, Kind::StartJob),
            Command::Delete { job } | Command::DeleteVersion { job, .. } => {
                self.met.note(Kind::Delete);
                self.wanted.remove(&*job.id);
            }
            Command::Register { job, .. } => self.is_wanted_now(&job.key()),
            Command::Scale { job, .. } => self.is_decided(&job, Kind::Scale),
            Command::Dispatch { job, dispatch } => {
                self.dispatched(&job, &dispatch.idempotency_token, reply)?;
            }
            Command::ForceLaunch { job } => {
                let Reply::Dispatched { job: child, .. } = reply else {
                    return Err(format!("a launch of {} is answered with {reply:?}", job.id));
                };
                self.launches.force(child.clone());
            }
            Command::Revert { job, .. } => self.is_decided(&job, Kind::Revert),
            Command::PromoteDeployment { .. } => self.met.note(Kind::Promote),
            Command::FailDeployment { .. } => self.met.note(Kind::FailDeployment),
            Command::SetAllocHealth { .. } => self.met.note(Kind::Judge),
            Command::DeleteVolume { .. } => self.met.note(Kind::VolumeDelete),
            Command::StopAlloc { .. } => self.met.note(Kind::Stop),
            Command::StopFast { stop, skips } => {
                self.accepted(*stop, reply)?;
                for skip in skips {
                    self.accepted(skip, reply)?;
                }
            }
            Command::SkipShutdownDelay { .. } => self.met.note(Kind::SkipDelay),
            Command::EndPoststop { .. } => self.met.note(Kind::EndPoststop),
            Command::Collect { .. } => self.collected(reply)?,
            Command::Restart { .. } => self.met.note(Kind::Restart),
            Command::Drain { drain: Some(_), .. } => self.met.note(Kind::Drain),
            Command::PauseDeployment { paused: true, .. } => self.met.note(Kind::Pause),
            Command::SetEligibility { .. }
            | Command::Drain { drain: None, .. }
            | Command::PauseDeployment { paused: false, .. }
            | Command::TagVersion { .. }
            | Command::UntagVersion { .. }
            | Command::Signal { .. }
            | Command::Explain { .. } => {}
        }
        Ok(())
    }

    /// A collected job is no longer desired. Jobs and allocations that run, or will run, must not be collected.
    fn collected(&mut self, reply: &Reply) -> Result<(), String> {
        let Reply::Collected { jobs, allocs, .. } = reply else {
            return Err(format!("a collection is answered with {reply:?}"));
        };
        for key in jobs {
            self.met.note(Kind::CollectJob);
            let wanted = self.wanted.remove(&*key.id);
            if wanted.is_some_and(|job| !job.ends()) {
                return Err(format!("{key} was collected before its end"));
            }
        }
        for id in allocs {
            self.met.note(Kind::CollectAlloc);
            if let Some(((_, index, attempt), _)) = self.machine.live().find(|((of, ..), _)| of == id)
                && self.allocs.get(id).is_some_and(|view| !view.status.is_terminal())
            {
                let name = self.trace.name_of(*id);
                return Err(format!("{name} was collected while attempt {attempt} of task {index} runs"));
            }
        }
        Ok(())
    }

    /// A job was dispatched: the child is desired from now on, and there is one child per token.
    fn dispatched(&mut self, parent: &JobKey, token: &str, reply: &Reply) -> Result<(), String> {
        let Reply::Dispatched { job: child, .. } = reply else {
            return Err(format!("a dispatch is answered with {reply:?}"));
        };
        if self.wanted.contains_key(&*child.id) {
            self.met.note(Kind::DispatchAgain);
            return if token.is_empty() { Err(format!("{} is dispatched twice", child.id)) } else { Ok(()) };
        }
        self.met.note(Kind::Dispatch);
        let twin = self.wanted.values().find(|job| {
            job.parent_id() == Some(&*parent.id) && job.dispatched().is_some_and(|(_, of)| of == token)
        });
        if let Some(twin) = twin.filter(|_| !token.is_empty()) {
            return Err(format!("the token {token} has created {} and {}", twin.id, child.id));
        }
        // A child that was deleted within the turn that created it is not published.
        if let Some(view) = self.jobs.get(child) {
            self.wanted.insert(child.id.to_string(), Job::clone(&view.job));
        }
        Ok(())
    }

    /// A user changed a job: its published state is now the desired one.
    fn is_decided(&mut self, job: &JobKey, kind: Kind) {
        self.met.note(kind);
        self.is_wanted_now(job);
    }

    /// The published state of the job becomes the desired one.
    fn is_wanted_now(&mut self, job: &JobKey) {
        if let Some(view) = self.jobs.get(job) {
            self.wanted.insert(job.id.to_string(), Job::clone(&view.job));
        }
    }
}
