//! The kernel's mount table: a fast reader of `/proc/self/mountinfo`, and a watch that reports changes below one
//! directory without a timer (proc(5): the file polls with `POLLPRI` when the namespace's mounts change).
//!
//! In: a directory as the kernel writes it, without links. Out: the mounts at or below it. This module does not know
//! the purpose of the directories.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    time::{ClockId, clock_gettime},
};
use tokio::io::{Interest, unix::AsyncFd};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Unique while the mount exists.
    pub id: u64,
    /// Id of the mount that it is mounted on.
    pub parent: u64,
    pub point: PathBuf,
    /// The mount itself is read-only, independent of its file system.
    pub read_only: bool,
    /// What is mounted below it appears on its copies, and the reverse.
    pub is_shared: bool,
    /// For instance `tmpfs`.
    pub fs_type: String,
    /// What is mounted; for a tmpfs a name of the mounter's choice.
    pub source: String,
}

impl Mount {
    /// Whether an agent made this mount: a tmpfs with the source `herdlet`.
    pub fn is_ours(&self) -> bool {
        self.fs_type == "tmpfs" && self.source == OWNER_MARK
    }
}

/// The source of our mounts that have none of their own, as the mount table shows it.
pub(crate) const OWNER_MARK: &str = "herdlet";

/// All mounts at or below `base` from a fresh reading, ordered by path. Of several mounts at one path the last is the
/// visible one.
///
/// # Errors
///
/// If `/proc` can't be read.
pub fn mounts_below_now(base: &Path) -> io::Result<Vec<Mount>> {
    Ok(Table::open()?.below(base))
}

/// As [`mounts_below_now`], for inspections. It rereads the table only when the kernel reports a change, because a node
/// with thousands of mounts inspects it for thousands of tasks. The kernel reports no renames, so a mount below a
/// renamed directory keeps its old path until the next mount or unmount.
///
/// # Errors
///
/// If `/proc` can't be read.
pub fn mounts_below(base: &Path) -> io::Result<Vec<Mount>> {
    static KNOWN: Mutex<Option<Table>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let table = match known.take() {
        Some(table) => table.refreshed()?,
        None => Table::open()?,
    };
    let below = table.below(base);
    *known = Some(table);
    Ok(below)
}

/// The mounts that another process or thread sees. The kernel needs a few microseconds to write each, so one list answers for
/// several directories.
pub struct MountList(Vec<u8>);

impl MountList {
    /// # Errors
    ///
    /// If its `/proc` can't be read.
    pub fn of(process: i32) -> io::Result<Self> {
        std::fs::read(format!("/proc/{process}/mountinfo")).map(Self)
    }

    /// Those at or below `base`, in the kernel's order.
    pub fn below(&self, base: &Path) -> Vec<Mount> {
        parse(&self.0, base)
    }
}

/// A snapshot of the whole table.
struct Table {
    file: PolledFile,
    /// Ordered by path; mounts at the same path keep the kernel's order.
    mounts: Vec<Mount>,
}

impl Table {
    fn open() -> io::Result<Self> {
        // The next poll reports every change after this open, so reading afterwards misses nothing.
        Self::read(PolledFile(File::open(MOUNTINFO)?))
    }

    fn read(file: PolledFile) -> io::Result<Self> {
        let mut mounts = parse(&file.read()?, Path::new("/"));
        mounts.sort_by(|a, b| a.point.cmp(&b.point));
        Ok(Self { file, mounts })
    }

    fn refreshed(self) -> io::Result<Self> {
        if self.file.has_changed()? { Self::read(self.file) } else { Ok(self) }
    }

    fn below(&self, base: &Path) -> Vec<Mount> {
        // Paths are ordered by component, so the contents of a directory follow it.
        let first = self.mounts.partition_point(|mount| mount.point.as_path() < base);
        let rest = self.mounts.get(first..).unwrap_or_default();
        rest.iter().take_while(|mount| mount.point.starts_with(base)).cloned().collect()
    }
}

/// Where this process has mounted something since a watch last read the table: it may be gone before the next reading.
static MADE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Must be called before each mount, so that the watch of a directory above it reports even a short-lived one.
pub(super) fn will_mount(point: &Path) {
    MADE.lock().unwrap_or_else(PoisonError::into_inner).insert(point.to_owned());
}

/// Takes out the mounts made below `base` since the last call.
fn made_below(base: &Path) -> Vec<PathBuf> {
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.extract_if(.., |point| point.starts_with(base)).collect()
}

/// Reports mounts and unmounts at or below a directory.
#[derive(Debug)]
pub struct MountWatch {
    base: PathBuf,
    given: PathBuf,
    file: AsyncFd<PolledFile>,
    known: BTreeMap<u64, WatchedMount>,
    /// Places whose mount is gone and has not been forgotten or replaced.
    gone: BTreeSet<PathBuf>,
    /// CPU time of the last reading: on a busy machine the elapsed time may be much longer.
    cost: Duration,
}

/// A mount as the watch remembers it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchedMount {
    point: PathBuf,
    is_ours: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum MountChange {
    Mounted(PathBuf),
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
    /// Starts watching. Existing mounts are not reported. The directory need not exist yet. Reported paths begin with
    /// `base` as given here, even if it contains links.
    ///
    /// # Errors
    ///
    /// If `/proc` can't be read or polled.
    pub fn open(base: &Path) -> io::Result<Self> {
        let (base, given) = (real(base)?, base.to_owned());
        let file = PolledFile(File::open(MOUNTINFO)?);
        // Interest before the first reading, so that nothing is missed between the two.
        let file = register(file)?;
        let mut watch =
            Self { base, given, file, known: BTreeMap::new(), gone: BTreeSet::new(), cost: Duration::ZERO };
        watch.known = watch.read()?;
        Ok(watch)
    }

    /// Waits until something changes at or below the directory and returns the changes. An unmount is reported again
    /// with each reading until something is mounted there or it is forgotten: a mount may have come and gone in
    /// between. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If `/proc` can't be read; the next call tries again.
    pub async fn changed(&mut self) -> io::Result<Vec<MountChange>> {
        loop {
            let mut ready = self.file.ready(Interest::PRIORITY | Interest::ERROR).await?;
            // Mounts come in bursts: one reading serves a burst. The delay also limits the share of a core spent on
            // long tables.
            tokio::time::sleep(BURST.max(self.cost.saturating_mul(READING_SHARE))).await;
            ready.clear_ready();
            // New mounts that no reading has seen yet may already be gone.
            self.gone.extend(made_below(&self.given));
            let now = self.read()?;
            let changes = difference(&self.known, &now, &mut self.gone);
            self.known = now;
            if !changes.is_empty() {
                return Ok(changes);
            }
        }
    }

    /// Stops reporting that nothing is mounted at `point`.
    pub fn forget(&mut self, point: &Path) {
        self.gone.remove(point);
    }

    fn original_path(&self, point: &Path) -> PathBuf {
        // Joining an empty path would add a slash.
        match point.strip_prefix(&self.base) {
            Ok(below) if !below.as_os_str().is_empty() => self.given.join(below),
            _ => self.given.clone(),
        }
    }

    fn read(&mut self) -> io::Result<BTreeMap<u64, WatchedMount>> {
        let before = spent();
        let bytes = self.file.get_ref().read()?;
        let seen = parse(&bytes, &self.base).into_iter().map(|mount| {
            (mount.id, WatchedMount { point: self.original_path(&mount.point), is_ours: mount.is_ours() })
        });
        let seen = seen.collect();
        self.cost = spent().saturating_sub(before);
        Ok(seen)
    }
}

/// Reports that something was mounted or unmounted anywhere, but not what, for callers that check a single path.
#[derive(Debug)]
pub struct MountBell(AsyncFd<PolledFile>);

impl MountBell {
    ///
    /// # Errors
    ///
    /// If `/proc` can't be read or polled.
    pub fn open() -> io::Result<Self> {
        Ok(Self(register(PolledFile(File::open(MOUNTINFO)?))?))
    }

    /// Waits until something is mounted or unmounted and the burst has ended. Cancel-safe.
    ///
    /// # Errors
    ///
    /// If the table can no longer be polled.
    pub async fn rung(&self) -> io::Result<()> {
        let mut ready = self.0.ready(Interest::PRIORITY | Interest::ERROR).await?;
        tokio::time::sleep(BURST).await;
        ready.clear_ready();
        Ok(())
    }
}

/// CPU time of this thread.
fn spent() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Resolves links in a path whose last components may not exist yet.
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
/// Readings take at most one part in this many of a core, however often mounts change.
const READING_SHARE: u32 = 20;

#[derive(Debug)]
struct PolledFile(File);

impl PolledFile {
    /// Whether the table has changed since the last call or since the file was opened.
    fn has_changed(&self) -> io::Result<bool> {
        let mut asked = [PollFd::new(&self.0, PollFlags::PRI)];
        loop {
            match poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Err(Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }

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
    // SAFETY: `PolledFile` owns its descriptor, always returns the same one, and lives inside the `AsyncFd`, which
    // deregisters it before dropping it; nothing exposes it mutably.
    Ok(unsafe { AsyncFd::register_with_interest(file, Interest::PRIORITY | Interest::ERROR) }?)
}

/// New, removed and still missing mounts. Our own new mounts are left out: they hide nothing.
fn difference(
    before: &BTreeMap<u64, WatchedMount>,
    now: &BTreeMap<u64, WatchedMount>,
    gone: &mut BTreeSet<PathBuf>,
) -> Vec<MountChange> {
    let mounted: BTreeSet<&PathBuf> = now.values().map(|seen| &seen.point).collect();
    gone.retain(|point| !mounted.contains(point));
    let mut unmounted = gone.clone();
    let went = before.iter().filter(|(id, seen)| now.get(id) != Some(seen));
    unmounted.extend(went.map(|(_, seen)| seen.point.clone()));
    gone.extend(unmounted.iter().filter(|point| !mounted.contains(point)).cloned());
    let come = now
        .iter()
        .filter(|(id, seen)| before.get(id) != Some(seen) && !seen.is_ours)
        .map(|(_, seen)| MountChange::Mounted(seen.point.clone()));
    unmounted.into_iter().map(MountChange::Unmounted).chain(come).collect()
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
    let tags = fields.by_ref().take_while(|field| *field != b"-");
    // All of them are read.
    let is_shared = tags.filter(|tag| tag.starts_with(b"shared:")).count() > 0;
    Some(Mount {
        id: number(id)?,
        parent: number(parent)?,
        point: point.to_owned(),
        read_only: options.any(|option| option == b"ro"),
        is_shared,
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
    fn only_mounts_at_or_below_the_directory_are_read() {
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
    fn mount_difference_lists_added_and_removed() {
        let seen = |point: &str, is_ours| WatchedMount { point: point.into(), is_ours };
        let before = BTreeMap::from([(1, seen("/a", true)), (2, seen("/b", false))]);
        let now = BTreeMap::from([(2, seen("/b", false)), (3, seen("/a", false)), (4, seen("/c", true))]);
        let mut gone = BTreeSet::new();
        assert_eq!(
            difference(&before, &now, &mut gone),
            [MountChange::Unmounted("/a".into()), MountChange::Mounted("/a".into())]
        );
        assert!(gone.is_empty(), "something is mounted there");
    }

    #[test]
    fn unmount_is_reported_until_a_new_mount() {
        let at = |id| BTreeMap::from([(id, WatchedMount { point: "/a".into(), is_ours: true })]);
        let none = BTreeMap::new();
        let unmounted = [MountChange::Unmounted("/a".into())];
        let mut gone = BTreeSet::new();
        assert_eq!(difference(&at(1), &none, &mut gone), unmounted);
        // It came and went in between: the table is unchanged.
        assert_eq!(difference(&none, &none, &mut gone), unmounted);
        assert_eq!(difference(&none, &at(2), &mut gone), []);
        assert_eq!(difference(&at(2), &at(2), &mut gone), []);
    }
}
