//! An allocation with one task, for tests.

use std_alloc::{
    string::{String, ToString},
    sync::Arc,
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    AllocId, Duration, JobKey, UnixNanos,
    alloc::{Allocation, AssignedPort, Desired},
    fixture,
    job::{ChangeMode, Identity, Job, JobType, Resources, RestartMode, RestartPolicy, Task},
};

use super::{NodeFacts, Variables};

pub(crate) const ALLOC_ID: &str = "b4e61df9-b095-d64e-f241-23860da1375f";

pub(crate) fn variables(entries: &[(&str, &str)]) -> Variables {
    entries.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

pub(crate) fn port(host_ip: &str, value: u16, to: u16) -> AssignedPort {
    AssignedPort { host_ip: host_ip.to_string(), value, to }
}

/// Job `web` with group `cache`, index 12, and task `redis`; ports as in the table of address resolution.
pub(crate) fn alloc() -> Allocation {
    let job = Job {
        name: "The Web".to_string(),
        ..fixture::job("web", JobType::Service, vec![fixture::group("cache", 13, vec![task()])])
    };
    Allocation {
        id: AllocId(uuid::Uuid::parse_str(ALLOC_ID).unwrap()),
        job_key: JobKey { namespace: "default".into(), id: "web".into() },
        job_version: 0,
        job: Arc::new(job),
        group: "cache".to_string(),
        index: 12,
        ports: [
            ("http".to_string(), port("10.0.0.5", 21000, 8080)),
            ("raw".to_string(), port("10.0.0.5", 22000, 0)),
        ]
        .into(),
        task_ports: Default::default(),
        task_cores: Default::default(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 1,
        create_time: UnixNanos(0),
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    }
}

/// The same with a changed job.
pub(crate) fn alloc_with(change: impl FnOnce(&mut Job)) -> Allocation {
    let mut alloc = alloc();
    change(Arc::make_mut(&mut alloc.job));
    alloc
}

pub(crate) fn task() -> Task {
    Task {
        driver: "raw_exec".to_string(),
        restart: RestartPolicy {
            attempts: 2,
            interval: Duration::from_secs(1800),
            delay: Duration::from_secs(15),
            mode: RestartMode::Fail,
            render_templates: false,
        },
        resources: Resources {
            cpu_mhz: Some(500),
            cores: None,
            memory_mib: Some(256),
            memory_max_mib: Some(512),
            secrets_mib: None,
        },
        ..fixture::task("redis")
    }
}

pub(crate) fn identity(name: &str, aud: &[&str], ttl: Option<Duration>) -> Identity {
    let aud: Vec<String> = aud.iter().map(ToString::to_string).collect();
    let change_mode = ChangeMode::Noop;
    Identity {
        extra_claims: Vec::new(),
        name: name.to_string(),
        aud,
        ttl,
        env: true,
        file: true,
        filepath: None,
        change_mode,
        change_signal: None,
    }
}

pub(crate) fn node() -> NodeFacts {
    NodeFacts {
        id: "n-1".to_string(),
        name: "box".to_string(),
        datacenter: "dc1".to_string(),
        region: "global".to_string(),
        class: "edge".to_string(),
        pool: "default".to_string(),
        attributes: variables(&[("kernel.name", "linux")]),
        meta: variables(&[("rack", "r7"), ("a b", "blank")]),
    }
}
