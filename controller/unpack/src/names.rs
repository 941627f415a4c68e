//! Names and link targets in archives: which of them stay in the tree.
//!
//! In: a path as an archive has it. Out: a path that leads nowhere else, or why it is refused.

use std::path::{Component, Path, PathBuf};

use super::error::TreeError;

/// Limits the nesting of directories to what fits in a path.
const DEPTH_MAX: usize = 128;
/// The longest path of the kernel (`PATH_MAX`), without the final zero.
const PATH_LEN_MAX: usize = 4095;

/// Removes `.`; absolute paths and paths with `..` are refused.
///
/// # Errors
/// If it leads out, or is nested too deep.
pub(super) fn inside(path: &Path) -> Result<PathBuf, TreeError> {
    let mut clean = PathBuf::new();
    for (depth, part) in path.components().enumerate() {
        match part {
            Component::Normal(_) if depth >= DEPTH_MAX => {
                return Err(TreeError::Depth { path: shortened(path) });
            }
            Component::Normal(name) if !name.as_encoded_bytes().contains(&0) => clean.push(name),
            Component::CurDir => {}
            Component::Normal(_) | Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(TreeError::Outside { path: shortened(path) });
            }
        }
    }
    Ok(clean)
}

/// Whether a link in a directory at this depth leads only into the tree.
pub(super) fn stays_inside(target: &Path, depth: usize) -> bool {
    let mut parts = target.components().filter(|part| *part != Component::CurDir).peekable();
    let mut up = 0;
    while parts.next_if_eq(&Component::ParentDir).is_some() {
        up += 1;
    }
    up <= depth && parts.all(|part| matches!(part, Component::Normal(_))) && target != Path::new("")
}

/// As [`inside`] for a layer, in which an absolute path means one in the layer, as in Docker.
///
/// # Errors
/// As [`inside`], and for a path that no file can have.
pub(super) fn inside_layer(path: &Path) -> Result<PathBuf, TreeError> {
    if path.as_os_str().len() > PATH_LEN_MAX {
        return Err(TreeError::Depth { path: shortened(path) });
    }
    inside(path.strip_prefix("/").unwrap_or(path))
}

/// Shortens a path for messages.
pub(super) fn shortened(path: &Path) -> PathBuf {
    let text = path.to_string_lossy();
    match text.chars().count() {
        0..=200 => path.to_owned(),
        _ => PathBuf::from(text.chars().take(200).chain("…".chars()).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_may_go_up_only_within_the_tree() {
        for (target, depth, stays) in [
            ("a", 0, true),
            ("./a/b", 0, true),
            ("..", 0, false),
            ("..", 1, true),
            ("../a", 1, true),
            ("../../a", 1, false),
            ("../../a", 2, true),
            ("a/..", 3, false),
            ("a/../b", 3, false),
            ("/etc/passwd", 9, false),
            ("", 0, false),
        ] {
            assert_eq!(stays_inside(Path::new(target), depth), stays, "{target:?} at {depth}");
        }
    }

    #[test]
    fn escaping_name_is_refused() {
        for (path, expected) in [
            ("a/./b", Some("a/b")),
            ("./", Some("")),
            ("..", None),
            ("a/../b", None),
            ("/a", None),
            ("a\0b", None),
        ] {
            assert_eq!(inside(Path::new(path)).ok(), expected.map(PathBuf::from), "{path:?}");
        }
        let deep = "d/".repeat(200);
        assert!(matches!(inside(Path::new(&deep)), Err(TreeError::Depth { .. })));
    }
}
