//! `consul` of a group and a task.

use herdlet_api_types::{
    job::{Provider, Task},
    manifest::{Consul, Service, TaskSpec, Text},
    names::NameKind,
};

use super::{Findings, GroupContext, identity};
use crate::{manifests::Drivers, yaml::Trail};

/// Where the task finds its token.
const FILE: &str = "secrets/consul_token";

/// Validates the blocks of a group and of its tasks, and the Consuls of their services.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, trail, drivers, .. } = *context;
    block(spec.consul.as_ref(), drivers, trail, findings);
    of_services(spec.services.as_deref(), drivers, trail, findings);
    let tasks = trail.field("tasks");
    for (index, task) in spec.tasks.iter().flatten().enumerate() {
        let at = tasks.item(index);
        block(task.consul.as_ref(), drivers, &at, findings);
        of_services(task.services.as_deref(), drivers, &at, findings);
    }
}

fn block(consul: Option<&Consul>, drivers: &Drivers, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(consul) = consul else { return };
    let trail = trail.field("consul");
    cluster(consul.cluster.as_deref(), drivers, &trail, findings);
    for (field, value) in [("namespace", &consul.namespace), ("partition", &consul.partition)] {
        let name = value.as_ref().filter(|Text(name)| !name.is_empty());
        if let Some(rule) = name.and_then(|Text(name)| NameKind::Cluster.problem(name)) {
            findings.problem(&trail.field(field), rule);
        }
    }
}

fn of_services(
    services: Option<&[Service]>,
    drivers: &Drivers,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let trail = trail.field("services");
    for (index, service) in services.into_iter().flatten().enumerate() {
        if service.provider == Some(Provider::Consul) {
            cluster(service.cluster.as_deref(), drivers, &trail.item(index), findings);
        }
    }
}

/// Requires that the agent has the Consul of the field `cluster`.
fn cluster(name: Option<&str>, drivers: &Drivers, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(name) = name.filter(|name| !name.is_empty()) else { return };
    let trail = trail.field("cluster");
    if let Some(rule) = NameKind::Cluster.problem(name) {
        findings.problem(&trail, rule);
    } else if let Some(message) = drivers.consul_problem(name) {
        findings.problem(&trail, &message);
    }
}

/// Requires that no identity has the token's file.
pub(super) fn of_task(spec: &TaskSpec, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    // Also of a group, or of an identity.
    if task.consul.is_none() {
        return;
    }
    identity::leaves_file((FILE, "Consul"), spec, trail, findings);
}
