//! Children of jobs: dispatches one, and finds those of a job.

use std_alloc::format;

use herdlet_api_types::JobKey;

use crate::{
    event::{Refusal, Reply},
    job::children::{Dispatch, dispatch_id},
    turn::OpenTurn,
    world::{JobEntry, World},
};

impl World {
    /// Creates a child of a parameterized job. A repeated request with the same token gets the same child, unless that
    /// is being deleted.
    pub(crate) fn dispatch_job(
        &mut self,
        open: &mut OpenTurn<'_>,
        key: &JobKey,
        dispatch: Dispatch,
    ) -> Result<Reply, Refusal> {
        let entry = self.parent(key)?;
        let block = entry.current.parameterized.as_ref().filter(|_| entry.current.takes_dispatches());
        let Some(block) = block else {
            return Err(Refusal::Invalid(format!("job \"{key}\" is not a parameterized job")));
        };
        if let Some(complaint) = dispatch.complaint(block) {
            return Err(Refusal::Invalid(format!("job \"{key}\" can't be dispatched: {complaint}")));
        }
        let token = &dispatch.idempotency_token;
        let is_same = |child: &JobEntry| {
            !child.state.deleting && child.current.dispatched().is_some_and(|(_, of)| of == token)
        };
        if !token.is_empty()
            && let Some((child, _)) = self.children(key).find(|(_, child)| is_same(child))
        {
            return Ok(Reply::Dispatched { index: self.meta.index, job: child.clone() });
        }
        let (prefix, index) = (&dispatch.id_prefix, self.meta.index + 1);
        let id = dispatch_id(&self.ctx.settings.instance, key, prefix, index, open.now.wall);
        let child = dispatch.child(&entry.current, id);
        let job = child.key();
        if self.jobs.contains_key(&job) {
            return Err(Refusal::Conflict(format!("there is a job \"{job}\" already; dispatch it again")));
        }
        self.accept_job(open, child);
        Ok(Reply::Dispatched { index: self.meta.index, job })
    }

    /// The job that a child was requested of.
    pub(super) fn parent(&self, key: &JobKey) -> Result<&JobEntry, Refusal> {
        let entry = self.kept(key)?;
        if entry.current.stop {
            let message = format!("job \"{key}\" is stopped; start it: herdlet start {}", key.argument());
            return Err(Refusal::Conflict(message));
        }
        Ok(entry)
    }

    /// The children of a job, by their ids. Ids of children begin with that of their parent.
    pub(crate) fn children<'w>(
        &'w self,
        parent: &'w JobKey,
    ) -> impl Iterator<Item = (&'w JobKey, &'w JobEntry)> {
        let first = JobKey { namespace: parent.namespace.clone(), id: format!("{}/", parent.id).into() };
        let begins = first.id.clone();
        self.jobs
            .range(first..)
            .take_while(move |(key, _)| key.namespace == parent.namespace && key.id.starts_with(&*begins))
            .filter(|(_, entry)| entry.current.parent_id() == Some(&*parent.id))
    }
}

#[cfg(test)]
mod tests;
