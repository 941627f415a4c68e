//! Small files that survive: written whole or not at all, on disk before the call returns, 0600.
//!
//! In: a path below a directory of ours, and bytes. It must not know what they mean.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

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
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o777 != mode {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Replaces the file by one with these bytes: a reader, also after a crash, sees the old ones or the new ones.
///
/// # Errors
/// What failed; the file is then as before, or already the new one but perhaps not on disk.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_in_steps(path, bytes, &Steps::default())
}

/// Removes the file for good. One that is not there is removed already.
///
/// # Errors
/// What failed.
pub fn remove(path: &Path) -> io::Result<()> {
    remove_in_steps(path, &Steps::default())
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
pub(crate) fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

pub(crate) fn write_in_steps(path: &Path, bytes: &[u8], steps: &Steps) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    steps.pass()?;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    steps.pass()?;
    file.write_all(bytes)?;
    steps.pass()?;
    file.sync_all()?;
    steps.pass()?;
    fs::rename(&temporary, path)?;
    steps.pass()?;
    sync_dir(path)
}

pub(crate) fn remove_in_steps(path: &Path, steps: &Steps) -> io::Result<()> {
    steps.pass()?;
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed?,
    }
    steps.pass()?;
    sync_dir(path)
}

/// A name in a directory is durable once the directory is.
fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = path.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf);
    File::open(dir)?.sync_all()
}

/// The points at which a crash could fall. In tests one of them fails.
#[derive(Debug, Clone, Default)]
pub(crate) struct Steps {
    #[cfg(test)]
    left: Option<std::sync::Arc<std::sync::atomic::AtomicUsize>>,
}

impl Steps {
    /// Passes so many steps, then fails at each.
    #[cfg(test)]
    pub(crate) fn failing_after(steps: usize) -> Self {
        Self { left: Some(std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(steps))) }
    }

    #[cfg(test)]
    pub(crate) fn pass(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::Relaxed;
        let Some(left) = &self.left else { return Ok(()) };
        match left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other("the step that a test lets fail")),
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "only a test's steps can fail")]
    pub(crate) fn pass(&self) -> io::Result<()> {
        Ok(())
    }
}
