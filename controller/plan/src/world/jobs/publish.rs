//! What others see of a job: its records in the database and its view.
//!
//! In: a job's entry after its plan. Out: records, a view and notes of the turn, if they differ.

use std_alloc::{string::String, sync::Arc};

use herdlet_api_types::{
    JobKey,
    view::{Convergence, ConvergenceState, JobView, Reason},
};

use crate::{
    record::{Record, RecordKey, RecordValue},
    turn::{Note, OpenTurn, View},
    world::{JobEntry, allocs::Allocs},
};

impl JobEntry {
    /// Stores what changed of the job and publishes its view if that differs.
    pub(crate) fn flush(&mut self, open: &mut OpenTurn<'_>, key: &JobKey, allocs: &Allocs) {
        let convergence = self.convergence(key, allocs);
        if self.state.take_touched() {
            self.write_versions(key, open.turn);
            let value = RecordValue::Job((*self.state).clone().into());
            open.turn.records.push(Record::Put(RecordKey::Job(key.clone()), value));
        }
        let stale = core::mem::take(&mut self.stale);
        let shown = self.shown.as_deref();
        let was = shown.map(|view| view.convergence.state);
        if was != Some(convergence.state) {
            if convergence.state == ConvergenceState::Converged {
                let took = open.now.boot_ns.saturating_sub(self.since.boot_ns);
                open.turn.notes.push(Note::Converged { kind: "job", took_ns: took, cause: self.cause });
            }
            if was == Some(ConvergenceState::Converged) && self.since.wall != self.state.submit_time {
                let ended = convergence.reason == Some(Reason::Backoff);
                self.cause = if ended { "exit" } else { "drift" };
            }
            if was == Some(ConvergenceState::Converged) || convergence.state == ConvergenceState::Converged {
                self.since = open.now.moment();
            }
        }
        let convergence = Convergence { since: self.since, ..convergence };
        let state = &self.state;
        let same = shown.is_some_and(|shown| {
            shown.modify_index == state.modify_index
                && shown.convergence == convergence
                && shown.quarantined == self.quarantine.is_some()
                && shown.unplaced == self.unplaced
                && shown.past.len() == self.past.len()
                && shown.past.iter().map(|past| &past.tag).eq(self.past.values().map(|past| &past.tag))
                && shown.tag.as_ref() == state.tags.get(&state.version)
                && shown.scaled == state.scaled
                && shown.held.as_deref() == state.held()
                && shown.next_launch == self.next_launch
                && shown.deployments.iter().eq(state.deployments.iter().rev().map(|known| &known.deployment))
                && (!stale || shown.allocs.iter().copied().eq(allocs.of_job(key).map(|(id, _)| id)))
        });
        if same {
            return;
        }
        let view = Arc::new(JobView {
            key: key.clone(),
            version: state.version,
            job: Arc::clone(&self.current),
            deleting: state.deleting,
            create_index: state.create_index,
            modify_index: state.modify_index,
            submit_time: state.submit_time,
            allocs: allocs.of_job(key).map(|(id, _)| id).collect(),
            convergence,
            quarantined: self.quarantine.is_some(),
            deployments: state.deployments.iter().rev().map(|known| Arc::clone(&known.deployment)).collect(),
            unplaced: self.unplaced.clone(),
            tag: state.tags.get(&state.version).cloned(),
            past: self.past.values().map(Arc::clone).collect(),
            scaled: Arc::clone(&state.scaled),
            next_launch: self.next_launch,
            placed: false,
            held: state.held().map(String::from),
        });
        self.shown = Some(Arc::clone(&view));
        open.turn.views.push(View::Job(view));
    }
}
