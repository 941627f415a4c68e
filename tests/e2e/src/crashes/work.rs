//! The program of tasks in these lives: it reports its start, and holds a lock for as long as it lives.
//!
//! In: the directory of the journal, the task's place (`job.group[index]/task`), the word of its version, its
//! kind. Out: as its first act a line in the journal, and one in `twice` if another process has that place at
//! the same time, however briefly. A place has one process at a time, regardless of attempt, allocation and
//! version.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};

use crate::wait;

/// First argument of a program that acts as such a task: see [`run`].
pub const ARGUMENT: &str = "task";

/// What a job's tasks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobType {
    /// They run until they are stopped.
    Service,
    /// They complete by themselves.
    Batch,
}

impl JobType {
    /// The name in manifests and in the arguments of [`run`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Batch => "batch",
        }
    }
}

/// The entry of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// `job.group[index]/task`.
    pub place: String,
    /// The word of the version.
    pub word: String,
    pub pid: u32,
}

#[derive(Debug, Clone)]
pub struct Journal {
    dir: PathBuf,
}

impl Journal {
    /// Creates the journal's directory.
    ///
    /// # Panics
    /// If it can't be created.
    pub fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(&dir).expect("a directory for the journal");
        Self { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the starts, in order.
    pub fn begun(&self) -> Vec<Line> {
        lines(&self.dir.join("begun"))
    }

    /// Returns a size that grows with each start.
    pub fn len(&self) -> u64 {
        fs::metadata(self.dir.join("begun")).map_or(0, |found| found.len())
    }

    /// Returns whether nothing has started yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the starts of processes whose place was taken.
    pub fn twice(&self) -> Vec<Line> {
        lines(&self.dir.join("twice"))
    }

    /// Records the start of a process, which has its place until the file is dropped.
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

    /// Appends with a single write, so that lines of several processes don't mix.
    fn append(&self, name: &str, line: &str) {
        let mut file =
            File::options().create(true).append(true).open(self.dir.join(name)).expect("a journal");
        file.write_all(line.as_bytes()).expect("a line");
    }
}

/// Runs a task: `task DIR PLACE WORD KIND`.
///
/// # Panics
/// If the arguments are others.
pub fn run(arguments: &[String]) {
    let [dir, place, word, kind] = arguments else {
        panic!("expected task DIR PLACE WORD KIND, found {arguments:?}")
    };
    let place_taken = Journal::new(PathBuf::from(dir)).begin(place, word);
    if kind == JobType::Batch.as_str() {
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
