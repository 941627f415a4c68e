//! Whether every user can read the passwords that folders of manifests have. The agent itself refuses tokens and keys that others
//! can read.
//!
//! In: the config. Out: a finding if there are such files. Nothing is changed.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use herdlet_api_types::job::Job;
use herdlet_base::ownership::escape_path;
use herdlet_config::Config;
use herdlet_manifest::manifests::{Drivers, FolderFile, read_folder};

use super::Finding;

const CHECK: &str = "secrets";

/// Parts of the names of variables that are secrets.
const SECRET_NAMES: [&str; 8] =
    ["PASSWORD", "PASSWD", "SECRET", "TOKEN", "CREDENTIAL", "API_KEY", "ACCESS_KEY", "PRIVATE_KEY"];
/// Suffixes of the names of variables that contain the location of a secret.
const PLACE_NAMES: [&str; 3] = ["_FILE", "_PATH", "_DIR"];
/// Files named in a message.
const NAMED_MAX: usize = 3;

pub(super) fn secrets(config: &Config) -> Option<Finding> {
    let mut open = BTreeSet::new();
    for folder in &config.manifests {
        let read = read_folder(folder, &Drivers::built_in(), &BTreeSet::new());
        open.extend(read.files.iter().flat_map(files_with_secrets).filter(|path| is_readable_by_all(path)));
    }
    let first = open.first()?;
    let names: Vec<String> = open.iter().take(NAMED_MAX).map(|path| escape_path(path)).collect();
    let more = match open.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "every user of this machine can read files that seem to have passwords: {}{more}",
        names.join(", ")
    );
    let dir = first.parent().unwrap_or(Path::new("/"));
    let hint =
        format!("run: chmod o-rwx {}; or store passwords as variables: herdlet var put", escape_path(dir));
    Some(Finding::warning(CHECK, message, hint))
}

/// The files of variables that a manifest names. Without such files, the manifest itself if a password is in it.
fn files_with_secrets(file: &FolderFile) -> Vec<PathBuf> {
    let jobs = file.content.iter().flat_map(|set| &set.jobs);
    match file.env_files.is_empty() {
        true if jobs.into_iter().any(|job| has_secret(&job.object)) => vec![file.path.clone()],
        true => Vec::new(),
        false => file.env_files.clone(),
    }
}

/// Whether the environment of a task has a value that seems to be a secret, and not a reference to one.
fn has_secret(job: &Job) -> bool {
    let tasks = job.groups.iter().flat_map(|group| &group.tasks);
    tasks.flat_map(|task| &task.env).any(|(name, value)| {
        let name = name.to_ascii_uppercase();
        let is_place = PLACE_NAMES.iter().any(|end| name.ends_with(end));
        let is_text = !value.is_empty() && !value.starts_with("${") && !value.starts_with('/');
        is_text && !is_place && SECRET_NAMES.iter().any(|part| name.contains(part))
    })
}

/// Whether others than the owner and the group can read the file: its own mode, and those of the directories on the way.
fn is_readable_by_all(path: &Path) -> bool {
    let has = |path: &Path, bit: u32| path.metadata().is_ok_and(|metadata| metadata.mode() & bit != 0);
    path.canonicalize().is_ok_and(|path| {
        has(&path, 0o004) && path.ancestors().skip(1).all(|directory| has(directory, 0o001))
    })
}
