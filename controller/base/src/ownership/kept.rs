//! The files that an agent keeps in its state directory and obeys at the next start.
//!
//! In: a trusted state directory. Out: its untrusted contents, which a previous owner or writer may have put there
//! before it was trusted. Task directories are not inspected: they belong to the users of tasks.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{OwnershipError, TrustPolicy, exposed::Exposed, unless_absent, walk, walk::End};
use crate::ownership::exposed::{PathRole, Right};

/// Directories that contain only the agent's own files.
const OWN: [&str; 7] = ["accepted", "bin", "cni", "folders", "keys", "node", "variables"];
/// The directory of allocations, and the file that the agent keeps in each.
const ALLOCS: (&str, &str) = ("alloc", "alloc.json");
/// The agent nests directories less deeply.
const DEPTH_MAX: usize = 8;
/// More than an agent keeps; limits the work at start, which opens each entry.
const ENTRIES_MAX: usize = 1 << 20;

/// Checks that only root and our own user can have created or can change the files kept in the state directory `dir`.
///
/// # Errors
/// [`OwnershipError`] of the first entry that is not trusted.
pub fn check_kept(dir: &Path) -> Result<(), OwnershipError> {
    exposed_kept(dir).into_iter().next().map_or(Ok(()), Err)
}

/// The untrusted files in the state directory `dir`. If the directory itself is untrusted, it is the only result.
pub fn exposed_kept(dir: &Path) -> Vec<OwnershipError> {
    let guard = TrustPolicy::of_process();
    let end = walk::walk(dir, &guard).and_then(|end| guard.end(dir, &end).map(|()| end));
    match end {
        Ok(end) => {
            let mut inspection = Inspection { guard: &guard, left: ENTRIES_MAX, exposed: Vec::new() };
            inspection.inspect_state(dir, &end);
            inspection.exposed
        }
        Err(error) => unless_absent(Err(error)).err().into_iter().collect(),
    }
}

struct Inspection<'g> {
    guard: &'g TrustPolicy,
    left: usize,
    exposed: Vec<OwnershipError>,
}

impl Inspection<'_> {
    fn inspect_state(&mut self, dir: &Path, end: &End) {
        for path in self.entries(dir) {
            let Some(below) = self.inspect(end, &path) else { continue };
            match path.file_name().and_then(|name| name.to_str()) {
                Some(name) if OWN.contains(&name) => self.inspect_below(&path, &below, DEPTH_MAX),
                Some(name) if name == ALLOCS.0 => self.inspect_allocs(&path, &below),
                Some(_) | None => {}
            }
        }
    }

    fn inspect_below(&mut self, dir: &Path, end: &End, depth: usize) {
        if !end.is_directory() {
            return;
        }
        if depth == 0 {
            return self.give_up(dir, "directories are nested deeper than an agent nests them");
        }
        for path in self.entries(dir) {
            if let Some(below) = self.inspect(end, &path) {
                self.inspect_below(&path, &below, depth - 1);
            }
        }
    }

    fn inspect_allocs(&mut self, dir: &Path, end: &End) {
        if !end.is_directory() {
            return;
        }
        for path in self.entries(dir) {
            // The agent closes directories that an older release left open; until then only the owner is checked.
            match end.entry(&path) {
                Ok(node) if self.guard.trusts(node.uid) => self.inspect_spec(end, &path),
                Ok(node) => self.report(&path, (&path, &node), Right::Owner),
                Err(error) => self.report_unknown(&path, error),
            }
        }
    }

    /// Checks the specification in the directory `path`, if it is an allocation's.
    fn inspect_spec(&mut self, allocs: &End, path: &Path) {
        let alloc = match allocs.walk(path, self.guard) {
            Ok(alloc) if alloc.is_directory() => alloc,
            Ok(_) => return,
            Err(error) => return self.exposed.extend(unless_absent(Err(error)).err()),
        };
        let spec = path.join(ALLOCS.1);
        match alloc.entry(&spec) {
            Ok(node) => {
                if let Some(right) = self.guard.exposure(&node) {
                    self.report(&spec, (&spec, &node), right);
                }
            }
            Err(error) => self.report_unknown(&spec, error),
        }
    }

    fn report(&mut self, path: &Path, (at, node): (&Path, &walk::Node), right: Right) {
        self.exposed.push(Exposed::new(self.guard, (at, node), right, PathRole::Kept).kept(path));
    }

    fn report_unknown(&mut self, path: &Path, source: io::Error) {
        let unknown = OwnershipError::Unknown { path: path.to_owned(), source };
        self.exposed.extend(unless_absent(Err(unknown)).err());
    }

    /// Opens the entry with the name of `path`, if it is trusted.
    fn inspect(&mut self, dir: &End, path: &Path) -> Option<End> {
        let unknown = |source| OwnershipError::Unknown { path: path.to_owned(), source };
        let kept = |at: &Path, node: &walk::Node, right| {
            Exposed::new(self.guard, (at, node), right, PathRole::Kept).kept(path)
        };
        let judged = || {
            let node = dir.entry(path).map_err(unknown)?;
            if !self.guard.trusts(node.uid) {
                return Err(kept(path, &node, Right::Owner));
            }
            let end = dir.walk(path, self.guard)?;
            let (at, node) = end.named();
            match self.guard.exposure(node) {
                Some(right) => Err(kept(at, node, right)),
                None => Ok(end),
            }
        };
        match judged() {
            Ok(end) => Some(end),
            Err(error) => {
                self.exposed.extend(unless_absent(Err(error)).err());
                None
            }
        }
    }

    fn entries(&mut self, dir: &Path) -> Vec<PathBuf> {
        let listed = fs::read_dir(dir).and_then(|entries| {
            let paths = entries.take(self.left.saturating_add(1)).map(|entry| Ok(entry?.path()));
            paths.collect::<io::Result<Vec<PathBuf>>>()
        });
        match listed {
            Ok(paths) if paths.len() > self.left => {
                self.give_up(dir, "there are more entries than an agent keeps");
                Vec::new()
            }
            Ok(mut paths) => {
                self.left -= paths.len();
                paths.sort();
                paths
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => {
                self.exposed.push(OwnershipError::Unknown { path: dir.to_owned(), source });
                Vec::new()
            }
        }
    }

    fn give_up(&mut self, dir: &Path, why: &'static str) {
        let source = io::Error::other(why);
        self.exposed.push(OwnershipError::Unknown { path: dir.to_owned(), source });
    }
}
