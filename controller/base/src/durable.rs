//! Small files with mode 0600 that are written atomically.
//!
//! In: a path below one of our directories, bytes, and what the file must survive. This module does not know the
//! contents' meaning.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

/// What a written file must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlives {
    /// The end of any process, including ours. After a power cut the file may have its old contents or be empty.
    Processes,
    /// Power cuts too. Costs two waits for the disk.
    PowerCuts,
}

/// Creates a directory that only we may enter (0700), and missing parents.
///
/// # Errors
/// If a directory can't be created or given its mode.
pub fn make_dir(path: &Path) -> io::Result<()> {
    make_dir_with(path, 0o700)
}

/// Creates a directory that only we may enter (0700), and missing parents that others may pass through (0711): they may
/// reach what is opened to them below it.
///
/// # Errors
/// If a directory can't be created or given its mode.
pub fn make_dir_in_passages(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists()) {
        make_passage(parent)?;
    }
    make_dir(path)
}

/// Creates a directory, and missing parents, that others may pass through to names they know, but not list (0711).
///
/// # Errors
/// If a directory can't be created or given its mode.
pub fn make_passage(path: &Path) -> io::Result<()> {
    make_dir_with(path, 0o711)
}

fn make_dir_with(path: &Path, mode: u32) -> io::Result<()> {
    make_dirs(path, mode, &sync_dir)?;
    if fs::metadata(path)?.permissions().mode() & 0o777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Creates the directory and missing parents, and syncs each in its parent: if a crash removes a directory, its
/// contents are lost with it.
fn make_dirs(path: &Path, mode: u32, sync: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let make = || match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => sync(path),
        // Another process may have created it at the same time.
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    };
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).ok_or(error)?;
            make_dirs(parent, mode, sync)?;
            // Some file systems, such as /proc, return this error for any name.
            make()
        }
        made => made,
    }
}

/// Replaces the file's contents; they are on disk before the call returns. A reader, also after a power cut, sees the
/// old contents or the new. Only one caller at a time.
///
/// # Errors
/// If a step fails; the file is then unchanged, or new but perhaps not on disk. The temporary file is removed: its
/// contents may be secret, and take space on a full disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = write_in_steps(path, bytes, Outlives::PowerCuts, &Steps::default());
    if written.is_err() {
        let _ = discard(path);
    }
    written
}

/// Removes the temporary file that a failed write in steps has left.
///
/// # Errors
/// If it can't be removed.
pub fn discard(path: &Path) -> io::Result<()> {
    temporary(path).and_then(fs::remove_file)
}

/// Removes the file durably, and the temporary file that a crash may have left. A missing file counts as removed.
///
/// # Errors
/// If a step fails.
pub fn remove(path: &Path) -> io::Result<()> {
    let steps = Steps::default();
    remove_in_steps(&temporary(path)?, Outlives::PowerCuts, &steps)?;
    remove_in_steps(path, Outlives::PowerCuts, &steps)
}

/// Moves a file durably, within a directory or between two.
///
/// # Errors
/// If a step fails.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_dir(to)?;
    sync_dir(from)
}

/// Whether this is the temporary name of a file being written: hidden, so that readers skip it.
pub fn is_temporary(name: &str) -> bool {
    own_name(name) != name
}

/// The final name of a file with this name.
pub fn own_name(name: &str) -> &str {
    name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")).unwrap_or(name)
}

/// The temporary path that a file is written to before it is renamed.
fn temporary(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    Ok(path.with_file_name(format!(".{name}.tmp")))
}

pub fn write_in_steps(path: &Path, bytes: &[u8], outlives: Outlives, steps: &Steps) -> io::Result<()> {
    let temporary = temporary(path)?;
    steps.pass()?;
    let mut file = make_file(&temporary)?;
    steps.pass()?;
    file.write_all(bytes)?;
    steps.pass()?;
    match outlives {
        Outlives::Processes => {}
        Outlives::PowerCuts => file.sync_all()?,
    }
    steps.pass()?;
    fs::rename(&temporary, path)?;
    steps.pass()?;
    sync_name(path, outlives)
}

/// Creates a file, 0600, in place of whatever a crash or another process has left under our name. Never writes to the
/// previous file, which may be a link or have another hard link.
pub fn make_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if !is_absent(&error) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Opens one of our files for changing in place; creates it, 0600, if it is missing. Refuses links and everything but
/// plain files. Check [`has_other_names`] before writing.
pub fn open_in_place(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file; remove it"));
    }
    Ok(file)
}

/// Whether the file has further hard links, through which a write would be visible: a backup that shares files, or a
/// planted link.
pub fn has_other_names(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 1)
}

pub fn remove_in_steps(path: &Path, outlives: Outlives, steps: &Steps) -> io::Result<()> {
    steps.pass()?;
    match fs::remove_file(path) {
        Err(error) if is_absent(&error) => return Ok(()),
        removed => removed?,
    }
    steps.pass()?;
    sync_name(path, outlives)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn sync_name(path: &Path, outlives: Outlives) -> io::Result<()> {
    match outlives {
        Outlives::Processes => Ok(()),
        Outlives::PowerCuts => sync_dir(path),
    }
}

/// Syncing a directory makes the names in it durable.
fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = dir.map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    File::open(dir)?.sync_all()
}

/// The points at which a crash could happen. Tests make one of them fail.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    #[cfg(any(test, feature = "fixture"))]
    left: Option<std::sync::Arc<std::sync::atomic::AtomicUsize>>,
}

impl Steps {
    /// Passes this many steps, then fails at each.
    #[cfg(any(test, feature = "fixture"))]
    pub fn failing_after(steps: usize) -> Self {
        Self { left: Some(std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(steps))) }
    }

    #[cfg(any(test, feature = "fixture"))]
    pub fn pass(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let Some(left) = &self.left else { return Ok(()) };
        match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other("a step that fails in this test")),
        }
    }

    #[cfg(not(any(test, feature = "fixture")))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "only a test's steps can fail")]
    pub fn pass(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn failed_write_leaves_nothing() {
        let ground = tempfile::tempdir().unwrap();
        let path = ground.path().join("token");
        let names = || {
            fs::read_dir(ground.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        // The last step fails because the target is a directory that is not empty.
        fs::create_dir_all(path.join("x")).unwrap();
        write(&path, b"secret").unwrap_err();
        assert_eq!(names(), ["token"]);
        fs::remove_dir_all(&path).unwrap();
        // As after a crash between two steps.
        write_in_steps(&path, b"secret", Outlives::PowerCuts, &Steps::failing_after(3)).unwrap_err();
        assert_eq!(names(), [".token.tmp"]);
        remove(&path).unwrap();
        assert!(names().is_empty());
    }

    /// The parents of a runtime directory were closed: tasks of other users did not reach what is opened to them in it.
    #[test]
    fn missing_parents_are_passages() {
        let ground = tempfile::tempdir().unwrap();
        let mode = |path: &str| fs::metadata(ground.path().join(path)).unwrap().permissions().mode() & 0o777;
        make_dir_in_passages(&ground.path().join("a/b/c")).unwrap();
        assert_eq!(["a", "a/b", "a/b/c"].map(mode), [0o711, 0o711, 0o700]);
        make_dir_in_passages(&ground.path().join("a/b/c/d")).unwrap();
        assert_eq!(["a/b/c", "a/b/c/d"].map(mode), [0o700, 0o700], "one that exists keeps its mode");
    }

    #[test]
    fn created_directories_are_synced_to_disk() {
        let ground = tempfile::tempdir().unwrap();
        let synced = RefCell::new(Vec::new());
        let sync = |path: &Path| {
            synced.borrow_mut().push(path.strip_prefix(ground.path()).unwrap().to_owned());
            sync_dir(path)
        };
        make_dirs(&ground.path().join("a/b/c"), 0o700, &sync).unwrap();
        assert_eq!(synced.take(), [Path::new("a"), Path::new("a/b"), Path::new("a/b/c")]);
        make_dirs(&ground.path().join("a/b/c"), 0o700, &sync).unwrap();
        make_dirs(&ground.path().join("a/d"), 0o700, &sync).unwrap();
        assert_eq!(synced.take(), [Path::new("a/d")], "existing directories need no sync");
        fs::write(ground.path().join("file"), "").unwrap();
        assert!(make_dirs(&ground.path().join("file"), 0o700, &sync).is_err());
        assert!(make_dirs(&ground.path().join("file/x"), 0o700, &sync).is_err());
        assert!(make_dirs(Path::new("/proc/herdlet/x"), 0o700, &sync).is_err());
        let mode = |path| fs::metadata(ground.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("a/b/c")), (0o700, 0o700));
    }
}
