//! Finds the program that a task's `command` means, by the rules of Nomad's executor.
//!
//! In: the command as written, the task directory, the task's `PATH`. Out: an absolute path. A program in the task
//! directory that lacks the right to be executed is given it, and nothing outside of it is touched.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// What to look for and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup<'a> {
    /// The command as written.
    pub(super) command: &'a str,
    /// The task directory.
    pub(super) task_dir: &'a Path,
    /// The task's `PATH`; empty where it has none.
    pub(super) search_path: &'a str,
}

/// Why there is no program. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// Nothing was written.
    #[error("exec: command is empty")]
    Empty,
    /// There is none.
    #[error("exec {command:?}: not found{}", searched(command, task_dir, search_path.as_deref()))]
    NotFound {
        /// As written.
        command: String,
        /// Where it was looked for first.
        task_dir: PathBuf,
        /// Where it was looked for then; none where the command is a path.
        search_path: Option<String>,
    },
    /// It is there and can't be made executable.
    #[error("make {} executable", path.display())]
    Mode {
        /// The program.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Finds the program: `local/COMMAND` and `COMMAND` in the task directory, then the path itself if it is absolute, then, for
/// a plain name, the task's `PATH`.
///
/// # Errors
/// When there is none, or it can't be made executable.
pub(super) fn find(lookup: Lookup<'_>) -> Result<PathBuf, CommandError> {
    let Lookup { command, task_dir, search_path } = lookup;
    if command.is_empty() {
        return Err(CommandError::Empty);
    }
    let relative = command.trim_start_matches('/');
    for place in [task_dir.join("local"), task_dir.to_owned()] {
        let path = place.join(relative);
        if is_file(&path) {
            make_executable(task_dir, &path)?;
            return Ok(path);
        }
    }
    let is_path = command.contains('/');
    let found = if command.starts_with('/') {
        let path = Some(PathBuf::from(command)).filter(|path| is_file(path));
        if let Some(path) = &path
            && let Some(own) = own_dir(task_dir, path)
        {
            make_executable(&own, path)?;
        }
        path
    } else if is_path {
        None
    } else {
        // A relative entry would mean the agent's own directory, which is none of the task's business.
        let mut dirs = search_path.split(':').filter(|dir| dir.starts_with('/'));
        dirs.find_map(|dir| Some(Path::new(dir).join(command)).filter(|path| is_executable(path)))
    };
    found.ok_or_else(|| CommandError::NotFound {
        command: command.to_owned(),
        task_dir: task_dir.to_owned(),
        search_path: (!is_path).then(|| search_path.to_owned()),
    })
}

/// Where it was looked for.
fn searched(command: &str, task_dir: &Path, search_path: Option<&str>) -> String {
    let task_dir = format!("{} (the task's directory) and its local", task_dir.display());
    match search_path {
        None if command.starts_with('/') => format!(" there, nor below {task_dir}"),
        None => format!(" in {task_dir}"),
        Some("") => format!(" in {task_dir}, nor in PATH, which is empty"),
        Some(path) => format!(" in {task_dir}, nor in PATH ({path})"),
    }
}

/// The directory of the task, or that which it shares with the others of its allocation, where a path leads there: as one does that is
/// written with `NOMAD_TASK_DIR` or `NOMAD_ALLOC_DIR`.
fn own_dir(task_dir: &Path, path: &Path) -> Option<PathBuf> {
    let shared = task_dir.parent().map(|alloc_dir| alloc_dir.join("alloc"));
    [Some(task_dir.to_owned()), shared].into_iter().flatten().find(|own| path.starts_with(own))
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file())
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Gives everyone the right to read and execute a file in one of the task's own directories, as Nomad does for what artifacts bring.
///
/// The task can write there: a link that leads out of the directory is not followed, or it could open up any file of the machine.
fn make_executable(own: &Path, path: &Path) -> Result<(), CommandError> {
    let failed = |source| CommandError::Mode { path: path.to_owned(), source };
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o111 == 0o111 {
        return Ok(());
    }
    let below = path.strip_prefix(own).map_or(OsStr::new("."), Path::as_os_str);
    let make = || -> io::Result<()> {
        let dir = fs::File::open(own)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let file = fs::File::from(rustix::fs::openat2(&dir, below.as_bytes(), flags, Mode::empty(), how)?);
        file.set_permissions(fs::Permissions::from_mode(mode | 0o555))
    };
    match make() {
        // What is executable for somebody may be so for the task: behind a link out of the directory, on a disk that can't be written to,
        // or a file of another owner.
        Err(_) if mode & 0o111 != 0 => Ok(()),
        made => made.map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("local")).unwrap();
        dir
    }

    fn find_in(dir: &tempfile::TempDir, command: &str) -> Result<PathBuf, CommandError> {
        find(Lookup { command, task_dir: dir.path(), search_path: "relative::/usr/bin:/bin" })
    }

    #[test]
    fn the_task_directory_comes_first_then_the_path() {
        let dir = task_dir();
        let sh = find_in(&dir, "sh").unwrap();
        assert!(sh == Path::new("/usr/bin/sh") || sh == Path::new("/bin/sh"));
        assert_eq!(find_in(&dir, "/bin/sh").unwrap(), Path::new("/bin/sh"));
        fs::write(dir.path().join("sh"), "#!/bin/true\n").unwrap();
        assert_eq!(find_in(&dir, "sh").unwrap(), dir.path().join("sh"));
        fs::write(dir.path().join("local/sh"), "#!/bin/true\n").unwrap();
        assert_eq!(find_in(&dir, "sh").unwrap(), dir.path().join("local/sh"));
        assert_eq!(find_in(&dir, "local/sh").unwrap(), dir.path().join("local/sh"));
    }

    #[test]
    fn what_artifacts_bring_is_made_executable() {
        let dir = task_dir();
        let path = dir.path().join("local/tool");
        fs::write(&path, "#!/bin/true\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        find_in(&dir, "tool").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn so_is_what_is_named_by_its_path_in_a_directory_of_the_task() {
        let alloc_dir = tempfile::tempdir().unwrap();
        let [task_dir, other, shared] = ["web", "db", "alloc"].map(|name| alloc_dir.path().join(name));
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for (dir, mode) in [(task_dir.join("local"), 0o755), (shared.join("data"), 0o755), (other, 0o600)] {
            fs::create_dir_all(&dir).unwrap();
            let path = dir.join("tool");
            fs::write(&path, "#!/bin/true\n").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let command = path.to_str().unwrap();
            assert_eq!(find(Lookup { command, task_dir: &task_dir, search_path: "" }).unwrap(), path);
            assert_eq!(mode_of(&path), mode, "{command}");
        }
        // What lies elsewhere stays as it is, also where a link leads there.
        let link = shared.join("data/link");
        std::os::unix::fs::symlink(alloc_dir.path().join("db/tool"), &link).unwrap();
        let command = link.to_str().unwrap();
        let linked = find(Lookup { command, task_dir: &task_dir, search_path: "" });
        assert!(matches!(linked, Err(CommandError::Mode { .. })));
        assert_eq!(mode_of(&link), 0o600);
    }

    #[test]
    fn a_link_out_of_the_directory_opens_up_nothing() {
        let dir = task_dir();
        let secret = tempfile::NamedTempFile::new().unwrap();
        fs::set_permissions(secret.path(), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(secret.path(), dir.path().join("local/tool")).unwrap();
        assert!(matches!(find_in(&dir, "tool"), Err(CommandError::Mode { .. })));
        assert_eq!(fs::metadata(secret.path()).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink("/bin/sh", dir.path().join("local/shell")).unwrap();
        assert_eq!(find_in(&dir, "shell").unwrap(), dir.path().join("local/shell"));
    }

    #[test]
    fn what_is_not_there_is_named_with_all_places() {
        let dir = task_dir();
        let error = find_in(&dir, "no-such-tool").unwrap_err().to_string();
        assert!(error.starts_with("exec \"no-such-tool\": not found in "), "{error}");
        assert!(error.ends_with("nor in PATH (relative::/usr/bin:/bin)"), "{error}");
        for command in ["bin/none", "/bin/none", "../x", "local", ""] {
            find_in(&dir, command).unwrap_err();
        }
    }
}
