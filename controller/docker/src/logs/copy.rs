//! One step of the copy: a batch of the engine's lines.
//!
//! In: the engine's file, and those into which it was rotated (`NAME.1` is the newest of them). Out: output, and the position after
//! it. A gap that the engine made, because it rotated files away faster than they were copied, is marked in the output.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    LogJob,
    lines::{Stream, piece},
    output::{Kept, Output},
    position::{FileId, Position},
};

/// Bytes that are read at once.
const BATCH_LEN: usize = 256 * 1024;
/// The longest line: an engine splits a container's lines at 16 KiB, and a byte takes at most six in JSON.
const LINE_LEN_MAX: usize = 4 * 1024 * 1024;
/// Rotated files that are searched for a position.
const ROTATED_MAX: u32 = 64;

const RESTART: &[u8] = b"[herdlet: the engine was restarted here; output may be missing]\n";
const GAP: &[u8] = b"[herdlet: output is missing here: the engine removed it before it was copied]\n";

/// What a step has achieved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// There is more to copy.
    More,
    /// All that the engine has stored is copied.
    Done,
}

/// A copy between two steps.
pub(super) struct Copy {
    job: LogJob,
    open: Option<Open>,
}

struct Open {
    position: Position,
    file: File,
    stdout: Output,
    stderr: Output,
}

impl Copy {
    pub(super) fn of(job: LogJob) -> Self {
        Self { job, open: None }
    }

    /// Marks that output may be missing here.
    pub(super) fn mark_gap(&mut self) -> io::Result<()> {
        let mut open = self.open.take().map_or_else(|| Open::at(&self.job), Ok)?;
        open.mark_restart()?;
        open.record()
    }

    /// Copies a batch. After an error the next step begins at the last recorded position.
    pub(super) fn advance(&mut self) -> io::Result<Advance> {
        let in_place = |open: &Open| open.stdout.is_in_place() && open.stderr.is_in_place();
        let open = self.open.take().filter(in_place);
        let mut open = open.map_or_else(|| Open::at(&self.job), Ok)?;
        let advance = match open.advance(&self.job.source) {
            // The engine has just rotated its files.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Advance::More,
            advance => advance?,
        };
        // A container that writes nothing needs no open files.
        self.open = (advance == Advance::More).then_some(open);
        Ok(advance)
    }
}

impl Open {
    fn at(job: &LogJob) -> io::Result<Self> {
        let target = &job.target;
        let kept = Kept {
            files_max: target.max_files,
            len_max: target.max_file_size_mib.saturating_mul(1024 * 1024),
        };
        let stem = |stream: &str| format!("{}.{stream}", target.name);
        let file = Position::open(&job.position)?;
        // A copy that was ended may still be at its last batch.
        file.lock()?;
        let known = Position::read(&job.position)?;
        let (position, stdout, stderr) = match known {
            Some(known) => (
                known,
                Output::cut_back(&target.dir, stem("stdout"), kept, known.stdout)?,
                Output::cut_back(&target.dir, stem("stderr"), kept, known.stderr)?,
            ),
            None => (
                Position::default(),
                Output::newest(&target.dir, stem("stdout"), kept)?,
                Output::newest(&target.dir, stem("stderr"), kept)?,
            ),
        };
        let mut open = Self { position, file, stdout, stderr };
        open.record()?;
        Ok(open)
    }

    fn advance(&mut self, source: &Path) -> io::Result<Advance> {
        let Some(current) = self.source(source)? else { return Ok(Advance::Done) };
        let mut bytes = vec![0; BATCH_LEN];
        loop {
            let len = current.file.read_at(&mut bytes, self.position.offset)?;
            let read = bytes.get(..len).unwrap_or_default();
            let Some(end) = read.iter().rposition(|byte| *byte == b'\n') else {
                if len == bytes.len() && len < LINE_LEN_MAX {
                    bytes.resize(len * 4, 0);
                    continue;
                }
                if len == bytes.len() {
                    self.mark_gap()?;
                    self.position.offset += len as u64;
                    self.record()?;
                    return Ok(Advance::More);
                }
                return match current.next {
                    // A rotated file gets nothing more.
                    Some(next) => {
                        (self.position.file, self.position.offset) = (next, 0);
                        self.record()?;
                        Ok(Advance::More)
                    }
                    None => Ok(Advance::Done),
                };
            };
            let lines = read.get(..end).unwrap_or_default();
            for line in lines.split(|byte| *byte == b'\n') {
                if let Some(piece) = piece(line) {
                    match piece.stream {
                        Stream::Stdout => self.stdout.write(&piece.bytes)?,
                        Stream::Stderr => self.stderr.write(&piece.bytes)?,
                    }
                }
            }
            self.position.offset += end as u64 + 1;
            self.record()?;
            return Ok(Advance::More);
        }
    }

    fn record(&mut self) -> io::Result<()> {
        (self.position.stdout, self.position.stderr) = (self.stdout.end(), self.stderr.end());
        self.position.write(&self.file)
    }

    fn mark_gap(&mut self) -> io::Result<()> {
        self.stdout.write(GAP)?;
        self.stderr.write(GAP)
    }

    fn mark_restart(&mut self) -> io::Result<()> {
        self.stdout.write(RESTART)
    }

    /// The file at the position; none if the engine has not created it yet.
    fn source(&mut self, path: &Path) -> io::Result<Option<Source>> {
        let files = files(path)?;
        let Some(newest) = files.last() else { return Ok(None) };
        if self.position.file.inode == 0 {
            self.position.file = files.first().map_or_else(FileId::default, |(id, _)| *id);
        }
        let found = files.iter().position(|(id, _)| *id == self.position.file);
        if found.is_none() && newest.1 != path {
            // The engine is removing the container's files, or has not created the next one yet.
            return Ok(None);
        }
        let at = found.unwrap_or(0);
        let (id, path) = files.get(at).unwrap_or(newest);
        let file = match File::open(path) {
            // Rotated, or removed with its container, since the listing: the next step finds which.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file => file?,
        };
        let about = file.metadata()?;
        if FileId::of(&about) != *id {
            // Rotated since the listing.
            return Err(io::ErrorKind::Interrupted.into());
        }
        // Only now is it certain that the engine removed or truncated the file, and did not just remove the container.
        if found.is_none() || about.len() < self.position.offset {
            self.mark_gap()?;
            (self.position.file, self.position.offset) = (*id, 0);
        }
        Ok(Some(Source { file, next: files.get(at + 1).map(|(id, _)| *id) }))
    }
}

struct Source {
    file: File,
    /// The file that the engine wrote after it.
    next: Option<FileId>,
}

/// The engine's files, oldest first.
fn files(path: &Path) -> io::Result<Vec<(FileId, PathBuf)>> {
    let mut found = Vec::new();
    for number in (0..=ROTATED_MAX).rev() {
        let path = match number {
            0 => path.to_owned(),
            number => PathBuf::from(format!("{}.{number}", path.display())),
        };
        match fs::metadata(&path) {
            Ok(about) => found.push((FileId::of(&about), path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
