//! Recently forgotten objects, whose directories and files a power cut may restore.
//!
//! In: the records of each commit. Out: the keys that the database lists as forgotten from that commit on, each with
//! the commit's number; the next start gets the same list. It must not know how directories and files are removed.
//!
//! An allocation is forgotten only after its directory is removed, a job or a volume only with its accepted file. The
//! commit waits for the disk, those removals don't: after a power cut the directory and the file may exist again, and
//! nothing else distinguishes them from those of an object that the database has lost. So the commit that deletes an
//! object's record lists the object. The list is valid even if the database is damaged or old: an older copy of the
//! database lists only objects forgotten earlier, and a rebuilt database lists none. The id of an allocation is never
//! reused. A job or a volume may be created again under its name: then the entry is removed, and a file newer than
//! the commit is not affected. To keep the list short, the agent occasionally waits until the directories are on
//! disk; after that no removal in them can be undone.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use herdlet_base::paths::Paths;
use herdlet_plan::record::{Record, RecordKey};

use super::{
    Write,
    code::{self, Table},
};

/// The number of forgotten objects after which the agent waits for the disk once.
const LEN_MAX: usize = 256;

/// Keys of states, each with the number of the commit that deleted it.
pub(crate) type Names = BTreeMap<RecordKey, u64>;

/// The list of forgotten objects in the database.
#[derive(Debug)]
pub(super) struct Forgotten {
    /// The parent directories of removed objects.
    dirs: [PathBuf; 3],
    names: Names,
}

impl Forgotten {
    pub(super) fn new(paths: &Paths, names: Names) -> Self {
        let accepted = paths.accepted();
        Self { dirs: [paths.allocs(), accepted.join("volumes"), accepted], names }
    }

    /// The list after a commit of `batch`; `None` if it stays the same. Waits for the disk if the list would become
    /// too long.
    pub(super) fn after(&self, batch: &[Record], commit: u64) -> io::Result<Option<Names>> {
        let mut names = self.names.clone();
        for record in batch {
            match record {
                Record::Delete(key) => names.extend(object(key).map(|object| (object, commit))),
                Record::Put(key, _) => drop(object(key).and_then(|object| names.remove(&object))),
            }
        }
        if names.len() > LEN_MAX {
            self.dirs.iter().try_for_each(|dir| sync(dir))?;
            names.clear();
        }
        Ok((names != self.names).then_some(names))
    }

    /// Adds to `writes` the changes that make the database list `names`.
    pub(super) fn write(&self, names: &Names, writes: &mut BTreeMap<(Table, String), Write>) {
        let place = |key| (Table::Forgotten, code::place(key).1);
        let taken_back = self.names.keys().filter(|key| !names.contains_key(*key));
        writes.extend(taken_back.map(|key| (place(key), Write::Delete)));
        let new = names.iter().filter(|(key, commit)| self.names.get(*key) != Some(*commit));
        writes.extend(new.map(|(key, commit)| (place(key), Write::Put(commit.to_le_bytes().to_vec()))));
    }

    /// Records that the commit has happened.
    pub(super) fn set(&mut self, names: Names) {
        self.names = names;
    }
}

/// The key of the state of the object that a record belongs to.
fn object(key: &RecordKey) -> Option<RecordKey> {
    match key {
        RecordKey::Job(_) | RecordKey::Volume(_) | RecordKey::AllocState(_) => Some(key.clone()),
        RecordKey::AllocSpec(id) => Some(RecordKey::AllocState(*id)),
        RecordKey::Meta | RecordKey::JobVersion(..) => None,
    }
}

/// Waits until every removal in the directory is on disk. If the directory itself is missing, somebody else removed
/// it with its content.
fn sync(dir: &Path) -> io::Result<()> {
    match File::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.sync_all(),
    }
}
