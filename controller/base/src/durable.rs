//! Small files that survive: written whole or not at all, 0600.
//!
//! In: a path below a directory of ours, bytes, and what they must outlive. It must not know what they mean.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt as _, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

/// What a file that was written must outlive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlives {
    /// Any process, ours too. After a power cut it may be as it was before, or empty.
    Processes,
    /// A power cut too. Takes two waits for the disk.
    PowerCuts,
}

/// Makes a directory, and what is missing above it, that only we may enter (0700).
///
/// # Errors
/// What kept it from being made or from getting its mode.
pub fn make_dir(path: &Path) -> io::Result<()> {
    make_dir_with(path, 0o700)
}

/// Makes a directory, and what is missing above it, that others may pass through to what they know in it, and list nothing
/// (0711).
///
/// # Errors
/// What kept it from being made or from getting its mode.
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

/// Makes it and what is missing above it, each on disk in the directory above it: what is written into a directory that a
/// crash takes away is lost with it.
fn make_dirs(path: &Path, mode: u32, sync: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let make = || match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => sync(path),
        // Somebody else may have made it just now.
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    };
    match make() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).ok_or(error)?;
            make_dirs(parent, mode, sync)?;
            // Some file systems say so of any name, as /proc does.
            make()
        }
        made => made,
    }
}

/// Replaces the file by one with these bytes, on disk before the call returns: a reader, also after a power cut, sees the old
/// ones or the new ones. For one caller at a time.
///
/// # Errors
/// What failed; the file is then as before, or already the new one but perhaps not on disk. Of bytes that did not become a file nothing is
/// left: they may be secret, and take room on a disk that is full.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = write_in_steps(path, bytes, Outlives::PowerCuts, &Steps::default());
    if written.is_err() {
        let _ = temporary(path).and_then(fs::remove_file);
    }
    written
}

/// Removes the file for good, and what a crash left of writing it. One that is not there is removed already.
///
/// # Errors
/// What failed.
pub fn remove(path: &Path) -> io::Result<()> {
    let steps = Steps::default();
    remove_in_steps(&temporary(path)?, Outlives::PowerCuts, &steps)?;
    remove_in_steps(path, Outlives::PowerCuts, &steps)
}

/// Moves a file for good, within one directory or between two.
///
/// # Errors
/// What failed.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_dir(to)?;
    sync_dir(from)
}

/// The name under which a file is written before it gets its own: hidden, so that no reader takes it for one.
pub fn is_temporary(name: &str) -> bool {
    own_name(name) != name
}

/// The name that a file of this name is to have.
pub fn own_name(name: &str) -> &str {
    name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")).unwrap_or(name)
}

/// Where a file is written before it gets its own name.
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

/// Makes a file under a name of ours, 0600, in place of what a crash, or somebody else, has left there. Never writes to what was there
/// before: it may be a link, or a second name of another file.
pub fn make_file(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if !is_absent(&error) => return Err(error),
        Ok(()) | Err(_) => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a file of ours to change it in place; makes it, 0600, where it is not there. A link, or what is no plain file, is refused.
/// Before anything is written see [`has_other_names`].
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

/// Whether the file has further hard links, through which a write would be visible: a backup that shares files, or a link that was
/// planted.
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

/// A name in a directory is durable once the directory is.
fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let dir = dir.map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    File::open(dir)?.sync_all()
}

/// The points at which a crash could fall. In tests one of them fails.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    #[cfg(any(test, feature = "fixture"))]
    left: Option<std::sync::Arc<std::sync::atomic::AtomicUsize>>,
}

impl Steps {
    /// Passes so many steps, then fails at each.
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
            Err(_) => Err(io::Error::other("the step that a test lets fail")),
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
    fn of_what_could_not_be_written_nothing_is_left() {
        let ground = tempfile::tempdir().unwrap();
        let path = ground.path().join("token");
        let names = || {
            fs::read_dir(ground.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        // The last step fails: a directory that is not empty is in its place.
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

    #[test]
    fn every_directory_that_is_made_is_on_disk_in_the_one_above_it() {
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
        assert_eq!(synced.take(), [Path::new("a/d")], "what is there costs nothing");
        fs::write(ground.path().join("file"), "").unwrap();
        assert!(make_dirs(&ground.path().join("file"), 0o700, &sync).is_err());
        assert!(make_dirs(&ground.path().join("file/x"), 0o700, &sync).is_err());
        assert!(make_dirs(Path::new("/proc/herdlet/x"), 0o700, &sync).is_err());
        let mode = |path| fs::metadata(ground.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("a/b/c")), (0o700, 0o700));
    }
}
