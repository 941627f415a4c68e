//! The payload that a job was dispatched with, as a file in a task's `local`.
//!
//! In: the task directory, the path, the bytes. Out: the file, whole or not at all, owned by the task's user. What a task has put on the
//! way there (a link for instance) is not followed. Everything here blocks.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use herdlet_base::{
    privileges::{Ownership, Privileges},
    safe_fs::{FileOwner, FsError, Outlives, Rights},
    sight::Class,
};

use super::task_dir::{TaskDir, TaskDirError};

/// Why a payload can't be written.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    /// The task directory is missing, or can't be opened.
    #[error("write the payload: {0}")]
    TaskDir(#[from] TaskDirError),
    /// It is not there.
    #[error("write the payload: the task directory is missing")]
    NoTaskDir,
    /// The path is none below `local`.
    #[error("write the payload to {}: it is no path inside the task's local", path.display())]
    Outside { path: PathBuf },
    /// The file can't be written.
    #[error("write the payload: {0}")]
    Fs(#[from] FsError),
}

impl PayloadError {
    /// Whether trying again may help.
    pub fn class(&self) -> Class {
        match self {
            Self::TaskDir(error) => error.class(),
            Self::NoTaskDir => Class::Retry,
            Self::Outside { .. } => Class::Fatal,
            Self::Fs(error) => error.class(),
        }
    }
}

/// Writes `bytes` to the file `path` below `local`, with the directories on the way. Done again it puts the same there again.
///
/// # Errors
/// When something else is in the way, or the system refuses.
pub fn write(
    task: &TaskDir,
    path: &Path,
    bytes: &[u8],
    owner: Option<(u32, u32)>,
    privileges: Privileges,
) -> Result<(), PayloadError> {
    let outside = || PayloadError::Outside { path: path.to_owned() };
    let name = path.file_name().ok_or_else(outside)?;
    let owner = match privileges.ownership {
        Ownership::Anybody => owner,
        Ownership::OwnOnly => None,
    };
    let local = task.local()?.ok_or(PayloadError::NoTaskDir)?;
    // `./a` is `a`; anything else that is no name is refused by what makes it.
    let parents: PathBuf = path
        .parent()
        .into_iter()
        .flat_map(Path::components)
        .filter(|part| part.as_os_str() != OsStr::new("."))
        .collect();
    let dir = local.make_all_for(
        &parents,
        Rights::Exact { mode: 0o750, owner },
        owner.map(FileOwner::from).as_ref(),
    )?;
    Ok(dir.write_file(name, bytes, Rights::Exact { mode: 0o640, owner }, Outlives::Processes)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use herdlet_base::test_ground::Ground;

    #[test]
    fn a_payload_is_written_below_local_and_nowhere_else() {
        let Some(ground) = Ground::mounting() else { return };
        let task = ground.path().join("task");
        let dir = TaskDir::new(task.clone(), ground.privileges());
        let put = |path: &str| write(&dir, Path::new(path), b"hello", None, ground.privileges());
        assert!(matches!(put("in"), Err(PayloadError::NoTaskDir)));
        dir.up().unwrap();
        for path in ["in", "deep/er/in.json", "./deep/er/in.json", "in"] {
            put(path).unwrap();
            assert_eq!(fs::read(task.join("local").join(path)).unwrap(), b"hello");
        }
        for path in ["../out", "..", "/etc/out", "a/../../out"] {
            let error = put(path).unwrap_err();
            assert!(matches!(error.class(), Class::Fatal), "{path}: {error}");
        }
        // Put there by a task that was dispatched with `link/in`.
        std::os::unix::fs::symlink("/tmp", task.join("local/link")).unwrap();
        assert!(matches!(put("link/in"), Err(PayloadError::Fs(FsError::Link { .. }))));
        assert!(!task.join("out").exists() && !ground.path().join("out").exists());
        dir.down().unwrap();
    }
}
