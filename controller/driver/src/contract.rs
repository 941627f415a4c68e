//! Contract tests that every driver must pass.
//!
//! To run them for a driver, implement [`Machine`], which opens the driver and describes its tasks, and add one line:
//!
//! ```ignore
//! herdlet_driver::driver_contract!(#[tokio::test] Machines::of_this_kind());
//! ```
//!
//! Each test runs on each machine the expression yields. To simulate an agent crash, a test drops the driver and opens it again:
//! it must find everything by the attempt's id, and by the handle that its start returned, if that was stored.
#![expect(clippy::unwrap_used, clippy::panic, reason = "only tests see this")]

mod crashes;
mod life;
mod sessions;

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::BoxStream};
use herdlet_api_types::{AllocId, task::ExitResult};

use super::{
    AttemptId, Device, DriverResult, Exited, Mount, NetworkSpace, Recovered, Recovery, Started, StopRequest,
    TaskConfig, TaskDriver,
};

pub use crashes::{
    crash_between_any_two_calls, crash_of_a_fenced_attempt, crash_without_the_result_of_a_start,
};
pub use life::{
    destroy_leaves_nothing, ends_are_reported_once, failed_start_leaves_nothing, fence_before_start,
    preparation_is_cancelled_and_delays_no_start, recover_in_every_state, start_twice_runs_once,
    stop_with_and_without_grace,
};
pub use sessions::{
    commands_run_to_their_end, frames_in_and_out, inputs_are_in_the_task, signals_are_sent,
    usage_until_the_end,
};

/// A machine on which a driver runs. It outlives the driver, as a real machine outlives the agent.
pub trait Machine: Send + Sync {
    /// Opens the driver, as an agent does at its start. No other instance is open.
    fn open(&self) -> Arc<dyn TaskDriver>;

    /// Returns the config of an attempt with this behaviour.
    fn task(&self, attempt: u32, behaviour: Behaviour) -> TaskConfig;

    /// Waits until a started attempt is ready to behave as specified.
    fn prepared<'m>(&'m self, config: &'m TaskConfig) -> BoxFuture<'m, ()>;

    /// Returns a command with this behaviour for an attempt that [runs on](Behaviour::RunsOn).
    fn command(&self, command: Command) -> Vec<String>;

    /// How the driver finds an attempt that an earlier agent started.
    fn finds(&self) -> Finds;

    /// Returns inputs for an attempt that [runs on](Behaviour::RunsOn); none if its task can have none.
    fn inputs(&self) -> Option<Inputs> {
        None
    }

    /// Returns the config of an attempt whose preparation does not end by itself; none if the driver prepares nothing.
    fn slow_task(&self, attempt: u32) -> Option<TaskConfig> {
        let _ = attempt;
        None
    }
}

/// What a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// It runs until the stop signal ends it.
    RunsOn,
    /// It keeps running until SIGKILL.
    IgnoresSignals,
    /// It exits at once with this code.
    Ends(u8),
    /// It can't be started.
    FailsToStart,
}

/// What a command in a task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// It writes `out` and exits with code 4.
    Prints,
    /// It copies its input to its output and exits at the end of its input.
    Repeats,
}

/// Inputs that parts of the allocation provide for a task.
pub struct Inputs {
    /// Mounts in the task.
    pub mounts: Vec<Mount>,
    /// Devices in the task.
    pub devices: Vec<Device>,
    /// The network that it shares, if any.
    pub network: Option<NetworkSpace>,
    /// A command in the task that prints what is there of them.
    pub command: Vec<String>,
    /// What it prints.
    pub expected: String,
}

/// How a driver finds an attempt after an agent restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finds {
    /// By its id alone.
    ById,
    /// By the handle that its start returned: without it the attempt is destroyed and counts as lost.
    ByHandle,
}

/// Defines a test for each contract test, run on each of the machines.
#[macro_export]
macro_rules! driver_contract {
    (#[$test:meta] $machines:expr) => {
        $crate::driver_contract!(@ #[$test] $machines, preparation_is_cancelled_and_delays_no_start);
        $crate::driver_contract!(@ #[$test] $machines, start_twice_runs_once);
        $crate::driver_contract!(@ #[$test] $machines, recover_in_every_state);
        $crate::driver_contract!(@ #[$test] $machines, ends_are_reported_once);
        $crate::driver_contract!(@ #[$test] $machines, stop_with_and_without_grace);
        $crate::driver_contract!(@ #[$test] $machines, fence_before_start);
        $crate::driver_contract!(@ #[$test] $machines, failed_start_leaves_nothing);
        $crate::driver_contract!(@ #[$test] $machines, destroy_leaves_nothing);
        $crate::driver_contract!(@ #[$test] $machines, signals_are_sent);
        $crate::driver_contract!(@ #[$test] $machines, usage_until_the_end);
        $crate::driver_contract!(@ #[$test] $machines, commands_run_to_their_end);
        $crate::driver_contract!(@ #[$test] $machines, frames_in_and_out);
        $crate::driver_contract!(@ #[$test] $machines, inputs_are_in_the_task);
        $crate::driver_contract!(@ #[$test] $machines, crash_between_any_two_calls);
        $crate::driver_contract!(@ #[$test] $machines, crash_without_the_result_of_a_start);
        $crate::driver_contract!(@ #[$test] $machines, crash_of_a_fenced_attempt);
    };
    (@ #[$test:meta] $machines:expr, $name:ident) => {
        #[$test]
        async fn $name() {
            for machine in $machines {
                $crate::contract::$name(&machine).await;
            }
        }
    };
}

/// An agent and its driver.
struct Agent {
    driver: Arc<dyn TaskDriver>,
    exits: BoxStream<'static, Exited>,
}

impl Agent {
    fn start(machine: &dyn Machine) -> Self {
        let driver = machine.open();
        let exits = driver.exits();
        Self { driver, exits }
    }

    async fn run(&self, machine: &dyn Machine, config: &TaskConfig) -> Started {
        let started = self.driver.start(config.clone()).await.unwrap();
        machine.prepared(config).await;
        started
    }

    /// Recovers an attempt with all data an agent may have stored.
    async fn recover(&self, config: &TaskConfig, started: Option<&Started>) -> DriverResult<Recovered> {
        let (id, config) = (config.id.clone(), Some(config.clone()));
        let Started { handle, network } = started.cloned().unwrap_or_default();
        self.driver.recover(Recovery { id, config, handle, network }).await
    }

    async fn exit(&mut self) -> Exited {
        self.exits.next().await.unwrap()
    }

    async fn stop(&self, id: &AttemptId, grace: Duration) {
        self.driver.stop(id, StopRequest { signal: None, grace }).await.unwrap();
    }

    async fn found(&self) -> Vec<AttemptId> {
        self.driver.list_attempts().await.unwrap()
    }
}

/// An hour: no test waits for it.
const LONG: Duration = Duration::from_secs(3_600);

/// The id of this attempt of the task under test.
pub fn attempt_id(attempt: u32) -> AttemptId {
    AttemptId { alloc: AllocId::from_hash([7; 16]), task: "contract".into(), attempt }
}

/// The exit of an ended attempt.
fn exit_of(recovered: Recovered) -> ExitResult {
    match recovered {
        Recovered::Exited(exit) => exit,
        other @ (Recovered::NotStarted | Recovered::Running(_) | Recovered::Lost { .. }) => {
            panic!("{other:?}")
        }
    }
}

/// Asserts that the attempt never started or was removed completely. A ledger may keep its fence for a while.
fn assert_nothing_is_left(recovered: &Recovered) {
    assert!(matches!(recovered, Recovered::NotStarted | Recovered::Lost { .. }), "{recovered:?}");
}
