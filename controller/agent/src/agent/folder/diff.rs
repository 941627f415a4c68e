//! The desired state that a folder defines, compared with the jobs that it owned.
//!
//! In: the files as read, and which file owned which jobs. Out: what to apply, what to delete, and the problems.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{JobKey, job::Job, volume::Volume};
use herdlet_manifest::{
    manifests::{Folder, hash_of},
    owners::Owned,
    yaml::Problem,
};
use herdlet_plan::job::Source;

/// The desired state that a folder defines.
#[derive(Debug, Default)]
pub(super) struct FolderDiff {
    /// Jobs with their definitions.
    pub(super) jobs: Vec<(Job, Source)>,
    pub(super) volumes: Vec<Volume>,
    pub(super) gone: BTreeSet<JobKey>,
    pub(super) owned: Owned,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    pub(super) unreadable: Option<Problem>,
}

impl FolderDiff {
    /// Compares the content of the folder with the jobs that it owned.
    pub(super) fn of(folder: Folder, owned: &Owned) -> Self {
        let mut wanted = Self::default();
        if let Some(problem) = folder.problem {
            wanted.owned.clone_from(owned);
            wanted.unreadable = Some(problem);
            return wanted;
        }
        let mut places: BTreeMap<JobKey, String> = BTreeMap::new();
        for file in folder.files {
            let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match file.content {
                Ok(set) => {
                    let mut keys = BTreeSet::new();
                    wanted.warnings.extend(set.warnings);
                    for loaded in set.jobs {
                        let key = loaded.object.key();
                        if let Some(other) = places.get(&key) {
                            let message = format!(
                                "job \"{key}\" is already defined in {other}; this definition is ignored"
                            );
                            wanted.problems.push(Problem {
                                source: loaded.source.to_string(),
                                line: loaded.position.line,
                                column: loaded.position.column,
                                path: String::from("metadata.name"),
                                message,
                            });
                            continue;
                        }
                        places.insert(key.clone(), name.clone());
                        keys.insert(key);
                        let source = Source {
                            file: file.path.display().to_string(),
                            file_hash: file.hash.clone(),
                            job_hash: serde_json::to_vec(&loaded.object)
                                .map_or(String::new(), |bytes| hash_of(&bytes)),
                        };
                        wanted.jobs.push((loaded.object, source));
                    }
                    wanted.volumes.extend(set.volumes.into_iter().map(|loaded| loaded.object));
                    wanted.owned.insert(name, keys);
                }
                Err(problems) => {
                    // The last good version stays in force.
                    let keys = owned.get(&name).cloned().unwrap_or_default();
                    places.extend(keys.iter().map(|key| (key.clone(), name.clone())));
                    wanted.owned.insert(name, keys);
                    wanted.problems.extend(problems.into_vec());
                }
            }
        }
        let kept: BTreeSet<&JobKey> = wanted.owned.values().flatten().collect();
        wanted.gone = owned.values().flatten().filter(|key| !kept.contains(key)).cloned().collect();
        wanted
    }
}

/// The jobs that either of them owns, which holds while one replaces the other.
pub(super) fn union(old: &Owned, new: &Owned) -> Owned {
    let mut union = old.clone();
    for (file, keys) in new {
        union.entry(file.clone()).or_default().extend(keys.iter().cloned());
    }
    union
}
