//! User-written paths below a task's directory.
//!
//! In: text such as `./local/site`. Out: the relative path. Callers decide which places are allowed; nothing is read
//! from disk here.

use std::path::{Component, Path, PathBuf};

/// Why a path is not below a task's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBelow {
    /// The path is absolute.
    Absolute,
    /// The path is empty, names the directory itself, or contains `..`.
    Leaves,
}

/// Removes `.`; the result has at least one component and no `..`.
///
/// # Errors
///
/// If the path is not below the directory.
pub fn below(text: &str) -> Result<PathBuf, NotBelow> {
    let mut path = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return Err(NotBelow::Absolute),
            Component::ParentDir => return Err(NotBelow::Leaves),
        }
    }
    if path.as_os_str().is_empty() { Err(NotBelow::Leaves) } else { Ok(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_below_or_nowhere() {
        for (text, path) in [("a", "a"), ("./a/./b/", "a/b"), ("secrets", "secrets"), ("a//b", "a/b")] {
            assert_eq!(below(text), Ok(path.into()), "{text}");
        }
        for text in ["", ".", "./", "..", "a/../b", "../a"] {
            assert_eq!(below(text), Err(NotBelow::Leaves), "{text}");
        }
        for text in ["/", "/a", "//a"] {
            assert_eq!(below(text), Err(NotBelow::Absolute), "{text}");
        }
    }
}
