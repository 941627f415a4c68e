//! Unpacks archives in a separate process without other abilities: `herdlet unpack ORDER`.
//!
//! In: a downloaded file, an empty directory, limits. Out: the file's contents in that directory, or an error and a
//! directory in any state. The process gets the file as standard input and the directory as working directory, and no
//! path. Its standard error is a socket to us that carries the reason of a failure; when either side closes it or is
//! killed, the other side stops. So the waiting side can give up.
//!
//! - [`sandbox`]: the process gives up its rights before it reads.
//! - [`read`]: reads archives from start to end.
//! - [`tree`]: writes to the directory, and refuses what may not be created in it.

mod read;
mod sandbox;
mod tree;

use std::{
    ffi::OsString,
    fs::File,
    io::Write as _,
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    path::PathBuf,
    process::Stdio,
    time::Duration,
};

use herdlet_base::{artifact::format::Format, safe_fs::Dir};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio_util::sync::CancellationToken;

pub use self::sandbox::Barrier;
use self::{
    sandbox::Confinement,
    tree::{Bounds, Tree},
};

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
        let (ours, theirs) = tokio::net::UnixStream::pair().map_err(UnpackError::Start)?;
        let theirs = theirs.into_std().map_err(UnpackError::Start)?;
        theirs.set_nonblocking(false).map_err(UnpackError::Start)?;
        let order_text = serde_json::to_string(order).map_err(|error| UnpackError::Start(error.into()))?;
        let archive = read::rewound(archive).map_err(UnpackError::Start)?;
        let (program, arguments) = self.command.split_first().ok_or_else(|| {
            UnpackError::Start(std::io::Error::new(std::io::ErrorKind::NotFound, "there is no program"))
        })?;
        let mut child = tokio::process::Command::new(program)
            .args(arguments)
            .arg(order_text)
            .env_clear()
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(into.proc_path(".".as_ref()))
            .stdin(Stdio::from(archive))
            .stdout(Stdio::null())
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .map_err(UnpackError::Start)?;
        let limit = Duration::from_secs(order.seconds_max);
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
        let status = waited.map_err(UnpackError::Start)?;
        if status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&why).trim().to_owned();
        let by_signal = || match status.signal() {
            Some(signal) => format!("the unpacking process was killed by signal {signal}"),
            None => format!("the unpacking process ended with {status}"),
        };
        Err(UnpackError::Refused { why: if stderr.is_empty() { by_signal() } else { stderr } })
    }
}

/// The process itself. Returns its exit code; reasons for failure go to standard error.
pub fn execute(order: &str) -> u8 {
    match carry_out(order) {
        Ok(()) => 0,
        Err(why) => {
            // If the other side is closed, nobody needs the reason.
            let _ = std::io::stderr().write_all(why.as_bytes());
            1
        }
    }
}

fn carry_out(order: &str) -> Result<(), String> {
    let order: Order = serde_json::from_str(order).map_err(|error| format!("read the order: {error}"))?;
    let archive = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .map_err(|error| format!("open the file: {error}"))?;
    let confinement = Confinement {
        user: order.user.as_ref().map(|(uid, gid, groups)| (*uid, *gid, groups.as_slice())),
        file_bytes_max: order.bytes_max,
        cpu_seconds: order.seconds_max,
        gives_away: order.keep_owners,
    };
    let dir = sandbox::enter(&confinement).map_err(|error| error.to_string())?;
    let bounds = Bounds { bytes_max: order.bytes_max, entries_max: order.entries_max };
    let mut tree = Tree::new(dir, order.folder, bounds, order.keep_owners);
    read::unpack(archive, order.format, &order.name, bounds, &mut tree).map_err(|error| error.to_string())?;
    tree.finish().map_err(|error| error.to_string())
}
