//! Evaluations: in Nomad, the work of the scheduler for one change. Here the turn that accepts a change also plans it, so its
//! evaluation is complete by the time a client can ask for it.
//!
//! In: each change that the API has accepted, the versions of jobs, and allocations. Out: an evaluation id for the answer, and the
//! evaluations that clients follow, as Nomad's command line does. Those of kept versions, of failed and of unplaced allocations are
//! derived from the read model; others are kept in memory only. Nomad also forgets its evaluations after a while.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{
    JobKey, UnixNanos,
    alloc::Desired,
    nomad::{self, EvalProgress},
    view::{AllocView, JobVersion, JobView},
};
use serde_json::Value;
use tokio::sync::watch;

use super::{
    Shared, allocs,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
    trigger::Trigger,
    versions::newest_first,
};

/// This many are kept; the oldest is dropped first.
const KEPT_LEN: usize = 256;

#[derive(Debug)]
pub(super) struct Evaluation {
    id: String,
    job: JobKey,
    trigger: Trigger,
    index: u64,
    at: UnixNanos,
    /// The version of the job that it is about; none if the job was removed.
    version: Option<u64>,
    progress: EvalProgress,
}

impl Evaluation {
    /// The evaluation that follows a failed allocation. Its id is stored with the allocation.
    fn following(view: &AllocView) -> Option<Self> {
        let is_open = view.spec.desired == Desired::Run;
        let until = view.reschedule_at.filter(|_| is_open);
        Some(Self {
            id: nomad::followup_eval_id(view)?,
            job: view.spec.job_key.clone(),
            trigger: Trigger::AllocFailure,
            index: view.modify_index,
            at: view.modify_time,
            version: Some(view.spec.job_version),
            progress: until.map_or(EvalProgress::Complete, EvalProgress::Delayed),
        })
    }

    /// The evaluation with which a version of a job was accepted.
    fn of_version(job: &JobKey, version: &JobVersion) -> Self {
        Self {
            id: nomad::eval_id(job, version.index),
            job: job.clone(),
            trigger: if version.job.stop { Trigger::JobDeregister } else { Trigger::JobRegister },
            index: version.index,
            at: version.submit_time,
            version: Some(version.version),
            progress: EvalProgress::Complete,
        }
    }

    /// The evaluation that waits for room, if allocations of the job could not be placed.
    fn blocked(view: &JobView) -> Option<Self> {
        (!view.unplaced.is_empty()).then(|| Self {
            id: nomad::blocked_eval_id(&view.key, view.modify_index),
            job: view.key.clone(),
            trigger: Trigger::QueuedAllocs,
            index: view.modify_index,
            at: view.submit_time,
            version: Some(view.version),
            progress: EvalProgress::Blocked,
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn job(&self) -> &JobKey {
        &self.job
    }

    pub(super) fn index(&self) -> u64 {
        self.index
    }
}

#[derive(Debug, Default)]
pub struct Evaluations {
    kept: Mutex<VecDeque<Arc<Evaluation>>>,
    /// The number of evaluations so far. Changed while `kept` is locked.
    made: watch::Sender<u64>,
}

impl Evaluations {
    /// Records that a change of the job, now at `version`, was accepted at `index`. Returns the id of the evaluation.
    pub(super) fn note(
        &self,
        job: &JobKey,
        trigger: Trigger,
        (index, version): (u64, Option<u64>),
    ) -> String {
        let mut kept = self.kept();
        let mut id = nomad::eval_id(job, index);
        if kept.iter().any(|one| one.id == id) {
            id = uuid::Uuid::new_v4().to_string();
        }
        let (at, progress) = (herdlet_base::clock::wall_now(), EvalProgress::Complete);
        let one = Evaluation { id: id.clone(), job: job.clone(), trigger, index, at, version, progress };
        if kept.len() == KEPT_LEN {
            kept.pop_front();
        }
        kept.push_back(Arc::new(one));
        self.made.send_modify(|made| *made += 1);
        id
    }

    pub(super) fn all(&self) -> Vec<Arc<Evaluation>> {
        self.kept().iter().cloned().collect()
    }

    /// The number of evaluations so far.
    pub(super) fn made(&self) -> u64 {
        *self.made.borrow()
    }

    /// The number of evaluations before a commit. Evaluations that were dropped count as earlier.
    pub(super) fn made_before(&self, index: u64) -> u64 {
        let kept = self.kept();
        self.made() - kept.iter().filter(|one| one.index >= index).count() as u64
    }

    /// The number of evaluations so far, and those after the first `seen` that are still kept.
    pub(super) fn after(&self, seen: u64) -> (u64, Vec<Arc<Evaluation>>) {
        let kept = self.kept();
        let made = self.made();
        let new = usize::try_from(made.saturating_sub(seen)).unwrap_or(usize::MAX);
        (made, kept.iter().skip(kept.len().saturating_sub(new)).cloned().collect())
    }

    /// Waits until there are more than `made`.
    pub(super) async fn changed(&self, made: u64) {
        // An error is impossible: `self` owns the sender.
        let _ = self.made.subscribe().wait_for(|now| *now > made).await;
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Evaluation>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// The newest evaluations, those of versions and of unplaced allocations, and those that follow failed allocations.
    pub(super) fn evaluations(&self) -> Vec<Arc<Evaluation>> {
        let mut all = self.evaluations.all();
        for view in self.model.jobs() {
            let versions =
                newest_first(&view).into_iter().filter(|version| version.index > 0 && !view.deleting);
            all.extend(versions.map(|version| Evaluation::of_version(&view.key, &version).into()));
            all.extend(Evaluation::blocked(&view).map(Arc::new));
        }
        let allocs = self.model.allocs();
        all.extend(allocs.iter().filter_map(|view| Evaluation::following(view)).map(Arc::new));
        let mut ids = BTreeSet::new();
        all.retain(|one| ids.insert(one.id.clone()));
        all
    }

    /// The id of the evaluation that created the allocation, or took it over into another version.
    pub(super) fn eval_id_of(&self, view: &AllocView) -> String {
        let spec = &view.spec;
        if let Some(last) = spec.rescheduled.last() {
            return nomad::eval_id_after(last.previous);
        }
        let job = self.model.job(&spec.job_key).filter(|job| !job.deleting);
        let index = job.and_then(|job| {
            let is_current = job.version == spec.job_version;
            let past = || job.past.iter().find(|past| past.version == spec.job_version);
            if is_current { Some(job.modify_index) } else { past().map(|past| past.index) }
        });
        nomad::eval_id(&spec.job_key, index.unwrap_or(spec.create_index))
    }
}

impl Listed for Arc<Evaluation> {
    fn namespace(&self) -> Option<&str> {
        Some(&self.job.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.id)
    }

    fn create_index(&self) -> u64 {
        self.index
    }
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.list(&read, |shared| Ok(shared.evaluations()), to_json).await
}

pub(super) async fn of_job(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let key = read.job(id);
    let of_job = |shared: &Shared| {
        let mut found = shared.evaluations();
        found.retain(|one| one.job == key);
        Ok(found)
    };
    shared.list(&read, of_job, to_json).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    shared.answer(&read, |shared| Ok(to_json(shared, &find(shared, &id)?))).await
}

/// The allocations that the evaluation created, or took over unchanged.
pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let placed = |shared: &Shared| {
        let one = find(shared, &id)?;
        let mut allocs = shared.model.allocs_of(&one.job);
        allocs.retain(|view| shared.eval_id_of(view) == one.id);
        Ok(allocs)
    };
    shared.list(&read, placed, allocs::stub).await
}

fn find(shared: &Shared, id: &str) -> ApiResult<Arc<Evaluation>> {
    let found = shared.evaluations().into_iter().find(|one| one.id == id);
    found.ok_or_else(|| ApiError::NotFound("eval not found".to_owned()))
}

pub(super) fn to_json(shared: &Shared, one: &Arc<Evaluation>) -> Value {
    let view = shared.model.job(&one.job);
    nomad::evaluation(&nomad::Evaluated {
        id: &one.id,
        job: &one.job,
        view: view.as_deref(),
        trigger: one.trigger.as_str(),
        index: one.index,
        at: one.at,
        version: one.version,
        progress: one.progress,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let evaluations = Evaluations::default();
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        let first = evaluations.note(&key, Trigger::AllocStop, (1, None));
        (2..=KEPT_LEN as u64)
            .for_each(|index| drop(evaluations.note(&key, Trigger::AllocStop, (index, None))));
        assert_eq!(evaluations.all()[0].id, first);
        evaluations.note(&key, Trigger::JobRegister, (999, None));
        let all = evaluations.all();
        assert_eq!((all.len(), all[0].index), (KEPT_LEN, 2));
    }

    #[test]
    fn later_evaluations_are_listed_as_far_as_kept() {
        let evaluations = Evaluations::default();
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        for index in 1..=KEPT_LEN as u64 + 5 {
            evaluations.note(&key, Trigger::JobRegister, (index, None));
        }
        let made = KEPT_LEN as u64 + 5;
        let after = |seen| evaluations.after(seen).1.iter().map(|one| one.index).collect::<Vec<_>>();
        assert_eq!((evaluations.made(), evaluations.made_before(made - 1)), (made, made - 2));
        assert_eq!(after(made - 2), [made - 1, made]);
        assert_eq!((after(made), after(0).len()), (vec![], KEPT_LEN));
    }
}
