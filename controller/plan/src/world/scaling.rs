//! Scaling in the world: creates a version with another count, and stores scaling events.

use std_alloc::{format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    JobKey,
    job::Job,
    scaling::{ScalingEvent, ScalingNote},
};

use crate::{
    event::{AppliedJob, Counts, JobChange, Refusal, Reply},
    job::scale,
    limits::SCALING_EVENTS_KEPT,
    op::Key,
    turn::OpenTurn,
    world::World,
};

impl World {
    /// Changes the count of a group, or only stores the note. During a deployment the count can't be changed, as in
    /// Nomad.
    pub(super) fn scale_job(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        group: &str,
        count: Option<u32>,
        note: ScalingNote,
    ) -> Result<Reply, Refusal> {
        let known = self.jobs.get(key).filter(|known| !known.state.deleting);
        let known = known.ok_or_else(|| Refusal::NotFound(format!("there is no job \"{key}\"")))?;
        if let (Some(parent), Some(_)) = (known.current.parent_id(), count) {
            let message = format!(
                "job \"{key}\" is a child of \"{parent}\" and can't be scaled; scale \"{parent}\" instead: its next children get the new count"
            );
            return Err(Refusal::Invalid(message));
        }
        let previous_count = known.current.group(group).map(|group| group.count);
        let scaled = scale::scaled(&known.current, group, count.or(previous_count).unwrap_or_default())?;
        if count.is_some()
            && count != previous_count
            && let Some(active) = known.state.deployment().filter(|known| known.deployment.is_running())
        {
            let way = if active.deployment.requires_promotion() { "promote" } else { "wait" };
            let message = format!(
                "job \"{key}\" can't be scaled while its deployment {} is running: run herdlet {way} {key}, or: herdlet deployment \
                 fail {key}",
                active.deployment.id.short()
            );
            return Err(Refusal::Invalid(message));
        }
        let (version, change) = match count {
            Some(_) => self.accept_job(open, scaled),
            None => (known.state.version, JobChange::Unchanged),
        };
        self.meta.index += 1;
        let event = ScalingEvent {
            time: open.now.wall,
            count,
            previous_count: previous_count.unwrap_or_default(),
            note,
            create_index: self.meta.index,
        };
        if let Some(entry) = self.jobs.get_mut(key) {
            Arc::make_mut(&mut entry.state.scaled).remember(group, event, SCALING_EVENTS_KEPT);
        }
        open.dirty.insert(Key::Job(key.clone()));
        let jobs = Vec::from([AppliedJob { job: key.clone(), version, change }]);
        Ok(Reply::Applied { index: self.meta.index, jobs, volumes: Vec::new() })
    }

    /// Makes this the job's current version, if the job was last changed at `enforced_index`.
    pub(super) fn register_job(
        &mut self,
        open: &mut OpenTurn<'_>,
        job: Job,
        counts: Counts,
        enforced_index: Option<u64>,
    ) -> Result<Reply, Refusal> {
        let key = job.key();
        let known = self.jobs.get(&key).filter(|known| !known.state.deleting);
        let index = known.map_or(0, |known| known.state.modify_index);
        if let Some(enforced) = enforced_index.filter(|enforced| *enforced != index) {
            return Err(Refusal::Conflict(conflict(enforced, index)));
        }
        let job = match known {
            Some(known) if counts == Counts::Keep => scale::with_counts_of(job, &known.current)?,
            Some(_) | None => job,
        };
        self.apply_set(open, Vec::from([job]), Vec::new())
    }
}

/// Why a job is not registered at an index. Clients compare the first four words, which are Nomad's.
fn conflict(enforced: u64, index: u64) -> String {
    let why = match (enforced, index) {
        (0, _) => String::from("job already exists"),
        (_, 0) => String::from("job does not exist"),
        (_, index) => format!("job exists with conflicting job modify index: {index}"),
    };
    format!("Enforcing job modify index {enforced}: {why}")
}
