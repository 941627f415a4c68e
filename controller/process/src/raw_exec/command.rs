//! Finds the program of a task's `command` by the rules of Nomad's executor, and makes sure that no untrusted user could have
//! placed it.
//!
//! In: the command as written, the task directory, the task's `PATH`, the user who starts it. Out: the program, as an open
//! directory and a name. A program in the allocation's directory runs only if `trust` accepts it; `executable` makes it
//! executable if necessary. A program elsewhere belongs to the machine and is run as it is.

mod executable;
mod trust;
mod walk;

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_base::user::UserError;
use rustix::io::Errno;

use self::walk::{AllocScope, Reached, Target};
use crate::supervisor::Entry;

pub(super) use trust::{Distrust, Trust};

/// A search for a program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup<'a> {
    /// The command as written.
    pub(super) command: &'a str,
    pub(super) task_dir: &'a Path,
    /// The task's `PATH`; empty if it has none.
    pub(super) search_path: &'a str,
    /// The users whose programs are run.
    pub(super) trust: &'a Trust<'a>,
}

/// The program of a command.
#[derive(Debug)]
pub(super) struct Found {
    /// Its path, as the task sees it.
    pub(super) path: PathBuf,
    /// Where it was inspected; none if it is not related to the allocation's directory.
    pub(super) entry: Option<Entry>,
    /// An earlier candidate that was skipped.
    pub(super) passed_over: Option<Distrust>,
}

/// Why there is no program. Its text follows "failed to".
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("exec: command is empty")]
    Empty,
    /// It does not exist.
    #[error("exec {command:?}: not found{}{}", hint(command), searched(command, task_dir, search_path.as_deref()))]
    NotFound {
        command: String,
        /// The directory searched first.
        task_dir: PathBuf,
        /// The path searched next; none if the command is a path.
        search_path: Option<String>,
    },
    /// It exists, but is not a program.
    #[error("exec {command:?}: permission denied: {why}")]
    NotAProgram { command: String, why: &'static str },
    /// An untrusted user may have placed it.
    #[error("exec {command:?}: {distrust}")]
    Untrusted { command: String, distrust: Distrust },
    /// It exists, can't be executed, and must not be made executable.
    #[error("make {} executable: {why}", path.display())]
    NotExecutable { path: PathBuf, why: &'static str },
    /// The trusted users can't be determined.
    #[error(transparent)]
    Users(UserError),
    #[error("{operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// Finds the program. A relative command is `local/COMMAND` in the task directory, then `COMMAND` there, then, for a plain name,
/// a file in the task's `PATH`. An absolute command is that file.
///
/// An untrusted program in the allocation ends the search, so that the intended program is never silently replaced by another.
/// Exception: a plain name that is also in `PATH`. Otherwise any user who can create a file named `sh` could keep the task from
/// its shell.
///
/// # Errors
/// If the program does not exist, is not trusted, can't be made executable, or can't be examined.
pub(super) fn find(lookup: &Lookup<'_>) -> Result<Found, CommandError> {
    let Lookup { command, task_dir, search_path, trust } = *lookup;
    if command.is_empty() {
        return Err(CommandError::Empty);
    }
    let not_found = |search_path: Option<&str>| CommandError::NotFound {
        command: command.to_owned(),
        task_dir: task_dir.to_owned(),
        search_path: search_path.map(str::to_owned),
    };
    let untrusted = |distrust| CommandError::Untrusted { command: command.to_owned(), distrust };
    let not_program = |why| CommandError::NotAProgram { command: command.to_owned(), why };
    let root = AllocScope::open(task_dir, trust)?;
    if command.starts_with('/') {
        return match program_at(&root, PathBuf::from(command), Metadata::is_file)? {
            Some(Ok(found)) => {
                match found.entry.is_none().then(|| not_a_program(Path::new(command))).flatten() {
                    Some(why) => Err(not_program(why)),
                    None => Ok(found),
                }
            }
            Some(Err(distrust)) => Err(untrusted(distrust)),
            None => Err(not_a_program(Path::new(command)).map_or_else(|| not_found(None), not_program)),
        };
    }
    let mut passed_over = None;
    for place in ["local", ""] {
        match root.below(&Path::new(place).join(command))? {
            Some(Ok(target)) => return accepted(target, trust),
            Some(Err(distrust)) if command.contains('/') => return Err(untrusted(distrust)),
            Some(Err(distrust)) => drop(passed_over.get_or_insert(distrust)),
            None => {}
        }
    }
    if command.contains('/') {
        let why = not_a_program(&task_dir.join(command));
        return Err(why.map_or_else(|| not_found(None), not_program));
    }
    // A relative entry would refer to the agent's own directory, which does not concern the task.
    for dir in search_path.split(':').filter(|dir| dir.starts_with('/')) {
        match program_at(&root, Path::new(dir).join(command), is_executable)? {
            Some(Ok(found)) => return Ok(Found { passed_over, ..found }),
            Some(Err(distrust)) => drop(passed_over.get_or_insert(distrust)),
            None => {}
        }
    }
    Err(passed_over.map_or_else(|| not_found(Some(search_path)), untrusted))
}

/// The program at an absolute path, if any.
fn program_at(
    root: &AllocScope<'_>,
    path: PathBuf,
    is_there: fn(&Metadata) -> bool,
) -> Result<Option<Result<Found, Distrust>>, CommandError> {
    if !metadata(&path)?.is_some_and(|meta| is_there(&meta)) {
        return Ok(None);
    }
    match root.absolute(&path)? {
        Reached::File(target) => accepted(*target, root.trust()).map(|found| Some(Ok(found))),
        Reached::Untrusted(distrust) => Ok(Some(Err(distrust))),
        Reached::Outside => Ok(Some(Ok(Found { path, entry: None, passed_over: None }))),
        Reached::Nothing => Ok(None),
    }
}

/// A trusted program in the allocation's directory, made executable.
fn accepted(target: Target, trust: &Trust<'_>) -> Result<Found, CommandError> {
    executable::make(&target, trust.starter())?;
    let Target { path, dir, name, .. } = target;
    let entry = Some(Entry { dir: Arc::new(dir), name });
    Ok(Found { path, entry, passed_over: None })
}

/// Why what exists at a path can't be a program, if so.
fn not_a_program(path: &Path) -> Option<&'static str> {
    match fs::metadata(path) {
        Ok(meta) if meta.is_dir() => Some("it is a directory; name a program in it"),
        Ok(meta) if !meta.is_file() => Some("it is not a regular file"),
        Ok(meta) if !is_executable(&meta) => Some("it is not executable for any user; chmod +x makes it so"),
        Ok(_) | Err(_) => None,
    }
}

/// What to do about a command that contains its arguments, or is relative to the manifest.
fn hint(command: &str) -> String {
    match command.split_whitespace().collect::<Vec<_>>().as_slice() {
        [program, args @ ..] if !args.is_empty() => {
            format!(
                "; write its arguments in args (command: {program:?}, args: [{}]); searched",
                quoted(args)
            )
        }
        _ if command.starts_with("./") => format!(
            "; a program beside the manifest is ${{manifest.dir}}/{}; searched",
            command.trim_start_matches("./")
        ),
        _ => String::new(),
    }
}

fn quoted(args: &[&str]) -> String {
    args.iter().map(|arg| format!("{arg:?}")).collect::<Vec<_>>().join(", ")
}

/// The places that were searched, for people.
fn searched(command: &str, task_dir: &Path, search_path: Option<&str>) -> String {
    let task_dir = format!("the task's directory {} and its subdirectory local", task_dir.display());
    match search_path {
        None if command.starts_with('/') => " at this path".to_owned(),
        None => format!(" in {task_dir}"),
        Some("") => format!(" in {task_dir}, nor in PATH, which is empty"),
        Some(path) => format!(" in {task_dir}, nor in PATH ({path})"),
    }
}

/// The metadata of the file at a path; none if no file can be reached there.
fn metadata(path: &Path) -> Result<Option<Metadata>, CommandError> {
    let is_absent = |error: &io::Error| {
        // No file has a path with a NUL byte.
        error.kind() == io::ErrorKind::InvalidInput
            || matches!(
                Errno::from_io_error(error),
                Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS | Errno::NAMETOOLONG)
            )
    };
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(source) => Err(CommandError::Io { operation: "examine", path: path.to_owned(), source }),
    }
}

fn is_executable(meta: &Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o111 != 0
}

#[cfg(test)]
mod tests;
