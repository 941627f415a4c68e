//! The rotated files of one output stream.
//!
//! In: bytes in the order the task wrote them. Out: the files `<stem>.N` in the logs directory, never longer than their
//! limit, the newest kept, and for each a file with the times of its writes. Only the log writer uses this module,
//! because any call may wait for a disk. The task can write to the directory: its contents are not trusted, links are
//! not followed, and only regular files with a single name are written.

use super::sys::{self, Errno, Fd, Stat};
use crate::rotation::{Cut, INDEX_MAX, Name, Text, cut, fits_whatever_it_is, own};
use crate::times::{MARK_LEN, Mark, SUFFIX};
use core::ffi::CStr;

/// How many occupied names to skip when opening the next file.
const TRIES: u32 = 64;
/// Limit for reading the directory; a task may have created any number of names.
const LISTINGS_MAX: u32 = 1024;

/// The location, maximum number and maximum size of a stream's files.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) dir: Fd,
    pub(super) stem: Text,
    pub(super) files_max: u32,
    pub(super) size_max: u64,
}

/// The file being written.
pub(super) struct LogFile {
    fd: Fd,
    index: u32,
    inode: u64,
    /// The last mark of this file.
    mark: Option<Mark>,
    /// Offset of a mark that could not be stored: the next one starts there, so that readers skip no data.
    unmarked: Option<u64>,
}

impl LogFile {
    pub(super) const fn closed() -> Self {
        Self { fd: -1, index: 0, inode: 0, mark: None, unmarked: None }
    }

    /// Writes as much as possible; returns the number of bytes. Fewer than given means that the disk refused.
    pub(super) fn append(&mut self, place: &Place, bytes: &[u8]) -> usize {
        if place.stem.as_bytes().is_empty() {
            // The output of this terminal is not stored.
            return bytes.len();
        }
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match self.append_some(place, rest) {
                Ok(len) => done += len,
                Err(sys::EINTR) => {}
                Err(_) => break,
            }
        }
        done
    }

    /// Moves bytes from a pipe without copying them through our memory; returns the number of bytes. Fewer than `len`
    /// means that their content matters, or that the disk refused.
    pub(super) fn take(&mut self, place: &Place, pipe: Fd, len: usize) -> usize {
        let mut done = 0;
        while done < len {
            // Read each time, as in `append_some`.
            let Some(size) = self.size(place) else { break };
            if !fits_whatever_it_is(len - done, size, place.size_max) {
                break;
            }
            self.note_time(place, size);
            match sys::splice_to(pipe, self.fd, size, len - done) {
                Ok(0) => break,
                Ok(moved) => done += moved,
                Err(sys::EINTR) => {}
                Err(_) => break,
            }
        }
        done
    }

    fn append_some(&mut self, place: &Place, bytes: &[u8]) -> Result<usize, Errno> {
        // Read each time: another process may have removed, renamed or truncated the file.
        let size = match self.size(place) {
            Some(size) => size,
            None => self.open_newest(place)?,
        };
        let (len, rotate) = match cut(bytes, size, place.size_max) {
            Cut::Write(len) => (len, false),
            Cut::WriteAndRotate(len) => (len, true),
        };
        let piece = bytes.get(..len).unwrap_or(bytes);
        if !piece.is_empty() {
            self.note_time(place, size);
        }
        let written = if piece.is_empty() { 0 } else { sys::pwrite(self.fd, piece, size)? };
        if rotate && written == piece.len() {
            let old = self.index;
            self.open_from(place, old.saturating_add(1))?;
            self.remove_old(place, old);
        }
        Ok(written)
    }

    /// Records when the file grew beyond `size`, unless the last mark covers it. Readers can do without it if this
    /// fails.
    fn note_time(&mut self, place: &Place, size: u64) {
        let at_s = sys::now_unix_ns() / 1_000_000_000;
        if self.mark.is_some_and(|mark| !mark.is_over(at_s, size)) {
            return;
        }
        self.mark = Some(Mark { at_s, offset: size });
        let offset = self.unmarked.unwrap_or(size);
        let is_stored = store(place, self.index, Mark { at_s, offset });
        self.unmarked = if is_stored { None } else { Some(offset) };
    }

    /// Size of the open file, if there is one that still has its name, and no other.
    fn size(&self, place: &Place) -> Option<u64> {
        if self.fd < 0 {
            return None;
        }
        let named = sys::stat_name(place.dir, name_of(place, self.index).as_c_str()).ok();
        named.filter(|stat| stat.links == 1 && stat.inode == self.inode).map(|stat| stat.size)
    }

    /// Continues the newest file unless it is full.
    fn open_newest(&mut self, place: &Place) -> Result<u64, Errno> {
        let newest =
            own(|visit: &mut dyn FnMut(Name)| each_name(place, visit))?.map_or(0, |(_, newest)| newest);
        let size = self.open_from(place, newest)?;
        if let Some(oldest) = self.index.checked_sub(place.files_max) {
            each_name(place, &mut |name| match name {
                Name::Log(index) if index <= oldest => remove(place, index),
                Name::Log(_) | Name::Marks(_) => {}
            })?;
        }
        Ok(size)
    }

    /// Opens the first usable file from this index on; returns its size.
    fn open_from(&mut self, place: &Place, first: u32) -> Result<u64, Errno> {
        self.close();
        let mut problem = sys::EEXIST;
        for index in first..=first.saturating_add(TRIES) {
            if index > INDEX_MAX {
                // Reached only through a name created by the task: restart in the last file.
                let size = open_at(place, &name_of(place, INDEX_MAX)).map(|(fd, stat)| {
                    sys::truncate(fd);
                    (self.fd, self.index, self.inode) = (fd, INDEX_MAX, stat.inode);
                    0
                });
                return size.map_err(|(errno, _)| errno);
            }
            match open_at(place, &name_of(place, index)) {
                Ok((fd, stat)) if stat.size < place.size_max => {
                    (self.fd, self.index, self.inode) = (fd, index, stat.inode);
                    return Ok(stat.size);
                }
                Ok((fd, _)) => sys::close(fd),
                Err((errno, Taken::ByAnother)) => problem = errno,
                Err((errno, Taken::No)) => return Err(errno),
            }
        }
        Err(problem)
    }

    fn close(&mut self) {
        sys::close(self.fd);
        (self.fd, self.mark, self.unmarked) = (-1, None, None);
    }

    /// Removes files that are superfluous after the step from `old` to the current index.
    fn remove_old(&self, place: &Place, old: u32) {
        let first = (old.saturating_add(1)).saturating_sub(place.files_max);
        let end = self.index.saturating_add(1).saturating_sub(place.files_max);
        for index in first..end {
            remove(place, index);
        }
    }
}

/// Adds a mark to those of a file; returns whether it was stored.
fn store(place: &Place, index: u32, mark: Mark) -> bool {
    let Ok((fd, stat)) = open_at(place, &times_of(place, index)) else { return false };
    let end = stat.size - stat.size % MARK_LEN as u64;
    let written = sys::pwrite(fd, &mark.to_bytes(), end);
    sys::close(fd);
    written == Ok(MARK_LEN)
}

fn remove(place: &Place, index: u32) {
    for name in [name_of(place, index), times_of(place, index)] {
        sys::unlinkat(place.dir, name.as_c_str());
    }
}

enum Taken {
    /// The name is free or ours, but the disk refuses.
    No,
    /// The name belongs to something other than a log file.
    ByAnother,
}

fn open_at(place: &Place, name: &Text) -> Result<(Fd, Stat), (Errno, Taken)> {
    const ENXIO: Errno = 6;
    const EISDIR: Errno = 21;
    const ELOOP: Errno = 40;
    // O_NONBLOCK matters for a fifo only: without a reader, opening fails instead of waiting for one. Not O_APPEND:
    // splicing to such a file is not possible.
    let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_NOFOLLOW | sys::O_NONBLOCK;
    for _ in 0..TRIES {
        let fd = sys::openat(place.dir, name.as_c_str(), flags, 0o644).map_err(|errno| {
            let taken = matches!(errno, ENXIO | EISDIR | ELOOP | sys::EACCES | sys::EPERM);
            (errno, if taken { Taken::ByAnother } else { Taken::No })
        })?;
        match sys::stat(fd) {
            Ok(stat) if stat.is_file && stat.links == 1 => return Ok((fd, stat)),
            // Just removed: the name is free again.
            Ok(stat) if stat.links == 0 => sys::close(fd),
            Ok(_) => {
                sys::close(fd);
                break;
            }
            Err(errno) => {
                sys::close(fd);
                return Err((errno, Taken::No));
            }
        }
    }
    Err((sys::EEXIST, Taken::ByAnother))
}

fn name_of(place: &Place, index: u32) -> Text {
    place.stem.with(b".").with_number(u64::from(index))
}

fn times_of(place: &Place, index: u32) -> Text {
    name_of(place, index).with(SUFFIX.as_bytes())
}

/// Visits the regular files of this stream and their marks, in any order.
fn each_name(place: &Place, visit: &mut dyn FnMut(Name)) -> Result<(), Errno> {
    // Opened again: the position of the original descriptor is shared with all its holders.
    let dir = sys::openat(place.dir, c".", sys::O_RDONLY | sys::O_DIRECTORY, 0)?;
    let mut buffer = [0; 2048];
    for _ in 0..LISTINGS_MAX {
        let Ok(len) = sys::getdents(dir, &mut buffer) else { break };
        if len == 0 {
            break;
        }
        each_entry(buffer.get(..len).unwrap_or_default(), |kind, name| {
            const DT_UNKNOWN: u8 = 0;
            const DT_REG: u8 = 8;
            if let Some(name) = Name::of(name.to_bytes(), place.stem.as_bytes())
                && matches!(kind, DT_UNKNOWN | DT_REG)
            {
                visit(name);
            }
        });
    }
    sys::close(dir);
    Ok(())
}

/// Splits a buffer of `struct linux_dirent64`: inode and offset (16 bytes), record length (2), type (1), name.
fn each_entry(mut buffer: &[u8], mut visit: impl FnMut(u8, &CStr)) {
    while let (Some(len), Some(kind)) = (buffer.get(16..18), buffer.get(18)) {
        let len = usize::from(len[0]) | usize::from(len[1]) << 8;
        if let Some(Ok(name)) = buffer.get(19..len).map(CStr::from_bytes_until_nul) {
            visit(*kind, name);
        }
        match buffer.get(len..) {
            Some(rest) if len > 0 => buffer = rest,
            _ => return,
        }
    }
}
