//! `…/snapshot`: an allocation's disk, for the node that runs its successor.
//!
//! In: a local allocation, and a token. Out: a tar stream of `alloc/data` and of each task's `local`. The migrate token, which servers
//! derive from this node's secret, grants access. If something cannot be read, the archive ends with an error file whose name stock clients
//! look for; if even that cannot be sent, the response is aborted, so that it does not look complete. Links are sent as they are; mounts,
//! sockets, fifos and devices are skipped.
//!
//! Facts: `hashicorp/nomad:client/allocdir/alloc_dir.go` (`Snapshot`), `nomad/structs/structs.go` (`GenerateMigrateToken`).

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE};
use blake2::{Blake2bMac512, digest::Mac};
use futures_util::stream;
use herdlet_api_types::{AllocId, alloc::Allocation};
use herdlet_base::{
    paths::{Paths, SHARED, task_name_in},
    safe_fs::{Crossing, Dir, FsError},
};
use herdlet_nomad::wire::Secret;
use herdlet_runtime::off_thread;
use herdlet_storage::alloc_dir::{DATA, migration::LOCAL};
use rustix::fs::{FileType, Stat};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// The name of the file that reports a failed snapshot.
pub fn error_name(id: &str) -> String {
    format!("NOMAD-{id}-ERROR.log")
}

/// Serves snapshots of disks.
pub struct Snapshots {
    paths: Paths,
    secret: Secret,
    closing: CancellationToken,
    turns: Arc<Semaphore>,
}

/// Maximum number of concurrent snapshots; further requests wait. Each holds a descriptor per directory level, at most `DEPTH_MAX`:
/// together half of a process's default limit of 1,024.
const AT_ONCE: usize = 4;

/// A reader that accepts nothing for this long is considered gone.
const READER_WAIT_MAX: Duration = Duration::from_secs(60);

/// The size of a piece, and how many pieces wait for the reader.
const PIECE_LEN: usize = 64 * 1024;
const PIECES_LEN: usize = 4;

/// Maximum depth of directories, which the receiving side also enforces.
const DEPTH_MAX: usize = 120;

/// Maximum number of files and directories: a task that keeps creating them must not make the snapshot endless.
const NAMES_MAX: u64 = 4_000_000;

/// A part of the response.
enum Piece {
    Bytes(Bytes),
    /// The archive is complete.
    End,
}

impl Snapshots {
    /// For the node with this secret.
    pub fn new(paths: Paths, secret: Secret, closing: CancellationToken) -> Self {
        Self { paths, secret, closing, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Whether this is the migrate token of an allocation on this node.
    pub fn is_token(&self, id: &str, given: &Secret) -> bool {
        let Ok(given) = BASE64_URL_SAFE.decode(given.reveal()) else { return false };
        // Constant-time comparison.
        token(&self.secret, id).is_some_and(|token| token.verify_slice(&given).is_ok())
    }

    /// The disk of an allocation.
    pub async fn answer(&self, spec: &Allocation) -> Response {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let (sender, receiver) = mpsc::channel(PIECES_LEN);
        let group = spec.group().map(|group| &group.tasks).into_iter().flatten();
        let tasks: Vec<String> = group.map(|task| task.name.clone()).collect();
        let (id, alloc) = (spec.id, self.paths.alloc(&spec.id));
        let piped =
            Piped { sender, block: Vec::new(), handle: Handle::current(), closing: self.closing.clone() };
        // The writer ends when the reader does; nothing waits for it.
        drop(off_thread(move || {
            let _turn = turn;
            if let Err(error) = write(piped, id, &alloc, &tasks) {
                tracing::warn!(alloc = %id, %error, "a snapshot of a disk was aborted");
            }
        }));
        let pieces = stream::unfold(Some(receiver), |receiver| async move {
            let mut receiver = receiver?;
            match receiver.recv().await {
                Some(Piece::Bytes(bytes)) => Some((Ok(bytes), Some(receiver))),
                Some(Piece::End) => None,
                None => Some((Err(io::Error::other("the snapshot was aborted")), None)),
            }
        });
        ([(header::CONTENT_TYPE, "application/octet-stream")], Body::from_stream(pieces)).into_response()
    }
}

/// `None` if there is no secret, or it cannot be a key.
fn token(secret: &Secret, id: &str) -> Option<Blake2bMac512> {
    let secret = Some(secret.reveal()).filter(|secret| !secret.is_empty())?;
    Some(<Blake2bMac512 as Mac>::new_from_slice(secret.as_bytes()).ok()?.chain_update(id))
}

/// Passes pieces to the connection at its pace.
struct Piped {
    sender: mpsc::Sender<Piece>,
    block: Vec<u8>,
    handle: Handle,
    closing: CancellationToken,
}

impl Piped {
    fn send(&self, piece: Piece) -> io::Result<()> {
        let sent = async {
            tokio::select! {
                biased;
                () = self.closing.cancelled() => Err(io::Error::other("the agent is shutting down")),
                sent = timeout(READER_WAIT_MAX, self.sender.send(piece)) => match sent {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(_)) => Err(io::Error::other("its reader has disconnected")),
                    Err(_) => Err(io::Error::other(format!("its reader accepted nothing for {READER_WAIT_MAX:?}"))),
                },
            }
        };
        self.handle.block_on(sent)
    }
}

impl Write for Piped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.block.extend_from_slice(bytes);
        if self.block.len() >= PIECE_LEN {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        self.send(Piece::Bytes(block.into()))
    }
}

/// Why an archive is incomplete.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// Something cannot be read; the archive can report it.
    #[error(transparent)]
    Unread(#[from] FsError),
    /// The tree is too deep; the archive can report it.
    #[error("read {0}: it is nested too deeply")]
    Deep(PathBuf),
    /// There are too many names; the archive can report it.
    #[error("read {0}: the disk has more than {NAMES_MAX} files and directories")]
    Many(PathBuf),
    /// The archive cannot be continued.
    #[error("write the archive: {0}")]
    Cut(#[from] io::Error),
}

fn write(piped: Piped, id: AllocId, alloc: &Path, tasks: &[String]) -> Result<(), Trouble> {
    let mut archive = Archive { tar: tar::Builder::new(piped), names_left: NAMES_MAX };
    match archive.disk(alloc, tasks) {
        Ok(()) => {}
        Err(cut @ Trouble::Cut(_)) => return Err(cut),
        Err(trouble @ (Trouble::Unread(_) | Trouble::Deep(_) | Trouble::Many(_))) => {
            tracing::warn!(alloc = %id, error = %trouble, "failed to read a disk for a snapshot");
            let why = format!("failed to {trouble}");
            let mut header = header(tar::EntryType::Regular);
            header.set_mode(0o644);
            header.set_size(u64::try_from(why.len()).unwrap_or_default());
            archive.tar.append_data(&mut header, error_name(&id.to_string()), why.as_bytes())?;
        }
    }
    let mut piped = archive.tar.into_inner()?;
    piped.flush()?;
    Ok(piped.send(Piece::End)?)
}

/// A tar archive written while the disk is read.
struct Archive {
    tar: tar::Builder<Piped>,
    names_left: u64,
}

impl Archive {
    fn disk(&mut self, alloc: &Path, tasks: &[String]) -> Result<(), Trouble> {
        let (path, alloc) = (alloc, Dir::open(alloc)?);
        // Tasks may have replaced these directories by links.
        let data = alloc.open_below(&Path::new(SHARED).join(DATA), Crossing::Nothing)?;
        self.top(&data, &Path::new(SHARED).join(DATA))?;
        for task in tasks {
            match alloc.open_below(&Path::new(&*task_name_in(path, task)).join(LOCAL), Crossing::Nothing) {
                Ok(local) => self.top(&local, &Path::new(task).join(LOCAL))?,
                // The task has never started.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A top directory, which stock clients open to all users. Access here is controlled by an ACL, which the archive cannot hold; the
    /// receiving node sets its own.
    fn top(&mut self, dir: &Dir, path: &Path) -> Result<(), Trouble> {
        let mut header = about(tar::EntryType::Directory, &dir.stat()?);
        header.set_mode(0o777);
        self.tar.append_data(&mut header, path, io::empty())?;
        self.contents(dir, path)
    }

    fn tree(&mut self, dir: &Dir, path: &Path) -> Result<(), Trouble> {
        if path.components().count() > DEPTH_MAX {
            return Err(Trouble::Deep(path.to_owned()));
        }
        self.tar.append_data(&mut about(tar::EntryType::Directory, &dir.stat()?), path, io::empty())?;
        self.contents(dir, path)
    }

    fn contents(&mut self, dir: &Dir, path: &Path) -> Result<(), Trouble> {
        // One name at a time: a task may have created more names than fit into memory.
        let mut added = Ok(());
        dir.each_name_once(|name| {
            added = self.entry(dir, OsStr::from_bytes(name.to_bytes()), path);
            added.is_ok()
        })?;
        added
    }

    fn entry(&mut self, dir: &Dir, name: &OsStr, path: &Path) -> Result<(), Trouble> {
        self.names_left =
            self.names_left.checked_sub(1).ok_or_else(|| Trouble::Many(dir.path().to_owned()))?;
        // It may have been deleted or replaced in the meantime.
        let Some(stat) = dir.stat_name(name)? else { return Ok(()) };
        let path = path.join(name);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => match dir.open_below(Path::new(name), Crossing::Nothing) {
                Ok(below) => self.tree(&below, &path)?,
                Err(FsError::Mounted { .. }) => {}
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error.into()),
            },
            FileType::RegularFile => self.file(dir, name, &path)?,
            FileType::Symlink => {
                if let Some(target) = dir.read_link(name)? {
                    self.tar.append_link(&mut about(tar::EntryType::Symlink, &stat), &path, target)?;
                }
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        Ok(())
    }

    fn file(&mut self, dir: &Dir, name: &OsStr, path: &Path) -> Result<(), Trouble> {
        let Some(file) = dir.open_file(name)? else { return Ok(()) };
        let stat = rustix::fs::fstat(&file).map_err(|errno| FsError::io("examine", path, errno))?;
        let mut header = about(tar::EntryType::Regular, &stat);
        let left = u64::try_from(stat.st_size).unwrap_or_default();
        header.set_size(left);
        // Bytes appended in the meantime are left out; if the file was truncated, the archive cannot continue, not even with an error file.
        Ok(self.tar.append_data(&mut header, path, Exactly { file, left })?)
    }
}

fn header(kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header
}

fn about(kind: tar::EntryType, stat: &Stat) -> tar::Header {
    let mut header = header(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header
}

/// A reader of exactly `left` bytes of a file.
struct Exactly {
    file: std::fs::File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(buffer.get_mut(..len).unwrap_or_default())?;
        if read == 0 && len > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file was truncated"));
        }
        self.left = self.left.saturating_sub(u64::try_from(read).unwrap_or_default());
        Ok(read)
    }
}

#[cfg(test)]
pub(crate) mod tests;
