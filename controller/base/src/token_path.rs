//! Paths of identity tokens in a task's directory.
//!
//! In: an identity's name and `filepath`. Out: a path below the task's directory. No directory is opened.

use std::path::PathBuf;

use herdlet_api_types::manifest::defaults::DEFAULT_IDENTITY;

use crate::{below::below, paths::encode};

/// The token's path in the task's directory; `None` if `filepath` is not allowed: outside the directory, in a part
/// hidden from the task, at the place of the allocation's shared directory, or a directory that every task has.
pub fn path_of(name: &str, filepath: Option<&str>) -> Option<PathBuf> {
    let Some(filepath) = filepath else { return Some(PathBuf::from("secrets").join(file_name(name))) };
    if filepath.len() > PATH_BYTES_MAX || filepath.contains('\0') {
        return None;
    }
    let path = below(filepath)?;
    let mut steps = path.iter();
    match (steps.next()?.to_str()?, steps.next()) {
        ("private" | "alloc", _) | ("local" | "tmp" | "secrets", None) => None,
        _ => Some(path),
    }
}

/// Longer than any task needs; file systems allow four times as much.
const PATH_BYTES_MAX: usize = 1_024;

/// Identity names match `[A-Za-z0-9-_]{1,128}`; all other characters are encoded.
pub fn file_name(identity: &str) -> String {
    if identity == DEFAULT_IDENTITY {
        return "nomad_token".to_owned();
    }
    format!("nomad_{}.jwt", encode(identity))
}
