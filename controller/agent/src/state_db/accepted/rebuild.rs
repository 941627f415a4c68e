//! Rebuilds records from the files beside the database: all of them, or the damaged ones.
//!
//! In: the accepted files, the `alloc.json` of each allocation directory, the names of the attempts' records. Out:
//! records from which the planner inspects everything and stops nothing. It must not know how the database is stored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::{Allocation, Desired},
    job::{Job, Task},
};
use herdlet_base::paths;
use herdlet_plan::{
    job::{JobState, Slot},
    record::RecordKey,
    state::Durable,
    time::Now,
};

use serde::{Deserialize, Serialize};

use super::Read;
use crate::state_db::load::Loaded;

/// If the number of the last commit is lost too, a rebuilt index exceeds every known index by this margin. The
/// indexes assigned since the last accepted change are unknown, and a client that waits for one of them must not wait
/// indefinitely.
const INDEX_MARGIN: u64 = 1_000_000;

/// The content of `alloc.json` in an allocation's directory: the allocation with its job, so that the file is
/// complete for a person who reads it.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeptAllocation {
    pub allocation: Allocation,
    /// The job version of the allocation.
    pub job: Arc<Job>,
}

impl KeptAllocation {
    /// Serializes `allocation` with its job, as the content of its file.
    ///
    /// # Errors
    /// When it cannot be serialized.
    pub fn bytes_of(allocation: &Allocation) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&Self { allocation: allocation.clone(), job: Arc::clone(&allocation.job) })
    }
}

/// The sources of rebuilt records.
pub struct Sources<'a> {
    pub read: &'a Read,
    /// `<state>/alloc`.
    pub allocs: PathBuf,
    /// `<runtime>/attempts`.
    pub attempts: PathBuf,
    /// Number of the last commit, if known.
    pub committed: Option<u64>,
    pub now: Now,
}

/// Which records to rebuild.
pub enum Scope {
    /// All: there is no database.
    All,
    /// Those with these keys.
    Keys(BTreeSet<RecordKey>),
}

impl Scope {
    fn has(&self, key: &RecordKey) -> bool {
        match self {
            Self::All => true,
            Self::Keys(keys) => keys.contains(key),
        }
    }
}

/// Adds the records in `scope` that the sources contain. Returns the unreadable files: paths and reasons.
pub fn fill(loaded: &mut Loaded, sources: &Sources<'_>, scope: &Scope) -> Vec<(PathBuf, String)> {
    let mut unreadable = Vec::new();
    fill_versions(loaded, sources.read, scope);
    let made = fill_specs(loaded, sources, scope, &mut unreadable);
    fill_states(loaded, sources, scope, &made);
    if matches!(scope, Scope::All) {
        let commits = sources.read.jobs.values().map(|file| file.commit.max(file.create_index));
        let commits = commits.chain(sources.read.volumes.values().map(|file| file.commit));
        let commits = commits.chain(sources.read.ended.values().map(|file| file.commit));
        let newest = commits.chain(loaded.specs.values().map(|spec| spec.create_index)).max();
        loaded.index = match sources.committed {
            Some(committed) => newest.unwrap_or(0).max(committed),
            None => newest.map_or(0, |newest| newest.saturating_add(INDEX_MARGIN)),
        };
        stop_superseded(&mut loaded.specs);
    }
    for (key, file) in &sources.read.jobs {
        if scope.has(&RecordKey::Job(key.clone())) && !loaded.jobs.contains_key(key) {
            let state = JobState {
                key: key.clone(),
                version: file.version,
                versions: versions_of(key, &loaded.versions),
                submitted: BTreeMap::new(),
                create_index: file.create_index,
                modify_index: loaded.index,
                submit_time: file.submit_time,
                deleting: file.deleting,
                slots: slots(key, &loaded.specs, sources.now),
                deployments: Vec::new(),
                scaled: Arc::default(),
                definition: file.definition.clone(),
                launches: None,
                stable: BTreeSet::new(),
                tags: BTreeMap::new(),
            };
            loaded.jobs.insert(key.clone(), state);
        }
    }
    for (name, file) in &sources.read.volumes {
        if scope.has(&RecordKey::Volume(name.clone())) && !loaded.volumes.contains_key(name) {
            loaded.volumes.insert(name.clone(), file.state());
        }
    }
    unreadable
}

fn versions_of(job: &JobKey, versions: &BTreeMap<(JobKey, u64), Arc<Job>>) -> BTreeSet<u64> {
    versions.keys().filter(|(key, _)| key == job).map(|(_, version)| *version).collect()
}

fn fill_versions(loaded: &mut Loaded, read: &Read, scope: &Scope) {
    for (key, file) in &read.jobs {
        let job_is_lost = scope.has(&RecordKey::Job(key.clone()));
        for (version, job) in file.versions() {
            if job_is_lost || scope.has(&RecordKey::JobVersion(key.clone(), version)) {
                loaded.versions.entry((key.clone(), version)).or_insert_with(|| Arc::clone(job));
            }
        }
    }
}

/// Reads missing allocations from their directories. An allocation whose job is not accepted is left alone: nothing
/// describes its job, so the agent must not stop it.
fn fill_specs(
    loaded: &mut Loaded,
    sources: &Sources<'_>,
    scope: &Scope,
    unreadable: &mut Vec<(PathBuf, String)>,
) -> BTreeSet<AllocId> {
    let ids: Vec<AllocId> = match scope {
        Scope::All => ids_below(&sources.allocs),
        Scope::Keys(keys) => keys.iter().filter_map(spec_id).collect(),
    };
    let mut made = BTreeSet::new();
    for id in ids {
        if loaded.specs.contains_key(&id) {
            continue;
        }
        let path = sources.allocs.join(id.to_string()).join("alloc.json");
        match read_alloc(&path, id) {
            Ok(kept) if is_accepted(&kept.allocation.job_key, loaded, sources.read) => {
                let version = (kept.allocation.job_key.clone(), kept.allocation.job_version);
                loaded.versions.entry(version).or_insert(kept.job);
                loaded.specs.insert(id, kept.allocation);
                made.insert(id);
            }
            Ok(kept) => {
                let why = format!("its job {} is not accepted", kept.allocation.job_key);
                unreadable.push((path, why));
            }
            Err(why) => unreadable.push((path, why)),
        }
    }
    made
}

fn read_alloc(path: &Path, id: AllocId) -> Result<KeptAllocation, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let kept: KeptAllocation = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if kept.allocation.id == id {
        Ok(kept)
    } else {
        Err(format!("it belongs to allocation {}", kept.allocation.id))
    }
}

fn is_accepted(job: &JobKey, loaded: &Loaded, read: &Read) -> bool {
    read.jobs.contains_key(job) || loaded.jobs.contains_key(job)
}

/// Rebuilds lost states of allocations: how they ended, or which attempts were begun.
fn fill_states(loaded: &mut Loaded, sources: &Sources<'_>, scope: &Scope, made: &BTreeSet<AllocId>) {
    let lost: Vec<AllocId> = loaded
        .specs
        .keys()
        .filter(|id| made.contains(id) || scope.has(&RecordKey::AllocState(**id)))
        .filter(|id| !loaded.states.contains_key(id))
        .copied()
        .collect();
    if lost.is_empty() {
        return;
    }
    let attempts = attempts_below(&sources.attempts);
    for id in lost {
        let state = match sources.read.ended.get(&id) {
            Some(ended) => ended.state.clone(),
            None => {
                let Some(spec) = loaded.specs.get(&id) else { continue };
                let placed = spec.server.as_ref().map(|server| &server.job);
                let job = placed.or_else(|| loaded.versions.get(&(spec.job_key.clone(), spec.job_version)));
                let newest = |_, task: &Task| attempts.get(&(id, task.name.clone())).copied();
                match job {
                    Some(job) => {
                        let spec = Allocation { job: Arc::clone(job), ..Allocation::clone(spec) };
                        Durable::rebuilt(&spec, newest, sources.now)
                    }
                    None => Durable { adopted: true, ..Durable::default() },
                }
            }
        };
        loaded.states.insert(id, state);
    }
}

/// Stops all but the newest allocation of each slot; the file of an older one may still have `run` although it was
/// stopped since.
fn stop_superseded(specs: &mut BTreeMap<AllocId, Allocation>) {
    let newest: BTreeSet<AllocId> = newest_of_slots(specs).into_values().map(|(_, id)| id).collect();
    for (id, spec) in specs {
        if spec.desired == Desired::Run && !newest.contains(id) {
            spec.desired = Desired::Stop;
            "was replaced".clone_into(&mut spec.desired_description);
        }
    }
}

type SlotKey = (JobKey, String, u32);

fn newest_of_slots(specs: &BTreeMap<AllocId, Allocation>) -> BTreeMap<SlotKey, ((u64, i64), AllocId)> {
    let mut newest: BTreeMap<SlotKey, ((u64, i64), AllocId)> = BTreeMap::new();
    for (id, spec) in specs {
        let slot = (spec.job_key.clone(), spec.group.clone(), spec.index);
        let candidate = ((spec.create_index, spec.create_time.0), *id);
        let known = newest.entry(slot).or_insert(candidate);
        *known = (*known).max(candidate);
    }
    newest
}

/// Rebuilds a job's slots. The number of allocations that a slot has had is lost; the current time in seconds
/// replaces it, which no slot has reached by counting, so that no id is used twice.
fn slots(job: &JobKey, specs: &BTreeMap<AllocId, Allocation>, now: Now) -> BTreeMap<String, Vec<Slot>> {
    let had = u32::try_from(now.wall.0 / 1_000_000_000).unwrap_or(u32::MAX);
    let mut slots: BTreeMap<String, Vec<Slot>> = BTreeMap::new();
    for ((key, group, index), (_, id)) in newest_of_slots(specs) {
        let Ok(at) = usize::try_from(index) else { continue };
        if key != *job {
            continue;
        }
        let of_group = slots.entry(group).or_default();
        if of_group.len() <= at {
            of_group.resize(at + 1, Slot { had, alloc: None, canary: None, rescheduled: Vec::new() });
        }
        if let Some(slot) = of_group.get_mut(at) {
            slot.alloc = Some(id);
        }
    }
    slots
}

fn spec_id(key: &RecordKey) -> Option<AllocId> {
    match key {
        RecordKey::AllocSpec(id) => Some(*id),
        RecordKey::Meta
        | RecordKey::Job(_)
        | RecordKey::JobVersion(..)
        | RecordKey::Volume(_)
        | RecordKey::AllocState(_) => None,
    }
}

fn ids_below(allocs: &Path) -> Vec<AllocId> {
    names_below(allocs).iter().filter_map(|name| name.parse().ok()).map(AllocId).collect()
}

/// The newest recorded attempt of each task.
fn attempts_below(attempts: &Path) -> BTreeMap<(AllocId, String), u32> {
    let mut newest = BTreeMap::new();
    for name in names_below(attempts) {
        if let Some((alloc, task, attempt)) = paths::parse_attempt_name(&name) {
            let known: &mut u32 = newest.entry((alloc, task)).or_default();
            *known = (*known).max(attempt);
        }
    }
    newest
}

fn names_below(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().to_str().map(str::to_owned)).collect();
    names.sort();
    names
}
