//! Paths from clients: below an allocation's directory, never above it, and never to secrets.
//!
//! In: text such as `web/local/../tmp/x`, and the names of the tasks with their directories. Out: the path on disk. This module
//! does not access files.

use std::{borrow::Cow, ffi::OsStr, path::PathBuf};

use herdlet_base::paths::{self, SHARED, SPEC};

use super::super::error::{ApiError, ApiResult};

/// Longer paths are not paths of a task.
const PATH_BYTES_MAX: usize = 4_096;

/// Entries of a task's directory that are never returned.
const SECRET: [&str; 2] = ["secrets", "private"];

/// A path below an allocation's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below {
    /// Relative path on disk; empty for the allocation's directory itself.
    pub(crate) path: PathBuf,
    /// The path in answers and messages.
    pub(crate) shown: String,
}

impl Below {
    /// Parses `text`. Resolves `.` and `..` lexically, as Go's `filepath.Clean` does. This is correct because no links are
    /// followed.
    ///
    /// # Errors
    /// When the path leads out of the directory, or to a task's secrets.
    pub(crate) fn read<'t>(
        text: &str,
        mut tasks: impl Iterator<Item = (&'t str, Cow<'t, str>)>,
    ) -> ApiResult<Self> {
        if text.len() > PATH_BYTES_MAX || text.contains('\0') {
            return Err(ApiError::bad(format!(
                "path: it must have at most {PATH_BYTES_MAX} bytes and no NUL"
            )));
        }
        let mut parts: Vec<&str> = Vec::new();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop().ok_or_else(|| ApiError::bad("Path escapes the alloc directory"))?;
                }
                _ => parts.push(part),
            }
        }
        let shown = parts.join("/");
        let first = parts.first().map(|first| {
            // `alloc` is the shared directory, also where a task has that name.
            let task = tasks.find(|(task, _)| task == first && *first != SHARED);
            task.map_or_else(|| (*first).to_owned(), |(_, dir)| dir.into_owned())
        });
        if first.as_deref().is_some_and(is_agents) {
            return Err(ApiError::NotFound(format!("no such file or directory: {shown:?}")));
        }
        // `alloc/secrets` is a normal name.
        let shared = first.as_deref() == Some(SHARED);
        if !shared && parts.get(1).is_some_and(|second| SECRET.contains(second)) {
            return Err(ApiError::Forbidden(format!("Reading secret file prohibited: {shown}")));
        }
        let path = first.iter().map(String::as_str).chain(parts.into_iter().skip(1)).collect();
        Ok(Self { path, shown })
    }

    /// The name of an entry in listings; none for the agent's own files.
    pub(crate) fn display_name(&self, name: &OsStr) -> Option<String> {
        let name = name.to_string_lossy();
        // Names of tasks are encoded only in the allocation's directory itself.
        if !self.path.as_os_str().is_empty() {
            return Some(name.into_owned());
        }
        if is_agents(&name) {
            return None;
        }
        let task = paths::task_of(&name).filter(|task| task != SHARED);
        Some(task.unwrap_or_else(|| name.into_owned()))
    }

    /// The last segment, as clients see it.
    pub(crate) fn display_last(&self) -> String {
        self.shown.rsplit('/').next().unwrap_or_default().to_owned()
    }
}

/// Whether this entry of an allocation's directory is a file of the agent (`alloc.json`, which has the job's secrets). No
/// directory of a task has such a name.
fn is_agents(name: &str) -> bool {
    name.starts_with('.') || name.starts_with(SPEC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ApiResult<Below> {
        let tasks = ["web", "a.b", "old.1", "alloc", ".x"];
        let dir = |task| if task == "old.1" { "old%2E1".into() } else { paths::dir_name(task) };
        Below::read(text, tasks.into_iter().map(|task| (task, dir(task))))
    }

    #[test]
    fn paths_lead_below_the_directory_and_nowhere_else() {
        for (text, expected) in [
            ("", ""),
            ("/", ""),
            ("alloc/logs/", "alloc/logs"),
            ("/web//local/./x", "web/local/x"),
            ("web/local/../tmp/x", "web/tmp/x"),
            ("a.b/local", "a.b/local"),
            ("old.1/local", "old%2E1/local"),
            (".x/local", "%2Ex/local"),
            ("alloc/data", "alloc/data"),
            ("%61lloc/local", "%61lloc/local"),
            ("alloc/secrets", "alloc/secrets"),
            ("web/local/secrets", "web/local/secrets"),
            ("web/..", ""),
        ] {
            assert_eq!(read(text).unwrap().path, PathBuf::from(expected), "{text}");
        }
        for text in ["..", "/..", "web/../..", "web/../../etc/passwd", "../alloc", "a\0b"] {
            assert_eq!(read(text).unwrap_err().code(), 400, "{text}");
        }
        assert!(read(&"a/".repeat(PATH_BYTES_MAX)).is_err());
    }

    #[test]
    fn secrets_directories_are_refused() {
        for text in [
            "web/secrets",
            "web/secrets/token",
            "/web/./private/x",
            "a.b/secrets",
            "old.1/secrets",
            "old%2E1/secrets",
            "%61lloc/secrets",
            "x/../web/secrets",
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code(), 403, "{text}: {error}");
        }
    }

    #[test]
    fn files_of_the_agent_are_hidden() {
        for text in ["alloc.json", "/./alloc.json", ".alloc.json.new", "web/../alloc.json"] {
            assert_eq!(read(text).unwrap_err().code(), 404, "{text}");
        }
        assert_eq!(read("").unwrap().display_name(OsStr::new("alloc.json")), None);
        assert_eq!(
            read("web/local").unwrap().display_name(OsStr::new("alloc.json")).as_deref(),
            Some("alloc.json")
        );
    }

    #[test]
    fn names_of_tasks_are_shown_as_they_are_called() {
        let shown = |dir: &str, name: &str| read(dir).unwrap().display_name(OsStr::new(name));
        assert_eq!(shown("/", "a%2Eb").as_deref(), Some("a.b"));
        assert_eq!(shown("/", "a.b").as_deref(), Some("a.b"));
        assert_eq!(shown("/", "%2Ex").as_deref(), Some(".x"));
        assert_eq!(shown("/", "%61lloc").as_deref(), Some("%61lloc"), "`alloc` is the shared directory");
        assert_eq!(shown("web", "a%2Eb").as_deref(), Some("a%2Eb"));
        assert_eq!(read("a.b/local/x").unwrap().display_last(), "x");
    }
}
