//! Deployments in the world: begins them, applies their outcomes, handles requests about them.
//!
//! In: turnouts of the pure plan, requests of users. Out: stored states, canaries that take their slots, a new version
//! with an old specification.

use std_alloc::{format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{AllocId, DeploymentId, JobKey, alloc::Desired, deployment::DeploymentStatus};

use crate::{
    alloc::apply::serve_as_promoted,
    event::{PromoteScope, Refusal, Reply},
    job::{
        deployment::{self, DeploymentState, Turnout},
        pass::JobPass,
    },
    limits::DEPLOYMENTS_KEPT,
    op::Key,
    plan::Change,
    state::Health,
    time::Now,
    turn::OpenTurn,
    world::{JobEntry, World, allocs::Allocs},
};

/// What a request about the health of allocations does with their deployment, in Nomad's words.
const HEALTH: &str = "set health of allocations for a";

impl World {
    /// Updates the job's deployments. Returns whether anything changed.
    pub(super) fn follow_deployments(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) -> bool {
        let Some(entry) = self.jobs.get(key) else { return false };
        let instance = &self.ctx.settings.instance.0;
        let turnouts = entry.read(open.now, &self.allocs, |pass| {
            let mut turnouts = deployment::plan(pass);
            turnouts.extend(deployment::begin(pass, instance).map(Turnout::Is));
            turnouts
        });
        let moved = !turnouts.is_empty();
        self.turn_out(open, key, turnouts);
        moved
    }

    /// Promotes the canaries of a deployment. All of them must be healthy.
    pub(super) fn promote_deployment(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
        scope: &PromoteScope,
    ) -> Result<Reply, Refusal> {
        let (key, entry, known) = self.active_deployment(id, "promote")?;
        if known.deployment.paused {
            return Err(Refusal::Conflict(format!(
                "deployment {id} is paused: resume it first (herdlet deployment resume {})",
                id.short()
            )));
        }
        let find = |id| self.allocs.placement(id);
        let mut groups = Vec::new();
        if let PromoteScope::Groups(names) = scope
            && let Some(name) = names.iter().find(|name| known.group(name).is_none())
        {
            let known: Vec<&str> = known.deployment.groups.keys().map(String::as_str).collect();
            let message = format!("deployment {id} has no group \"{name}\"; it has: {}", known.join(", "));
            return Err(Refusal::NotFound(message));
        }
        for (name, group) in &known.deployment.groups {
            let meant = match scope {
                PromoteScope::All => true,
                PromoteScope::Groups(names) => names.contains(name),
            };
            if !meant || !group.is_canarying() {
                continue;
            }
            let healthy = deployment::healthy_canaries(group, &find);
            if healthy < group.desired_canaries {
                let message = format!(
                    "task group \"{name}\" of job \"{}\" has {healthy}/{} healthy allocations",
                    entry.state.key, group.desired_canaries
                );
                return Err(Refusal::Conflict(message));
            }
            groups.push(name.clone());
        }
        if groups.is_empty() {
            return Err(Refusal::Conflict(format!("deployment {id} has no canaries to promote")));
        }
        self.turn_out(open, &key, Vec::from([Turnout::Promote(groups)]));
        self.mark_stale(open, key);
        Ok(Reply::Accepted { index: self.meta.index })
    }

    /// Pauses a deployment.
    pub(super) fn pause_deployment(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
    ) -> Result<Reply, Refusal> {
        self.change_deployment(open, id, "pause", DeploymentState::pause)
    }

    /// Resumes a deployment.
    pub(super) fn resume_deployment(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
    ) -> Result<Reply, Refusal> {
        self.change_deployment(open, id, "resume", DeploymentState::resume)
    }

    /// Changes a running deployment, for a request to `verb` it. Stores it if it differs.
    fn change_deployment(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
        verb: &str,
        change: fn(&mut DeploymentState, Now),
    ) -> Result<Reply, Refusal> {
        let (key, _, known) = self.active_deployment(id, verb)?;
        let mut next = known.clone();
        change(&mut next, open.now);
        if next != *known {
            self.turn_out(open, &key, Vec::from([Turnout::Is(next)]));
            self.mark_stale(open, key);
        }
        Ok(Reply::Accepted { index: self.meta.index })
    }

    /// Marks a deployment as failed; with `auto_revert` the job goes back to a stable version.
    pub(super) fn fail_deployment(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
    ) -> Result<Reply, Refusal> {
        let (key, entry, known) = self.active_deployment(id, "fail")?;
        let turnouts = entry.read(open.now, &self.allocs, |pass| deployment::fail_by_request(pass, known));
        let reply = self.turn_out_failed(open, &key, turnouts);
        self.mark_stale(open, key);
        Ok(reply)
    }

    /// Sets the health of allocations of a deployment. An unhealthy one fails the deployment; if its group has
    /// `auto_revert`, the job goes back to a stable version.
    pub(super) fn set_alloc_health(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
        healthy: &[AllocId],
        unhealthy: &[AllocId],
    ) -> Result<Reply, Refusal> {
        let (key, ..) = self.active_deployment(id, HEALTH)?;
        for alloc in healthy.iter().chain(unhealthy) {
            let entry = self.allocs.get(*alloc);
            if entry.and_then(|entry| entry.spec.deployment).is_none_or(|of| of.id != id) {
                let message = format!("allocation {alloc} does not belong to deployment {id}");
                return Err(Refusal::NotFound(message));
            }
        }
        if let Some(both) = healthy.iter().find(|alloc| unhealthy.contains(alloc)) {
            return Err(Refusal::Conflict(format!(
                "allocation {both} is listed both as healthy and as unhealthy"
            )));
        }
        for (allocs, healthy, why) in [(healthy, true, ""), (unhealthy, false, "Unhealthy by request")] {
            for alloc in allocs {
                let verdict = Health { healthy, at: open.now.wall };
                let change = Change::Verdict(verdict, String::from(why));
                self.write(open, *alloc, |writer| writer.change(change));
            }
        }
        self.meta.index += 1;
        let reply = if unhealthy.is_empty() {
            Reply::Accepted { index: self.meta.index }
        } else {
            self.fail_unhealthy(open, id, unhealthy)?
        };
        self.mark_stale(open, key);
        Ok(reply)
    }

    fn fail_unhealthy(
        &mut self,
        open: &mut OpenTurn<'_>,
        id: DeploymentId,
        unhealthy: &[AllocId],
    ) -> Result<Reply, Refusal> {
        let (key, entry, known) = self.active_deployment(id, HEALTH)?;
        let turnouts =
            entry.read(open.now, &self.allocs, |pass| deployment::fail_unhealthy(pass, known, unhealthy));
        Ok(self.turn_out_failed(open, &key, turnouts))
    }

    /// Applies the end of a deployment that was failed by request.
    fn turn_out_failed(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, turnouts: Vec<Turnout>) -> Reply {
        let reverted = turnouts.iter().find_map(|turnout| match turnout {
            Turnout::Revert(version) => Some(*version),
            Turnout::Is(_) | Turnout::Promote(_) => None,
        });
        self.turn_out(open, key, turnouts);
        Reply::DeploymentFailed { index: self.meta.index, reverted }
    }

    /// A deployment that is running, for a request to `verb` it.
    fn active_deployment(
        &self,
        id: DeploymentId,
        verb: &str,
    ) -> Result<(JobKey, &JobEntry, &DeploymentState), Refusal> {
        let of_job = |(key, entry)| {
            let entry: &JobEntry = entry;
            let known = entry.state.deployments.iter().find(|known| known.deployment.id == id)?;
            Some((JobKey::clone(key), entry, known))
        };
        let found = self.jobs.iter().find_map(of_job);
        let (key, entry, known) =
            found.ok_or_else(|| Refusal::NotFound(format!("there is no deployment {id}")))?;
        if !known.deployment.is_running() {
            // Clients compare this text, which is Nomad's.
            return Err(Refusal::Invalid(format!("can't {verb} terminal deployment")));
        }
        Ok((key, entry, known))
    }

    /// Applies the outcomes of a deployment.
    fn turn_out(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, turnouts: Vec<Turnout>) {
        for turnout in turnouts {
            match turnout {
                Turnout::Is(known) => self.remember_deployment(open.now, key, known),
                Turnout::Promote(groups) => {
                    for group in groups {
                        self.promote_group(open, key, &group);
                    }
                }
                Turnout::Revert(version) => {
                    let text = self.jobs.get(key).and_then(|entry| entry.text(version));
                    if let Some(text) = text {
                        self.revert_to(open, Arc::unwrap_or_clone(text));
                    }
                }
            }
        }
    }

    fn remember_deployment(&mut self, now: Now, key: &JobKey, mut known: DeploymentState) {
        let Some(entry) = self.jobs.get_mut(key) else { return };
        let index = self.meta.index + 1;
        let shown = Arc::make_mut(&mut known.deployment);
        shown.modify_index = index;
        shown.modify_time = now.wall;
        let id = shown.id;
        if shown.status == DeploymentStatus::Successful {
            entry.state.stable.insert(shown.job_version);
        }
        let state = &mut *entry.state;
        match state.deployments.iter_mut().find(|before| before.deployment.id == id) {
            Some(before) => *before = known,
            None => {
                shown.create_index = index;
                shown.create_time = now.wall;
                state.deployments.push(known);
                let surplus = state.deployments.len().saturating_sub(DEPLOYMENTS_KEPT);
                state.deployments.drain(..surplus);
            }
        }
        self.meta.index = index;
    }

    /// The group's canaries take their slots; the allocations that they ran beside are stopped.
    fn promote_group(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, group: &str) {
        let Some(entry) = self.jobs.get_mut(key) else { return };
        let Some(mut known) = entry.state.deployment().cloned() else { return };
        let mut replaced = Vec::new();
        let mut promoted = Vec::new();
        for slot in entry.state.slots.get_mut(group).into_iter().flatten() {
            let canary =
                slot.canary.filter(|id| known.group(group).is_some_and(|of| of.placed_canaries.contains(id)));
            if let Some(canary) = canary {
                slot.canary = None;
                replaced.extend(slot.alloc.replace(canary));
                promoted.push(canary);
            }
        }
        known.promote(open.now, group);
        self.remember_deployment(open.now, key, known);
        for canary in promoted {
            let Some(alloc) = self.allocs.get_mut(canary) else { continue };
            alloc.spec.change(|spec| spec.deployment.iter_mut().for_each(|part| part.canary = false));
            if let Some(group) = alloc.spec.group() {
                serve_as_promoted(group, &mut alloc.state);
            }
            alloc.changed = true;
            open.dirty.insert(Key::Alloc(canary));
        }
        for old in replaced {
            let Some(alloc) = self.allocs.get_mut(old).filter(|alloc| alloc.spec.desired == Desired::Run)
            else {
                continue;
            };
            alloc.want(Desired::Stop, String::from("replaced by a promoted canary"));
            open.dirty.insert(Key::Alloc(old));
        }
    }
}

impl JobEntry {
    /// Gives `read` what a plan of the job reads.
    pub(super) fn read<T>(&self, now: Now, allocs: &Allocs, read: impl FnOnce(&JobPass<'_, '_>) -> T) -> T {
        let ids: Vec<AllocId> = allocs.of_job(&self.state.key).map(|(id, _)| id).collect();
        read(&JobPass {
            now,
            job: &self.current,
            state: &self.state,
            allocs: &ids,
            find: &|id| allocs.placement(id),
            version: &|version| self.text(version),
        })
    }

    /// The specification of a stored version.
    pub(super) fn text(&self, version: u64) -> Option<Arc<herdlet_api_types::job::Job>> {
        if version == self.state.version {
            return Some(Arc::clone(&self.current));
        }
        self.past.get(&version).map(|past| Arc::clone(&past.job))
    }
}
