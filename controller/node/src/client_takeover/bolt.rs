//! Reads BoltDB files, as far as the state of Nomad's client requires: keys and values of buckets.
//!
//! In: the bytes of a file, all untrusted. Out: buckets by path, values by key. Read-only. The reader limits the total number of bytes: a
//! file with cyclic or overlapping pages could otherwise take unlimited time or memory.
//!
//! ```text
//! page:  id u64 · flags u16 · count u16 · overflow u32 · elements            (little endian, as on every machine Nomad runs on)
//! meta:  magic · version · page size · flags · root (page u64, sequence u64) · freelist · high water · transaction · checksum
//! ```
//!
//! Facts: `etcd-io/bbolt:internal/common/page.go`, `meta.go`, `bucket.go`.

use std::{cell::Cell, fs::File, io::Read as _};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const HEADER: usize = 16;
const ELEMENT: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const IS_BUCKET: u32 = 1;
/// Total bytes to read, as a multiple of the file's size: the search for a client's tasks reads each byte at most six times.
const READ_TIMES: usize = 8;
/// Maximum depth of branch pages.
const DEPTH_MAX: usize = 32;

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BoltError {
    /// Reading failed.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// The file is too large.
    #[error("it has more than {0} bytes")]
    Long(u64),
    /// The file is not a BoltDB file, or is damaged.
    #[error("it is not a BoltDB file, or is damaged: {0}")]
    Damaged(&'static str),
}

/// Reads a whole file.
pub(super) fn bytes(file: &File, most: u64) -> Result<Vec<u8>, BoltError> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(BoltError::Long(most)) } else { Ok(bytes) }
}

/// An open BoltDB file.
pub(super) struct Bolt<'b> {
    bytes: &'b [u8],
    page_size: usize,
    root: u64,
    /// How many bytes may still be read.
    left: Cell<usize>,
}

/// A bucket: a page, or data inside its parent bucket.
#[derive(Debug, Clone)]
pub(super) enum Bucket<'b> {
    Page(u64),
    Inline(&'b [u8]),
}

/// A bucket and its name.
pub(super) type Named<'b> = (Vec<u8>, Bucket<'b>);

struct Element<'b> {
    key: &'b [u8],
    value: &'b [u8],
    is_bucket: bool,
}

impl<'b> Bolt<'b> {
    /// Opens the newer of the file's two states, among those that are intact.
    pub(super) fn open(bytes: &'b [u8]) -> Result<Self, BoltError> {
        // The second meta page's offset is the page size, which only the first one gives. If that is damaged, try all sizes.
        let sizes = [9, 10, 11, 12, 13, 14, 15, 16].map(|bits| 1_usize << bits);
        let first = Meta::read(bytes, 0);
        let second = match &first {
            Some(first) => Meta::read(bytes, first.page_size),
            None => {
                sizes.iter().find_map(|size| Meta::read(bytes, *size).filter(|meta| meta.page_size == *size))
            }
        };
        let newer = [first, second].into_iter().flatten().max_by_key(|meta| meta.transaction);
        let Meta { page_size, root, .. } = newer.ok_or(BoltError::Damaged("it has no intact meta page"))?;
        Ok(Self { bytes, page_size, root, left: Cell::new(bytes.len().saturating_mul(READ_TIMES)) })
    }

    /// The buckets inside the bucket at a path; empty if it does not exist.
    pub(super) fn buckets(&self, path: &[&str]) -> Result<Vec<Named<'b>>, BoltError> {
        let mut bucket = Bucket::Page(self.root);
        for name in path {
            let inner = self.within(&bucket)?.into_iter().find(|(key, _)| key == name.as_bytes());
            match inner {
                Some((_, inner)) => bucket = inner,
                None => return Ok(Vec::new()),
            }
        }
        self.within(&bucket)
    }

    /// The buckets inside a bucket.
    pub(super) fn within(&self, bucket: &Bucket<'b>) -> Result<Vec<Named<'b>>, BoltError> {
        let elements = self.elements(bucket)?.into_iter().filter(|element| element.is_bucket);
        elements.map(|element| Ok((element.key.to_vec(), inner(element.value)?))).collect()
    }

    /// The value of a key.
    pub(super) fn value(&self, bucket: &Bucket<'b>, key: &[u8]) -> Result<Option<Vec<u8>>, BoltError> {
        let found =
            self.elements(bucket)?.into_iter().find(|element| element.key == key && !element.is_bucket);
        Ok(found.map(|element| element.value.to_vec()))
    }

    fn elements(&self, bucket: &Bucket<'b>) -> Result<Vec<Element<'b>>, BoltError> {
        let mut elements = Vec::new();
        match bucket {
            Bucket::Inline(page) => self.leaf(page, &mut elements)?,
            Bucket::Page(id) => self.walk(*id, 0, &mut elements)?,
        }
        Ok(elements)
    }

    fn walk(&self, id: u64, depth: usize, elements: &mut Vec<Element<'b>>) -> Result<(), BoltError> {
        if depth > DEPTH_MAX {
            return Err(BoltError::Damaged("its pages form a cycle"));
        }
        let page = self.page(id)?;
        match word16(page, 8)? {
            LEAF => self.leaf(page, elements),
            BRANCH => {
                self.spend(HEADER)?;
                for index in 0..usize::from(word16(page, 10)?) {
                    self.spend(ELEMENT)?;
                    let child = word64(page, HEADER + index * ELEMENT + 8)?;
                    self.walk(child, depth + 1, elements)?;
                }
                Ok(())
            }
            _ => Err(BoltError::Damaged("a page is neither a branch nor a leaf")),
        }
    }

    fn leaf(&self, page: &'b [u8], elements: &mut Vec<Element<'b>>) -> Result<(), BoltError> {
        if word16(page, 8)? != LEAF {
            return Err(BoltError::Damaged("a page is neither a branch nor a leaf"));
        }
        self.spend(HEADER)?;
        for index in 0..usize::from(word16(page, 10)?) {
            let at = HEADER + index * ELEMENT;
            let number = |offset| {
                word32(page, at + offset).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
            };
            let (flags, begin, key, value) = (word32(page, at)?, number(4)?, number(8)?, number(12)?);
            let begin = at.saturating_add(begin);
            let middle = begin.saturating_add(key);
            let torn = BoltError::Damaged("a key extends beyond its page");
            let (Some(key), Some(value)) =
                (page.get(begin..middle), page.get(middle..middle.saturating_add(value)))
            else {
                return Err(torn);
            };
            self.spend(ELEMENT.saturating_add(key.len()).saturating_add(value.len()))?;
            elements.push(Element { key, value, is_bucket: flags & IS_BUCKET != 0 });
        }
        Ok(())
    }

    /// Counts bytes that are read.
    fn spend(&self, bytes: usize) -> Result<(), BoltError> {
        let circle = BoltError::Damaged("its pages form a cycle or overlap");
        self.left.set(self.left.get().checked_sub(bytes).ok_or(circle)?);
        Ok(())
    }

    /// A page and its overflow pages.
    fn page(&self, id: u64) -> Result<&'b [u8], BoltError> {
        let torn = BoltError::Damaged("a page extends beyond the end of the file");
        let begin = usize::try_from(id).ok().and_then(|id| id.checked_mul(self.page_size));
        let page = begin.and_then(|begin| self.bytes.get(begin..));
        let Some(page) = page.filter(|page| page.len() >= HEADER) else { return Err(torn) };
        let more = usize::try_from(word32(page, 12)?).unwrap_or(usize::MAX);
        let length = more.saturating_add(1).saturating_mul(self.page_size);
        page.get(..length.min(page.len())).ok_or(torn)
    }
}

struct Meta {
    page_size: usize,
    root: u64,
    transaction: u64,
}

impl Meta {
    /// The meta page at this offset, if it is intact.
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let meta = bytes.get(at.checked_add(HEADER)?..)?;
        let page_size = usize::try_from(word32(meta, 8).ok()?).ok()?;
        let is_ours = word32(meta, 0).ok()? == MAGIC
            && word32(meta, 4).ok()? == VERSION
            && word64(meta, 56).ok()? == checksum(meta.get(..56)?)
            && (512..=1 << 16).contains(&page_size);
        let (root, transaction) = (word64(meta, 16).ok()?, word64(meta, 48).ok()?);
        is_ours.then_some(Self { page_size, root, transaction })
    }
}

/// 64-bit FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A bucket's value: its page number, or, for a small bucket, the page itself after a header.
fn inner(value: &[u8]) -> Result<Bucket<'_>, BoltError> {
    match word64(value, 0)? {
        0 => value.get(16..).map(Bucket::Inline).ok_or(BoltError::Damaged("a bucket is truncated")),
        page => Ok(Bucket::Page(page)),
    }
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], BoltError> {
    let chunk = bytes.get(at..).and_then(|rest| rest.first_chunk());
    chunk.copied().ok_or(BoltError::Damaged("it is truncated"))
}

fn word16(bytes: &[u8], at: usize) -> Result<u16, BoltError> {
    chunk(bytes, at).map(u16::from_le_bytes)
}

fn word32(bytes: &[u8], at: usize) -> Result<u32, BoltError> {
    chunk(bytes, at).map(u32::from_le_bytes)
}

fn word64(bytes: &[u8], at: usize) -> Result<u64, BoltError> {
    chunk(bytes, at).map(u64::from_le_bytes)
}
