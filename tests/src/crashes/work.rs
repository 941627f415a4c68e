//! What a task does in these lives: it says that it has begun, and holds a lock for as long as it lives.
//!
//! In: where the life keeps its journal, the task's place (`job.group[index]/task`), its work's word, how long it runs. Out: a
//! line in the journal as its first act, and one in `twice` where another process has that place at the same time, however
//! briefly. A place has one process at a time, whichever the attempt, the allocation and the version.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use super::job::Kind;
use crate::e2e::wait;

/// First argument of a program that is to be such a task: see [`run`].
pub const ARGUMENT: &str = "task";

/// What a process has said about itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// `job.group[index]/task`.
    pub place: String,
    /// The work's word.
    pub word: String,
    /// Its pid.
    pub pid: u32,
}

/// The journal of a life.
#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
}

impl Journal {
    /// In a directory, which is made.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a directory for the journal");
        Self { dir }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All that has begun, in the order in which it did.
    pub fn begun(&self) -> Vec<Line> {
        lines(&self.dir.join("begun"))
    }

    /// Grows with each beginning.
    pub fn len(&self) -> u64 {
        fs::metadata(self.dir.join("begun")).map_or(0, |found| found.len())
    }

    /// Whether nothing has begun yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that has begun while its place was taken.
    pub fn twice(&self) -> Vec<Line> {
        lines(&self.dir.join("twice"))
    }

    /// A process begins, and has its place until the file is dropped.
    fn begin(&self, place: &str, word: &str) -> File {
        let line = format!("{place} {word} {}\n", std::process::id());
        self.append("begun", &line);
        let lock = self.dir.join(place.replace('/', ":"));
        let lock = File::options().create(true).append(true).open(lock).expect("a lock file");
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            self.append("twice", &line);
        }
        lock
    }

    /// One write, so that lines of several processes don't mix.
    fn append(&self, name: &str, line: &str) {
        let mut file =
            File::options().create(true).append(true).open(self.dir.join(name)).expect("a journal");
        file.write_all(line.as_bytes()).expect("a line");
    }
}

/// The program of a task: `task DIR PLACE WORD KIND`.
///
/// # Panics
/// When it was not called so.
pub fn run(arguments: &[String]) {
    let [dir, place, word, kind] = arguments else { panic!("task DIR PLACE WORD KIND, not {arguments:?}") };
    let place_taken = Journal::new(PathBuf::from(dir)).begin(place, word);
    if kind == Kind::Batch.as_str() {
        wait::pause(Duration::from_millis(u64::from(std::process::id() % 16)));
    } else {
        loop {
            wait::pause(Duration::from_secs(3600));
        }
    }
    drop(place_taken);
}

fn lines(path: &Path) -> Vec<Line> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split(' ');
            let (place, word, pid) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
            Some(Line { place: place.to_owned(), word: word.to_owned(), pid })
        })
        .collect()
}
