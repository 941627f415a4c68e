//! A job's versions: kept for reverts, and while allocations made from them exist.
//!
//! A revert creates a new version with the specification of an old one. A version's specification never changes.

use std_alloc::{collections::BTreeSet, format, string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    JobKey, UnixNanos,
    job::Job,
    view::{JobVersion, VersionTag},
};

use crate::{
    event::{AppliedJob, Refusal, Reply},
    job::Submission,
    limits::VERSIONS_KEPT,
    record::{Record, RecordKey, RecordValue},
    turn::{OpenTurn, Turn},
    world::{JobEntry, World, allocs::Allocs},
};

impl World {
    /// Makes the specification of version `to` the newest version. With `prior` only if that is the current version, as
    /// the caller has seen it.
    pub(crate) fn revert_job(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        to: u64,
        prior: Option<u64>,
    ) -> Result<Reply, Refusal> {
        let entry = self.kept(key)?;
        let current = entry.state.version;
        if prior.is_some_and(|prior| prior != current) {
            return Err(Refusal::Conflict(format!(
                "job \"{key}\" has changed: it is at version {current} now"
            )));
        }
        if to == current {
            return Err(Refusal::Conflict(format!("job \"{key}\" is at version {to} already")));
        }
        let Some(old) = entry.past.get(&to) else {
            let kept: Vec<String> = entry.past.keys().map(|version| format!("{version}")).collect();
            let kept = if kept.is_empty() { String::from("none") } else { kept.join(", ") };
            let message = format!("version {to} of job \"{key}\" is not kept; older versions kept: {kept}");
            return Err(Refusal::NotFound(message));
        };
        let job = Job::clone(&old.job);
        let (version, change) = self.revert_to(open, job);
        let jobs = Vec::from([AppliedJob { job: key.clone(), version, change }]);
        Ok(Reply::Applied { index: self.meta.index, jobs, volumes: Vec::new() })
    }

    /// Makes the job's specification with this change the newest version.
    pub(crate) fn push_version(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        change: fn(&mut Job),
    ) -> Result<Reply, Refusal> {
        let mut job = Job::clone(&self.kept(key)?.current);
        change(&mut job);
        self.apply_set(open, Vec::from([job]), Vec::new())
    }

    /// Names a version, which is kept from now on. A name can't be moved to another version.
    pub(super) fn tag_version(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        version: Option<u64>,
        tag: VersionTag,
    ) -> Result<Reply, Refusal> {
        let entry = self.kept(key)?;
        let version = version.unwrap_or(entry.state.version);
        if entry.text(version).is_none() {
            return Err(Refusal::NotFound(format!("job \"{key}\" has no version {version}")));
        }
        let other = entry.state.tags.iter().find(|(known, one)| **known != version && one.name == tag.name);
        if let Some((other, _)) = other {
            return Err(Refusal::Conflict(format!(
                "tag \"{}\" already exists on a different version of job \"{key}\": version {other}",
                tag.name
            )));
        }
        Ok(self.change_tags(open, key, version, Some(tag)))
    }

    /// Removes a name.
    pub(super) fn untag_version(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        name: &str,
    ) -> Result<Reply, Refusal> {
        let found = self.kept(key)?.state.tags.iter().find(|(_, tag)| tag.name == name);
        let Some((version, _)) = found.map(|(version, tag)| (*version, tag)) else {
            return Err(Refusal::NotFound(format!("tag \"{name}\" not found on job \"{key}\"")));
        };
        Ok(self.change_tags(open, key, version, None))
    }

    fn change_tags(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        version: u64,
        tag: Option<VersionTag>,
    ) -> Reply {
        self.meta.index += 1;
        if let Some(entry) = self.jobs.get_mut(key) {
            match tag {
                Some(tag) => entry.state.tags.insert(version, tag),
                None => entry.state.tags.remove(&version),
            };
            if let Some(past) = entry.past.get(&version).map(|past| Arc::clone(&past.job)) {
                entry.keep(version, past);
            }
        }
        self.mark_stale(open, key.clone());
        Reply::Accepted { index: self.meta.index }
    }

    /// A job that is not being deleted.
    pub(super) fn kept(&self, key: &JobKey) -> Result<&JobEntry, Refusal> {
        let known = self.jobs.get(key);
        let entry = known.ok_or_else(|| Refusal::NotFound(format!("there is no job \"{key}\"")))?;
        if entry.state.deleting {
            return Err(Refusal::Conflict(format!("job \"{key}\" is being deleted")));
        }
        Ok(entry)
    }
}

impl JobEntry {
    /// Whether nothing of it shall run any more, whether it is kept or not.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.deleting || self.current.stop
    }

    /// Replaces the job's specification with that of a new version.
    pub(super) fn begin_version(&mut self, job: Arc<Job>, submitted: Submission) {
        let old = self.state.version;
        let text = core::mem::replace(&mut self.current, job);
        self.infeasible = None;
        self.keep(old, text);
        let state = &mut *self.state;
        state.version += 1;
        state.versions.insert(state.version);
        state.submitted.insert(state.version, submitted);
        state.submit_time = submitted.time;
    }

    /// Keeps an older version's specification.
    pub(super) fn keep(&mut self, version: u64, job: Arc<Job>) {
        let known = self.state.submitted.get(&version);
        let (index, submit_time) =
            known.map_or((0, UnixNanos::default()), |submitted| (submitted.index, submitted.time));
        let tag = self.state.tags.get(&version).cloned();
        self.past.insert(version, Arc::new(JobVersion { version, index, submit_time, job, tag }));
    }

    /// Emits the specifications that are not stored yet. Several versions may follow each other within a turn.
    pub(super) fn write_versions(&mut self, key: &JobKey, turn: &mut Turn) {
        let current = self.state.version;
        let first = self.written.map_or(0, |written| written + 1).min(current);
        let past = self.past.range(first..current).map(|(version, past)| (*version, &past.job));
        for (version, job) in past.chain([(current, &self.current)]) {
            let key = RecordKey::JobVersion(key.clone(), version);
            turn.records.push(Record::Put(key, RecordValue::JobVersion(Arc::clone(job))));
        }
        self.written = Some(current);
    }

    /// Removes versions that are not among the newest, not the newest stable one, and not used by an allocation.
    pub(super) fn prune_versions(&mut self, key: &JobKey, allocs: &Allocs, turn: &mut Turn) {
        if self.state.versions.len() <= VERSIONS_KEPT {
            return;
        }
        let newest: BTreeSet<u64> = self.state.versions.iter().rev().copied().take(VERSIONS_KEPT).collect();
        let stable = self.state.stable.last().copied();
        let tagged: BTreeSet<u64> = self.state.tags.keys().copied().collect();
        let in_use = |version| {
            stable == Some(version)
                || tagged.contains(&version)
                || allocs.of_job(key).any(|(_, alloc)| alloc.spec.job_version == version)
        };
        let old: Vec<u64> = self.state.versions.difference(&newest).copied().collect();
        for version in old.into_iter().filter(|version| !in_use(*version)) {
            self.state.versions.remove(&version);
            self.state.submitted.remove(&version);
            self.state.stable.remove(&version);
            self.past.remove(&version);
            turn.records.push(Record::Delete(RecordKey::JobVersion(key.clone(), version)));
        }
    }
}
