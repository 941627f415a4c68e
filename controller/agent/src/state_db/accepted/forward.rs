//! Uses the accepted files to bring a database forward that has fallen back to an older commit.
//!
//! In: the content of the database, the files, the number of the last commit. Out: the same content, up to date. Only
//! accepted state is restored: the attempts of the lost commits are found again by inspection.

use std::{collections::BTreeSet, sync::Arc};

use herdlet_api_types::alloc::Desired;
use herdlet_plan::{job::JobState, record::RecordKey, shared::volume::Origin};

use super::{JobFile, Read};
use crate::state_db::load::Loaded;

/// Brings `loaded` forward and returns the keys of the changed records.
pub(crate) fn roll(loaded: &mut Loaded, read: &Read, committed: u64) -> BTreeSet<RecordKey> {
    let mut changed = BTreeSet::new();
    if committed <= loaded.index {
        return changed;
    }
    tracing::error!(index = loaded.index, committed, "the state database has fallen back to an older commit");
    let newer = loaded.index + 1..=committed;
    for (key, file) in read.jobs.iter().filter(|(_, file)| newer.contains(&file.commit)) {
        for (version, job) in file.versions() {
            loaded.versions.insert((key.clone(), version), Arc::clone(job));
            changed.insert(RecordKey::JobVersion(key.clone(), version));
        }
        if let Some(state) = loaded.jobs.get_mut(key) {
            bring_forward(state, file);
            changed.insert(RecordKey::Job(key.clone()));
        }
    }
    for (name, file) in read.volumes.iter().filter(|(_, file)| newer.contains(&file.commit)) {
        if loaded.volumes.get(name).is_some_and(|known| known.spec != file.volume || known.fate != file.fate)
        {
            loaded.volumes.insert(name.clone(), file.state());
            changed.insert(RecordKey::Volume(name.clone()));
        }
    }
    for (id, file) in read.ended.iter().filter(|(_, file)| newer.contains(&file.commit)) {
        if loaded.specs.contains_key(id) {
            loaded.states.insert(*id, file.state.clone());
            changed.insert(RecordKey::AllocState(*id));
        }
    }
    // A missing file was removed on purpose. The job's objects may still exist, so it is deleted the usual way.
    for state in loaded.jobs.values_mut() {
        if !read.names(&RecordKey::Job(state.key.clone())) && !state.deleting {
            state.deleting = true;
            changed.insert(RecordKey::Job(state.key.clone()));
            // Stop its allocations too: if they were still to run, an allocation that has ended would count as lost
            // and start once more before the job is stopped.
            for (id, spec) in loaded.specs.iter_mut().filter(|(_, spec)| spec.job_key == state.key) {
                if spec.desired == Desired::Run {
                    spec.desired = Desired::Stop;
                    "job deleted".clone_into(&mut spec.desired_description);
                    changed.insert(RecordKey::AllocSpec(*id));
                }
            }
        }
    }
    loaded.volumes.retain(|name, state| {
        let kept = state.origin == Origin::Config || read.names(&RecordKey::Volume(name.clone()));
        if !kept {
            changed.insert(RecordKey::Volume(name.clone()));
        }
        kept
    });
    loaded.index = committed;
    changed
}

fn bring_forward(state: &mut JobState, file: &JobFile) {
    if state.create_index != file.create_index {
        // The job was forgotten and created again since: the slots belong to an earlier job of the same name.
        state.slots.clear();
    }
    state.version = file.version;
    state.versions.extend(file.versions().map(|(version, _)| version));
    state.create_index = file.create_index;
    state.modify_index = file.commit;
    state.submit_time = file.submit_time;
    state.deleting = file.deleting;
    state.definition.clone_from(&file.definition);
}
