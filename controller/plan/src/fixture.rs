//! Small specifications and states for the tests of this crate.

use std_alloc::{
    borrow::ToOwned,
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, Duration, InstanceId, JobKey, UnixNanos,
    alloc::{Allocation, Desired},
    fixture,
    job::*,
    task::ExitResult,
};

use crate::{
    context::Settings,
    env::NodeFacts,
    job::{capacity::Room, cores::OfferedCores},
    state::{Run, TaskState},
    time::{BootId, Deadline, Now},
};

/// This number of seconds after the start of the tests' clock.
pub(crate) fn at(seconds: u64) -> Now {
    let boot_ns = seconds * 1_000_000_000;
    Now { boot: BootId(1), boot_ns, wall: UnixNanos(1_700_000_000_000_000_000 + boot_ns as i64) }
}

pub(crate) fn settings() -> Settings {
    Settings {
        instance: InstanceId("0123456789abcdef".to_owned()),
        max_kill_timeout: Duration::from_secs(30),
        dynamic_ports: 20_000..=32_000,
        host_ip: "127.0.0.1".to_owned(),
        host_networks: BTreeMap::new(),
        node: NodeFacts::default(),
        room: Room::ENDLESS,
        cores: OfferedCores::Unsupported { why: String::from("this is a test") },
        reserved_ports: BTreeSet::new(),
        start_offline: false,
    }
}

pub(crate) fn policy(attempts: u32, mode: RestartMode) -> RestartPolicy {
    RestartPolicy {
        attempts,
        interval: Duration::from_secs(60),
        delay: Duration::from_secs(10),
        mode,
        render_templates: false,
    }
}

pub(crate) fn task(name: &str, lifecycle: Lifecycle) -> Task {
    Task { lifecycle, restart: policy(2, RestartMode::Fail), ..fixture::task(name) }
}

pub(crate) fn service(name: &str) -> Service {
    fixture::service(name)
}

pub(crate) fn leader(mut task: Task) -> Task {
    task.leader = true;
    task
}

pub(crate) fn alloc(tasks: Vec<Task>) -> Arc<Allocation> {
    let job = fixture::job("j", JobType::Service, vec![fixture::group("g", 1, tasks)]);
    Arc::new(Allocation {
        id: AllocId::from_hash([7; 16]),
        job_key: JobKey { namespace: "default".into(), id: "j".into() },
        job_version: 0,
        job: Arc::new(job),
        group: "g".to_owned(),
        index: 0,
        ports: BTreeMap::new(),
        task_ports: BTreeMap::new(),
        task_cores: BTreeMap::new(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 1,
        create_time: UnixNanos(0),
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    })
}

pub(crate) fn pending() -> TaskState {
    TaskState::default()
}

pub(crate) fn running() -> TaskState {
    TaskState { run: Run::Running { attempt: 1, boot: BootId(1) }, attempt: 1, ..TaskState::default() }
}

pub(crate) fn dead() -> TaskState {
    TaskState { run: Run::Dead, attempt: 1, ..TaskState::default() }
}

pub(crate) fn failed() -> TaskState {
    TaskState { failed: true, ..dead() }
}

pub(crate) fn backing_off() -> TaskState {
    let until = Deadline::after(at(0), Duration::from_secs(10));
    TaskState { run: Run::BackingOff { until }, attempt: 1, ..TaskState::default() }
}

pub(crate) fn exit(code: i32) -> ExitResult {
    ExitResult { code, ..ExitResult::default() }
}
