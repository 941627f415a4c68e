//! `consul` of a group and a task.

use herdlet_api_types::{
    job::{ConsulAccess, Provider, Service, Task},
    manifest::{Consul, TaskSpec, Text},
};

use super::{Findings, GroupContext, identity};
use crate::yaml::Trail;

/// Where the task finds its token.
const FILE: &str = "secrets/consul_token";

/// Validates the blocks of a group and of its tasks against their services: those are registered in one Consul only.
pub(super) fn of_group(context: &GroupContext<'_>, findings: &mut Findings<'_>) {
    let GroupContext { spec, group, trail, .. } = *context;
    block(spec.consul.as_ref(), trail, findings);
    elsewhere(spec.consul.as_ref(), &group.services, trail, findings);
    let tasks = trail.field("tasks");
    for (index, (written, task)) in spec.tasks.iter().flatten().zip(&group.tasks).enumerate() {
        let (at, of_task) = (tasks.item(index), written.consul.as_ref());
        block(of_task, &at, findings);
        match of_task {
            Some(_) => elsewhere(of_task, &task.services, &at, findings),
            None => elsewhere(spec.consul.as_ref(), &task.services, trail, findings),
        }
    }
}

fn block(consul: Option<&Consul>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(consul) = consul else { return };
    let trail = trail.field("consul");
    let is_name = |name: &str| {
        name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
    };
    if consul.cluster.as_deref().is_some_and(|name| !is_name(name)) {
        findings.problem(&trail.field("cluster"), "must be at most 64 letters, digits, `_` and `-`");
    }
    for (field, value) in [("namespace", &consul.namespace), ("partition", &consul.partition)] {
        if value.as_ref().is_some_and(|Text(value)| !is_name(value)) {
            findings.problem(&trail.field(field), "must be at most 64 letters, digits, `_` and `-`");
        }
    }
}

/// Refuses services that would be registered in another place than the block names.
fn elsewhere(consul: Option<&Consul>, services: &[Service], trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(access) = consul.map(Consul::to_access) else { return };
    if !services.iter().any(|service| service.provider == Provider::Consul) {
        return;
    }
    let trail = trail.field("consul");
    // The only ones of a Consul that is not Enterprise.
    let is_named = |name: &Option<String>| name.as_deref().is_some_and(|name| name != "default");
    for (field, is_other) in [
        ("cluster", access.cluster != ConsulAccess::DEFAULT_CLUSTER),
        ("namespace", is_named(&access.namespace)),
        ("partition", is_named(&access.partition)),
    ] {
        if is_other {
            let message = "services are registered in the Consul `default` only, in the namespace of their tokens; remove this \
                           field, or write it in tasks without services in Consul";
            findings.problem(&trail.field(field), message);
        }
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
