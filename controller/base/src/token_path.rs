//! Where tokens of identities lie in a task's directory.
//!
//! In: an identity's name and `filepath`. Out: a path below the task's directory. No directory is opened.

use std::path::PathBuf;

use herdlet_api_types::manifest::defaults::DEFAULT_IDENTITY;

use crate::{below::below, paths::encode};

/// Where in the task's directory a token lies; none where its `filepath` is no place for one: outside, in what the task must not see, where
/// the allocation's shared directory would be looked for, or a directory that every task has.
pub fn path_of(name: &str, filepath: Option<&str>) -> Option<PathBuf> {
    let Some(filepath) = filepath else { return Some(PathBuf::from("secrets").join(file_name(name))) };
    if filepath.len() > PATH_BYTES_MAX || filepath.contains('\0') {
        return None;
    }
    let path = below(filepath).ok()?;
    let mut steps = path.iter();
    match (steps.next()?.to_str()?, steps.next()) {
        ("private" | "alloc", _) | ("local" | "tmp" | "secrets", None) => None,
        _ => Some(path),
    }
}

/// No task needs longer ones, and a file system takes four times as much.
const PATH_BYTES_MAX: usize = 1_024;

/// Identity names are `[A-Za-z0-9-_]{1,128}`; anything else becomes harmless here.
pub fn file_name(identity: &str) -> String {
    if identity == DEFAULT_IDENTITY {
        return "nomad_token".to_owned();
    }
    format!("nomad_{}.jwt", encode(identity))
}
