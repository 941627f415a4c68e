//! Task attempts, through their task driver.

use std::sync::Arc;

use herdlet_api_types::{alloc::Allocation, driver::FsIsolation, job::Group};
use herdlet_base::observation;
use herdlet_driver::{
    self, AttemptId, Availability, Device, DriverError, DriverInfo, Entries, Entry, FailureClass,
    KillDefaults, Leftover, Mount, MountSupport, NetworkSpace, Preparation, Propagation, Recovered, Recovery,
    Started, StopRequest, TaskConfig, TaskDirs, TaskDriver,
};
use herdlet_plan::{
    action::{Action, MountSource, Outcome, Verb},
    facts::{self, Input},
    interpolate::interpolate_config,
    launch::Launch,
    op::{Part, Subject},
};

use herdlet_runtime::Permit;
use herdlet_storage::network_files;

use crate::executor::{
    Context, Control, Refusal, TaskVariables, WorkKind, Workload, csi_plugin, duration, fatal, places, retry,
    templates,
};

/// The planner's knowledge of an attempt.
pub struct AttemptContext {
    /// The facts it is started with.
    pub inputs: Vec<Input>,
    /// The volumes that its driver mounts, if the agent does not.
    pub mounts: Vec<MountSource>,
    /// Its launch record.
    pub launch: Option<Arc<Launch>>,
    pub(super) control: Control,
}

/// Whether an operation is the start of a task whose driver may have to fetch something first. It runs as a download, and takes a
/// permit of starts only once everything is there: a hanging registry delays no other start.
pub(super) fn is_prepared(context: &Context, action: &Action) -> bool {
    let (Verb::Start { .. }, Subject::Alloc(alloc, Part::Task(index, _))) = (&action.verb, &action.subject)
    else {
        return false;
    };
    let task = alloc.group().and_then(|group| group.tasks.get(usize::from(*index)));
    let entries = context.drivers.entries();
    task.and_then(|task| entries.get(&task.driver)).is_some_and(|entry| prepares(&entry.info))
}

fn prepares(driver: &DriverInfo) -> bool {
    driver.capabilities.preparation == Preparation::Fetches
}

/// Performs a verb on an attempt.
pub async fn perform(
    context: &Arc<Context>,
    workload: &Workload,
    verb: &Verb,
    known: &AttemptContext,
) -> Outcome {
    let Some(task) = workload.task() else { return fatal("find the task".to_owned()) };
    let attempt_id = |attempt: u32| AttemptId { alloc: workload.alloc.id, task: task.name.clone(), attempt };
    let driver = match driver_for(&context.drivers.entries(), &task.driver, verb) {
        Ok(driver) => driver,
        Err(refused) => return refused,
    };
    match verb {
        Verb::Start { attempt } => match prepared(context, workload, *attempt).await {
            Ok(config) => {
                let mut config = with_facts(config, driver.as_ref(), (known, &workload.alloc));
                config.mounts.extend(csi_plugin::mounts(context, workload, &driver.info()));
                match turn_to_start(driver.as_ref(), &config, &known.control, workload.alloc.job.priority)
                    .await
                {
                    Ok(_permit) => start(driver.as_ref(), config, &known.inputs).await,
                    Err(outcome) => outcome,
                }
            }
            Err(refusal) => refusal.into(),
        },
        Verb::Recover { attempt } => {
            // Without its config an attempt can still be watched and stopped, so an error here does not fail the recovery.
            let config = adopted(context, workload, *attempt).await.inspect_err(|refusal| {
                let why = &refusal.why;
                tracing::warn!(alloc = %workload.alloc.id, task = %task.name, why, "commands in this task are not possible until the agent's next start");
            });
            let launch = known.launch.as_ref().filter(|launch| launch.attempt == *attempt);
            let handle = launch.and_then(|launch| launch.handle.clone());
            let network = launch.and_then(|launch| launch.network.clone());
            recover(
                driver.as_ref(),
                Recovery { id: attempt_id(*attempt), config: config.ok(), handle, network },
            )
            .await
        }
        Verb::Stop { attempt, signal, grace } => {
            let how = StopRequest { signal: signal.clone(), grace: duration(*grace) };
            done(driver.stop(&attempt_id(*attempt), how).await)
        }
        Verb::Destroy { attempt } => done(driver.destroy(&attempt_id(*attempt), Leftover::Kill).await),
        Verb::Signal { attempt, signal } => done(driver.signal(&attempt_id(*attempt), signal).await),
        Verb::Prestop { attempt } => prestop(workload, driver.as_ref(), &attempt_id(*attempt)).await,
        Verb::Script { attempt, template } => {
            let id = attempt_id(*attempt);
            templates::script(context, workload, driver.as_ref(), (&id, *template)).await
        }
        Verb::Up | Verb::Down | Verb::Inspect | Verb::Ask | Verb::Withdraw => {
            fatal(format!("perform {verb:?}: processes do not support it"))
        }
    }
}

/// Prepares a start if its driver needs that, then waits for a permit of starts. The operation of any other start has one.
async fn turn_to_start(
    driver: &dyn TaskDriver,
    config: &TaskConfig,
    control: &Control,
    priority: u8,
) -> Result<Option<Permit>, Outcome> {
    let Control { cancel, permits } = control;
    if !prepares(&driver.info()) {
        return Ok(None);
    }
    driver.prepare(config, cancel).await.map_err(|error| start_failed(&error))?;
    let permit = cancel.run_until_cancelled(permits.acquire(WorkKind::Start, priority)).await;
    permit.map(Some).ok_or_else(|| retry("start it: it was withdrawn".to_owned()))
}

/// The driver that performs a verb, or why none does. Running tasks of a disabled driver are followed and stopped like any other.
fn driver_for(entries: &Entries, name: &str, verb: &Verb) -> Result<Arc<dyn TaskDriver>, Outcome> {
    let entry = entries.get(name);
    let Some(driver) = entry.and_then(Entry::attached) else {
        let why = entry.and_then(Entry::trouble).or_else(|| entries.away().get(name).cloned());
        return Err(match why {
            Some(why) => retry(format!("reach the driver \"{name}\": {why}")),
            None => fatal(format!("find the driver: there is no driver \"{name}\" on this node")),
        });
    };
    let is_disabled = entry.is_some_and(|entry| entry.availability == Availability::Disabled);
    if is_disabled && matches!(verb, Verb::Start { .. }) {
        return Err(fatal(format!(
            "start the task: the driver {name} is disabled on this agent; enable it with `drivers.{name}.enabled` in the config"
        )));
    }
    Ok(Arc::clone(driver))
}

/// The config to start an attempt with. Writes the payload before each start, so that it exists after a power cut too.
async fn prepared(context: &Arc<Context>, workload: &Workload, attempt: u32) -> Result<TaskConfig, Refusal> {
    places::payload(context, workload).await?;
    templates::note_start(context, workload).await?;
    config(context, workload, attempt, &templates::environment(context, workload).await?)
}

/// The config of an attempt that runs, for commands in it.
async fn adopted(context: &Arc<Context>, workload: &Workload, attempt: u32) -> Result<TaskConfig, Refusal> {
    config(context, workload, attempt, &templates::environment_of_attempt(context, workload).await?)
}

/// The config of an attempt for its driver, with everything interpolated.
fn config(
    context: &Context,
    workload: &Workload,
    attempt: u32,
    own: &TaskVariables,
) -> Result<TaskConfig, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let env = context.task_env(workload, own);
    let config = interpolate_config(&task.config, &env).map_err(|error| Refusal {
        class: observation::Class::Fatal,
        why: format!("parse config: {error}"),
    })?;
    let (alloc, node) = (&workload.alloc, context.node.get());
    let own_network = alloc.group().is_some_and(Group::has_own_network);
    let labels = [
        ("namespace", alloc.job_key.namespace.to_string()),
        ("job", alloc.job_key.id.to_string()),
        ("job_name", alloc.job.name.clone()),
        ("parent_job", alloc.job.parent_id().unwrap_or_default().to_owned()),
        ("group", alloc.group.clone()),
        ("node", node.name.clone()),
        ("node_id", node.id.clone()),
        ("instance", context.instance.0.clone()),
    ];
    Ok(TaskConfig {
        id: AttemptId { alloc: alloc.id, task: task.name.clone(), attempt },
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        env: env.variables().iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        config,
        user: task.user.clone(),
        users: places::writers(context, alloc),
        resources: alloc.resources_of(task),
        cores: alloc.task_cores.get(&task.name).map(|assigned| assigned.cores.clone()).unwrap_or_default(),
        dirs: TaskDirs {
            task: context.paths.task(&alloc.id, &task.name),
            shared: context.paths.shared(&alloc.id),
            logs: context.paths.logs(&alloc.id),
            log_name: context.paths.task_name(&alloc.id, &task.name).into_owned(),
        },
        logs: task.logs.clone(),
        kill: KillDefaults { signal: task.kill_signal.clone(), timeout: duration(task.kill_timeout) },
        mounts: Vec::new(),
        devices: Vec::new(),
        ports: alloc.ports.clone(),
        own_ports: alloc.task_ports.get(&task.name).cloned().unwrap_or_default(),
        network: own_network.then(|| NetworkSpace {
            path: context.paths.network(&alloc.id),
            hostname: context.networks.hostname(alloc),
        }),
    })
}

/// Adds the facts of earlier parts, if the driver accepts them. For other drivers, volumes are mounted in the task's directory.
fn with_facts(
    config: TaskConfig,
    driver: &dyn TaskDriver,
    (known, alloc): (&AttemptContext, &Allocation),
) -> TaskConfig {
    let info = driver.info();
    match info.capabilities.mounts {
        MountSupport::None => return config,
        MountSupport::All => {}
    }
    let facts = || known.inputs.iter().map(|input| &input.facts);
    let mount = |mount: &facts::Mount| Mount {
        host_path: mount.host_path.clone().into(),
        task_path: mount.task_path.clone().into(),
        readonly: mount.read_only,
        propagation: Propagation::Private,
    };
    let device = |device: &facts::Device| Device {
        host_path: device.host_path.clone().into(),
        task_path: device.task_path.clone().into(),
        permissions: device.permissions.clone(),
    };
    let volume = |source: &MountSource| Mount {
        host_path: source.path.clone().into(),
        task_path: source.destination.clone().into(),
        readonly: source.read_only,
        propagation: source.propagation.into(),
    };
    let volumes = known.mounts.iter().filter(|_| places::mounts_volumes(&info)).map(volume);
    let network =
        network_mounts(&config, alloc).filter(|_| info.capabilities.fs_isolation != FsIsolation::None);
    TaskConfig {
        mounts: network.chain(facts().flat_map(|facts| &facts.mounts).map(mount)).chain(volumes).collect(),
        devices: facts().flat_map(|facts| &facts.devices).map(device).collect(),
        ..config
    }
}

/// The files about the network that the task shares with its group.
fn network_mounts(config: &TaskConfig, alloc: &Allocation) -> impl Iterator<Item = Mount> {
    let places = config.dirs.task.parent().zip(alloc.group());
    let places = places.into_iter().flat_map(|(dir, group)| network_files::places(dir, group));
    places.map(|(host_path, task_path)| Mount {
        host_path,
        task_path,
        readonly: true,
        propagation: Propagation::Private,
    })
}

async fn start(driver: &dyn TaskDriver, config: TaskConfig, inputs: &[Input]) -> Outcome {
    let launch = Launch::with(config.id.attempt, inputs);
    match driver.start(config).await {
        Ok(Started { handle, network }) => Outcome::Started(Launch { handle, network, ..launch }),
        Err(error) => start_failed(&error),
    }
}

async fn recover(driver: &dyn TaskDriver, recovery: Recovery) -> Outcome {
    match driver.recover(recovery).await {
        Ok(recovered) => Outcome::Recovered(recovered),
        // It ran, and nobody saw its end.
        Err(error) if error.is_gone() => Outcome::Recovered(Recovered::Lost { why: error.why() }),
        Err(error) => Outcome::Failed { class: FailureClass::Retry, why: error.why() },
    }
}

async fn prestop(workload: &Workload, driver: &dyn TaskDriver, id: &AttemptId) -> Outcome {
    let Some(prestop) = workload.task().and_then(|task| task.prestop.as_ref()) else {
        return Outcome::Done(None);
    };
    let command: Vec<String> = std::iter::once(&prestop.command).chain(&prestop.args).cloned().collect();
    match driver.exec(id, &command, duration(prestop.timeout)).await {
        Ok(outcome) if outcome.exit.code == 0 => Outcome::Done(None),
        Ok(outcome) => {
            let output = outcome.excerpt().map(|lines| format!(": {lines}")).unwrap_or_default();
            fatal(format!("run {}: it ended with code {}{output}", prestop.command, outcome.exit.code))
        }
        Err(error) => match error.class() {
            FailureClass::Retry => Outcome::Failed { class: FailureClass::Retry, why: error.why() },
            FailureClass::Recoverable | FailureClass::Fatal | FailureClass::NoProgram => fatal(error.why()),
        },
    }
}

/// For an attempt that is gone, nothing is left to do.
fn done(result: Result<(), DriverError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done(None),
        Err(error) if error.is_gone() => Outcome::Done(None),
        Err(error) => match error.class() {
            FailureClass::Retry | FailureClass::Recoverable => {
                Outcome::Failed { class: FailureClass::Retry, why: error.why() }
            }
            FailureClass::Fatal | FailureClass::NoProgram => {
                Outcome::Failed { class: FailureClass::Fatal, why: error.why() }
            }
        },
    }
}

fn start_failed(error: &DriverError) -> Outcome {
    let class = if error.is_gone() { FailureClass::Recoverable } else { error.class() };
    Outcome::Failed { class, why: error.why() }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        num::NonZeroU32,
    };

    use futures_util::future::{Either, select};
    use herdlet_api_types::{
        AllocId,
        alloc::CoreSet,
        job::{LogMode, Logs, Resources},
    };
    use herdlet_runtime::{Limit, Permits};
    use tokio_util::sync::CancellationToken;

    use herdlet_driver::{Registry, fixture::StandIn};

    use super::*;

    /// The mock started tasks although the config disabled it.
    #[tokio::test]
    async fn disabled_driver_starts_nothing_but_stops() {
        let drivers = Registry::new();
        let stand_in: Arc<dyn TaskDriver> = Arc::new(StandIn::default());
        drivers.insert(Arc::clone(&stand_in), Availability::Disabled);
        let driver_of = |verb: Verb| driver_for(&drivers.entries(), "stand_in", &verb);
        let refused = driver_of(Verb::Start { attempt: 1 }).err();
        let Some(Outcome::Failed { class: FailureClass::Retry, why }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(why, "reach the driver \"stand_in\": its earlier tasks have not been listed yet");
        drivers.attach(&stand_in, &BTreeSet::new()).await.unwrap();
        let refused = driver_of(Verb::Start { attempt: 1 }).err();
        let Some(Outcome::Failed { class: FailureClass::Fatal, why }) = refused else {
            panic!("{refused:?}")
        };
        assert!(why.ends_with("enable it with `drivers.stand_in.enabled` in the config"), "{why}");
        assert!(
            driver_of(Verb::Recover { attempt: 1 }).is_ok()
                && driver_of(Verb::Destroy { attempt: 1 }).is_ok()
        );
    }

    /// A driver that no longer knows an attempt made the planner start it again.
    #[tokio::test]
    async fn missing_attempt_is_lost() {
        let driver = StandIn::default().with_recover(|id| Err(DriverError::Gone(id.clone())));
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt: 1 };
        let recovery = Recovery { id, config: None, handle: None, network: None };
        let outcome = recover(&driver, recovery).await;
        assert!(matches!(outcome, Outcome::Recovered(Recovered::Lost { .. })), "{outcome:?}");
    }

    /// Eight pulls from a hanging registry kept every other task from starting.
    #[tokio::test(start_paused = true)]
    async fn a_slow_preparation_holds_no_permit_of_starts() {
        let one = Limit { concurrent: NonZeroU32::MIN, rate: None };
        let permits = Permits::new(move |_| one);
        let driver = |name: &str| StandIn::new(DriverInfo { name: name.to_owned(), ..DriverInfo::mock() });
        let control = || Control { cancel: CancellationToken::new(), permits: permits.clone() };
        let (slow, quick) = (driver("slow").with_slow_preparation(), driver("quick"));
        let (first, second) = (control(), control());
        let config = task_config();
        let pull = std::pin::pin!(turn_to_start(&slow, &config, &first, 50));
        let start = std::pin::pin!(turn_to_start(&quick, &config, &second, 50));
        let Either::Right((Ok(Some(permit)), pull)) = select(pull, start).await else { panic!("it waits") };
        first.cancel.cancel();
        let Err(Outcome::Failed { class: FailureClass::Retry, why }) = pull.await else {
            panic!("it starts")
        };
        assert!(why.contains("withdrawn"), "{why}");
        // A start that waits for its permit is withdrawn too.
        let third = control();
        third.cancel.cancel();
        assert!(turn_to_start(&quick, &config, &third, 50).await.is_err());
        drop(permit);
    }

    fn task_config() -> TaskConfig {
        TaskConfig {
            id: AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt: 1 },
            labels: BTreeMap::new(),
            env: Vec::new(),
            config: serde_json::json!({}),
            user: None,
            users: Vec::new(),
            resources: Resources::default(),
            cores: CoreSet::default(),
            dirs: TaskDirs {
                task: "/t".into(),
                shared: "/t".into(),
                logs: "/t".into(),
                log_name: "t".into(),
            },
            logs: Logs { max_files: 1, max_file_size_mib: 1, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults::default(),
            mounts: Vec::new(),
            devices: Vec::new(),
            ports: BTreeMap::new(),
            own_ports: BTreeMap::new(),
            network: None,
        }
    }
}
