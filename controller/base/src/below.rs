//! User-written paths below a task's directory.
//!
//! In: text such as `./local/site`, or `/local/site`, which means the same: Nomad joins such paths with the directory.
//! Out: the relative path. Callers decide which places are allowed; nothing is read from disk here.

use std::path::{Component, Path, PathBuf};

/// Removes `.` and a leading `/`; the result has at least one component and no `..`. `None` if the path is empty, names
/// the directory itself, or contains `..`.
pub fn below(text: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::ParentDir => return None,
        }
    }
    (!path.as_os_str().is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_stays_below_its_root() {
        let paths = [
            ("a", "a"),
            ("./a/./b/", "a/b"),
            ("secrets", "secrets"),
            ("a//b", "a/b"),
            ("/a", "a"),
            ("//a", "a"),
        ];
        for (text, path) in paths {
            assert_eq!(below(text), Some(path.into()), "{text}");
        }
        for text in ["", ".", "./", "/", "..", "a/../b", "../a", "/../a"] {
            assert_eq!(below(text), None, "{text}");
        }
    }
}
