//! Jobs for simulations.

pub use herdlet_api_types::fixture::{group, job};
use herdlet_api_types::{
    Duration,
    alloc::Allocation,
    constraint::{Constraint, Operator},
    driver::RAW_EXEC,
    fixture,
    job::*,
    service::{CheckResult, RegisteredCheck, Registration},
    volume::{Volume, VolumeKind},
};
use herdlet_plan::{job::capacity::Room, op::Part};
use serde_json::json;

use super::{Rng, launches, networks, templates};

/// A task whose process runs for `run_for_ms` (for ever if none) and exits with `exit_code`.
pub fn task(name: &str, run_for_ms: Option<u64>, exit_code: i32) -> Task {
    let config = json!({"run_for_ms": run_for_ms, "exit_code": exit_code});
    Task { config, ..fixture::task(name) }
}

/// A service with one TCP check that may restart the checked task.
fn random_service(name: &str, rng: &mut Rng) -> Service {
    let mut service = service(name);
    for check in &mut service.checks {
        check.check_restart = rng.one_in(2).then(|| CheckRestart {
            limit: 1 + rng.below(3) as u32,
            grace: Duration::from_secs(rng.below(3) as i64),
            ignore_warnings: rng.one_in(2),
        });
        if check.check_restart.is_none() && rng.one_in(3) {
            check.on_update = if rng.one_in(2) { OnUpdate::Ignore } else { OnUpdate::IgnoreWarnings };
        }
    }
    service
}

/// A service with one TCP check.
pub fn service(name: &str) -> Service {
    Service {
        provider: Provider::Nomad,
        port: Some("http".to_owned()),
        checks: vec![Check { interval: Duration::from_secs(1), ..fixture::check("alive") }],
        ..fixture::service(name)
    }
}

/// The checks of a part, without results yet.
pub fn checks_of(alloc: &Allocation, part: Part) -> Vec<CheckResult> {
    let Some(group) = alloc.group() else { return Vec::new() };
    let (task, services) = match part.task() {
        Some(index) => match group.tasks.get(usize::from(index)) {
            Some(task) => (Some(task.name.as_str()), &task.services),
            None => return Vec::new(),
        },
        None => (None, &group.services),
    };
    let check_of = |service: &Service, check: &Check| {
        let registered = RegisteredCheck {
            name: check.name.clone(),
            interval: check.interval,
            on_update: check.on_update,
            check_restart: check.check_restart,
            task: service.task.clone(),
            ..fixture::registered_check(&format!(
                "{}-{}-{}",
                task.unwrap_or("group"),
                service.name,
                check.name
            ))
        };
        let registration = Registration {
            name: service.name.clone(),
            task: task.map(str::to_owned),
            ..fixture::registration(&service.name, alloc.id)
        };
        CheckResult::pending(&registration, &registered)
    };
    services
        .iter()
        .flat_map(|service| service.checks.iter().map(move |check| check_of(service, check)))
        .collect()
}

/// The volumes that [`random`] jobs mount: one for all, and one for each index.
pub const VOLUMES: [&str; 4] = ["data", "data[0]", "data[1]", "data[2]"];

/// Fixed ports of [`random`] jobs.
const PORTS: [u16; 2] = [8_080, 8_081];

/// The published port of [`random`] jobs.
const PUBLISHED: u16 = 8_082;

/// The value of `${meta.color}` on the node.
pub const COLOR: &str = "red";

/// The resources of the node.
pub const ROOM: Room = Room { cpu_mhz: 1_000, cores: 0, memory_mib: 1_000, disk_mib: 1_000 };

/// Whether the node does not meet a constraint of the job.
pub fn is_unfit(job: &Job) -> bool {
    job.groups.iter().flat_map(|group| &group.constraints).any(|constraint| constraint.value != COLOR)
}

/// All of [`VOLUMES`].
pub fn volumes() -> Vec<Volume> {
    let kind = VolumeKind::Mkdir { mode: 0o755, uid: None, gid: None };
    let volume = |name: &str| Volume { name: name.to_owned(), kind: kind.clone(), read_only: false };
    VOLUMES.map(volume).into()
}

/// A random job with the id `id`, with any mix of features.
pub fn random(rng: &mut Rng, id: &str) -> Job {
    let kind = if rng.one_in(2) { JobType::Service } else { JobType::Batch };
    let run_for = |rng: &mut Rng| match kind.completes() {
        false => rng.one_in(3).then(|| rng.below(3_000)),
        true => Some(rng.below(5_000)),
    };
    let exit_code = |rng: &mut Rng| i32::from(rng.one_in(4));
    let ms = run_for(rng);
    let code = exit_code(rng);
    let mut tasks = vec![task("main", ms, code)];
    tasks[0].leader = rng.one_in(4);
    if rng.one_in(3) {
        tasks[0].volume_mounts.push(VolumeMount {
            volume: "data".to_owned(),
            destination: "local/data".to_owned(),
            read_only: rng.one_in(2),
            propagation: MountPropagation::Private,
        });
    }
    if rng.one_in(3) {
        tasks[0].artifacts.push(fixture::artifact("https://example.test/tool.tgz"));
    }
    if rng.one_in(4) {
        tasks[0].shutdown_delay = Duration::from_secs(2);
    }
    if rng.one_in(4) {
        let prestop =
            Prestop { command: "drain".to_owned(), args: Vec::new(), timeout: Duration::from_secs(3) };
        tasks[0].prestop = Some(prestop);
    }
    if rng.one_in(4) {
        tasks[0].config["stubborn"] = true.into();
    }
    if rng.one_in(4) {
        tasks[0].config["probe"] = true.into();
    }
    tasks[0].csi_plugin = rng.one_in(4).then(|| fixture::csi_plugin("disks"));
    if rng.one_in(4) {
        tasks[0].secrets.push(fixture::secret("db", "nomad/jobs"));
    }
    if rng.one_in(3) {
        tasks[0].templates = templates::random(rng);
        tasks[0].restart.render_templates = rng.one_in(4);
    }
    if rng.one_in(4) {
        tasks[0].services.push(random_service("inner", rng));
    }
    if rng.one_in(3) {
        // Tasks that restart for new tokens do so once an hour, which leaves time to settle in between.
        let (ttl, change_mode) = match rng.below(4) {
            0 => (None, ChangeMode::Restart),
            1 => (Some(Duration::from_secs(60)), ChangeMode::Noop),
            2 => (Some(Duration::from_secs(60)), ChangeMode::Signal),
            _ => (Some(Duration::from_secs(7_200)), ChangeMode::Restart),
        };
        tasks[0].identities.push(Identity {
            extra_claims: Vec::new(),
            name: "api".to_owned(),
            aud: vec!["example.test".to_owned()],
            ttl,
            env: false,
            file: true,
            filepath: None,
            change_mode,
            change_signal: None,
        });
        // Its program may use the Task API with the token.
        tasks[0].driver = RAW_EXEC.to_owned();
    }
    if rng.one_in(4) {
        let change_mode = match rng.below(3) {
            0 => ChangeMode::Noop,
            1 => ChangeMode::Signal,
            _ => ChangeMode::Restart,
        };
        tasks[0].vault = Some(VaultAccess { change_mode, ..fixture::vault_access() });
    }
    if rng.one_in(4) {
        tasks[0].consul = Some(ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER));
    }
    for (name, lifecycle) in [
        ("pre", Lifecycle::Prestart),
        ("side", Lifecycle::PrestartSidecar),
        ("second", Lifecycle::Main),
        ("post", Lifecycle::Poststart),
        ("late", Lifecycle::PoststartSidecar),
        ("stop", Lifecycle::Poststop),
    ] {
        if !rng.one_in(4) {
            continue;
        }
        let ends = !lifecycle.is_sidecar() && lifecycle != Lifecycle::Main;
        let ms =
            if ends { Some(rng.below(2_000)) } else { run_for(rng).filter(|_| lifecycle == Lifecycle::Main) };
        let code = if rng.one_in(8) { 1 } else { 0 };
        let mut extra = task(name, ms, code);
        extra.lifecycle = lifecycle;
        if name == "second" && rng.one_in(2) {
            let condition = match rng.below(3) {
                0 => DependencyCondition::Started,
                1 => DependencyCondition::Healthy,
                // A main task of a service never completes.
                _ if !kind.completes() => DependencyCondition::Started,
                _ => DependencyCondition::Completed,
            };
            extra.depends_on.push(Dependency { task: "main".to_owned(), condition });
        }
        tasks.push(extra);
    }
    let count = 1 + rng.below(3) as u32;
    let mut group = group("g", count, tasks);
    group.volumes.insert(
        "data".to_owned(),
        VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: rng.one_in(4) },
    );
    // If several allocations had one fixed port, all but one would wait for ever.
    let fixed = (count == 1 && rng.one_in(4)).then(|| PORTS[rng.below(PORTS.len() as u64) as usize]);
    group.network = Some(Network {
        ports: [("http".to_owned(), PortRequest { fixed, to: None })].into(),
        mode: networks::mode_of(group.tasks.len()),
        ..Network::default()
    });
    if group.tasks.len() == 3 {
        let is_fixed = count == 1 && fixed.is_none() && code == 0;
        let own = [is_fixed.then_some(PORTS[1]), None].map(|fixed| PortRequest { fixed, to: None });
        for (task, request) in group.tasks.iter_mut().zip(own) {
            task.ports.insert("debug".to_owned(), request);
        }
    }
    if rng.one_in(2) {
        // Consul would perform its own checks; nothing simulates that.
        let in_consul = Service { provider: Provider::Consul, checks: Vec::new(), ..service("web") };
        // Another job may publish the port.
        let publish = (count == 2).then_some(Publish { port: PUBLISHED, host_network: None });
        let named = rng.one_in(2).then(|| "main".to_owned());
        let own = Service { task: named, publish, ..random_service("web", rng) };
        group.services.push(if rng.one_in(3) { in_consul } else { own });
    }
    if rng.one_in(3) {
        group.shutdown_delay = Duration::from_secs(3);
    }
    if rng.one_in(3) {
        // A canary would wait for ever for the fixed port of the allocation it runs beside, and share its volume.
        let alone =
            group.fixed_ports().next().is_some() || group.volumes.values().any(|request| request.per_alloc);
        let canary = if !alone && rng.one_in(2) { 1 + rng.below(3) as u32 } else { 0 };
        group.update = Some(Update {
            max_parallel: 1 + rng.below(2) as u32,
            progress_deadline: Duration::from_secs(if rng.one_in(4) { 0 } else { 60 }),
            auto_revert: rng.one_in(2),
            auto_promote: canary > 0 && rng.one_in(2),
            canary,
            health_check: match rng.below(4) {
                0 => HealthCheck::TaskStates,
                1 => HealthCheck::Manual,
                _ => HealthCheck::Checks,
            },
            ..fixture::update()
        });
    }
    if kind.completes() {
        // Jobs that complete are not rolled out.
        group.update = None;
    }
    if group.update.is_none() && !kind.completes() && !group.tasks[0].templates.is_empty() {
        group.update = Some(Update { health_check: HealthCheck::TaskStates, ..fixture::update() });
    }
    if group.shutdown_delay > Duration::ZERO && group.tasks.len() == 4 {
        group.constraints.push(Constraint {
            attribute: "${meta.color}".to_owned(),
            operator: Operator::Equal,
            value: if code == 0 { COLOR } else { "blue" }.to_owned(),
        });
    }
    if group.tasks.len() == 2 {
        group.tasks[0].resources.memory_mib = Some(if code == 0 { 150 } else { 300 });
    }
    // A job with one allocation and no update strategy may as well be a system job.
    let kind = match kind {
        JobType::Service if count == 1 && group.update.is_none() => JobType::System,
        JobType::Batch if count == 1 && group.update.is_none() => JobType::Sysbatch,
        JobType::Service | JobType::Batch | JobType::System | JobType::Sysbatch => kind,
    };
    if rng.one_in(3) {
        // Limit the attempts, so that simulations end.
        let function = [DelayFunction::Constant, DelayFunction::Exponential, DelayFunction::Fibonacci];
        group.reschedule = ReschedulePolicy {
            attempts: 1 + rng.below(3) as u32,
            interval: Duration::from_secs(24 * 3600),
            delay_function: function[rng.below(3) as usize],
            max_delay: Duration::from_secs(10),
            ..fixture::reschedule()
        };
    }
    let mut job = job(id, kind, vec![group]);
    job.priority = match id {
        "a" => 20,
        "b" => 80,
        _ => 50,
    };
    job.parameterized = (kind.completes() && rng.one_in(4)).then(Parameterized::default);
    job.periodic = (kind.completes() && rng.one_in(4)).then(|| launches::each_minute(rng));
    job
}

/// The next release of `job`: the same job with a changed main task, which sometimes fails.
pub fn next_release(rng: &mut Rng, job: &Job) -> Job {
    let mut job = job.clone();
    let main = &mut job.groups[0].tasks[0];
    main.env.insert("RELEASE".to_owned(), rng.below(1_000).to_string());
    if rng.one_in(3) {
        main.config = task("main", Some(rng.below(1_000)), 1).config;
    }
    job
}
