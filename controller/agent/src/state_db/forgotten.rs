//! What was forgotten of late: a power cut may bring back what stood for it beside the database.
//!
//! In: the records of each commit. Out: the keys that the database names as forgotten from that commit on, each with the commit's
//! number, and at the next start the same. It must not know how a directory or a file is removed.
//!
//! An allocation is forgotten only after its directory has gone, a job or a volume with its accepted file. The commit waits for the
//! disk, those removals don't: after a power cut the directory and the file may be there again, and nothing else tells them from
//! those of an object that a database has lost. So the commit that deletes an object's record names the object. What a database
//! names is forgotten whatever else is wrong with it: an older copy that was put in its place names only what was forgotten
//! before, and one that was made anew names nothing. The id of an allocation is given out once. A job or a volume may be made again
//! under its name: then the name is taken back, and a file that is newer than the commit is not meant. The list is kept short by
//! waiting for the directories now and then; after that no removal in them can be undone.

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

/// One wait for the disk in so many objects that are forgotten.
const LEN_MAX: usize = 256;

/// Keys of states, each with the number of the commit that has deleted it.
pub(crate) type Names = BTreeMap<RecordKey, u64>;

/// What the database names.
#[derive(Debug)]
pub(super) struct Forgotten {
    /// Where what is removed was.
    dirs: [PathBuf; 3],
    names: Names,
}

impl Forgotten {
    pub(super) fn new(paths: &Paths, names: Names) -> Self {
        let accepted = paths.accepted();
        Self { dirs: [paths.allocs(), accepted.join("volumes"), accepted], names }
    }

    /// The names after a commit of `batch`; none where they stay the same. Waits for the disk where they would become too many.
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

    /// Adds to `writes` what makes the database name `names`.
    pub(super) fn write(&self, names: &Names, writes: &mut BTreeMap<(Table, String), Write>) {
        let place = |key| (Table::Forgotten, code::place(key).1);
        let taken_back = self.names.keys().filter(|key| !names.contains_key(*key));
        writes.extend(taken_back.map(|key| (place(key), Write::Delete)));
        let new = names.iter().filter(|(key, commit)| self.names.get(*key) != Some(*commit));
        writes.extend(new.map(|(key, commit)| (place(key), Write::Put(commit.to_le_bytes().to_vec()))));
    }

    /// The commit has happened.
    pub(super) fn set(&mut self, names: Names) {
        self.names = names;
    }
}

/// The key of the state of the object that comes and goes with a record.
fn object(key: &RecordKey) -> Option<RecordKey> {
    match key {
        RecordKey::Job(_) | RecordKey::Volume(_) | RecordKey::AllocState(_) => Some(key.clone()),
        RecordKey::AllocSpec(id) => Some(RecordKey::AllocState(*id)),
        RecordKey::Meta | RecordKey::JobVersion(..) => None,
    }
}

/// Waits until every removal in it so far is on disk. Where the directory itself was removed, all in it were, and by somebody else.
fn sync(dir: &Path) -> io::Result<()> {
    match File::open(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        opened => opened?.sync_all(),
    }
}
