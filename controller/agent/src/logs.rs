//! Reads a task's log files from any position and follows them across rotations.
//!
//! In: an allocation's logs directory and the stem of the file names, `<task>.stdout` or `<task>.stderr`. Out: bytes
//! in order. The task can write to the directory, so only regular files are read, links are not followed, and names
//! other than `<stem>.<number>` are skipped, except the files of their times (`since`). A number that the supervisor
//! cannot have reached is skipped too.

mod since;

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{FileExt, MetadataExt},
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use herdlet_base::{
    directory::{DirectoryWatch, Interests},
    safe_fs::{Dir, FsError, open_logs},
};
use herdlet_shim::rotation::{self, Name};
pub use herdlet_shim::times::Mark;
use rustix::fs::{Mode, OFlags};

/// The largest piece returned at once, the size of Nomad's frames.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

/// The most names that are listed. The logs of an allocation have some hundreds; a task can create any number, and
/// may so hide its own logs.
const NAMES_MAX: usize = 65_536;

/// A directory that changed within this time may change again without a new mtime, because the kernel's clock for
/// files is coarse. In tests it is longer than any test takes.
const SETTLED_AFTER: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 2 });

/// One of a task's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    /// The name in file names and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// One stream of one task.
#[derive(Debug, Clone)]
pub struct LogFiles {
    dir: PathBuf,
    stem: String,
}

impl LogFiles {
    /// The files in `dir` of the task whose directory has this name.
    pub fn new(dir: PathBuf, task: &str, stream: Stream) -> Self {
        Self { dir, stem: format!("{task}.{}", stream.as_str()) }
    }

    /// Whether the directory exists. It is created before a task begins and removed with its allocation.
    ///
    /// # Errors
    /// When this cannot be determined.
    pub fn has_dir(&self) -> io::Result<bool> {
        self.dir.try_exists()
    }

    /// The numbers of the log's own existing files, ascending.
    ///
    /// # Errors
    /// When the directory cannot be read. A missing directory has no files.
    pub fn indexes(&self) -> io::Result<Vec<u64>> {
        Ok(self.list()?.indexes)
    }

    fn list(&self) -> io::Result<Listing> {
        let Some(dir) = self.open_dir()? else { return Ok(Listing::default()) };
        // Read before the names, so that later changes of the directory are noticed.
        let changed = DirectoryStamp::of(&dir)?;
        let names = self.names(&dir, NAMES_MAX)?;
        let Ok(own) = rotation::own(|visit: &mut dyn FnMut(Name)| {
            names.iter().for_each(|name| visit(*name));
            Ok::<(), std::convert::Infallible>(())
        });
        let Some((first, last)) = own else { return Ok(Listing { changed, indexes: Vec::new() }) };
        let mut indexes: Vec<u64> = names
            .into_iter()
            .filter_map(|name| match name {
                Name::Log(index) => (first..=last).contains(&index).then_some(u64::from(index)),
                Name::Marks(_) => None,
            })
            .collect();
        indexes.sort_unstable();
        Ok(Listing { changed, indexes })
    }

    /// Parses the first `names_max` names in the directory; returns those of this stream.
    fn names(&self, dir: &Dir, names_max: usize) -> io::Result<Vec<Name>> {
        let mut names = Vec::new();
        let mut left = names_max;
        let listed = dir.each_name(|name| {
            let more = left > 0;
            if more {
                left -= 1;
                names.extend(Name::of(name.to_bytes(), self.stem.as_bytes()));
            } else {
                tracing::debug!(dir = %self.dir.display(), names_max, "a log directory has more names than are listed");
            }
            more
        });
        listed.map(|()| names).map_err(io_error)
    }

    fn open_dir(&self) -> io::Result<Option<Dir>> {
        match open_logs(&self.dir) {
            Ok(dir) => Ok(Some(dir)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(io_error(error)),
        }
    }

    /// Opens one of the files for reading.
    ///
    /// # Errors
    /// When it does not exist, is a link, or is not a regular file.
    pub fn open(&self, index: u64) -> io::Result<File> {
        self.open_named(&format!("{}.{index}", self.stem))
    }

    fn open_named(&self, name: &str) -> io::Result<File> {
        let path = self.dir.join(name);
        let dir = open_logs(&self.dir).map_err(io_error)?;
        // Non-blocking, so that opening a planted fifo does not block before its type is checked.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(&dir, name, flags, Mode::empty())?);
        if file.metadata()?.is_file() {
            Ok(file)
        } else {
            Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is not a regular file", path.display()),
            ))
        }
    }

    /// Where the last `lines` lines begin: file number and offset; `None` if there are no files.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn tail(&self, lines: u64) -> io::Result<Option<(u64, u64)>> {
        let mut left = lines;
        let indexes = self.indexes()?;
        for (position, index) in indexes.iter().enumerate().rev() {
            let file = match self.open(*index) {
                Ok(file) => file,
                Err(error) if is_no_log(&error) => continue,
                Err(error) => return Err(error),
            };
            let newest = position + 1 == indexes.len();
            if let Some(offset) = tail_offset(&file, &mut left, newest)? {
                return Ok(Some((*index, offset)));
            }
        }
        Ok(indexes.first().map(|first| (*first, 0)))
    }
}

/// The files of a log.
#[derive(Debug, Default)]
struct Listing {
    /// `None` if the same names may be listed differently a moment later.
    changed: Option<DirectoryStamp>,
    indexes: Vec<u64>,
}

/// A directory and the time when its names last changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DirectoryStamp {
    file: (u64, u64),
    at: Duration,
}

impl DirectoryStamp {
    /// `None` if that was only just now.
    fn of(dir: &Dir) -> io::Result<Option<Self>> {
        let stat = dir.stat().map_err(io_error)?;
        let seconds = u64::try_from(stat.st_mtime).unwrap_or_default();
        let at = Duration::new(seconds, u32::try_from(stat.st_mtime_nsec).unwrap_or_default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok((now.abs_diff(at) > SETTLED_AFTER).then_some(Self { file: (stat.st_dev, stat.st_ino), at }))
    }
}

/// Reads a stream from a position to the end of the newest file, and beyond as it grows.
pub struct Follower {
    files: LogFiles,
    watch: Option<DirectoryWatch>,
    current: Option<(u64, File)>,
    /// The previous file, read to its end. If it grows, the supervisor has not continued in the current one.
    before: Option<(u64, File)>,
    start: (u64, u64),
    /// What happened since the last piece.
    interruption: Option<Interruption>,
    listing: Listing,
    /// How many times the directory was listed.
    listings: u64,
}

/// What happened to a file that was being read. Reading continues at the beginning of the file that has its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interruption {
    /// It was truncated.
    Truncated,
    /// It was removed or renamed.
    Removed,
}

/// A piece of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// What happened before this piece.
    pub after: Option<Interruption>,
    /// The number of its file.
    pub index: u64,
    /// Where in the file it ends.
    pub end_offset: u64,
    /// The bytes, never empty.
    pub bytes: Vec<u8>,
}

impl Follower {
    /// Starts at `start`, a file number and an offset. If that file is gone, it starts at the next one that exists.
    pub fn new(files: LogFiles, start: (u64, u64)) -> Self {
        Self {
            files,
            watch: None,
            current: None,
            before: None,
            start,
            interruption: None,
            listing: Listing::default(),
            listings: 0,
        }
    }

    /// The marks of a file: times of its parts.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn marks(&self, index: u64) -> io::Result<Vec<Mark>> {
        let mut left = since::MARKS_BYTES_MAX;
        self.files.marks(index, &mut left)
    }

    /// The next available piece; `None` at the end of the log.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn read(&mut self) -> io::Result<Option<Chunk>> {
        let chunk = self.read_on()?;
        Ok(chunk.map(|chunk| Chunk { after: self.interruption.take(), ..chunk }))
    }

    fn read_on(&mut self) -> io::Result<Option<Chunk>> {
        loop {
            if self.current.is_none() {
                self.current = self.open_first()?;
            }
            let Some((index, file)) = &mut self.current else { return Ok(None) };
            let index = *index;
            if let Some(chunk) = chunk(index, file)? {
                return Ok(Some(chunk));
            }
            if is_truncated(file)? {
                file.rewind()?;
                self.interruption = Some(Interruption::Truncated);
                continue;
            }
            if let Some((index, file)) = &mut self.before
                && let Some(chunk) = chunk(*index, file)?
            {
                return Ok(Some(chunk));
            }
            // At its end: the next file, if there is one, was created after the last byte of this one was written.
            // But bytes may have been written between our read and the check for the next file, so read once more
            // before moving on.
            let (next, interruption) = match self.open_from(index.saturating_add(1))? {
                Some(next) if next.0 == index => return Ok(None),
                Some(next) => (next, None),
                None => match self.successor_of_removed()? {
                    Some(next) => (next, Some(Interruption::Removed)),
                    None => return Ok(None),
                },
            };
            if let Some((index, file)) = &mut self.current
                && let Some(chunk) = chunk(*index, file)?
            {
                return Ok(Some(chunk));
            }
            self.interruption = interruption.or(self.interruption);
            self.before = self.current.replace(next);
        }
    }

    /// The file that took the place of the current one, if the current one has lost its name. The supervisor continues
    /// under the same name or, if all files were removed, with a lower number.
    fn successor_of_removed(&mut self) -> io::Result<Option<(u64, File)>> {
        let Some((index, file)) = &self.current else { return Ok(None) };
        let inode = |file: &File| file.metadata().map(|about| (about.dev(), about.ino()));
        let known = [Some(file), self.before.as_ref().map(|(_, file)| file)];
        let known = known.into_iter().flatten().map(inode).collect::<io::Result<Vec<_>>>()?;
        let lower = self.listing.indexes.last().copied().unwrap_or(*index);
        let found = [*index, lower].into_iter().find_map(|index| Some((index, self.files.open(index).ok()?)));
        Ok(match found {
            Some((index, file)) if !known.contains(&inode(&file)?) => Some((index, file)),
            Some(_) | None => None,
        })
    }

    /// Waits until something may have been written since the last [`Follower::read`].
    ///
    /// # Errors
    /// When the directory cannot be watched.
    pub async fn changed(&mut self) -> io::Result<()> {
        match &self.watch {
            Some(watch) => {
                let changed = watch.changed().await;
                if changed.is_err() {
                    // The directory may be created again.
                    self.watch = None;
                }
                changed
            }
            None => {
                // One more read finds what was written before the watch was set up.
                self.watch = Some(DirectoryWatch::open(&self.files.dir, Interests::Writes)?);
                Ok(())
            }
        }
    }

    fn open_first(&mut self) -> io::Result<Option<(u64, File)>> {
        let Some((index, mut file)) = self.open_from(self.start.0)? else { return Ok(None) };
        if index == self.start.0 {
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.start.1.min(length)))?;
        }
        Ok(Some((index, file)))
    }

    /// Opens the first readable file from number `from` on and returns its number. Files that were rotated away since
    /// the listing, and planted entries that are not logs, are skipped.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn open_from(&mut self, from: u64) -> io::Result<Option<(u64, File)>> {
        self.list()?;
        for index in self.listing.indexes.iter().copied().filter(|index| *index >= from) {
            match self.files.open(index) {
                Ok(file) => return Ok(Some((index, file))),
                Err(error) if is_no_log(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Lists the files, unless no name has changed since the last listing.
    fn list(&mut self) -> io::Result<()> {
        let changed = self.files.open_dir()?.as_ref().map(DirectoryStamp::of).transpose()?.flatten();
        if changed.is_none() || changed != self.listing.changed {
            self.listing = self.files.list()?;
            self.listings += 1;
        }
        Ok(())
    }
}

/// Keeps the error kind of a missing file.
fn io_error(error: FsError) -> io::Error {
    let kind = if error.is_missing() { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
    io::Error::new(kind, error)
}

/// The next piece of a file; `None` at its end.
fn chunk(index: u64, file: &mut File) -> io::Result<Option<Chunk>> {
    let mut bytes = vec![0; CHUNK_BYTES_MAX];
    let count = file.read(&mut bytes)?;
    if count == 0 {
        return Ok(None);
    }
    bytes.truncate(count);
    Ok(Some(Chunk { after: None, index, end_offset: file.stream_position()?, bytes }))
}

/// Whether the file has become shorter than what was read of it.
fn is_truncated(file: &mut File) -> io::Result<bool> {
    Ok(file.metadata()?.len() < file.stream_position()?)
}

/// Whether the error means that the name is not a log file, or no longer is one.
fn is_no_log(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.kind() == io::ErrorKind::InvalidInput
        || error.raw_os_error() == Some(libc::ELOOP)
        || error.raw_os_error() == Some(libc::ENXIO)
}

/// Where the last `left` lines of a file begin. `None` if it has fewer; then `left` is the number still to be found
/// in earlier files.
fn tail_offset(file: &File, left: &mut u64, newest: bool) -> io::Result<Option<u64>> {
    let mut end = file.metadata()?.len();
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    // The final newline ends the last line and does not begin another.
    let mut skip_last = newest;
    if *left == 0 {
        return Ok(Some(end));
    }
    while end > 0 {
        let from = end.saturating_sub(CHUNK_BYTES_MAX as u64);
        let length = usize::try_from(end - from).unwrap_or(CHUNK_BYTES_MAX);
        let piece = &mut buffer[..length];
        file.read_exact_at(piece, from)?;
        for (at, byte) in piece.iter().enumerate().rev() {
            if *byte != b'\n' || std::mem::take(&mut skip_last) {
                skip_last = false;
                continue;
            }
            *left -= 1;
            if *left == 0 {
                return Ok(Some(from + at as u64 + 1));
            }
        }
        end = from;
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
