//! Paths as users write them for what lies below a task's directory.
//!
//! In: text such as `./local/site`. Out: the steps from there. What may lie where is for others to say, and nothing is looked at here.

use std::path::{Component, Path, PathBuf};

/// Why a path names no place below a task's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotBelow {
    /// It begins at the root.
    Absolute,
    /// It is empty, the directory itself, or goes up.
    Leaves,
}

/// The path without its `.`: one step at least, and none that goes up.
///
/// # Errors
///
/// When it is none below.
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
