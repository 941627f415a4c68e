//! Small files in the runtime directory. They outlive the agent, and no power cut. All functions block.

use std::{io, path::Path};

use herdlet_base::durable::{self, Outlives, Steps};

/// Replaces the contents of a file, and creates its directory if that is missing. Another owner may remove the directory meanwhile.
///
/// # Errors
/// If a step fails; the file is then unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match try_write(path, bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => try_write(path, bytes),
        written => written,
    }
}

fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        durable::make_dir(dir)?;
    }
    let written = durable::write_in_steps(path, bytes, Outlives::Processes, &Steps::default());
    if written.is_err() {
        let _ = durable::discard(path);
    }
    written
}

/// Removes a file, and what is left of an interrupted writing. Succeeds if neither exists.
///
/// # Errors
/// If one can't be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match durable::discard(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    durable::remove_in_steps(path, Outlives::Processes, &Steps::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_writing_is_removed_with_the_file() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("dir/file");
        write(&path, b"secret").unwrap();
        std::fs::write(parent.path().join("dir/.file.tmp"), "secret").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"secret");
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert!(std::fs::read_dir(parent.path().join("dir")).unwrap().next().is_none());
    }
}
