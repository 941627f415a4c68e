//! Minimal specifications for the tests of all crates: a task, a group, a job, without optional parts.
//!
//! In: names. Out: values to modify. Only with the feature `fixture`.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, sync::Arc, vec, vec::Vec};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    alloc::{DiskMigration, ServerSide},
    job::{
        AddressMode, Artifact, ArtifactMode, ChangeMode, ChangeScript, Check, CheckKind, CsiPlugin,
        CsiPluginType, DelayFunction, Group, HealthCheck, Job, JobType, KeptDisk, Lifecycle, LogMode, Logs,
        OnUpdate, Provider, ReschedulePolicy, Resources, RestartMode, RestartPolicy, Scaling, Secret,
        Service, Task, Template, TemplateChange, TemplateSource, Thresholds, Update, VaultAccess, Weights,
    },
    manifest::defaults::{CSI_HEALTH_TIMEOUT, CSI_MOUNT_DIR, CSI_STAGE_PUBLISH_BASE_DIR, NODE_POOL},
    service::{CheckResult, CheckStatus, RegisteredCheck, Registration},
};

/// A main task with the driver `mock` and two restarts per minute, each after a second.
pub fn task(name: &str) -> Task {
    Task {
        name: name.to_owned(),
        driver: "mock".to_owned(),
        user: None,
        config: serde_json::Value::Null,
        env: BTreeMap::new(),
        meta: BTreeMap::new(),
        leader: false,
        lifecycle: Lifecycle::Main,
        depends_on: Vec::new(),
        prestop: None,
        actions: Vec::new(),
        restart: RestartPolicy {
            attempts: 2,
            interval: Duration::from_secs(60),
            delay: Duration::from_secs(1),
            mode: RestartMode::Fail,
            render_templates: false,
        },
        services: Vec::new(),
        volume_mounts: Vec::new(),
        artifacts: Vec::new(),
        templates: Vec::new(),
        secrets: Vec::new(),
        vault: None,
        consul: None,
        csi_plugin: None,
        dispatch_payload: None,
        identities: Vec::new(),
        resources: Resources::default(),
        ports: BTreeMap::new(),
        logs: Logs { max_files: 10, max_file_size_mib: 10, disabled: false, mode: LogMode::Drop },
        kill_signal: None,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay: Duration::ZERO,
        constraints: Vec::new(),
        affinities: Vec::new(),
    }
}

/// A plugin that mounts volumes, with the defaults of Nomad.
pub fn csi_plugin(id: &str) -> CsiPlugin {
    CsiPlugin {
        id: id.to_owned(),
        kind: CsiPluginType::Node,
        mount_dir: CSI_MOUNT_DIR.to_owned(),
        stage_publish_base_dir: CSI_STAGE_PUBLISH_BASE_DIR.to_owned(),
        health_timeout: CSI_HEALTH_TIMEOUT,
    }
}

/// A token of the default Vault: a file, variables, and a restart with another token.
pub fn vault_access() -> VaultAccess {
    VaultAccess {
        cluster: VaultAccess::DEFAULT_CLUSTER.to_owned(),
        role: None,
        namespace: None,
        env: true,
        disable_file: false,
        change_mode: ChangeMode::Restart,
        change_signal: None,
        allow_token_expiration: false,
    }
}

/// A secret from a variable.
pub fn secret(name: &str, path: &str) -> Secret {
    Secret {
        name: name.to_owned(),
        provider: Secret::VARIABLES.to_owned(),
        path: path.to_owned(),
        namespace: None,
        env: BTreeMap::new(),
    }
}

/// An artifact with the default destination.
pub fn artifact(source: &str) -> Artifact {
    Artifact {
        source: source.to_owned(),
        options: BTreeMap::new(),
        headers: BTreeMap::new(),
        mode: ArtifactMode::Any,
        insecure: false,
        destination: "local/".to_owned(),
        chown: false,
    }
}

/// A template of an empty inline text that is written to `local/file`, without a delay.
pub fn template(on_change: TemplateChange) -> Template {
    Template {
        source: TemplateSource::Inline(String::new()),
        destination: "local/file".to_owned(),
        perms: Template::PERMS_DEFAULT,
        uid: None,
        gid: None,
        env: false,
        on_change,
        splay: Duration::ZERO,
        wait: None,
        left_delimiter: Template::LEFT_DELIMITER.to_owned(),
        right_delimiter: Template::RIGHT_DELIMITER.to_owned(),
        error_on_missing_key: false,
        once: false,
    }
}

/// A script of a template, with its defaults.
pub fn change_script(command: &str) -> ChangeScript {
    ChangeScript {
        command: command.to_owned(),
        args: Vec::new(),
        timeout: ChangeScript::TIMEOUT_DEFAULT,
        fail_on_error: false,
        run_on_first_render: false,
    }
}

/// A service in Consul without a port.
pub fn service(name: &str) -> Service {
    Service {
        name: name.to_owned(),
        provider: Provider::Consul,
        port: None,
        address: None,
        address_mode: AddressMode::Auto,
        tags: Vec::new(),
        canary_tags: Vec::new(),
        meta: BTreeMap::new(),
        canary_meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        enable_tag_override: false,
        weights: Weights::default(),
        task: None,
        identity: None,
        consul: None,
        publish: None,
        checks: Vec::new(),
    }
}

/// A TCP check every ten seconds.
pub fn check(name: &str) -> Check {
    Check {
        name: name.to_owned(),
        kind: CheckKind::Tcp,
        port: None,
        address_mode: None,
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(2),
        initial_status: None,
        thresholds: Thresholds::default(),
        on_update: OnUpdate::default(),
        check_restart: None,
        notes: String::new(),
    }
}

/// A result of `check` for the group's service `web`.
pub fn check_result(check: &str, status: CheckStatus) -> CheckResult {
    CheckResult {
        id: check.to_owned(),
        service: "web".to_owned(),
        check: check.to_owned(),
        task: None,
        status,
        output: String::new(),
        http_status: None,
        at: UnixNanos(0),
        stale: false,
        on_update: OnUpdate::default(),
        restarts: None,
    }
}

/// A check in a catalogue.
pub fn registered_check(id: &str) -> RegisteredCheck {
    RegisteredCheck {
        id: id.to_owned(),
        name: id.to_owned(),
        kind: CheckKind::Tcp,
        address: "127.0.0.1".to_owned(),
        port: 8080,
        interval: Duration::from_secs(10),
        timeout: Duration::from_secs(2),
        initial_status: None,
        thresholds: Thresholds::default(),
        on_update: OnUpdate::default(),
        check_restart: None,
        notes: String::new(),
        task: None,
    }
}

/// A service of job `web`'s group in the built-in catalogue.
pub fn registration(id: &str, alloc: AllocId) -> Registration {
    Registration {
        id: id.to_owned(),
        provider: Provider::Nomad,
        name: "web".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 8080,
        tags: Vec::new(),
        meta: BTreeMap::new(),
        enable_tag_override: false,
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        checks: Vec::new(),
        consul: None,
        publish: None,
        alloc,
        task: None,
        job: JobKey { namespace: "default".into(), id: "web".into() },
    }
}

/// A range for scaling.
pub fn scaling(min: u32, max: u32) -> Scaling {
    Scaling { enabled: true, min, max, policy: None }
}

/// A group with these tasks.
pub fn group(name: &str, count: u32, tasks: Vec<Task>) -> Group {
    Group {
        name: name.to_owned(),
        count,
        update: None,
        network: None,
        volumes: BTreeMap::new(),
        services: Vec::new(),
        tasks,
        shutdown_delay: Duration::ZERO,
        max_run_duration: None,
        meta: BTreeMap::new(),
        disk_mib: 300,
        kept_disk: KeptDisk::default(),
        scaling: None,
        reschedule: ReschedulePolicy::default(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        depends_on: Vec::new(),
    }
}

/// One allocation at a time, healthy after a second; a deployment fails after a minute without progress.
pub fn update() -> Update {
    Update {
        max_parallel: 1,
        min_healthy_time: Duration::from_secs(1),
        healthy_deadline: Duration::from_secs(20),
        progress_deadline: Duration::from_secs(60),
        health_check: HealthCheck::Checks,
        auto_revert: false,
        auto_promote: false,
        canary: 0,
        stagger: Duration::from_secs(30),
    }
}

/// One replacement within an hour, five seconds after the failure.
pub fn reschedule() -> ReschedulePolicy {
    ReschedulePolicy {
        attempts: 1,
        interval: Duration::from_secs(3600),
        delay: Duration::from_secs(5),
        delay_function: DelayFunction::Constant,
        max_delay: Duration::ZERO,
        unlimited: false,
    }
}

/// A job with these groups in the default namespace.
pub fn job(id: &str, kind: JobType, groups: Vec<Group>) -> Job {
    Job {
        namespace: "default".to_owned(),
        id: id.to_owned(),
        name: id.to_owned(),
        labels: BTreeMap::new(),
        kind,
        stop: false,
        priority: 50,
        region: "global".to_owned(),
        datacenters: vec!["*".to_owned()],
        node_pool: NODE_POOL.to_owned(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        ui: None,
        meta: BTreeMap::new(),
        parameterized: None,
        periodic: None,
        child: None,
        groups,
    }
}

/// Server data for a placed allocation, with ordinary values.
pub fn server_side(job: &Arc<Job>) -> ServerSide {
    ServerSide {
        modify_index: 10,
        create_index: 10,
        job: Arc::clone(job),
        no_shutdown_delay: false,
        refused: None,
        migrate: None,
        stop_on_client_after: None,
        max_run_duration: None,
        heritage: DiskMigration::None,
        preempted: Vec::new(),
        task_ports: BTreeMap::new(),
        actions: BTreeMap::new(),
    }
}
