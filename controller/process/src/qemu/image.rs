//! Finds the image of a virtual machine, and decides whether a task may use it.
//!
//! In: a path as written. Out: a path without links, in the allocation's directory or in a directory that the driver's options
//! name.

use std::{
    ffi::OsString,
    fs, io,
    path::{Component, Path, PathBuf},
};

use herdlet_driver::{DriverError, DriverResult};

/// Directories of the machine whose images any task may use.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) dirs: Vec<PathBuf>,
}

/// The most links on the way to an image, as in Linux (path_resolution(7)).
const LINKS_MAX: u32 = 40;

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
        let alloc = task_dir.parent().unwrap_or(task_dir);
        let dirs = std::iter::once(alloc).chain(self.dirs.iter().map(PathBuf::as_path));
        // A path may use a name of a directory that is a link, or the directory itself.
        let allowed: Vec<PathBuf> =
            dirs.flat_map(|dir| std::iter::once(dir.to_owned()).chain(fs::canonicalize(dir))).collect();
        let found = match resolve(&task_dir.join(written), &allowed).map_err(failed)? {
            ImagePath::Allowed(found) => found,
            ImagePath::Elsewhere(path) => {
                return Err(DriverError::fatal(format!(
                    "image_path is not in the allowed paths: {} is neither in the allocation's directory nor in `drivers.qemu.image_paths` of the agent's config",
                    path.display()
                )));
            }
        };
        match fs::metadata(&found).map_err(failed)?.is_file() {
            true => Ok(found),
            false => {
                Err(DriverError::fatal(format!("find the image {}: it is no regular file", found.display())))
            }
        }
    }
}

enum ImagePath {
    /// A path without links, in an allowed directory.
    Allowed(PathBuf),
    /// The path leads here, which is in none.
    Elsewhere(PathBuf),
}

/// Follows a path step by step. It inspects nothing outside the allowed directories and their parents, so that no error
/// shows a job which other files exist. A link in an allowed directory may lead into another one.
fn resolve(path: &Path, allowed: &[PathBuf]) -> io::Result<ImagePath> {
    let is_on_the_way =
        |path: &Path| allowed.iter().any(|dir| path.starts_with(dir) || dir.starts_with(path));
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let mut rest = steps(path);
    while let Some(step) = rest.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&step);
        if !is_on_the_way(&next) {
            return Ok(ImagePath::Elsewhere(next));
        }
        if !fs::symlink_metadata(&next)?.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = fs::read_link(&next)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        rest.extend(steps(&target));
    }
    Ok(match allowed.iter().any(|dir| at.starts_with(dir)) {
        true => ImagePath::Allowed(at),
        false => ImagePath::Elsewhere(at),
    })
}

/// The steps of a path, the first one last.
fn steps(path: &Path) -> Vec<OsString> {
    let is_step = |step: &Component<'_>| matches!(step, Component::Normal(_) | Component::ParentDir);
    path.components().rev().filter(is_step).map(|step| step.as_os_str().to_owned()).collect()
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
        // `No such file` showed a job which files of the machine exist, also through its own links.
        symlink(path("other/none"), path("alloc/t/local/dangling.img")).unwrap();
        symlink("loop.img", path("alloc/t/local/loop.img")).unwrap();
        for absent in ["local/dangling.img", "../../other/none", path("none/d.img").to_str().unwrap()] {
            let refused = find(absent).unwrap_err();
            assert_eq!(refused.class(), FailureClass::Fatal, "{absent}");
            assert!(refused.why().contains("drivers.qemu.image_paths"), "{}", refused.why());
        }
        assert!(find("local/loop.img").is_err());
        // The directory of the options is a link.
        symlink(path("images"), path("link")).unwrap();
        let linked = Images { dirs: vec![path("link")] };
        let image = path("link/c.img");
        assert_eq!(linked.find(image.to_str().unwrap(), &path("alloc/t")).unwrap(), path("images/c.img"));
        assert_eq!(linked.find("local/c.img", &path("alloc/t")).unwrap(), path("images/c.img"));
        assert!(find("local").unwrap_err().why().contains("no regular file"));
    }
}
