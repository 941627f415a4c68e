//! Requests of users: checked against the current state, then accepted or refused as a whole.

use std_alloc::{boxed::Box, collections::BTreeSet, format, string::String, vec::Vec};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{AssignedPort, ClientStatus, Desired},
    job::{Job, Lifecycle, Task},
    view::{Reason, Wait},
    volume::Volume,
};

use crate::{
    alloc::{self, show},
    event::{AppliedJob, Command, Ending, Refusal, Reply, RestartScope, VolumeData},
    job::placed::has_ended,
    op::Key,
    policy::Owner,
    shared::volume::{Origin, VolumeIntent},
    state::TaskState,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::AllocEntry, poststop::PoststopScope},
};

impl World {
    fn delete(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, seen: Option<u64>) -> Result<Reply, Refusal> {
        let job = self.jobs.get(key);
        let job = job.ok_or_else(|| Refusal::NotFound(format!("there is no job \"{key}\"")))?;
        let current = job.state.version;
        if seen.is_some_and(|seen| seen != current) {
            return Err(Refusal::Conflict(format!(
                "job \"{key}\" has changed: it is at version {current} now"
            )));
        }
        if job.state.deleting {
            return Ok(self.end_poststop(open, &Ending::Job(key.clone()), PoststopScope::Begun));
        }
        // It follows a stop, and so is the second request to end the job.
        if job.current.stop {
            self.end_poststop(open, &Ending::Job(key.clone()), PoststopScope::Begun);
        }
        self.delete_job(open, key);
        Ok(Reply::Accepted { index: self.meta.index })
    }

    fn stop_job(&mut self, open: &mut OpenTurn<'_>, job: JobKey) -> Result<Reply, Refusal> {
        if self.kept(&job)?.current.stop {
            self.end_poststop(open, &Ending::Job(job.clone()), PoststopScope::Begun);
        }
        self.push_version(open, &job, |job| job.stop = true)
    }

    /// Carries out a request. A refused one changes nothing.
    pub(crate) fn command(&mut self, open: &mut OpenTurn<'_>, command: Command) -> Reply {
        match self.try_command(open, command) {
            Ok(reply) => reply,
            Err(refusal) => Reply::Refused(refusal),
        }
    }

    fn try_command(&mut self, open: &mut OpenTurn<'_>, command: Command) -> Result<Reply, Refusal> {
        match command {
            Command::Apply { jobs, volumes } => self.apply_set(open, jobs, volumes),
            Command::ApplyFolder { jobs, volumes } => self.apply_folder(open, jobs, volumes),
            Command::Delete { job } => self.delete(open, &job, None),
            Command::DeleteVersion { job, version } => self.delete(open, &job, Some(version)),
            Command::Stop { job } => self.stop_job(open, job),
            Command::Start { job } => self.push_version(open, &job, |job| job.stop = false),
            Command::Dispatch { job, dispatch } => self.dispatch_job(open, &job, *dispatch),
            Command::ForceLaunch { job } => self.force_launch(open, &job),
            Command::Revert { job, to, prior } => self.revert_job(open, &job, to, prior),
            Command::Register { job, counts, enforced_index } => {
                self.register_job(open, *job, counts, enforced_index)
            }
            Command::Scale { job, group, count, note } => self.scale_job(open, &job, &group, count, note),
            Command::PromoteDeployment { id, scope } => self.promote_deployment(open, id, &scope),
            Command::FailDeployment { id } => self.fail_deployment(open, id),
            Command::SetAllocHealth { id, healthy, unhealthy } => {
                self.set_alloc_health(open, id, &healthy, &unhealthy)
            }
            Command::DeleteVolume { name, data } => self.delete_volume(open, name, data),
            Command::StopAlloc { alloc } => self.stop_alloc(open, alloc),
            Command::SkipShutdownDelay { of } => Ok(self.skip_shutdown_delay(open, &of)),
            Command::StopFast { stop, skips } => {
                let reply = self.try_command(open, *stop)?;
                for skip in skips {
                    self.try_command(open, skip)?;
                }
                Ok(reply.at(self.meta.index))
            }
            Command::EndPoststop { of } => Ok(self.end_poststop(open, &of, PoststopScope::All)),
            Command::Collect { jobs, allocs } => Ok(self.collect(open, jobs, allocs)),
            Command::PauseDeployment { id, paused: true } => self.pause_deployment(open, id),
            Command::PauseDeployment { id, paused: false } => self.resume_deployment(open, id),
            Command::TagVersion { job, version, tag } => self.tag_version(open, &job, version, tag),
            Command::UntagVersion { job, name } => self.untag_version(open, &job, &name),
            Command::SetEligibility { eligible } => self.set_eligibility(open, eligible),
            Command::Drain { drain, mark_eligible, meta } => {
                Ok(self.set_drain(open, drain, mark_eligible, meta))
            }
            Command::Restart { alloc, scope } => {
                self.may_restart(alloc, &scope)?;
                let done = self.write(open, alloc, |writer| writer.restart(&scope));
                self.answer(alloc, done)
            }
            Command::Signal { alloc, task, signal } => {
                let done = self.write(open, alloc, |writer| writer.signal(task.as_deref(), &signal));
                self.answer(alloc, done)
            }
            Command::Explain { alloc: id } => {
                let entry = self.allocs.get(id).ok_or_else(|| no_alloc(id))?;
                let plan = alloc::plan(open.now, &self.ctx, &entry.spec, &entry.state);
                let mut explanation = show::explain(open.now, &entry.spec, &entry.state, &plan);
                explanation.waits.extend(self.ports_in_use(entry));
                Ok(Reply::Explanation(Box::new(explanation)))
            }
        }
    }

    /// Ports of an allocation on which another process listens; only known while none of its own tasks runs.
    fn ports_in_use(&self, entry: &AllocEntry) -> Vec<Wait> {
        if entry.state.durable.tasks.iter().any(|task| task.live_attempt().is_some()) {
            return Vec::new();
        }
        let in_use =
            entry.spec.named_ports().filter(|(_, port)| self.allocs.ports().is_listening(port.value));
        let wait = |(name, port): (String, &AssignedPort)| Wait {
            part: format!("port {name}"),
            reason: Reason::Port,
            message: format!("another process of this machine listens on port {}", port.value),
            since: None,
            until: None,
        };
        in_use.map(wait).collect()
    }

    /// A restart first kills a task: if its driver can't start it again now, it is refused.
    fn may_restart(&self, id: AllocId, scope: &RestartScope) -> Result<(), Refusal> {
        let entry = self.allocs.get(id).ok_or_else(|| no_alloc(id))?;
        let tasks = entry.spec.group().map(|group| group.tasks.as_slice()).unwrap_or_default();
        let restarts = |(task, known): &(&Task, &TaskState)| match scope {
            RestartScope::Task(name) => task.name == *name,
            RestartScope::Running => known.live_attempt().is_some(),
            RestartScope::All => task.lifecycle != Lifecycle::Poststop,
        };
        let mut restarted = tasks.iter().zip(&entry.state.durable.tasks).filter(restarts);
        match restarted.find_map(|(task, _)| Some((task, self.ctx.driver_trouble(&task.driver)?))) {
            Some((task, why)) => {
                let (name, task) = (entry.spec.name(), &task.name);
                Err(Refusal::Conflict(format!("task {task} of {name} can't be restarted: {why}")))
            }
            None => Ok(()),
        }
    }

    /// Stops an allocation. One that is being stopped already stays so, except that a repeated request ends a poststop task that still
    /// runs.
    fn stop_alloc(&mut self, open: &mut OpenTurn<'_>, id: AllocId) -> Result<Reply, Refusal> {
        let entry = self.allocs.get_mut(id).ok_or_else(|| no_alloc(id))?;
        let is_retried = entry.state.durable.status == ClientStatus::Failed
            && entry.spec.desired == Desired::Run
            && entry.spec.policy().owner == Owner::Job;
        // A failed allocation is stopped to have another one created.
        if has_ended(&entry.state.durable) && !is_retried {
            return Err(Refusal::Conflict(format!("allocation {} has ended already", entry.spec.name())));
        }
        if entry.spec.desired != Desired::Run {
            return Ok(self.end_poststop(open, &Ending::Alloc(id), PoststopScope::Begun));
        }
        if entry.spec.policy().owner == Owner::Servers {
            return Err(Refusal::Conflict(format!(
                "allocation {} belongs to the Nomad servers, which would replace it: stop it there (nomad alloc stop {id})",
                entry.spec.name()
            )));
        }
        entry.want(Desired::Stop, String::from("stopped by request"));
        let job = entry.spec.job_key.clone();
        self.meta.index += 1;
        open.dirty.insert(Key::Alloc(id));
        self.mark_stale(open, job);
        Ok(Reply::Accepted { index: self.meta.index })
    }

    /// Stopping allocations skip their shutdown delay, even one that is running. For a job that is being deleted that
    /// means all its allocations: with a deletion during the first readings, the request arrives before anything is
    /// stopped.
    fn skip_shutdown_delay(&mut self, open: &mut OpenTurn<'_>, of: &Ending) -> Reply {
        let ids = self.ending(of, |entry| !entry.state.durable.no_shutdown_delay);
        for id in &ids {
            let Some(entry) = self.allocs.get_mut(*id) else { continue };
            entry.state.durable.no_shutdown_delay = true;
            entry.changed = true;
            open.dirty.insert(Key::Alloc(*id));
        }
        self.accept_change_of(&ids)
    }

    /// Allocations that are being stopped and have not ended, those that `concerns` selects.
    pub(super) fn ending(&self, of: &Ending, concerns: impl Fn(&AllocEntry) -> bool) -> Vec<AllocId> {
        let (ids, is_stopped): (Vec<AllocId>, bool) = match of {
            Ending::Job(key) => {
                let ids = self.allocs.of_job(key).map(|(id, _)| id).collect();
                (ids, self.jobs.get(key).is_some_and(JobEntry::is_stopped))
            }
            Ending::Alloc(id) => (Vec::from([*id]), false),
        };
        let is_meant = |entry: &AllocEntry| {
            let ends = is_stopped || entry.spec.desired != Desired::Run;
            ends && !has_ended(&entry.state.durable) && concerns(entry)
        };
        ids.into_iter().filter(|id| self.allocs.get(*id).is_some_and(is_meant)).collect()
    }

    /// Accepts a request. It has its own index if it changed allocations.
    pub(super) fn accept_change_of(&mut self, changed: &[AllocId]) -> Reply {
        if !changed.is_empty() {
            self.meta.index += 1;
        }
        Reply::Accepted { index: self.meta.index }
    }

    pub(super) fn apply_set(
        &mut self,
        open: &mut OpenTurn<'_>,
        jobs: Vec<Job>,
        volumes: Vec<Volume>,
    ) -> Result<Reply, Refusal> {
        for volume in &volumes {
            let Some(known) = self.ctx.volumes.get(&volume.name) else { continue };
            if known.state.origin == Origin::Config {
                let message = format!("volume \"{}\" is defined in the agent's config", volume.name);
                return Err(Refusal::Conflict(message));
            }
            let same_place =
                core::mem::discriminant(&known.state.spec.kind) == core::mem::discriminant(&volume.kind);
            let mut users = self.claims(&volume.name).filter_map(|id| self.allocs.get(id));
            if !same_place && users.any(|entry| entry.may_mount()) {
                let message = format!("volume \"{}\" is in use: its kind can't be changed", volume.name);
                return Err(Refusal::Conflict(message));
            }
        }
        for key in jobs.iter().map(Job::key) {
            let known = self.jobs.get(&key);
            if let Some(parent) = known.and_then(|known| known.current.parent_id()) {
                let message = format!(
                    "job \"{key}\" is a child of job \"{parent}\" and cannot be changed; give your job another name"
                );
                return Err(Refusal::Conflict(message));
            }
        }
        let mut changed = Vec::new();
        for volume in volumes {
            if self.ctx.volumes.get(&volume.name).is_none_or(|known| known.state.spec != volume) {
                changed.push(volume.name.clone());
            }
            self.want_volume(open, volume, Origin::Manifest);
        }
        let mut applied = Vec::new();
        for job in jobs {
            let key = job.key();
            let (version, change) = self.accept_job(open, job);
            self.define_job(&key, None);
            applied.push(AppliedJob { job: key, version, change });
        }
        Ok(Reply::Applied { index: self.meta.index, jobs: applied, volumes: changed })
    }

    fn delete_volume(
        &mut self,
        open: &mut OpenTurn<'_>,
        name: String,
        data: VolumeData,
    ) -> Result<Reply, Refusal> {
        // An ended allocation without mounts is only kept for its logs. Two allocations of a slot share a name.
        let users = self.claims(&name).filter_map(|id| self.allocs.get(id)).filter(|entry| entry.may_mount());
        let users: BTreeSet<String> = users.map(|entry| entry.spec.name()).collect();
        match (self.ctx.volumes.get(&name), data) {
            (Some(entry), _) if entry.state.origin == Origin::Config => {
                return Err(Refusal::Conflict(format!("volume \"{name}\" is defined in the agent's config")));
            }
            (None, VolumeData::Keep) => {
                return Err(Refusal::NotFound(format!("there is no volume \"{name}\"")));
            }
            (Some(_), _) | (None, VolumeData::Purge) => {}
        }
        if !users.is_empty() {
            let users = users.into_iter().collect::<Vec<_>>().join(", ");
            return Err(Refusal::Conflict(format!("volume \"{name}\" is in use by {users}")));
        }
        let fate = match data {
            VolumeData::Purge => VolumeIntent::Purged,
            VolumeData::Keep => VolumeIntent::Dropped,
        };
        match self.ctx.volumes.get_mut(&name) {
            Some(entry) => entry.state.fate = fate,
            // It was removed before, and only its data is left.
            None => self.purge_forgotten(&name),
        }
        self.meta.index += 1;
        open.dirty.insert(Key::Volume(name));
        Ok(Reply::Accepted { index: self.meta.index })
    }

    fn answer(&self, alloc: AllocId, done: Option<Result<(), String>>) -> Result<Reply, Refusal> {
        match done {
            None => Err(no_alloc(alloc)),
            Some(Err(why)) => Err(Refusal::Conflict(why)),
            Some(Ok(())) => Ok(Reply::Accepted { index: self.meta.index }),
        }
    }
}

fn no_alloc(id: AllocId) -> Refusal {
    Refusal::NotFound(format!("there is no allocation {id}"))
}
