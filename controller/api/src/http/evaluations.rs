//! Evaluations: in Nomad, the work of the scheduler for one change. Here the turn that accepts a change also plans it, so its
//! evaluation is complete by the time a client can ask for it.
//!
//! In: each change that the API has accepted. Out: an evaluation id for the answer, and the newest evaluations for clients that
//! follow one, as Nomad's command line does. They are kept in memory only; Nomad also forgets its evaluations after a while.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    extract::{Path, State},
    response::Response,
};
use herdlet_api_types::{JobKey, UnixNanos, alloc::Desired, nomad, view::AllocView};
use serde_json::Value;
use tokio::sync::watch;

use super::{
    Shared, allocs,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
    trigger::Trigger,
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
    /// When the evaluation takes effect; none if it is complete.
    waits_until: Option<UnixNanos>,
}

impl Evaluation {
    /// The evaluation that follows a failed allocation. Its id is stored with the allocation.
    fn following(view: &AllocView) -> Option<Self> {
        let is_open = view.spec.desired == Desired::Run;
        Some(Self {
            id: nomad::followup_eval_id(view)?,
            job: view.spec.job_key.clone(),
            trigger: Trigger::AllocFailure,
            index: view.modify_index,
            at: view.modify_time,
            waits_until: view.reschedule_at.filter(|_| is_open),
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
    /// Records that a change of the job was accepted at `index`. Returns the id of the evaluation.
    pub(super) fn note(&self, job: &JobKey, trigger: Trigger, index: u64) -> String {
        let id = uuid::Uuid::new_v4().to_string();
        let at = herdlet_base::clock::wall_now();
        let one = Evaluation { id: id.clone(), job: job.clone(), trigger, index, at, waits_until: None };
        let mut kept = self.kept();
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
    /// The newest evaluations, and those that follow failed allocations.
    fn evaluations(&self) -> Vec<Arc<Evaluation>> {
        let mut all = self.evaluations.all();
        let allocs = self.model.allocs();
        all.extend(allocs.iter().filter_map(|view| Evaluation::following(view)).map(Arc::new));
        all
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

/// The allocations of the evaluation's job. Nomad lists those that the evaluation created or changed.
pub(super) async fn allocations(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let of_job = |shared: &Shared| Ok(shared.model.allocs_of(&find(shared, &id)?.job));
    shared.list(&read, of_job, allocs::stub).await
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
        waits_until: one.waits_until,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let evaluations = Evaluations::default();
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        let first = evaluations.note(&key, Trigger::AllocStop, 1);
        (2..=KEPT_LEN as u64).for_each(|index| drop(evaluations.note(&key, Trigger::AllocStop, index)));
        assert_eq!(evaluations.all()[0].id, first);
        evaluations.note(&key, Trigger::JobRegister, 999);
        let all = evaluations.all();
        assert_eq!((all.len(), all[0].index), (KEPT_LEN, 2));
    }

    #[test]
    fn what_came_after_is_told_as_far_as_it_is_kept() {
        let evaluations = Evaluations::default();
        let key = JobKey { namespace: "default".into(), id: "web".into() };
        for index in 1..=KEPT_LEN as u64 + 5 {
            evaluations.note(&key, Trigger::JobRegister, index);
        }
        let made = KEPT_LEN as u64 + 5;
        let after = |seen| evaluations.after(seen).1.iter().map(|one| one.index).collect::<Vec<_>>();
        assert_eq!((evaluations.made(), evaluations.made_before(made - 1)), (made, made - 2));
        assert_eq!(after(made - 2), [made - 1, made]);
        assert_eq!((after(made), after(0).len()), (vec![], KEPT_LEN));
    }
}
