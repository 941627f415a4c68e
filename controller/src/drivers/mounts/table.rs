//! The kernel's mount table: a fast reader of `/proc/self/mountinfo`, and a watch that tells what changed below one
//! directory without ever asking on a timer (proc(5): the file polls with `POLLPRI` when the namespace's mounts change).
//!
//! In: a directory, as the kernel writes it (without links). Out: the mounts at or below it. It must not know whose
//! directories these are.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::io::{Interest, unix::AsyncFd};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Unique while it is mounted.
    pub id: u64,
    /// Id of the mount it is mounted on.
    pub parent: u64,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The mount itself is read-only, whatever its file system allows.
    pub read_only: bool,
    /// For instance `tmpfs`.
    pub fs_type: String,
    /// What was mounted; a name of our choice for tmpfs.
    pub source: String,
}

/// All mounts at or below `base`, in the kernel's order: of mounts at the same place the last one is what is seen there.
///
/// # Errors
///
/// When `/proc` can't be read.
pub fn mounts_below(base: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read(MOUNTINFO)?, base))
}

/// Tells when mounts at or below a directory come and go.
#[derive(Debug)]
pub struct MountWatch {
    base: PathBuf,
    given: PathBuf,
    file: AsyncFd<PolledFile>,
    known: BTreeMap<u64, PathBuf>,
}

/// A mount that came or went.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountChange {
    /// Something was mounted here.
    Mounted(PathBuf),
    /// Something was unmounted here.
    Unmounted(PathBuf),
}

impl MountChange {
    /// Where it happened.
    pub fn point(&self) -> &Path {
        match self {
            Self::Mounted(point) | Self::Unmounted(point) => point,
        }
    }
}

impl MountWatch {
    /// Begins to watch. What is mounted now is no change. The directory need not exist yet; points are told below `base` as
    /// it is given here, even where it is reached through a link.
    ///
    /// # Errors
    ///
    /// When `/proc` can't be read or polled.
    pub fn open(base: &Path) -> io::Result<Self> {
        let (base, given) = (real(base)?, base.to_owned());
        let file = PolledFile(File::open(MOUNTINFO)?);
        // Interest before the first reading, so that nothing is missed between the two.
        let file = register(file)?;
        let mut watch = Self { base, given, file, known: BTreeMap::new() };
        watch.known = watch.read()?;
        Ok(watch)
    }

    /// Waits until something changed at or below the directory and says what. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// When `/proc` can't be read; calling again tries again.
    pub async fn changed(&mut self) -> io::Result<Vec<MountChange>> {
        loop {
            let mut ready = self.file.ready(Interest::PRIORITY | Interest::ERROR).await?;
            // Container engines mount in bursts; one reading serves a burst.
            tokio::time::sleep(BURST).await;
            ready.clear_ready();
            let now = self.read()?;
            let changes = difference(&self.known, &now);
            self.known = now;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    fn as_given(&self, point: &Path) -> PathBuf {
        // Joining an empty path would add a slash.
        match point.strip_prefix(&self.base) {
            Ok(below) if !below.as_os_str().is_empty() => self.given.join(below),
            _ => self.given.clone(),
        }
    }

    fn read(&self) -> io::Result<BTreeMap<u64, PathBuf>> {
        let bytes = self.file.get_ref().read()?;
        Ok(parse(&bytes, &self.base)
            .into_iter()
            .map(|mount| (mount.id, self.as_given(&mount.point)))
            .collect())
    }
}

/// Where a path leads whose last parts may not exist yet.
fn real(path: &Path) -> io::Result<PathBuf> {
    match (std::fs::canonicalize(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(real(parent)?.join(name))
        }
        (result, _, _) => result,
    }
}

const MOUNTINFO: &str = "/proc/self/mountinfo";
const BURST: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct PolledFile(File);

impl PolledFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(64 * 1024);
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match self.0.read_at(&mut chunk, bytes.len() as u64)? {
                0 => return Ok(bytes),
                read => bytes.extend_from_slice(chunk.get(..read).unwrap_or_default()),
            }
        }
    }
}

impl AsFd for PolledFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for PolledFile {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        std::os::fd::AsRawFd::as_raw_fd(&self.0)
    }
}

#[expect(unsafe_code, reason = "tokio's registration trusts the descriptor to stay open")]
fn register(file: PolledFile) -> io::Result<AsyncFd<PolledFile>> {
    // SAFETY: `PolledFile` owns its descriptor, always returns that one, and lives inside the `AsyncFd`, which deregisters it
    // before dropping it; nothing hands it out mutably.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY | Interest::ERROR) }?)
}

fn difference(before: &BTreeMap<u64, PathBuf>, now: &BTreeMap<u64, PathBuf>) -> Vec<MountChange> {
    let gone = before
        .iter()
        .filter(|(id, point)| now.get(id) != Some(point))
        .map(|(_, point)| MountChange::Unmounted(point.clone()));
    let come = now
        .iter()
        .filter(|(id, point)| before.get(id) != Some(point))
        .map(|(_, point)| MountChange::Mounted(point.clone()));
    gone.chain(come).collect()
}

fn parse(bytes: &[u8], base: &Path) -> Vec<Mount> {
    bytes.split(|byte| *byte == b'\n').filter_map(|line| parse_line(line, base)).collect()
}

/// `36 35 98:0 /root /mnt/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue`, see proc(5).
fn parse_line(line: &[u8], base: &Path) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (id, parent, _device, _root) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let point = unescape(fields.next()?);
    // Nearly all lines end here, before anything is copied.
    let point = Path::new(OsStr::from_bytes(&point));
    if !point.starts_with(base) {
        return None;
    }
    let mut options = fields.next()?.split(|byte| *byte == b',');
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    Some(Mount {
        id: number(id)?,
        parent: number(parent)?,
        point: point.to_owned(),
        read_only: options.any(|option| option == b"ro"),
        fs_type: text(fields.next()?),
        source: text(fields.next()?),
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

/// The kernel writes blanks, newlines, backslashes and `#` as `\` and three octal digits.
fn unescape(field: &[u8]) -> Cow<'_, [u8]> {
    if !field.contains(&b'\\') {
        return Cow::Borrowed(field);
    }
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match after {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &[u8] = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
        40 21 0:40 / /s/alloc/a\\040b/secrets rw,nosuid,nodev,noexec - tmpfs herdlet rw,size=1024k\n\
        41 21 254:0 /vol /s/alloc/x ro,relatime shared:2 master:1 - ext4 /dev/vda rw\n\
        42 21 254:0 /vol /s/allocate rw - ext4 /dev/vda rw\n\
        broken line\n";

    #[test]
    fn only_what_is_at_or_below_the_directory_is_read() {
        let mounts = parse(LINES, Path::new("/s/alloc"));
        assert_eq!(mounts.len(), 2, "{mounts:?}");
        assert_eq!(mounts[0].point, Path::new("/s/alloc/a b/secrets"));
        assert_eq!((mounts[0].fs_type.as_str(), mounts[0].source.as_str()), ("tmpfs", "herdlet"));
        assert!(!mounts[0].read_only);
        assert!(mounts[1].read_only);
        assert_eq!((mounts[1].id, mounts[1].parent), (41, 21));
        assert_eq!(parse(LINES, Path::new("/")).len(), 4);
    }

    #[test]
    fn escapes_are_read_and_odd_backslashes_stay() {
        assert_eq!(&*unescape(br"a\040b\134c\043"), br"a b\c#");
        assert_eq!(&*unescape(br"a\9\04"), br"a\9\04");
        assert_eq!(&*unescape(br"\"), br"\");
    }

    #[test]
    fn a_change_is_what_came_and_what_went() {
        let before = BTreeMap::from([(1, PathBuf::from("/a")), (2, PathBuf::from("/b"))]);
        let now = BTreeMap::from([(2, PathBuf::from("/b")), (3, PathBuf::from("/a"))]);
        assert_eq!(
            difference(&before, &now),
            [MountChange::Unmounted("/a".into()), MountChange::Mounted("/a".into())]
        );
    }
}
