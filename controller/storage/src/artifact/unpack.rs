//! Unpacking, by a process of its own that can do nothing else: `herdlet unpack ORDER`.
//!
//! In: a file that was fetched, an empty directory, bounds. Out: what the file holds in that directory, or an error and anything there.
//! The process gets the file as its standard input and the directory as its working directory, and no path. Its standard error is a
//! socket to us: on it come the reasons why not, and once it hangs up the other side ends. So a process that is killed on either side ends
//! both, and whoever waits can give up.
//!
//! - [`sandbox`]: what that process gives up before it reads.
//! - [`read`]: archives, from beginning to end.
//! - [`tree`]: the directory, and what may not be made in it.

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

/// What is to be unpacked, and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// What the file is.
    pub format: Format,
    /// Name of the one file in it, where the format has no names.
    pub name: String,
    /// The folder of it that is wanted; empty for all of it.
    pub folder: PathBuf,
    /// Bytes of all files.
    pub bytes_max: u64,
    /// Files, directories and links.
    pub entries_max: u64,
    /// User, group and all groups to do it as; as who we are where absent.
    pub user: Option<(u32, u32, Vec<u32>)>,
    /// How long it may take, in whole seconds.
    pub seconds_max: u64,
    /// What is unpacked belongs to whom the archive says, where we are root: it comes from one of our kind.
    #[serde(default)]
    pub keep_owners: bool,
}

/// The program that unpacks: this one, unless a test says otherwise.
#[derive(Debug, Clone)]
pub struct Unpacker {
    /// Its path, and arguments before the order.
    pub command: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
}

/// Why something was not unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// No process could be made.
    #[error("start the process that unpacks: {0}")]
    Start(#[source] std::io::Error),
    /// It was refused, or is not what it was taken for.
    #[error("unpack it: {why}")]
    Refused { why: String },
    /// It takes too long.
    #[error("unpack it within {} s", limit.as_secs())]
    Slow {
        /// How long it may take.
        limit: Duration,
    },
    /// Nobody wants it any more.
    #[error("unpack it: it was taken back")]
    Cancelled,
}

impl Unpacker {
    /// The test of this name in the running test program, which executes what it is ordered.
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
        // By this name it is this very program, also where the file has been replaced since.
        Self { command: vec!["/proc/self/exe".into(), "unpack".into()], env: Vec::new() }
    }
}

/// What is heard of a process that refuses.
const WHY_BYTES_MAX: u64 = 4096;

/// A process that is hung up on ends with its next chunk, unless its disk hangs.
const END_MAX: Duration = Duration::from_secs(10);

impl Unpacker {
    /// Unpacks `archive` into `into`. When this returns, nobody writes there any more.
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
        let mut said = ours.take(WHY_BYTES_MAX);
        let ended = tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(UnpackError::Cancelled),
            () = tokio::time::sleep(limit) => Err(UnpackError::Slow { limit }),
            // It is closed by its end.
            _ = said.read_to_end(&mut why) => Ok(()),
        };
        drop(said);
        let waited = match tokio::time::timeout(END_MAX, child.wait()).await {
            Ok(waited) => waited,
            Err(_) => {
                // Its disk hangs, or it is stopped: until it has ended its directory can't be given up.
                let _ = child.start_kill();
                child.wait().await
            }
        };
        ended?;
        let status = waited.map_err(UnpackError::Start)?;
        if status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&why).trim().to_owned();
        let by_signal = || match status.signal() {
            Some(signal) => format!("the process that unpacks was ended by signal {signal}"),
            None => format!("the process that unpacks {status}"),
        };
        Err(UnpackError::Refused { why: if said.is_empty() { by_signal() } else { said } })
    }
}

/// The process itself. The answer is its exit code; why not, it says on standard error.
pub fn execute(order: &str) -> u8 {
    match carry_out(order) {
        Ok(()) => 0,
        Err(why) => {
            // Whoever has hung up needs no reason.
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
