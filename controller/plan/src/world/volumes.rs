//! Volumes in the world: their specifications, their operations, their claims.
//!
//! In: specifications, outcomes of operations. Out: operations, records, views. [`crate::shared::volume`] decides what
//! to do.

use std_alloc::{string::String, sync::Arc, vec::Vec};

use herdlet_api_types::{
    AllocId,
    view::VolumeView,
    volume::{Volume, VolumeKind, VolumeStatus},
};

use crate::{
    action::{Action, Outcome},
    context::VolumeEntry,
    limits::OPERATION_TIMEOUT,
    op::{Key, Op, Subject, Target},
    record::{Record, RecordKey, RecordValue},
    shared::volume::{self, Origin, VolumeIntent, VolumeState},
    state::{FinishedOperation, PartState, Tracked},
    turn::{Note, OpenTurn, Turn, View},
    world::World,
};

impl World {
    pub(crate) fn want_volume(&mut self, open: &mut OpenTurn<'_>, spec: Volume, origin: Origin) {
        let name = spec.name.clone();
        match self.ctx.volumes.get_mut(&name) {
            Some(entry) if entry.state.spec == spec && entry.state.fate == VolumeIntent::Desired => {}
            Some(entry) => {
                entry.state.spec = spec;
                entry.state.fate = VolumeIntent::Desired;
                entry.part.supersede();
                entry.part.set(PartState::Unknown);
            }
            None => {
                let state = VolumeState { spec, origin, fate: VolumeIntent::Desired, path: None };
                let state = match origin {
                    Origin::Config => Tracked::stored(state),
                    Origin::Manifest => Tracked::new(state),
                };
                let entry = VolumeEntry { state, part: PartState::Unknown, failures: 0 };
                self.ctx.volumes.insert(name.clone(), entry);
            }
        }
        open.dirty.insert(Key::Volume(name));
    }

    /// Removes what a removed volume may have left behind: only volumes that the agent creates itself leave anything.
    pub(crate) fn purge_forgotten(&mut self, name: &str) {
        let spec = Volume {
            name: String::from(name),
            kind: VolumeKind::Mkdir { mode: 0, uid: None, gid: None },
            read_only: false,
        };
        let state = VolumeState { spec, origin: Origin::Manifest, fate: VolumeIntent::Purged, path: None };
        let entry = VolumeEntry { state: Tracked::new(state), part: PartState::Unknown, failures: 0 };
        self.ctx.volumes.insert(String::from(name), entry);
    }

    pub(crate) fn drop_volume(&mut self, open: &mut OpenTurn<'_>, name: &str) {
        if let Some(entry) = self.ctx.volumes.get_mut(name)
            && entry.state.origin == Origin::Config
        {
            entry.state.fate = VolumeIntent::Dropped;
            open.dirty.insert(Key::Volume(String::from(name)));
        }
    }

    pub(crate) fn volume_outcome(
        &mut self,
        open: &mut OpenTurn<'_>,
        name: &str,
        generation: u64,
        outcome: Outcome,
    ) {
        let Some(entry) = self.ctx.volumes.get_mut(name) else { return };
        if outcome == Outcome::Overdue {
            return entry.part.run_over(generation);
        }
        match entry.part.end(generation) {
            None => return,
            Some(FinishedOperation::Overtaken) => {}
            Some(FinishedOperation::Fresh(doing)) => {
                let ended = (doing, outcome);
                volume::outcome(open.now, &mut entry.state, &mut entry.part, &mut entry.failures, ended);
            }
        }
        open.dirty.insert(Key::Volume(String::from(name)));
        let claims: Vec<AllocId> = self.claims(name).collect();
        for id in claims {
            // If none of its tasks mounts the volume, no other change of the allocation would update its view.
            if let Some(alloc) = self.allocs.get_mut(id) {
                alloc.changed = true;
            }
            open.dirty.insert(Key::Alloc(id));
        }
    }

    pub(crate) fn reconcile_volume(&mut self, open: &mut OpenTurn<'_>, name: &str) {
        let Some(entry) = self.ctx.volumes.get_mut(name) else {
            open.turn.views.push(View::VolumeGone(String::from(name)));
            return;
        };
        let mut result = "unchanged";
        match volume::plan(open.now, &entry.state, &entry.part) {
            volume::Step::Issue(doing, verb) => {
                self.generation += 1;
                entry.part.begin(self.generation, doing, open.now.boot_ns);
                open.turn.actions.push(Action {
                    op: Op { target: Target::Volume(String::from(name)), generation: self.generation },
                    subject: Subject::Volume(Arc::new(entry.state.spec.clone())),
                    mounts: Vec::new(),
                    inputs: Vec::new(),
                    launch: None,
                    verb,
                    timeout: OPERATION_TIMEOUT,
                });
                result = "changed";
            }
            volume::Step::WaitUntil(at) => {
                open.turn.wakes.push((Key::Volume(String::from(name)), at));
                result = "waiting";
            }
            volume::Step::Forget => {
                self.ctx.volumes.remove(name);
                open.turn.records.push(Record::Delete(RecordKey::Volume(String::from(name))));
                open.turn.views.push(View::VolumeGone(String::from(name)));
                return;
            }
            volume::Step::Rest => {}
        }
        open.turn.notes.push(Note::Reconciled { kind: "volume", result });
        if entry.state.take_touched() && entry.state.origin == Origin::Manifest {
            let value = RecordValue::Volume((*entry.state).clone().into());
            open.turn.records.push(Record::Put(RecordKey::Volume(String::from(name)), value));
        }
        self.show_volume(name, open.turn);
    }

    pub(crate) fn show_volume(&self, name: &str, turn: &mut Turn) {
        let Some(entry) = self.ctx.volumes.get(name) else { return };
        let spec = Arc::new(entry.state.spec.clone());
        let status: VolumeStatus = volume::status(&entry.state, &entry.part);
        let claims = self.claims(name).collect();
        turn.views.push(View::Volume(VolumeView { spec, status, claims }.into()));
    }

    /// Allocations that claim the volume, including ended ones that are kept for their logs.
    pub(crate) fn claims(&self, name: &str) -> impl Iterator<Item = AllocId> {
        self.allocs.claiming(name)
    }
}
