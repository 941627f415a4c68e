//! `${…}` in a driver's config: whether the task will have the variable.
//!
//! In: a canonical job and one of its tasks. Out: findings. The config is interpolated as before a start, in
//! an environment built from the manifest. Names that only the machine defines (`${attr.…}`, `${meta.…}`,
//! variables that the agent passes on from its own environment) can't be checked here and are assumed to
//! exist.

use std::collections::BTreeMap;

use herdlet_api_types::{
    AllocId, UnixNanos,
    alloc::{Allocation, AssignedCores, AssignedPort, Desired, Ports},
    job::{Child, Job, Origin, PortRequest, Task},
};
use herdlet_plan::{
    env::{self, Inputs, NodeFacts, TaskDirs, TaskEnv, Variables},
    interpolate::{ConfigError, interpolate_config},
};

use super::{Findings, GroupContext};
use crate::yaml::Trail;

/// Maximum number of unknown names to resolve. Later ones are found at the start of the task.
const NAMES_MAX: usize = 64;

/// Validates the variables in a task's config.
pub(super) fn of_task(
    context: &GroupContext<'_>,
    task: &Task,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let mut given = AssumedVariables::default();
    for _ in 0..NAMES_MAX {
        let Err(error) = interpolate_config(&task.config, &environment(context, task, &given)) else {
            return;
        };
        let (path, message) = match &error {
            ConfigError::UnknownVariable { path, name } => {
                // The name was assumed and is still not found: its syntax is not supported here.
                if !given.assume(name) {
                    return;
                }
                if AssumedVariables::is_the_machines(name) || is_secret(task, name) {
                    continue;
                }
                (path, format!("the task will have no variable `{name}`"))
            }
            ConfigError::NotAVariable { path, expression } => {
                (path, format!("`{expression}` is not a variable"))
            }
            ConfigError::NotClosed { path } => (path, "a `${` is not closed".to_owned()),
            // The bounds of manifests are narrower.
            ConfigError::TooLong { .. } | ConfigError::TooDeep { .. } => return,
        };
        let is_name = matches!(error, ConfigError::UnknownVariable { .. });
        let at = if path.is_empty() { format!("{trail}.config") } else { format!("{trail}.config.{path}") };
        findings.problem(&Trail::begin(&at), format!("{message}; write `$${{` for a literal `${{`"));
        if !is_name {
            return;
        }
    }
}

/// Returns whether a `secret` block of the task will have the value. Only its provider knows the keys.
fn is_secret(task: &Task, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("secret.") else { return false };
    let end = rest.find(['.', '[']).unwrap_or(rest.len());
    task.secrets.iter().any(|secret| secret.name == rest[..end])
}

/// Names that are assumed to exist.
#[derive(Default)]
struct AssumedVariables {
    variables: Variables,
    attributes: Variables,
    meta: Variables,
}

impl AssumedVariables {
    /// Returns whether only the machine can define such a name. The agent passes on no `NOMAD_` variable and no token of
    /// its own, and the other names of the node are known.
    fn is_the_machines(name: &str) -> bool {
        let variable = key_in("env", name).unwrap_or(name);
        !["NOMAD_", "VAULT_TOKEN", "CONSUL_HTTP_TOKEN", "CONSUL_TOKEN", "node.", "node[", "secret."]
            .iter()
            .any(|own| variable.starts_with(own))
    }

    /// Assumes a name; returns `false` if it already was.
    fn assume(&mut self, name: &str) -> bool {
        let (table, key) = if let Some(key) = key_in("attr", name) {
            (&mut self.attributes, key)
        } else if let Some(key) = key_in("meta", name) {
            (&mut self.meta, key)
        } else {
            (&mut self.variables, key_in("env", name).unwrap_or(name))
        };
        table.insert(key.to_owned(), String::new()).is_none()
    }
}

/// Returns the key of `root.key` or `root["key"]`.
fn key_in<'n>(root: &str, name: &'n str) -> Option<&'n str> {
    let rest = name.strip_prefix(root)?;
    rest.strip_prefix('.').or_else(|| rest.strip_prefix("[\"")?.strip_suffix("\"]"))
}

/// Builds the environment of the task from the manifest, with placeholders for values that only a start
/// knows.
fn environment(context: &GroupContext<'_>, task: &Task, given: &AssumedVariables) -> TaskEnv {
    let Job { namespace, id, name, kind, priority, region, .. } = context.job;
    let required = context.job.parameterized.iter().flat_map(|block| &block.meta_required);
    // The group's meta overrides the job's. The tasks, which may be many, are not needed.
    let job = Job {
        namespace: namespace.clone(),
        id: id.clone(),
        name: name.clone(),
        kind: *kind,
        stop: false,
        priority: *priority,
        region: region.clone(),
        labels: BTreeMap::new(),
        datacenters: Vec::new(),
        node_pool: String::new(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        ui: None,
        // `parameterized` lists the optional meta of a dispatch; the required meta is added here.
        meta: required
            .map(|key| (key.clone(), String::new()))
            .chain(context.job.meta.clone())
            .chain(context.group.meta.clone())
            .collect(),
        parameterized: context.job.parameterized.clone(),
        periodic: None,
        // The tasks of such a job run in children.
        child: context.job.makes_children().then(|| Child { parent: id.clone(), origin: Origin::Launch }),
        groups: Vec::new(),
    };
    let port = AssignedPort { host_ip: "127.0.0.1".to_owned(), value: 1, to: 0 };
    let assigned = |requests: &BTreeMap<String, PortRequest>| -> Ports {
        requests.keys().map(|label| (label.clone(), port.clone())).collect()
    };
    let of_tasks = context.group.tasks.iter().filter(|task| !task.ports.is_empty());
    let with_cores = context.group.tasks.iter().filter(|task| task.resources.cores.is_some());
    let alloc = Allocation {
        id: AllocId(uuid::Uuid::nil()),
        job_key: context.job.key(),
        job_version: 0,
        job: job.into(),
        group: context.group.name.clone(),
        index: 0,
        ports: context.group.network.as_ref().map(|network| assigned(&network.ports)).unwrap_or_default(),
        task_ports: of_tasks.map(|task| (task.name.clone(), assigned(&task.ports))).collect(),
        task_cores: with_cores.map(|task| (task.name.clone(), AssignedCores::default())).collect(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 0,
        create_time: UnixNanos(0),
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    };
    let some = || "-".to_owned();
    let node = NodeFacts {
        id: some(),
        name: some(),
        datacenter: some(),
        region: some(),
        class: some(),
        pool: some(),
        attributes: given.attributes.clone(),
        meta: given.meta.clone(),
    };
    let dirs = TaskDirs { alloc: some(), task: some(), secrets: some() };
    let tokens = task.identities.iter().map(|identity| (identity.name.clone(), some())).collect();
    let of_vault: &[&str] = match &task.vault {
        Some(access) if access.env => &["VAULT_ADDR", "VAULT_NAMESPACE", "VAULT_TOKEN"],
        Some(_) | None => &[],
    };
    let of_consul: &[&str] = if task.consul.is_some() { &["CONSUL_HTTP_TOKEN", "CONSUL_TOKEN"] } else { &[] };
    let of_logins = of_vault.iter().chain(of_consul).map(|name| (String::from(*name), some())).collect();
    env::build(&Inputs {
        task: Some(task),
        dirs: Some(&dirs),
        host_env: &given.variables,
        denied: &[],
        tokens: &tokens,
        logins: &of_logins,
        csi_endpoint: task.csi_plugin.is_some().then_some("-"),
        ..Inputs::new(&alloc, &node)
    })
}
