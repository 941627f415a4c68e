//! Unpacks archives in a separate process without other abilities: `herdlet unpack ORDER`.
//!
//! In: a downloaded file, an empty directory, limits. Out: the file's contents in that directory, or an error and a
//! directory in any state. The process gets the file as standard input and the directory as working directory, and no
//! path. Its standard error is a socket to us that carries the reason of a failure; when either side closes it or is
//! killed, the other side stops. So the waiting side can give up.
//!
//! - [`sandbox`]: the process gives up its rights before it reads.
//! - [`read`]: reads archives from start to end. [`tape`]: tars.
//! - [`tree`]: writes to the directory, and refuses what may not be created in it. [`names`]: paths in archives.
//! - [`layer`]: layers of images. [`marks`]: what they remove from the layers below, which the agent marks.

mod error;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod layer;
mod marks;
mod names;
mod read;
mod sandbox;
mod tape;
mod tree;

use std::{
    ffi::OsString,
    fs::File,
    io::Write as _,
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use herdlet_base::{
    artifact::format::{Codec, Format},
    safe_fs::{Crossing, Dir, FsError},
};
use rustix::{fs::Mode, process::Signal};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

use self::{
    error::TreeError,
    sandbox::{Confinement, Giving},
    tree::{Bounds, Keeping, Tree},
};
pub use self::{marks::LayerReport, sandbox::Barrier};

/// What to unpack, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub format: Format,
    /// The name of the only file, for formats without names.
    pub name: String,
    /// The requested folder; empty for everything.
    pub folder: PathBuf,
    /// The total size of all files.
    pub bytes_max: u64,
    /// The number of files, directories and links.
    pub entries_max: u64,
    /// User, group and all groups of the process; the current ones if absent.
    pub user: Option<(u32, u32, Vec<u32>)>,
    /// The time limit in whole seconds.
    pub seconds_max: u64,
    /// As root, files get the owners in the archive, because it comes from another node.
    #[serde(default)]
    pub keep_owners: bool,
}

/// A layer to unpack, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LayerOrder {
    pub codec: Codec,
    /// That of the digest to compute.
    pub algorithm: Algorithm,
    /// The total size of all files.
    pub bytes_max: u64,
    /// The number of files, directories, links and marks.
    pub entries_max: u64,
    /// The time limit in whole seconds.
    pub seconds_max: u64,
}

/// An algorithm of digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

/// What the process gets.
#[derive(Serialize, Deserialize)]
enum Work<O, L> {
    Files(O),
    Layer(L),
}

type WorkRef<'o> = Work<&'o Order, &'o LayerOrder>;

/// The unpacking program: this one, except in tests.
#[derive(Debug, Clone)]
pub struct Unpacker {
    /// Its path, and the arguments before the order.
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}

/// Errors of unpacking.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The process can't be started.
    #[error("start the unpacking process: {0}")]
    Start(#[source] std::io::Error),
    /// The archive is refused, or not in the expected format.
    #[error("unpack it: {why}")]
    Refused { why: String },
    #[error("unpack it: it took longer than {} s", limit.as_secs())]
    Slow {
        /// The time limit.
        limit: Duration,
    },
    /// Unpacking was cancelled.
    #[error("unpack it: it was cancelled")]
    Cancelled,
    /// It has more bytes than the order allows.
    #[error("unpack it: {why}")]
    TooLarge { why: String },
    /// The disk or the quota is used up.
    #[error("unpack it: {why}")]
    Full { why: String },
    /// The machine has failed, not the archive: another try may help.
    #[error("unpack it: {why}; this is a fault of the machine, not of the archive")]
    Fault { why: String },
    /// A file of the agent or its disk is at fault.
    #[error("unpack it: {0}")]
    Fs(#[source] FsError),
}

impl Unpacker {
    /// The test with this name in the running test program, which carries out the order.
    #[cfg(any(test, feature = "fixture"))]
    #[expect(clippy::unwrap_used, reason = "only tests see this")]
    pub fn of_test(name: &str) -> Self {
        let command = std::iter::once(std::env::current_exe().unwrap().into());
        let command = command.chain(["--exact", name, "--nocapture"].map(OsString::from));
        Self { command: command.collect(), env: Vec::new() }
    }
}

impl Default for Unpacker {
    fn default() -> Self {
        // This path is the running program, even if its file has been replaced since.
        Self { command: vec!["/proc/self/exe".into(), "unpack".into()], env: Vec::new() }
    }
}

/// The maximum length of an error from the process.
const WHY_BYTES_MAX: u64 = 4096;

/// After the socket is closed, the process ends with its next chunk, unless its disk hangs.
const END_MAX: Duration = Duration::from_secs(10);

/// The exit codes of the process.
const REFUSED_CODE: u8 = 1;
const FULL_CODE: u8 = 2;
const TOO_LARGE_CODE: u8 = 3;
const FAULT_CODE: u8 = 4;

impl Unpacker {
    /// Unpacks `archive` into `into`. Nothing is written there after this returns.
    ///
    /// # Errors
    /// [`UnpackError`].
    pub async fn unpack(
        &self,
        archive: File,
        into: &Dir,
        order: &Order,
        cancelled: &CancellationToken,
    ) -> Result<(), UnpackError> {
        let limit = Duration::from_secs(order.seconds_max);
        self.run(archive, into, Job { work: Work::Files(order), limit }, cancelled).await
    }

    /// Unpacks the layer `archive` to `tree` in `into`, except what [`finish_layer`] completes. Nothing is written there after this
    /// returns.
    ///
    /// # Errors
    /// [`UnpackError`].
    pub async fn unpack_layer(
        &self,
        archive: File,
        into: &Dir,
        order: &LayerOrder,
        cancelled: &CancellationToken,
    ) -> Result<(), UnpackError> {
        let limit = Duration::from_secs(order.seconds_max);
        self.run(archive, into, Job { work: Work::Layer(order), limit }, cancelled).await
    }

    async fn run(
        &self,
        archive: File,
        into: &Dir,
        job: Job<'_>,
        cancelled: &CancellationToken,
    ) -> Result<(), UnpackError> {
        let (ours, theirs) = tokio::net::UnixStream::pair().map_err(UnpackError::Start)?;
        let mut child = self.spawn(archive, into, &job.work, theirs)?;
        let limit = job.limit;
        let mut why = Vec::new();
        let mut pipe = ours.take(WHY_BYTES_MAX);
        let ended = tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(UnpackError::Cancelled),
            () = tokio::time::sleep(limit) => Err(UnpackError::Slow { limit }),
            // The socket is closed when the process ends.
            _ = pipe.read_to_end(&mut why) => Ok(()),
        };
        drop(pipe);
        let waited = match tokio::time::timeout(END_MAX, child.wait()).await {
            Ok(waited) => waited,
            Err(_) => {
                // Its disk hangs, or it is stopped: the directory is in use until the process has ended.
                let _ = child.start_kill();
                child.wait().await
            }
        };
        ended?;
        result(waited.map_err(UnpackError::Start)?, &why)
    }

    fn spawn(
        &self,
        archive: File,
        into: &Dir,
        work: &WorkRef<'_>,
        stderr: tokio::net::UnixStream,
    ) -> Result<tokio::process::Child, UnpackError> {
        let stderr = stderr.into_std().map_err(UnpackError::Start)?;
        stderr.set_nonblocking(false).map_err(UnpackError::Start)?;
        let order = serde_json::to_string(work).map_err(|error| UnpackError::Start(error.into()))?;
        let archive = read::rewound(archive).map_err(UnpackError::Start)?;
        let (program, arguments) = self.command.split_first().ok_or_else(|| {
            UnpackError::Start(std::io::Error::new(std::io::ErrorKind::NotFound, "there is no program"))
        })?;
        tokio::process::Command::new(program)
            .args(arguments)
            .arg(order)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(into.proc_path(".".as_ref()))
            .stdin(Stdio::from(archive))
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(stderr)))
            .process_group(0)
            .spawn()
            .map_err(UnpackError::Start)
    }
}

/// The work of one process.
struct Job<'o> {
    work: WorkRef<'o>,
    limit: Duration,
}

fn result(status: ExitStatus, why: &[u8]) -> Result<(), UnpackError> {
    if status.success() {
        return Ok(());
    }
    if let Some(signal) = status.signal() {
        return Err(killed(signal));
    }
    let why = match String::from_utf8_lossy(why).trim() {
        "" => format!("the unpacking process ended with {status}"),
        why => why.to_owned(),
    };
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(FULL_CODE) => Err(UnpackError::Full { why }),
        Some(TOO_LARGE_CODE) => Err(UnpackError::TooLarge { why }),
        Some(FAULT_CODE) => Err(UnpackError::Fault { why }),
        Some(_) | None => Err(UnpackError::Refused { why }),
    }
}

/// Why a process was killed. The kernel sends SIGKILL without memory, and people and services send these signals. The others
/// are answers to what the process did with the archive: its limits, its filter of system calls, a crash.
fn killed(signal: i32) -> UnpackError {
    let why = format!("the unpacking process was killed by signal {signal}");
    let of_machine = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::BUS];
    match of_machine.iter().any(|known| known.as_raw() == signal) {
        true if signal == Signal::KILL.as_raw() => {
            UnpackError::Fault { why: format!("{why}, which the kernel sends if memory runs out") }
        }
        true => UnpackError::Fault { why },
        false => UnpackError::Refused { why },
    }
}

/// Completes the layer that [`Unpacker::unpack_layer`] has unpacked to `into`, and returns its tree: makes the marks for which the
/// process has no rights. Nothing is on disk for certain yet. Blocks.
///
/// # Errors
/// [`UnpackError`].
pub fn finish_layer(into: &Dir) -> Result<(Dir, LayerReport), UnpackError> {
    let finished = || {
        let tree = into.open_below(layer::TREE.as_ref(), Crossing::Nothing)?;
        let report = marks::make_all(into, &tree)?;
        Ok((tree, report))
    };
    finished().map_err(|error: TreeError| {
        let why = error.to_string();
        match error {
            _ if error.is_full() => UnpackError::Full { why },
            _ if error.is_fault() => UnpackError::Fault { why },
            TreeError::Fs(error) => UnpackError::Fs(error),
            TreeError::Outside { .. }
            | TreeError::LinkOutside { .. }
            | TreeError::Kind { .. }
            | TreeError::Entries { .. }
            | TreeError::Bytes { .. }
            | TreeError::Depth { .. }
            | TreeError::Marks { .. }
            | TreeError::Abandoned
            | TreeError::Read(_) => UnpackError::Refused { why },
        }
    })
}

/// The process itself. Returns its exit code; reasons for failure go to standard error.
pub fn execute(order: &str) -> u8 {
    match carry_out(order) {
        Ok(()) => 0,
        Err((code, why)) => {
            // If the other side is closed, nobody needs the reason.
            let _ = std::io::stderr().write_all(why.as_bytes());
            code
        }
    }
}

fn carry_out(work: &str) -> Result<(), (u8, String)> {
    let refused = |why: String| (REFUSED_CODE, why);
    let work: Work<Order, LayerOrder> =
        serde_json::from_str(work).map_err(|error| refused(format!("read the order: {error}")))?;
    let fault = |why: String| (FAULT_CODE, why);
    let archive = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|error| fault(format!("open the file: {error}")))?;
    if let Work::Layer(_) = &work {
        // Directories that a layer only implies are open to users of containers, whatever the agent's umask.
        rustix::process::umask(Mode::from_raw_mode(0o022));
    }
    let dir = sandbox::enter(&confinement(&work)).map_err(|error| fault(error.to_string()))?;
    let unpacked = match work {
        Work::Files(order) => unpack_files(archive, order, dir),
        Work::Layer(order) => layer::unpack(archive, &order, &dir),
    };
    unpacked.map_err(|error| {
        let code = if matches!(error, TreeError::Bytes { .. }) {
            TOO_LARGE_CODE
        } else if error.is_full() {
            FULL_CODE
        } else if error.is_fault() {
            FAULT_CODE
        } else {
            REFUSED_CODE
        };
        (code, error.to_string())
    })
}

fn confinement(work: &Work<Order, LayerOrder>) -> Confinement<'_> {
    match work {
        Work::Files(order) => Confinement {
            user: order.user.as_ref().map(|(uid, gid, groups)| (*uid, *gid, groups.as_slice())),
            file_bytes_max: order.bytes_max,
            cpu_seconds: order.seconds_max,
            giving: if order.keep_owners { Giving::Owners } else { Giving::Nothing },
        },
        Work::Layer(order) => Confinement {
            user: None,
            // The list of marks has its own limit.
            file_bytes_max: order.bytes_max.saturating_add(marks::LIST_BYTES_MAX),
            cpu_seconds: order.seconds_max,
            giving: Giving::Everything,
        },
    }
}

fn unpack_files(archive: File, order: Order, dir: Dir) -> Result<(), TreeError> {
    let bounds = Bounds { bytes_max: order.bytes_max, entries_max: order.entries_max };
    let keeping = if order.keep_owners { Keeping::Owners } else { Keeping::Contents };
    let mut tree = Tree::new(dir, order.folder, bounds, keeping);
    read::unpack(archive, order.format, &order.name, bounds, &mut tree)?;
    tree.finish()
}

#[cfg(test)]
mod tests;
