//! Launches of periodic jobs: creates a child for each moment, in the commit that stores the moment.

use std_alloc::format;

use herdlet_api_types::{JobKey, UnixNanos, job::Job};

use crate::{
    event::{Refusal, Reply},
    job::{
        children::launched,
        periodic::{Launches, Next},
    },
    op::Key,
    time::Now,
    turn::OpenTurn,
    world::{JobEntry, World},
};

impl World {
    /// Launches a periodic job if it is due. Returns when to plan it again, by the boot clock.
    pub(crate) fn launch_due(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) -> Option<u64> {
        let complete = self.ctx.complete;
        let entry = self.jobs.get_mut(key)?;
        entry.next_launch = None;
        let periodic = entry.current.launches()?;
        if entry.is_stopped() || entry.quarantine.is_some() {
            return None;
        }
        let known = entry.state.launches;
        let launches =
            known.map_or_else(|| Launches::until(open.now.wall), |known| known.seen(open.now.wall));
        let mut next = launches.next(periodic, open.now.wall);
        if known != Some(launches) {
            entry.state.launches = Some(launches);
        }
        // Until every source was read, it is open whether this job is still wanted.
        if let Next::Launch(moment) = next
            && complete
        {
            self.launch(open, key, moment);
            let entry = self.jobs.get_mut(key)?;
            let launches = Launches::until(moment);
            entry.state.launches = Some(launches);
            next = launches.next(entry.current.launches()?, open.now.wall);
        }
        let Next::At(at) = next else { return None };
        self.jobs.get_mut(key)?.next_launch = Some(at);
        let ahead = at.0.saturating_sub(open.now.wall.0).max(0);
        Some(open.now.boot_ns.saturating_add(ahead.unsigned_abs()))
    }

    /// Creates the child of a moment, unless it exists, or `prohibit_overlap` forbids it beside one that runs.
    fn launch(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, moment: UnixNanos) {
        let Some(entry) = self.jobs.get(key) else { return };
        let child = launched(&entry.current, moment);
        if self.jobs.contains_key(&child.key()) || self.overlaps(open.now, key).is_some() {
            return;
        }
        self.accept_job(open, child);
    }

    /// Creates a child of a periodic job now, regardless of schedule and running children. A repeated request within
    /// the same second returns the same child.
    pub(crate) fn force_launch(&mut self, open: &mut OpenTurn<'_>, key: &JobKey) -> Result<Reply, Refusal> {
        let entry = self.parent(key)?;
        match entry.current.launches() {
            Some(periodic) if periodic.enabled => {}
            Some(_) => {
                return Err(Refusal::Conflict(format!(
                    "job \"{key}\" is not enabled: set `enabled: true` in its `periodic` block"
                )));
            }
            None => return Err(Refusal::Invalid(format!("job \"{key}\" is not a periodic job"))),
        }
        let child = launched(&entry.current, open.now.wall);
        let job = child.key();
        let known = self.jobs.get(&job);
        if known.is_some_and(|known| known.state.deleting) {
            return Err(Refusal::Conflict(format!("job \"{job}\" is being deleted; launch it again")));
        }
        if known.is_none() {
            self.accept_job(open, child);
        }
        Ok(Reply::Dispatched { index: self.meta.index, job })
    }

    /// The wall clock was set: plans every job that waits for a time of day again.
    pub(crate) fn clock_set(&mut self, open: &mut OpenTurn<'_>) {
        let periodic = self.jobs.iter().filter(|(_, entry)| entry.current.launches().is_some());
        open.dirty.extend(periodic.map(|(key, _)| Key::Job(key.clone())));
    }

    /// A child that has not ended, if the job forbids overlaps.
    fn overlaps<'w>(&'w self, now: Now, parent: &'w JobKey) -> Option<&'w JobKey> {
        let job = &self.jobs.get(parent)?.current;
        job.launches().filter(|periodic| periodic.prohibit_overlap)?;
        self.children(parent).find(|(key, child)| !self.has_finished(now, key, child)).map(|(key, _)| key)
    }
}

impl JobEntry {
    /// Prepares the launches for a new specification: if the schedule changes, or the job was stopped or being deleted,
    /// no moment before the present counts as missed.
    pub(super) fn change_launches(&mut self, now: Now, job: &Job) {
        if (job.periodic != self.current.periodic || self.is_stopped())
            && let Some(launches) = self.state.launches
        {
            self.state.launches = Some(Launches { until: launches.until.max(now.wall), ..launches });
        }
    }
}

#[cfg(test)]
mod tests;
