//! A disk with a volatile cache.
//!
//! In: reads, writes, flushes, cuts. Out: the last written data; after a cut, data that a disk may have kept.
//! This module must not know the contents.

use std::{collections::BTreeMap, fs::File, io, os::unix::fs::FileExt, path::Path};

use crate::random::Rng;

/// The unit that is written atomically.
pub const SECTOR_LEN: usize = 4096;

#[derive(Debug)]
pub struct Disk {
    file: File,
    len: u64,
    /// Sectors written since the last flush, in order.
    written: Vec<(u64, Box<[u8]>)>,
    /// The index in `written` of a sector's newest data.
    newest: BTreeMap<u64, usize>,
    /// Number of writes and flushes before the power fails; `None` if no failure is planned.
    left: Option<u64>,
}

/// A kind of request to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// A read.
    Read,
    /// A write or a flush.
    Change,
}

/// What happened to the unflushed sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// Number of kept sectors.
    pub kept: u64,
    /// Number of lost sectors.
    pub lost: u64,
}

impl Disk {
    /// Opens the disk in `file`.
    ///
    /// # Errors
    /// If it can't be opened.
    pub fn open(file: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(file)?;
        let len = file.metadata()?.len();
        Ok(Self { file, len, written: Vec::new(), newest: BTreeMap::new(), left: None })
    }

    /// The size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes the power fail after a number of further writes and flushes.
    pub fn fail_after(&mut self, changes: u64) {
        self.left = Some(changes);
    }

    /// Returns whether the disk still has power.
    pub fn is_on(&self) -> bool {
        self.left != Some(0)
    }

    /// Counts a request; returns whether the disk still carries it out.
    pub fn does(&mut self, ask: Ask) -> bool {
        match &mut self.left {
            Some(0) => false,
            Some(left) if ask == Ask::Change => {
                *left -= 1;
                true
            }
            Some(_) | None => true,
        }
    }

    /// Reads the last written data.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)?;
        for (number, within, part) in parts(offset, bytes.len()) {
            if let Some((_, newest)) = self.newest.get(&number).and_then(|at| self.written.get(*at)) {
                let from = newest.get(within..within + part.len()).unwrap_or_default();
                bytes.get_mut(part).unwrap_or_default().copy_from_slice(from);
            }
        }
        Ok(())
    }

    /// Writes to the cache.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        for (number, within, part) in parts(offset, bytes.len()) {
            let mut sector = vec![0; SECTOR_LEN].into_boxed_slice();
            if part.len() < SECTOR_LEN {
                self.read(number * SECTOR_LEN as u64, &mut sector)?;
            }
            let to = sector.get_mut(within..within + part.len()).unwrap_or_default();
            to.copy_from_slice(bytes.get(part).unwrap_or_default());
            self.newest.insert(number, self.written.len());
            self.written.push((number, sector));
        }
        Ok(())
    }

    /// Makes the cached writes durable.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.keep(|_| true).map(drop)
    }

    /// Cuts and restores the power. Keeps the first few unflushed sectors, or any, or none.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn cut(&mut self, rng: &mut Rng) -> io::Result<Cut> {
        self.left = None;
        let all = self.written.len() as u64;
        match rng.below(3) {
            0 => self.keep(|_| false),
            1 => {
                let first = rng.below(all + 1);
                self.keep(|at| at < first)
            }
            _ => {
                let of_ten = 1 + rng.below(9);
                self.keep(|_| rng.below(10) < of_ten)
            }
        }
    }

    fn keep(&mut self, mut is_kept: impl FnMut(u64) -> bool) -> io::Result<Cut> {
        let mut cut = Cut::default();
        self.newest.clear();
        for (at, (number, sector)) in (0..).zip(std::mem::take(&mut self.written)) {
            if is_kept(at) {
                self.file.write_all_at(&sector, number * SECTOR_LEN as u64)?;
                cut.kept += 1;
            } else {
                cut.lost += 1;
            }
        }
        Ok(cut)
    }
}

/// Returns the sectors that the bytes cover: number, offset in the sector, and range of the bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let size = SECTOR_LEN as u64;
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = usize::try_from(at % size).unwrap_or(0);
        let part = done..(done + SECTOR_LEN - within).min(len);
        done = part.end;
        (!part.is_empty()).then_some((at / size, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (Disk, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * SECTOR_LEN as u64).unwrap();
        (Disk::open(file.path()).unwrap(), file)
    }

    fn sector(disk: &Disk, number: u64) -> u8 {
        let mut bytes = vec![0; SECTOR_LEN];
        disk.read(number * SECTOR_LEN as u64, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is complete");
        bytes[0]
    }

    fn write(disk: &mut Disk, number: u64, byte: u8) {
        disk.write(number * SECTOR_LEN as u64, &[byte; SECTOR_LEN]).unwrap();
    }

    #[test]
    fn flushed_writes_survive_a_power_cut() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let (mut disk, _file) = disk();
            write(&mut disk, 0, 1);
            write(&mut disk, 1, 1);
            disk.flush().unwrap();
            write(&mut disk, 1, 2);
            write(&mut disk, 1, 3);
            write(&mut disk, 2, 3);
            assert_eq!([0, 1, 2].map(|number| sector(&disk, number)), [1, 3, 3]);
            let cut = disk.cut(&mut Rng::new(seed)).unwrap();
            assert_eq!(cut.kept + cut.lost, 3);
            let kept = [0, 1, 2].map(|number| sector(&disk, number));
            assert!(kept[0] == 1 && [1, 2, 3].contains(&kept[1]) && [0, 3].contains(&kept[2]), "{kept:?}");
            seen.insert(kept);
        }
        assert_eq!(seen.len(), 6, "every outcome occurred: {seen:?}");
    }

    #[test]
    fn power_fails_after_a_number_of_writes() {
        let (mut disk, _file) = disk();
        disk.fail_after(2);
        assert!(
            [Ask::Read, Ask::Change, Ask::Read, Ask::Change]
                .map(|ask| disk.does(ask))
                .iter()
                .all(|done| *done)
        );
        assert!(!disk.is_on() && !disk.does(Ask::Read) && !disk.does(Ask::Change));
        disk.cut(&mut Rng::new(1)).unwrap();
        assert!(disk.is_on() && disk.does(Ask::Change));
    }

    #[test]
    fn unaligned_writes_are_read_back() {
        let (mut disk, _file) = disk();
        let bytes: Vec<u8> = (0..10_000_u32).map(|number| (number % 251) as u8).collect();
        disk.write(1_000, &bytes).unwrap();
        for flushed in [false, true] {
            let mut read = vec![0; bytes.len()];
            disk.read(1_000, &mut read).unwrap();
            assert!(read == bytes, "flushed: {flushed}");
            disk.flush().unwrap();
        }
        let mut before = [7; 1_000];
        disk.read(0, &mut before).unwrap();
        assert_eq!(before, [0; 1_000]);
    }
}
