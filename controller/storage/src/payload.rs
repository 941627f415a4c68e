//! The payload of a dispatched job, as a file in a task's `local`.
//!
//! In: the task directory, the path, the bytes. Out: the file, complete or absent, readable for the task's user. Obstacles
//! that a task has put on the way (a link, for instance) are not followed. All calls block.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use herdlet_base::{
    observation::Class,
    safe_fs::{FsError, Outlives},
};

use super::{
    file_access::FileAccess,
    task_dir::{TaskDir, TaskDirError},
};

/// Errors of writing a payload.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error("write the payload: {0}")]
    TaskDir(#[from] TaskDirError),
    #[error("write the payload: the task directory is missing")]
    NoTaskDir,
    /// The path is not below `local`.
    #[error("write the payload to {}: it is not a path inside the task's `local`", path.display())]
    Outside { path: PathBuf },
    #[error("write the payload: {0}")]
    Fs(#[from] FsError),
}

impl PayloadError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::TaskDir(error) => error.class(),
            Self::NoTaskDir => Class::Retry,
            Self::Outside { .. } => Class::Fatal,
            Self::Fs(error) => error.class(),
        }
    }
}

/// Writes `bytes` to the file `path` below `local`, and creates missing directories. Repeating the call writes the same
/// file again.
///
/// # Errors
/// If something else is in the way, or a system call fails.
pub fn write(task: &TaskDir, path: &Path, bytes: &[u8], access: FileAccess) -> Result<(), PayloadError> {
    let outside = || PayloadError::Outside { path: path.to_owned() };
    let name = path.file_name().ok_or_else(outside)?;
    let local = task.local()?.ok_or(PayloadError::NoTaskDir)?;
    // `./a` equals `a`; `make_all_for` refuses all other invalid names.
    let parents: PathBuf = path
        .parent()
        .into_iter()
        .flat_map(Path::components)
        .filter(|part| part.as_os_str() != OsStr::new("."))
        .collect();
    let dir = local.make_all_for(&parents, access.rights(0o750), access.owner().as_ref())?;
    Ok(dir.write_file(name, bytes, access.rights(0o640), Outlives::Processes)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use herdlet_base::test_env::TestEnv;

    #[test]
    fn a_payload_is_written_below_local_and_nowhere_else() {
        let Some(ground) = TestEnv::mounting() else { return };
        let task = ground.path().join("task");
        let dir = TaskDir::new(task.clone(), ground.privileges());
        let put = |path: &str| write(&dir, Path::new(path), b"hello", FileAccess::Owner(None));
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
        // As put there by a task that was dispatched with `link/in`.
        std::os::unix::fs::symlink("/tmp", task.join("local/link")).unwrap();
        assert!(matches!(put("link/in"), Err(PayloadError::Fs(FsError::Link { .. }))));
        assert!(!task.join("out").exists() && !ground.path().join("out").exists());
        dir.down().unwrap();
    }

    /// A container whose user is one of its image could not read its payload.
    #[test]
    fn an_unknown_user_of_an_image_can_read_the_payload() {
        use std::os::unix::fs::PermissionsExt as _;
        let Some(ground) = TestEnv::mounting() else { return };
        let task = ground.path().join("task");
        let dir = TaskDir::new(task.clone(), ground.privileges());
        dir.up().unwrap();
        write(&dir, Path::new("in/put"), b"hello", FileAccess::Anybody).unwrap();
        let mode = |path: &str| fs::metadata(task.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("local/in"), mode("local/in/put")), (0o755, 0o644));
        dir.down().unwrap();
    }
}
