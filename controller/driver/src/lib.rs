//! What every task driver can do: Nomad's whole driver contract (`plugins/drivers/driver.go`) as one object-safe trait.
//!
//! In: attempts, described by [`TaskConfig`]. Out: what became of them. A driver knows no planner, no policy and no
//! allocation beyond the id; whether something is to be done was decided elsewhere, here is only how.
//!
//! A driver finds an attempt by its id: its record, cgroup or container are named by functions of [`AttemptId`]. So a crash between a
//! start and the moment at which its result is stored loses nothing, and every call below is safe to repeat. Where a driver can't do that
//! (an external plugin), it hands out a [`Handle`]; an attempt whose handle was lost is destroyed by its id and counts as lost.
//!
//! - [`TaskDriver`]: the contract. `contract` in the fixtures is its test suite, which every driver passes.
//! - [`Ledger`]: how drivers keep an attempt from beginning twice, or after it was cancelled.
//! - [`Registry`]: the drivers of an agent, how each of them is, and what they report.
#![warn(missing_docs)]

mod config;
#[cfg(any(test, feature = "fixture"))]
pub mod contract;
mod error;
mod exec;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod ledger;
pub mod limits;
mod outlet;
mod registry;
mod stats;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use herdlet_api_types::task::ExitResult;

pub use config::{
    AttemptId, Device, Dns, HostEntry, KillDefaults, Mount, NetworkIsolation, Propagation, TaskConfig,
    TaskDirs, read_config,
};
pub use error::{BoxError, DriverError, lacks};
pub use exec::{
    EXEC_OUTPUT_LEN_MAX, ExecInput, ExecOutcome, ExecOutput, ExecRequest, ExecSession, TerminalSize,
    relay_frames, run_to_end,
};
pub use herdlet_api_types::driver::{
    Capabilities, DriverInfo, DriverNetwork, FailureClass, FsIsolation, Handle, MountSupport, Recovered,
};
pub use ledger::{Claim, Earlier, Ledger, recover_by};
pub use outlet::Outlet;
pub use registry::{DriverNews, Entries, Entry, Registry};
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

    /// The ends of main processes, each once for each instance of the driver that has started or recovered the attempt. One reader
    /// at a time; a later one goes on where the earlier one stopped.
    fn exits(&self) -> BoxStream<'static, Exited>;

    /// Names the attempts that an earlier agent may have begun, as the stored state says. An attempt that is not among them is this
    /// agent's own. Called once, before any attempt is recovered.
    fn set_earlier(&self, known: &BTreeSet<AttemptId>) {
        let _ = known;
    }

    /// Starts an attempt; done when its process runs. Starting an attempt that has already begun adopts it.
    fn start(&self, config: TaskConfig) -> BoxFuture<'_, DriverResult<Started>>;

    /// Finds out what became of an attempt and takes care of it again if it runs: what can be repaired without touching the task is.
    fn recover(&self, recovery: Recovery) -> BoxFuture<'_, DriverResult<Recovered>>;

    /// Asks the attempt to end, ends it by force after the grace, returns when nothing of it runs any more. Fences an
    /// attempt that never began. Stopping an ended or unknown attempt is no error.
    fn stop<'a>(&'a self, id: &'a AttemptId, how: StopRequest) -> BoxFuture<'a, DriverResult<()>>;

    /// Removes all that an ended attempt left. An attempt that still runs is an error unless `leftover` says to kill it;
    /// an unknown one is none.
    fn destroy<'a>(&'a self, id: &'a AttemptId, leftover: Leftover) -> BoxFuture<'a, DriverResult<()>>;

    /// The attempts of which this driver finds something on the machine, whoever started them.
    fn list_attempts(&self) -> BoxFuture<'_, DriverResult<Vec<AttemptId>>> {
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

    /// What else happens to attempts. One reader at a time; a later one goes on where the earlier one stopped.
    fn events(&self) -> BoxStream<'static, TaskEvent> {
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
        async move {
            let request = ExecRequest { command: command.to_vec(), terminal: None };
            run_to_end(self.exec_streaming(id, request).await?, timeout).await
        }
        .boxed()
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

/// The end of an attempt's main process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exited {
    /// Which attempt.
    pub id: AttemptId,
    /// How it ended.
    pub result: ExitResult,
}

/// Something happened to an attempt that is no end of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEvent {
    /// Something of it was taken away, or its driver has lost sight of it: it is to be recovered.
    Drift {
        /// Which attempt.
        id: AttemptId,
    },
    /// Something of it was not as it should be, and was put right without touching its processes.
    Repaired {
        /// Which attempt.
        id: AttemptId,
        /// What kind of thing, for instance `cgroup`.
        kind: &'static str,
        /// What was wrong, for instance `its cgroup was gone`.
        what: String,
    },
    /// A sentence for people.
    Message {
        /// Which attempt.
        id: AttemptId,
        /// The sentence.
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
