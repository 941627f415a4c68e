//! What every task driver can do: Nomad's whole driver contract (`plugins/drivers/driver.go`) as one object-safe trait.
//!
//! In: attempts, described by [`TaskConfig`]. Out: what became of them. A driver knows no planner, no policy and no
//! allocation beyond the id; whether something is to be done was decided elsewhere, here is only how.
//!
//! Where Nomad's drivers hand out a handle that must be stored after the start, ours find an attempt by its id: its
//! record, cgroup or container are named by functions of [`AttemptId`]. So a crash between start and storing loses
//! nothing, and every call below is safe to repeat.
#![warn(missing_docs)]

mod config;
mod error;
mod exec;
pub mod limits;
mod registry;
mod stats;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{AllocId, UnixNanos, task::ExitResult};

pub use config::{
    AttemptId, Device, Dns, KillDefaults, Mount, NetworkIsolation, Propagation, TaskConfig, TaskDirs,
    read_config,
};
pub use error::{BoxError, Class, DriverError, lacks};
pub use exec::{
    EXEC_OUTPUT_LEN_MAX, ExecInput, ExecOutcome, ExecOutput, ExecRequest, ExecSession, TerminalSize,
    relay_frames, run_to_end,
};
pub use herdlet_api_types::driver::{Capabilities, DriverInfo, FsIsolation, MountSupport};
pub use registry::{Entries, Entry, Registry};
pub use stats::{CpuUsage, MemoryUsage, Usage, follow_stats};

/// What a driver call gives back.
pub type DriverResult<T> = Result<T, DriverError>;

/// A task driver.
///
/// All calls may come concurrently; calls about one attempt come from one place, so at most one of start, stop, recover
/// and destroy is under way for it. A call is not cancelled by dropping its future where it changes something.
pub trait TaskDriver: Send + Sync + 'static {
    /// Its name, the schema of its tasks' config, what it can do. The same for as long as it lives.
    fn info(&self) -> Arc<DriverInfo>;

    /// Its health and attributes: the present state at once, then every change.
    fn fingerprint(&self) -> BoxStream<'static, Fingerprint>;

    /// Starts an attempt; done when its process runs. Starting an attempt that has already begun adopts it.
    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>>;

    /// Finds out what became of an attempt and takes care of it again if it runs, as [`TaskDriver::look`] does.
    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>>;

    /// Waits for the end of the attempt's main process. May be asked often and late: until `destroy` the answer stays.
    fn wait<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<ExitResult>>;

    /// Asks the attempt to end, ends it by force after the grace, returns when nothing of it runs any more. Fences an
    /// attempt that never began. Stopping an ended or unknown attempt is no error.
    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>>;

    /// Removes all that an ended attempt left. An attempt that still runs is an error unless `leftover` says to kill it;
    /// an unknown one is none.
    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>>;

    /// What is known of the attempt.
    fn inspect<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<TaskInfo>>;

    /// Compares a running attempt with what it should be and repairs what can be repaired without touching the task.
    fn look<'a>(&'a self, id: &'a AttemptId) -> BoxFuture<'a, DriverResult<Look>> {
        let _ = id;
        async { Ok(Look::Present) }.boxed()
    }

    /// The attempts of which this driver finds something on the machine, whoever started them.
    fn found(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// What the attempt uses, every `interval`. The stream ends with the attempt. Consume it through [`follow_stats`].
    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        let _ = (id, interval);
        unsupported("statistics")
    }

    /// Word about tasks, for their event lists.
    fn events(&self) -> BoxStream<'static, TaskNotice> {
        stream::pending().boxed()
    }

    /// Sends a signal to the main process, by name such as `SIGHUP`.
    fn signal<'a>(&'a self, id: &'a AttemptId, signal: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        let _ = (id, signal);
        unsupported("sending signals")
    }

    /// Runs a command in the attempt to its end and keeps the tail of its output; for checks, `prestop` and scripts.
    fn exec<'a>(
        &'a self,
        id: &'a AttemptId,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, DriverResult<ExecOutcome>> {
        let _ = (id, command, timeout);
        unsupported("executing commands")
    }

    /// Runs a command in the attempt with its streams at hand: the high-level form.
    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        let _ = (id, request);
        unsupported("executing commands")
    }

    /// The raw form of the same: frames in, frames out, returns after the exit was sent. A driver that passes frames on
    /// (a plugin) implements this one; for all others it is built on [`TaskDriver::exec_streaming`].
    fn exec_frames<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
        input: BoxStream<'static, ExecInput>,
        output: tokio::sync::mpsc::Sender<ExecOutput>,
    ) -> BoxFuture<'a, DriverResult<()>> {
        async move {
            let session = self.exec_streaming(id, request).await?;
            relay_frames(session, input, output).await
        }
        .boxed()
    }

    /// Makes the network that all tasks of an allocation share.
    fn create_network<'a>(
        &'a self,
        alloc: &'a AllocId,
        request: NetworkRequest,
    ) -> BoxFuture<'a, DriverResult<CreatedNetwork>> {
        let _ = (alloc, request);
        unsupported("creating networks")
    }

    /// Removes such a network.
    fn destroy_network<'a>(
        &'a self,
        alloc: &'a AllocId,
        network: NetworkIsolation,
    ) -> BoxFuture<'a, DriverResult<()>> {
        let _ = (alloc, network);
        unsupported("destroying networks")
    }
}

fn unsupported<'a, T: Send + 'a>(ability: &'static str) -> BoxFuture<'a, DriverResult<T>> {
    async move { Err(DriverError::Unsupported { ability }) }.boxed()
}

/// What a driver says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Whether it works.
    pub health: Health,
    /// Why, for people.
    pub description: String,
    /// Node attributes beside those of its [`DriverInfo`].
    pub attributes: BTreeMap<String, String>,
}

/// Whether a driver works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// What it needs isn't there.
    Undetected,
    /// What it needs is there and does not work.
    Unhealthy,
    /// It works.
    Healthy,
}

/// A started attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Started {
    /// What the driver wants to be given back to recover the attempt; none where the id is enough.
    pub handle: Option<Handle>,
    /// The address at which the task is reached, where the driver gave it one.
    pub network: Option<DriverNetwork>,
}

/// A driver's own note about an attempt.
#[derive(Clone, PartialEq, Eq)]
pub struct Handle {
    /// Version of the note's format, by the driver.
    pub version: u32,
    /// The note, opaque to everyone else.
    pub state: Vec<u8>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle {{ version: {}, {} bytes }}", self.version, self.state.len())
    }
}

/// A network that a driver gave to one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverNetwork {
    /// The task's address.
    pub ip: String,
    /// Services are registered with this address unless they say otherwise.
    pub auto_advertise: bool,
    /// Port in the task by port label.
    pub port_map: BTreeMap<String, u16>,
}

/// Which attempt to recover.
#[derive(Debug)]
pub struct Recovery {
    /// Which.
    pub id: AttemptId,
    /// How it was started, as far as it is still known. Without it commands can't be executed in the attempt.
    pub config: Option<TaskConfig>,
    /// What [`Started::handle`] was.
    pub handle: Option<Handle>,
    /// What [`Started::network`] was.
    pub network: Option<DriverNetwork>,
}

/// What became of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recovered {
    /// It never began; it is safe to start it.
    NotStarted,
    /// Its process lives; the driver takes care of it.
    Running,
    /// It ended.
    Exited(ExitResult),
    /// It is gone and nobody knows how it ended.
    Lost {
        /// Why.
        why: String,
    },
}

/// How to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRequest {
    /// Name of the signal that asks it to end; the driver's default where absent.
    pub signal: Option<String>,
    /// Time between that signal and SIGKILL.
    pub grace: Duration,
}

/// What to do with processes that still run when an attempt is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// A running main process is an error; what else is left is killed.
    MainMustBeGone,
    /// Everything is killed.
    Kill,
}

/// What is known of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskInfo {
    /// How far it is.
    pub state: RunState,
    /// When it started, 0 if not known.
    pub started_at: UnixNanos,
    /// How it ended.
    pub exit: Option<ExitResult>,
    /// For instance `pid` or `container_id`.
    pub attributes: BTreeMap<String, String>,
    /// See [`Started::network`].
    pub network: Option<DriverNetwork>,
}

/// Nomad's task states as a driver sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunState {
    /// Nothing is known.
    #[default]
    Unknown,
    /// Its main process lives.
    Running,
    /// Its main process ended.
    Exited,
}

/// What a look at a running attempt found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It is as it should be.
    Present,
    /// It was not, and was repaired without touching the task: drift.
    Repaired {
        /// What was wrong.
        what: String,
    },
    /// Its main process does not run.
    Absent,
}

/// Word from a driver about one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNotice {
    /// Which attempt.
    pub id: AttemptId,
    /// When.
    pub at: UnixNanos,
    /// A sentence for people.
    pub message: String,
    /// More, by name.
    pub annotations: BTreeMap<String, String>,
}

/// A network to make for an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkRequest {
    /// Host name within it.
    pub hostname: Option<String>,
    /// Name resolution within it.
    pub dns: Option<Dns>,
}

/// A network that a driver made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedNetwork {
    /// What tasks need to join it.
    pub network: NetworkIsolation,
    /// Whether this call made it, or it was there already.
    pub was: Creation,
}

/// Whether something was made or found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Creation {
    /// It was made.
    Made,
    /// It was there.
    Found,
}

/// Whether a driver is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It is.
    Enabled,
    /// The config turns it off.
    Disabled,
}
