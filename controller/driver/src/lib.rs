//! The contract of task drivers: Nomad's driver interface (`plugins/drivers/driver.go`) as one object-safe trait.
//!
//! In: attempts, described by [`TaskConfig`]. Out: their results. A driver knows no planner and no policy, and of an allocation
//! only its id. It executes; the planner decides.
//!
//! A driver finds an attempt by its id: functions of [`AttemptId`] name its record, cgroup or container. So a crash between a
//! start and the moment its result is stored loses nothing, and every call below can be repeated safely. A driver that can't do
//! that (an external plugin) returns a [`Handle`]. If the handle of an attempt is lost, the attempt is destroyed by its id and
//! counts as lost.
//!
//! - [`TaskDriver`]: the contract. The fixture module `contract` is its test suite, which every driver passes.
//! - [`Ledger`]: how a driver prevents an attempt from starting twice, or after it was cancelled.
//! - [`Registry`]: the agent's drivers, their health and their reports.
#![warn(missing_docs)]

mod config;
#[cfg(any(test, feature = "fixture"))]
pub mod contract;
mod error;
mod exec;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod images;
mod ledger;
pub mod limits;
mod outlet;
mod registry;
mod stats;
pub mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::{AllocId, job::Task, task::ExitResult};
use tokio_util::sync::CancellationToken;

pub use config::{
    AttemptId, Device, KillDefaults, Mount, NetworkSpace, Propagation, TaskConfig, TaskDirs, read_config,
};
pub use error::{BoxError, DriverError, lacks};
pub use exec::{
    EXEC_OUTPUT_LEN_MAX, ExecInput, ExecOutcome, ExecOutput, ExecRequest, ExecSession, TerminalSize,
    relay_frames, run_to_end,
};
pub use herdlet_api_types::driver::{
    Capabilities, DriverInfo, DriverNetwork, FailureClass, FsIsolation, Handle, ImageUse, ImageView,
    MountSupport, Preparation, Recovered, Started,
};
pub use images::ImageStore;
pub use ledger::{Claim, Earlier, Ledger, recover_by};
pub use outlet::Outlet;
pub use registry::{DriverNews, Entries, Entry, Recorded, Registry};
pub use stats::{CpuUsage, MemoryUsage, Usage, follow_stats};

/// The result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A task driver.
///
/// Calls may be concurrent. One caller handles an attempt, so at most one of start, stop, recover and destroy runs for it at a
/// time. Dropping the future of a call that changes something does not cancel the call.
pub trait TaskDriver: Send + Sync + 'static {
    /// The driver's name, the schema of its tasks' config, and its capabilities. Constant for the lifetime of the driver.
    fn info(&self) -> Arc<DriverInfo>;

    /// The driver's health and attributes: the current state first, then every change.
    fn fingerprint(&self) -> BoxStream<'static, Fingerprint>;

    /// Exits of main processes. Each driver instance that started or recovered an attempt reports its exit once. One reader at a
    /// time; a later reader continues where the earlier one stopped. If the stream ends, the driver counts as away until a new
    /// stream is open.
    fn exits(&self) -> BoxStream<'static, Exited>;

    /// Sets the attempts that may have been started before this instance of the driver, according to the stored state. All others
    /// are its own. Called before any other call about an attempt.
    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        let _ = known;
    }

    /// Why each start of this task would be refused by the driver's options; none if it would not, or that is not known yet. Blocking:
    /// it may query name services.
    fn refusal(&self, task: &Task) -> Option<String> {
        let _ = task;
        None
    }

    /// Fetches what a start of this task needs and what may take long, such as an image. Called before each start, by the agent
    /// under its permits of downloads, if the driver's [`Preparation`] says so. [`start`](Self::start) holds one of the few
    /// permits of starts, and must not wait for a network. Repeating it is safe. Leaves nothing of the attempt itself. Ends soon,
    /// with an error, once `cancel` is cancelled.
    fn prepare<'a>(
        &'a self,
        config: &'a TaskConfig,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, DriverResult<()>> {
        let _ = (config, cancel);
        async { Ok(()) }.boxed()
    }

    /// Starts an attempt and returns when its process runs. If the attempt has already started, adopts it.
    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>>;

    /// Determines the state of an attempt and resumes supervising it if it runs. Repairs what can be repaired without touching
    /// the task. For a running attempt it returns what [`start`](Self::start) returned, even if the caller no longer knows it.
    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>>;

    /// Sends the stop signal, kills the attempt after the grace period, and returns when none of its processes runs. Fences an
    /// attempt that never started. Stopping an ended or unknown attempt is not an error.
    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>>;

    /// Removes everything an ended attempt left. Destroying a running attempt is an error unless `leftover` is
    /// [`Leftover::Kill`]; destroying an unknown attempt is not.
    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>>;

    /// Lists the attempts of which this driver finds traces on the machine, regardless of which agent started them.
    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// The images that its tasks use or have used; none for a driver without images. The names of allocations are left empty.
    fn images(&self) -> BoxFuture<'_, DriverResult<Vec<ImageView>>> {
        async { Ok(Vec::new()) }.boxed()
    }

    /// Its store of images, if it keeps images itself.
    fn image_store(&self) -> Option<Arc<dyn ImageStore>> {
        None
    }

    /// Measures the attempt's usage every `interval`. The stream ends with the attempt. Consume it through [`follow_stats`].
    fn stats<'a>(
        &'a self,
        id: &'a AttemptId,
        interval: Duration,
    ) -> BoxFuture<'a, DriverResult<BoxStream<'static, DriverResult<Usage>>>> {
        let _ = (id, interval);
        unsupported("statistics")
    }

    /// Other events of attempts. As with [`exits`](Self::exits), one reader at a time, and the driver is away if the stream ends.
    fn events(&self) -> BoxStream<'static, TaskEvent> {
        stream::pending().boxed()
    }

    /// Opens the root of a running task; none if it has no root of its own, or none of its processes runs. What is written to the
    /// task's directory behind a root is not seen in it.
    fn root<'a>(&'a self, alloc: AllocId, task: &'a str) -> BoxFuture<'a, DriverResult<Option<OwnedFd>>> {
        let _ = (alloc, task);
        async { Ok(None) }.boxed()
    }

    /// Sends a signal to the main process, by name such as `SIGHUP`.
    fn signal<'a>(&'a self, id: &'a AttemptId, signal: &'a str) -> BoxFuture<'a, DriverResult<()>> {
        let _ = (id, signal);
        unsupported("sending signals")
    }

    /// Runs a command in the attempt to completion and keeps the tail of its output; used by checks, `prestop` and scripts.
    fn exec<'a>(
        &'a self,
        id: &'a AttemptId,
        command: &'a [String],
        timeout: Duration,
    ) -> BoxFuture<'a, DriverResult<ExecOutcome>> {
        async move {
            let request = ExecRequest { command: command.to_vec(), terminal: None };
            run_to_end(self.exec_streaming(id, request).await?, timeout).await
        }
        .boxed()
    }

    /// Runs a command in the attempt and returns its streams: the high-level form.
    fn exec_streaming<'a>(
        &'a self,
        id: &'a AttemptId,
        request: ExecRequest,
    ) -> BoxFuture<'a, DriverResult<ExecSession>> {
        let _ = (id, request);
        unsupported("executing commands")
    }

    /// The raw form of [`TaskDriver::exec_streaming`]: takes and sends frames, returns after the exit frame was sent. A driver
    /// that forwards frames (a plugin) implements this method; for others the default builds on `exec_streaming`.
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
}

fn unsupported<'a, T: Send + 'a>(ability: &'static str) -> BoxFuture<'a, DriverResult<T>> {
    async move { Err(DriverError::Unsupported { ability }) }.boxed()
}

/// A driver's report about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    /// Whether it works.
    pub health: Health,
    /// The reason, for people.
    pub description: String,
    /// Node attributes in addition to those of the [`DriverInfo`].
    pub attributes: BTreeMap<String, String>,
}

/// Whether a driver works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Its prerequisites are missing.
    Undetected,
    /// Its prerequisites are present, but it does not work.
    Unhealthy,
    /// It works.
    Healthy,
}

/// Which attempt to recover.
#[derive(Debug)]
pub struct Recovery {
    /// Its id.
    pub id: AttemptId,
    /// The config it was started with, if still known. Without it, commands can't be executed in the attempt.
    pub config: Option<TaskConfig>,
    /// The value of [`Started::handle`].
    pub handle: Option<Handle>,
    /// The value of [`Started::network`].
    pub network: Option<DriverNetwork>,
}

/// How to stop an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRequest {
    /// Name of the stop signal; the driver's default if absent.
    pub signal: Option<String>,
    /// Time between that signal and SIGKILL.
    pub grace: Duration,
}

/// What to do with processes that still run when an attempt is destroyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leftover {
    /// A running main process is an error; other processes are killed.
    MainMustBeGone,
    /// All processes are killed.
    Kill,
}

/// The end of an attempt's main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// Its id.
    pub id: AttemptId,
    /// How it ended.
    pub result: ExitResult,
}

/// An event of an attempt other than its exit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// Part of the attempt was removed, or the driver lost track of it: the attempt must be recovered.
    Drift {
        /// The attempt.
        id: AttemptId,
    },
    /// Part of the attempt was wrong, and was repaired without touching its processes.
    Repaired {
        /// The attempt.
        id: AttemptId,
        /// The kind of object, for instance `cgroup`.
        kind: &'static str,
        /// What was wrong, for instance `its cgroup was gone`.
        what: String,
    },
    /// How far the preparation of an attempt is: something that changes often and is kept nowhere, unlike a message.
    Progress {
        /// The attempt.
        id: AttemptId,
        /// What is being done, for instance `pulling image redis:7`; empty when it is over.
        what: String,
    },
    /// A message for people.
    Message {
        /// The attempt.
        id: AttemptId,
        /// The text.
        message: String,
    },
}

/// Whether a driver is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Availability {
    /// It is.
    Enabled,
    /// The config turns it off.
    Disabled,
}
