//! The database file: every page is checked before it is used, and panics in redb are caught.
//!
//! In: the path of the file. Out: an open database, or why there is none. redb panics by design on a page that was
//! modified outside of it. Opening with its integrity check reports most of this as an error; the guard here catches
//! the rest. It must not know the content of records.

use std::{
    fmt::Display,
    fs::OpenOptions,
    io,
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableError,
};

use super::code::Table;

/// redb's default is 1 GiB; the state of a machine is some hundred kilobytes, and the kernel caches the rest.
const CACHE_BYTES: usize = 512 << 10;

/// Keys in the table `meta` with which the database describes itself.
pub(crate) const META_FORMAT: &str = "format";
pub(crate) const META_INDEX: &str = "index";
pub(crate) const META_INSTANCE: &str = "instance";

/// Why a database file cannot be used.
#[derive(Debug)]
pub enum Broken {
    /// It does not exist.
    Missing,
    /// It has a newer format.
    Newer(u64),
    /// Its content is not what was written.
    Damaged(String),
    /// The file system or another process denies access.
    Refused(String),
}

/// Opens the file and checks all of it. Writes to it if it was not closed properly.
pub(crate) fn open(path: &Path) -> Result<Database, Broken> {
    guard(|| builder().set_check_integrity_on_open(true).open(path))?.map_err(database_error)
}

/// Opens and checks a copy of the file in memory.
pub(crate) fn open_copy(path: &Path) -> Result<Database, Broken> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) if bytes.is_empty() => return Err(damaged("the file is empty")),
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Broken::Missing),
        Err(error) => return Err(Broken::Refused(error.to_string())),
    };
    let copy =
        Copy { len_max: bytes.len().saturating_mul(2).saturating_add(16 << 20), bytes: Mutex::new(bytes) };
    let opened = guard(|| builder().set_check_integrity_on_open(true).create_with_backend(copy))?;
    opened.map_err(|error| Broken::Damaged(error.to_string()))
}

/// Creates an empty database, 0600.
pub(crate) fn create(path: &Path) -> Result<Database, Broken> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| Broken::Refused(error.to_string()))?;
    guard(|| builder().create(path))?.map_err(database_error)
}

/// The instance of the database, if it can be read.
pub(crate) fn peek_instance(path: &Path) -> Option<String> {
    let copy = open_copy(path).ok()?;
    String::from_utf8(value(&copy, META_INSTANCE).ok()??).ok()
}

/// All entries of a table; empty if the table was never written.
pub(crate) fn entries(db: &Database, table: Table) -> Result<Vec<(String, Vec<u8>)>, Broken> {
    guard(|| {
        let read = db.begin_read().map_err(damaged)?;
        let table = match read.open_table(table.definition()) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(damaged(error)),
        };
        let mut entries = Vec::new();
        for entry in table.iter().map_err(damaged)? {
            let (key, value) = entry.map_err(damaged)?;
            entries.push((key.value().to_owned(), value.value().to_vec()));
        }
        Ok(entries)
    })?
}

/// A value of the table `meta`.
pub(crate) fn value(db: &Database, key: &str) -> Result<Option<Vec<u8>>, Broken> {
    guard(|| {
        let read = db.begin_read().map_err(damaged)?;
        let table = match read.open_table(Table::Meta.definition()) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(damaged(error)),
        };
        Ok(table.get(key).map_err(damaged)?.map(|value| value.value().to_vec()))
    })?
}

/// Decodes a number of the table `meta`.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Runs `work` and turns a panic into [`Broken::Damaged`].
pub(crate) fn guard<T>(work: impl FnOnce() -> T) -> Result<T, Broken> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let message = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Broken::Damaged(format!("the database panicked: {message}"))
    })
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// A file in memory. Its length is bounded, because a damaged header may request any length.
#[derive(Debug)]
struct Copy {
    bytes: Mutex<Vec<u8>>,
    len_max: usize,
}

impl Copy {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StorageBackend for Copy {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes();
        let from = range(offset, out.len()).and_then(|range| bytes.get(range));
        out.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).ok().filter(|len| *len <= self.len_max);
        self.bytes().resize(len.ok_or(io::ErrorKind::FileTooLarge)?, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes();
        let to = range(offset, data.len()).and_then(|range| bytes.get_mut(range));
        to.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}

fn range(offset: u64, len: usize) -> Option<Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    Some(start..start.checked_add(len)?)
}

fn damaged(error: impl Display) -> Broken {
    Broken::Damaged(error.to_string())
}

/// Distinguishes damage from a refusal by the machine: only a damaged file is moved aside.
fn database_error(error: DatabaseError) -> Broken {
    let text = error.to_string();
    let refused = match error {
        DatabaseError::DatabaseAlreadyOpen => true,
        DatabaseError::Storage(StorageError::Io(error)) => !matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput
        ),
        DatabaseError::LockProtocolMismatch
        | DatabaseError::RepairAborted
        | DatabaseError::UpgradeRequired(_)
        | DatabaseError::TransactionInProgress
        | DatabaseError::Storage(_)
        | _ => false,
    };
    if refused { Broken::Refused(text) } else { Broken::Damaged(text) }
}
