//! The socket of the Task API in a task's `secrets`, and its short alias.
//!
//! In: the task directory, and who may connect. Out: a listening socket, or the result of an inspection. The socket is made
//! in a directory that only the agent may enter, and moved to its place with its final rights: no link of the task is
//! followed, and no other user can connect in between. A client can't name a socket by a path of more than
//! [`SOCKET_PATH_LEN_MAX`] bytes, so a longer one gets a symbolic link in a short directory. This module does not know who
//! serves the socket. All calls block.

use std::{
    ffi::OsStr,
    io,
    os::unix::{ffi::OsStrExt as _, net::UnixListener},
    path::{Path, PathBuf},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    observation::{Class, Observation},
    paths::{Paths, SOCKET_PATH_LEN_MAX},
    safe_fs::{Dir, FsError, Rights},
};
use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid};

use crate::{
    file_access::FileAccess,
    task_dir::{TaskDir, TaskDirError},
};

/// The name of the socket in `secrets`, as in Nomad.
pub const SOCKET: &str = "api.sock";

/// The directory in which the socket is made.
const STAGING: &str = ".api.sock.new";

/// The socket of a task.
#[derive(Debug)]
pub struct ApiSocket<'a> {
    pub task_dir: &'a TaskDir,
    /// The task's name, for messages.
    pub task: &'a str,
    /// Who may connect.
    pub access: FileAccess,
}

/// The device and inode of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketId(u64, u64);

/// Errors of sockets. They complete a sentence after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ApiSocketError {
    #[error("open the Task API of task {task}: its directory, or `secrets` in it, is missing")]
    NoDir { task: String },
    #[error("open the Task API of task {task}: another user's `{STAGING}` is in `secrets`")]
    Occupied { task: String },
    #[error("open the Task API of task {task}: {source}")]
    Bind { task: String, source: io::Error },
    #[error("open the Task API of task {task}: {source}")]
    File { task: String, source: FsError },
    #[error("open the Task API of task {task}: {source}")]
    TaskDir { task: String, source: TaskDirError },
}

impl ApiSocketError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::File { source, .. } => source.class(),
            Self::TaskDir { source, .. } => source.class(),
            Self::NoDir { .. } | Self::Occupied { .. } | Self::Bind { .. } => Class::Retry,
        }
    }
}

impl ApiSocket<'_> {
    /// Makes the socket, in place of whatever is there. Clients can connect at once, and wait until somebody accepts.
    ///
    /// # Errors
    /// If `secrets` is missing, or a system call fails.
    pub fn bind(&self) -> Result<(UnixListener, SocketId), ApiSocketError> {
        let missing = || ApiSocketError::NoDir { task: self.task.to_owned() };
        let secrets = self.secrets()?.ok_or_else(missing)?;
        let made = self.bind_in(&secrets);
        // Nothing of a failed attempt stays; the next one would remove it too.
        let _ = secrets.remove_tree(OsStr::new(STAGING));
        made
    }

    fn bind_in(&self, secrets: &Dir) -> Result<(UnixListener, SocketId), ApiSocketError> {
        let (staging, name) = (OsStr::new(STAGING), OsStr::new(SOCKET));
        let file = |source| ApiSocketError::File { task: self.task.to_owned(), source };
        let bind = |source| ApiSocketError::Bind { task: self.task.to_owned(), source };
        secrets.remove_tree(staging).map_err(file)?;
        let dir = secrets.make(staging, Rights::Exact { mode: 0o700, owner: None }).map_err(file)?;
        // The task may have put its own directory there.
        let stat = dir.stat().map_err(file)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(ApiSocketError::Occupied { task: self.task.to_owned() });
        }
        let listener = UnixListener::bind(dir.proc_path(name)).map_err(bind)?;
        let (mode, owner) = match self.access {
            FileAccess::Owner(owner) => (0o600, owner),
            FileAccess::Anybody => (0o666, None),
        };
        rustix::fs::chmodat(&dir, name, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|errno| bind(errno.into()))?;
        if let Some((uid, gid)) = owner {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(&dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|errno| bind(errno.into()))?;
        }
        let id = socket_in(&dir).map_err(file)?;
        let id = id.ok_or_else(|| bind(io::ErrorKind::NotFound.into()))?;
        if dir.rename_into(name, secrets, name).is_err() {
            // A directory of the task.
            secrets.remove_tree(name).map_err(file)?;
            dir.rename_into(name, secrets, name).map_err(file)?;
        }
        Ok((listener, id))
    }

    /// Whether the socket is in its place.
    ///
    /// # Errors
    /// If it can't be examined.
    pub fn inspect(&self, id: SocketId) -> Result<Observation, ApiSocketError> {
        let file = |source| ApiSocketError::File { task: self.task.to_owned(), source };
        let Some(secrets) = self.secrets()? else { return Ok(Observation::Absent) };
        let found = socket_in(&secrets).map_err(file)?;
        Ok(if found == Some(id) { Observation::Present } else { Observation::Absent })
    }

    /// Removes the socket, or one that an earlier agent has left. Succeeds if there is none.
    ///
    /// # Errors
    /// If it can't be removed.
    pub fn remove(&self) -> Result<(), ApiSocketError> {
        let file = |source| ApiSocketError::File { task: self.task.to_owned(), source };
        let Some(secrets) = self.secrets()? else { return Ok(()) };
        secrets.remove_tree(OsStr::new(STAGING)).map_err(file)?;
        match socket_in(&secrets).map_err(file)? {
            Some(_) => secrets.unlink(OsStr::new(SOCKET)).map_err(file),
            None => Ok(()),
        }
    }

    fn secrets(&self) -> Result<Option<Dir>, ApiSocketError> {
        let failed = |source| ApiSocketError::TaskDir { task: self.task.to_owned(), source };
        self.task_dir.secrets().map_err(failed)
    }
}

/// The socket in a directory, if there is one.
fn socket_in(dir: &Dir) -> Result<Option<SocketId>, FsError> {
    let found = dir.stat_name(OsStr::new(SOCKET))?;
    let socket = found.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    Ok(socket.map(|stat| SocketId(stat.st_dev, stat.st_ino)))
}

/// The path by which a task on this machine reaches its socket: the socket's own, or its alias if that is too long.
pub fn address(paths: &Paths, alloc: &AllocId, task: &str) -> PathBuf {
    let own = place(paths, alloc, task);
    let alias = paths.api_alias(alloc, task);
    if fits(&own) || !fits(&alias) { own } else { alias }
}

/// Makes the alias, if the task needs one.
///
/// # Errors
/// If it can't be made.
pub fn make_alias(paths: &Paths, alloc: &AllocId, task: &str) -> Result<(), FsError> {
    let alias = address(paths, alloc, task);
    let target = place(paths, alloc, task);
    let (Some(name), true) = (alias.file_name(), alias != target) else { return Ok(()) };
    let dir = Dir::open_or_make(&paths.api_aliases(), 0o711)?;
    // Other users' tasks pass through both, whatever the umask was. Nobody else lists them: links name allocations and
    // tasks, and only who knows both can compute the name of one.
    dir.set_rights(Rights::Exact { mode: 0o711, owner: None })?;
    Dir::open(&paths.runtime)?.set_rights(Rights::Exact { mode: 0o711, owner: None })?;
    match dir.read_link(name) {
        Ok(Some(found)) if found == target => Ok(()),
        Ok(Some(_)) | Err(_) => {
            dir.remove_tree(name)?;
            dir.link(name, &target)
        }
        Ok(None) => dir.link(name, &target),
    }
}

/// Removes a task's alias. Succeeds if there is none.
///
/// # Errors
/// If it can't be removed.
pub fn remove_alias(paths: &Paths, alloc: &AllocId, task: &str) -> Result<(), FsError> {
    let alias = paths.api_alias(alloc, task);
    let Some(dir) = Dir::open_if_present(&paths.api_aliases())? else { return Ok(()) };
    alias.file_name().map_or(Ok(()), |name| dir.unlink(name))?;
    // With the last one. Another task's that is being made meanwhile is tried again.
    let (runtime, name) = (Dir::open(&paths.runtime)?, paths.api_aliases());
    let _ = name.file_name().map(|name| runtime.remove_empty(name));
    Ok(())
}

/// Removes aliases whose directory is gone: the agent was killed between the two.
///
/// # Errors
/// If the directory can't be read.
pub fn sweep_aliases(paths: &Paths) -> Result<(), FsError> {
    let Some(dir) = Dir::open_if_present(&paths.api_aliases())? else { return Ok(()) };
    for name in dir.names()? {
        let target = dir.read_link(&name)?;
        if target.is_some_and(|target| !target.parent().is_some_and(Path::exists)) {
            dir.unlink(&name)?;
        }
    }
    Ok(())
}

fn place(paths: &Paths, alloc: &AllocId, task: &str) -> PathBuf {
    paths.task(alloc, task).join("secrets").join(SOCKET)
}

fn fits(path: &Path) -> bool {
    path.as_os_str().as_bytes().len() <= SOCKET_PATH_LEN_MAX
}

#[cfg(test)]
mod tests;
