//! Finds the image of a virtual machine, and decides whether a task may use it.
//!
//! In: a path as written. Out: a path without links, in the allocation's directory or in a directory that the driver's options
//! name.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use herdlet_driver::{DriverError, DriverResult};

/// Directories of the machine whose images any task may use.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) dirs: Vec<PathBuf>,
}

impl Images {
    /// Finds an image. `task_dir` is the task's directory, to which a path is relative.
    ///
    /// # Errors
    /// If it does not exist, is no file, or is elsewhere.
    pub(super) fn find(&self, written: &str, task_dir: &Path) -> DriverResult<PathBuf> {
        let failed = |error: io::Error| {
            let why = format!("find the image {written:?}: {error}");
            // It may be fetched or written at the next try.
            let is_absent = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
            if is_absent { DriverError::recoverable(why) } else { DriverError::fatal(why) }
        };
        let found = fs::canonicalize(task_dir.join(written)).map_err(failed)?;
        let alloc = task_dir.parent().unwrap_or(task_dir);
        let dirs = std::iter::once(alloc).chain(self.dirs.iter().map(PathBuf::as_path));
        // A link in an image's directory may lead to another one that is allowed.
        let mut allowed = dirs.filter_map(|dir| fs::canonicalize(dir).ok());
        if !allowed.any(|dir| found.starts_with(dir)) {
            return Err(DriverError::fatal(format!(
                "image_path is not in the allowed paths: {} is neither in the allocation's directory nor in `drivers.qemu.image_paths` of the agent's config",
                found.display()
            )));
        }
        match fs::metadata(&found).map_err(failed)?.is_file() {
            true => Ok(found),
            false => {
                Err(DriverError::fatal(format!("find the image {}: it is no regular file", found.display())))
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{collections::BTreeMap, os::unix::fs::symlink};

    use herdlet_api_types::{
        AllocId,
        alloc::{CoreSet, Ports},
        job::{LogMode, Logs, Resources},
    };
    use herdlet_driver::{AttemptId, FailureClass, KillDefaults, TaskConfig, TaskDirs};

    use super::*;

    /// A task with these ports.
    pub(in crate::qemu) fn task(ports: Ports) -> TaskConfig {
        let dir = PathBuf::from("/x");
        TaskConfig {
            id: AttemptId { alloc: AllocId::from_hash([9; 16]), task: "t".into(), attempt: 1 },
            labels: BTreeMap::new(),
            env: Vec::new(),
            config: serde_json::Value::Null,
            user: None,
            users: Vec::new(),
            resources: Resources::default(),
            cores: CoreSet::default(),
            dirs: TaskDirs { task: dir.clone(), shared: dir.clone(), logs: dir, log_name: "t".into() },
            logs: Logs { max_files: 1, max_file_size_mib: 1, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults::default(),
            mounts: Vec::new(),
            devices: Vec::new(),
            ports,
            own_ports: BTreeMap::new(),
            network: None,
        }
    }

    #[test]
    fn images_are_in_the_allocation_or_in_a_directory_of_the_options() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| fs::canonicalize(dir.path()).unwrap().join(name);
        for name in ["alloc/t/local", "alloc/alloc", "images", "other"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        for name in ["alloc/t/local/a.img", "alloc/alloc/b.img", "images/c.img", "other/d.img"] {
            fs::write(path(name), "").unwrap();
        }
        symlink(path("other/d.img"), path("alloc/t/local/link.img")).unwrap();
        symlink(path("images/c.img"), path("alloc/t/local/c.img")).unwrap();
        let images = Images { dirs: vec![path("images")] };
        let find = |written: &str| images.find(written, &path("alloc/t"));
        assert_eq!(find("local/a.img").unwrap(), path("alloc/t/local/a.img"));
        assert_eq!(find("../alloc/b.img").unwrap(), path("alloc/alloc/b.img"));
        assert_eq!(find(path("images/c.img").to_str().unwrap()).unwrap(), path("images/c.img"));
        assert_eq!(find("local/c.img").unwrap(), path("images/c.img"));
        for outside in
            ["local/link.img", "../../other/d.img", path("other/d.img").to_str().unwrap(), "/dev/null"]
        {
            let refused = find(outside).unwrap_err();
            assert_eq!(refused.class(), FailureClass::Fatal);
            assert!(refused.why().contains("drivers.qemu.image_paths"), "{}", refused.why());
        }
        assert_eq!(find("local/none").unwrap_err().class(), FailureClass::Recoverable);
        assert!(find("local").unwrap_err().why().contains("no regular file"));
    }
}
