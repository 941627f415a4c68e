//! Finds the program that a task's `command` means, by the rules of Nomad's executor, and makes sure that no stranger has put it there.
//!
//! In: the command as written, the task directory, the task's `PATH`, who starts it. Out: the program, held where it was inspected. What lies
//! in the allocation's directory is only run where `trust` says so; one that lacks the right to be executed is given it
//! (`executable`). What lies elsewhere is the machine's own and taken as it is.

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

use self::walk::{Reached, SearchRoot, Target};
use crate::supervisor::Entry;

pub(super) use trust::{Distrust, Trust};

/// What to look for and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookup<'a> {
    /// The command as written.
    pub(super) command: &'a str,
    pub(super) task_dir: &'a Path,
    /// The task's `PATH`; empty where it has none.
    pub(super) search_path: &'a str,
    /// Whose programs are run.
    pub(super) trust: &'a Trust<'a>,
}

/// The program that a command means.
#[derive(Debug)]
pub(super) struct Found {
    /// Its path, as the task knows it.
    pub(super) path: PathBuf,
    /// Where it was inspected; none where the allocation's directory has nothing to do with it.
    pub(super) entry: Option<Entry>,
    /// What comes before it and was not run.
    pub(super) passed_over: Option<Distrust>,
}

/// Why there is no program. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("exec: command is empty")]
    Empty,
    /// There is none.
    #[error("exec {command:?}: not found{}", searched(command, task_dir, search_path.as_deref()))]
    NotFound {
        command: String,
        /// Where it was looked for first.
        task_dir: PathBuf,
        /// Where it was looked for then; none where the command is a path.
        search_path: Option<String>,
    },
    /// Somebody else may have put it there.
    #[error("exec {command:?}: {distrust}")]
    Untrusted { command: String, distrust: Distrust },
    /// It is there, can't be executed, and the right to do so is not given.
    #[error("make {} executable: {why}", path.display())]
    NotExecutable { path: PathBuf, why: &'static str },
    /// Whose programs are run is not known.
    #[error(transparent)]
    Users(UserError),
    #[error("{operation} {}: {source}", path.display())]
    Io { operation: &'static str, path: PathBuf, source: io::Error },
}

/// Finds the program. A relative command is `local/COMMAND` in the task directory, then `COMMAND` there, then, for a plain name, what the
/// task's `PATH` has. An absolute one is that file.
///
/// A program in the allocation that is not to be trusted ends the search, so that what was meant is never replaced by something else in
/// silence. Exception: a plain name that `PATH` also has. Otherwise any user who can create a file named `sh` could keep the task from its
/// shell.
///
/// # Errors
/// When there is none, it is not to be trusted, it can't be made executable, or that can't be found out.
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
    let ground = SearchRoot::open(task_dir, trust)?;
    if command.starts_with('/') {
        return match program_at(&ground, PathBuf::from(command), Metadata::is_file)? {
            Some(Ok(found)) => Ok(found),
            Some(Err(distrust)) => Err(untrusted(distrust)),
            None => Err(not_found(None)),
        };
    }
    let mut passed_over = None;
    for place in ["local", ""] {
        match ground.below(&Path::new(place).join(command))? {
            Some(Ok(target)) => return accepted(target, trust),
            Some(Err(distrust)) if command.contains('/') => return Err(untrusted(distrust)),
            Some(Err(distrust)) => drop(passed_over.get_or_insert(distrust)),
            None => {}
        }
    }
    if command.contains('/') {
        return Err(not_found(None));
    }
    // A relative entry would mean the agent's own directory, which is none of the task's business.
    for dir in search_path.split(':').filter(|dir| dir.starts_with('/')) {
        match program_at(&ground, Path::new(dir).join(command), is_executable)? {
            Some(Ok(found)) => return Ok(Found { passed_over, ..found }),
            Some(Err(distrust)) => drop(passed_over.get_or_insert(distrust)),
            None => {}
        }
    }
    Err(passed_over.map_or_else(|| not_found(Some(search_path)), untrusted))
}

/// The program at an absolute path; none where there is none.
fn program_at(
    ground: &SearchRoot<'_>,
    path: PathBuf,
    is_there: fn(&Metadata) -> bool,
) -> Result<Option<Result<Found, Distrust>>, CommandError> {
    if !metadata(&path)?.is_some_and(|meta| is_there(&meta)) {
        return Ok(None);
    }
    match ground.absolute(&path)? {
        Reached::File(target) => accepted(*target, ground.trust()).map(|found| Some(Ok(found))),
        Reached::Untrusted(distrust) => Ok(Some(Err(distrust))),
        Reached::Outside => Ok(Some(Ok(Found { path, entry: None, passed_over: None }))),
        Reached::Nothing => Ok(None),
    }
}

/// The program in the allocation's directory, which may be run.
fn accepted(target: Target, trust: &Trust<'_>) -> Result<Found, CommandError> {
    executable::make(&target, trust.starter())?;
    let Target { path, dir, name, .. } = target;
    let entry = Some(Entry { dir: Arc::new(dir), name });
    Ok(Found { path, entry, passed_over: None })
}

/// Where it was looked for.
fn searched(command: &str, task_dir: &Path, search_path: Option<&str>) -> String {
    let task_dir = format!("{} (the task's directory) and its local", task_dir.display());
    match search_path {
        None if command.starts_with('/') => " there".to_owned(),
        None => format!(" in {task_dir}"),
        Some("") => format!(" in {task_dir}, nor in PATH, which is empty"),
        Some(path) => format!(" in {task_dir}, nor in PATH ({path})"),
    }
}

/// Of what is at a path; none where nothing is that can be reached.
fn metadata(path: &Path) -> Result<Option<Metadata>, CommandError> {
    let is_absent = |error: &io::Error| {
        // A path with a NUL byte names nothing.
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
