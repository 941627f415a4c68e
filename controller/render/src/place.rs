//! Files of a task: template texts, files that templates read, outputs.
//!
//! In: a path of a job, with variables replaced. Out: an open file below one of the task's directories. A link is
//! followed only within the directory that contains it, never out of it, and never into `private`. All calls block.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::fd::AsFd as _,
    path::{Component, Path, PathBuf},
};

use herdlet_base::{
    artifact::destination::{Base, Destination, Dirs, Outside, rights as rights_of},
    safe_fs::{Dir, FileOwner, FsError, Outlives, Rights},
};
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};

/// The longest file that a template reads.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// A file of a task.
#[derive(Debug, Clone)]
pub struct Place {
    path: PathBuf,
    destination: Destination,
}

impl Place {
    /// Resolves a path: relative to the task's directory, or absolute as the task or the agent sees it.
    ///
    /// # Errors
    /// If it is in none of the task's directories.
    pub fn of(path: &str, dirs: &Dirs) -> Result<Self, Outside> {
        let path = match path.strip_prefix("/alloc/").or_else(|| path.strip_prefix("alloc/")) {
            // A task with its own root has the shared directory at `/alloc`.
            Some(below) => dirs.shared.join(below).to_string_lossy().into_owned(),
            None => path.to_owned(),
        };
        Ok(Self { destination: Destination::of(&path, dirs)?, path: path.into() })
    }

    /// Whether this path names the same file, before any link is followed.
    pub fn is_of(&self, path: &str, dirs: &Dirs) -> bool {
        Self::of(path, dirs).is_ok_and(|other| other.destination == self.destination)
    }

    /// The file system that it is on.
    pub fn base(&self) -> Base {
        self.destination.base()
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// If a link leads out of its directory, or it is not a plain file, or it is too long.
    pub fn read(&self, dirs: &Dirs) -> Result<Option<Vec<u8>>, FsError> {
        let Some(file) = self.open(dirs)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|error| FsError::io("read", &self.path, error))?;
        if u64::try_from(bytes.len()).is_ok_and(|len| len > FILE_BYTES_MAX) {
            return Err(FsError::TooLarge { path: self.path.clone(), bytes_max: FILE_BYTES_MAX });
        }
        Ok(Some(bytes))
    }

    /// Whether a plain file is there, which may be a link to one.
    pub fn exists(&self, dirs: &Dirs) -> bool {
        matches!(self.open(dirs), Ok(Some(_)))
    }

    /// Replaces the file in one step. Missing directories are created for the task's user.
    ///
    /// # Errors
    /// If something else is in the way, or there is no space.
    pub fn write(
        &self,
        dirs: &Dirs,
        bytes: &[u8],
        (rights, owner): (Rights, Option<&FileOwner>),
    ) -> Result<(), FsError> {
        let (dir, name) = self.destination.file(dirs, owner)?;
        dir.write_file(&name, bytes, rights, Outlives::Processes)
    }

    /// Replaces the file so that a running task sees it, which has a part of the machine in its root there: an overlay of its
    /// directory. It notices nothing that is written behind the overlay.
    ///
    /// # Errors
    /// As [`Place::write`].
    pub fn write_seen(
        &self,
        root: &Dir,
        dirs: &Dirs,
        bytes: &[u8],
        (rights, owner): (Rights, Option<&FileOwner>),
    ) -> Result<(), FsError> {
        // An overlay that refuses changes, or has another mount on the way: the next start of the task shows the file.
        let is_seen = self.overlay(root).is_some_and(|(overlay, below)| {
            let name = below.file_name().unwrap_or_default();
            let parents = below.parent().unwrap_or(Path::new(""));
            let dir = overlay.make_all_for(parents, rights_of(0o755, owner), owner);
            dir.and_then(|dir| dir.write_file(name, bytes, rights, Outlives::Processes)).is_ok()
        });
        // Changes of an overlay in memory are not in the task's directory.
        if is_seen && matches!(self.read(dirs), Ok(Some(found)) if found == bytes) {
            return Ok(());
        }
        self.write(dirs, bytes, (rights, owner))
    }

    /// The overlay in the root that has the file, with the file's path below it.
    fn overlay(&self, root: &Dir) -> Option<(Dir, &Path)> {
        let mut parts = self.destination.below().components();
        let first = parts.next().filter(|_| self.base() == Base::Task)?;
        let below = parts.as_path();
        let dir = root.find(first.as_os_str()).ok()??;
        let kind = rustix::fs::fstatfs(dir.as_fd()).ok()?.f_type;
        (kind == OVERLAY && !below.as_os_str().is_empty()).then_some((dir, below))
    }

    fn open(&self, dirs: &Dirs) -> Result<Option<File>, FsError> {
        let base = match self.destination.base().open(dirs) {
            Ok(base) => base,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut parts = self.destination.below().components();
        let (Some(Component::Normal(first)), rest) = (parts.next(), parts.as_path()) else {
            return Err(FsError::NotAFile { path: self.path.clone() });
        };
        // A link directly in the task's directory could name `private`; one in `local` can't leave `local`.
        if rest.as_os_str().is_empty() {
            return open_beneath(&base, (Path::new(first), ResolveFlags::NO_SYMLINKS), &self.path);
        }
        let Some(dir) = base.find(first)? else { return Ok(None) };
        open_beneath(&dir, (rest, ResolveFlags::BENEATH), &self.path)
    }
}

/// The number of overlays among file systems (linux/magic.h).
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

/// Opens a plain file below a directory. The kernel refuses every way out of it.
fn open_beneath(
    dir: &Dir,
    (below, links): (&Path, ResolveFlags),
    path: &Path,
) -> Result<Option<File>, FsError> {
    // NONBLOCK: a fifo put here must not block us.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | links;
    let file = match rustix::fs::openat2(dir.as_fd(), below, flags, Mode::empty(), resolve) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP | Errno::XDEV) => return Err(FsError::Link { path: path.to_owned() }),
        Err(errno) => return Err(FsError::io("open", path, errno)),
    };
    let about = file.metadata().map_err(|error| FsError::io("examine", path, error))?;
    if !about.is_file() {
        return Err(FsError::NotAFile { path: path.to_owned() });
    }
    Ok(Some(file))
}

/// Opens `private` of a task's directory; `None` if it does not exist.
///
/// # Errors
/// If it is not a directory.
pub(crate) fn private(dirs: &Dirs) -> Result<Option<Dir>, FsError> {
    let task = match Dir::open(&dirs.task) {
        Ok(task) => task,
        Err(error) if error.is_missing() => return Ok(None),
        Err(error) => return Err(error),
    };
    task.find(&OsString::from("private") as &OsStr)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    fn ground() -> (tempfile::TempDir, Dirs) {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { task: dir.path().join("task"), shared: dir.path().join("alloc") };
        for name in ["task/local/deep", "task/secrets", "task/private", "alloc/data"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        (dir, dirs)
    }

    fn read(path: &str, dirs: &Dirs) -> Result<Option<String>, String> {
        let place = Place::of(path, dirs).map_err(|error| error.to_string())?;
        let bytes = place.read(dirs).map_err(|error| error.to_string())?;
        Ok(bytes.map(|bytes| String::from_utf8(bytes).unwrap()))
    }

    #[test]
    fn paths_are_those_of_the_task_and_of_the_agent() {
        let (_dir, dirs) = ground();
        fs::write(dirs.task.join("local/a"), "local").unwrap();
        fs::write(dirs.task.join("secrets/a"), "secrets").unwrap();
        fs::write(dirs.shared.join("data/a"), "shared").unwrap();
        let on_machine = dirs.task.join("local/a").to_string_lossy().into_owned();
        for (path, expected) in [
            ("local/a", "local"),
            ("/local/a", "local"),
            ("./local//a", "local"),
            ("secrets/a", "secrets"),
            ("/alloc/data/a", "shared"),
            ("alloc/data/a", "shared"),
            ("../alloc/data/a", "shared"),
            (on_machine.as_str(), "local"),
        ] {
            assert_eq!(read(path, &dirs).unwrap().as_deref(), Some(expected), "{path}");
        }
        assert_eq!(read("local/none", &dirs), Ok(None));
        for path in ["../../etc/passwd", "private/a", "/private/a", "local/../private/a"] {
            assert!(read(path, &dirs).is_err(), "{path}");
        }
    }

    #[test]
    fn links_lead_nowhere_else() {
        let (_dir, dirs) = ground();
        fs::write(dirs.task.join("private/a"), "private").unwrap();
        fs::write(dirs.task.join("local/deep/a"), "inside").unwrap();
        let link = |target: &str, name: &str| symlink(target, dirs.task.join(name)).unwrap();
        link("/etc/passwd", "local/absolute");
        link("../private/a", "local/private");
        link("../../../../../etc/passwd", "local/up");
        link("private/a", "top");
        link("deep/a", "local/inside");
        for path in ["local/absolute", "local/private", "local/up", "top"] {
            assert!(read(path, &dirs).unwrap_err().contains("link"), "{path}");
        }
        assert_eq!(read("local/inside", &dirs).unwrap().as_deref(), Some("inside"));
        link("/etc", "local/dir");
        let place = Place::of("local/dir/file", &dirs).unwrap();
        let rights = Rights::Exact { mode: 0o644, owner: None };
        assert!(place.write(&dirs, b"x", (rights, None)).is_err(), "a directory on the way is a link");
        let place = Place::of("local/absolute", &dirs).unwrap();
        place.write(&dirs, b"new", (rights, None)).unwrap();
        assert_eq!(fs::read(dirs.task.join("local/absolute")).unwrap(), b"new", "the link was replaced");
    }

    #[test]
    fn fifos_and_directories_are_no_files() {
        let (_dir, dirs) = ground();
        let fifo = dirs.task.join("local/fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for path in ["local/fifo", "local/deep"] {
            assert!(read(path, &dirs).unwrap_err().contains("not a plain file"), "{path}");
        }
    }
}
