//! Views for tests: the read model of small jobs, without a planner.

#![expect(clippy::unwrap_used, reason = "only tests and fuzzing see this")]

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::{
    AllocId, UnixNanos,
    alloc::{Allocation, AssignedPort, ClientStatus, Desired},
    job::{Job, Provider},
    service::Registration,
    task::{TaskEvent, TaskEventKind, TaskPhase, TaskStatus},
    view::{AllocView, Convergence, ConvergenceState, JobView, TaskView},
};

use crate::manifests::{self, Drivers};

/// 2026-01-02T03:04:05Z.
pub const THEN: UnixNanos = UnixNanos(1_767_323_045_000_000_000);

const MANIFEST: &str = "
apiVersion: herdlet/v1
kind: Job
metadata: {name: x}
spec:
  type: service
  groups:
    - name: g
      network: {ports: {http: {static: 8080}}}
      tasks:
        - {name: t, driver: mock, config: {}, resources: {cpu: 100, memory: 64}}
";

/// A service job with one group of one task and a port.
pub fn job(id: &str, group: &str, task: &str) -> Arc<Job> {
    let mut job =
        manifests::parse("t", MANIFEST.as_bytes(), &Drivers::built_in()).unwrap().jobs.remove(0).object;
    (job.id, job.name) = (id.to_owned(), id.to_owned());
    job.groups[0].name = group.to_owned();
    job.groups[0].tasks[0].name = task.to_owned();
    Arc::new(job)
}

/// A converged view of the job.
pub fn job_view(job: &Arc<Job>, version: u64) -> JobView {
    JobView {
        key: job.key(),
        version,
        job: Arc::clone(job),
        deleting: false,
        create_index: 3,
        modify_index: 5,
        submit_time: THEN,
        allocs: Vec::new(),
        convergence: converged(),
        quarantined: false,
        deployments: Vec::new(),
        unplaced: Default::default(),
        next_launch: None,
        tag: None,
        past: Vec::new(),
        scaled: Arc::default(),
        placed: false,
        held: None,
    }
}

/// An allocation of the job's first group, running its first task in its first attempt.
pub fn alloc_view(job: &Arc<Job>, index: u32, seed: u8) -> AllocView {
    let group = &job.groups[0];
    let port = AssignedPort { host_ip: "127.0.0.1".to_owned(), value: 8080, to: 0 };
    let spec = Allocation {
        id: AllocId::from_hash([seed; 16]),
        job_key: job.key(),
        job_version: 0,
        job: Arc::clone(job),
        group: group.name.clone(),
        index,
        ports: BTreeMap::from([("http".to_owned(), port)]),
        task_ports: BTreeMap::new(),
        task_cores: BTreeMap::new(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: u64::from(seed),
        create_time: THEN,
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    };
    let event = TaskEvent {
        kind: TaskEventKind::Started,
        time: THEN,
        message: "Task started by client".to_owned(),
        details: BTreeMap::new(),
    };
    let tasks = group.tasks.iter().map(|task| TaskView {
        name: task.name.as_str().into(),
        state: TaskStatus::Running,
        phase: TaskPhase::Running,
        attempt: 1,
        failed: false,
        restarts: 0,
        last_restart: UnixNanos(0),
        started_at: THEN,
        finished_at: UnixNanos(0),
        exit: None,
        events: [event.clone()].into_iter().collect(),
    });
    AllocView {
        tasks: tasks.collect(),
        spec: Arc::new(spec),
        status: ClientStatus::Running,
        description: "Tasks are running".into(),
        checks: Vec::new(),
        healthy: Some(true),
        verdict: Some(true),
        verdict_at: THEN,
        reschedule_at: None,
        collected: false,
        no_shutdown_delay: false,
        network: None,
        quarantined: false,
        modify_index: 5,
        modify_time: THEN,
        convergence: converged(),
    }
}

/// A service of the allocation in the built-in catalogue, without checks.
pub fn registration(view: &AllocView, name: &str, id: &str) -> Registration {
    Registration {
        id: id.to_owned(),
        provider: Provider::Nomad,
        name: name.to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 8080,
        tags: vec!["a".to_owned()],
        meta: BTreeMap::new(),
        enable_tag_override: false,
        tagged_addresses: BTreeMap::new(),
        weights: Default::default(),
        checks: Vec::new(),
        consul: None,
        publish: None,
        alloc: view.spec.id,
        task: None,
        job: view.spec.job_key.clone(),
    }
}

/// The allocation after its tasks ended with code 0.
pub fn ended(mut view: AllocView) -> AllocView {
    view.status = ClientStatus::Complete;
    for task in &mut view.tasks {
        task.state = TaskStatus::Dead;
        task.phase = TaskPhase::Dead;
    }
    view
}

pub fn converged() -> Convergence {
    verdict(ConvergenceState::Converged, "")
}

pub fn verdict(state: ConvergenceState, message: &str) -> Convergence {
    Convergence { state, reason: None, message: message.to_owned(), since: THEN.into(), overdue_at: None }
}
