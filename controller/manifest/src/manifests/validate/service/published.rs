//! `publish` of services: a port of the machine that leads to their healthy instances.

use std::collections::BTreeMap;

use herdlet_api_types::job::{Job, NetworkMode, Provider, Service};
use herdlet_api_types::manifest::service as spec;

use super::super::{Findings, GroupContext, text};
use crate::yaml::Trail;

pub(super) fn of_service(
    context: &GroupContext<'_>,
    (written, service): (&spec::Publish, &Service),
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    if let Some(network) = &written.host_network {
        text::plain(network, &trail.field("host_network"), findings);
    }
    if service.provider == Provider::Consul {
        findings.problem(
            trail,
            "is only possible for services in the built-in catalogue; write `provider: nomad`",
        );
    }
    let network = context.group.network.as_ref();
    match network.map(|network| &network.mode) {
        None | Some(NetworkMode::Host | NetworkMode::Bridge) => {}
        Some(mode @ (NetworkMode::None | NetworkMode::Cni(_))) => {
            let message = format!("is not possible in network mode `{mode}`; use mode `bridge` or `host`");
            findings.problem(trail, message);
        }
    }
    let is_port = |label: &str| {
        let of_group = network.is_some_and(|network| network.ports.contains_key(label));
        of_group || context.task.is_some_and(|task| task.ports.contains_key(label)) || label.contains("${")
    };
    if !service.port.as_deref().is_some_and(is_port) {
        let message =
            "needs the label of a port as the service's `port`, so that each instance has a port of its own";
        findings.problem(trail, message);
    }
}

/// A port leads to one service, and no task of the job can have it.
pub(in super::super) fn of_job(job: &Job, groups: &Trail<'_>, findings: &mut Findings<'_>) {
    let fixed: BTreeMap<u16, &str> = job
        .groups
        .iter()
        .flat_map(|group| group.port_requests())
        .filter_map(|(_, label, request)| Some((request.fixed?, label.as_str())))
        .collect();
    let mut first: BTreeMap<u16, &str> = BTreeMap::new();
    for (index, group) in job.groups.iter().enumerate() {
        let group_trail = groups.item(index);
        let (tasks, own) = (group_trail.field("tasks"), group_trail.field("services"));
        let of_tasks = group.tasks.iter().enumerate().flat_map(|(index, task)| {
            task.services.iter().enumerate().map(move |(number, service)| (Some(index), number, service))
        });
        let of_group = group.services.iter().enumerate().map(|(number, service)| (None, number, service));
        for (task, number, service) in of_group.chain(of_tasks) {
            // The schema refuses port 0.
            let Some(publish) = service.publish.as_ref().filter(|publish| publish.port != 0) else {
                continue;
            };
            let message = match (fixed.get(&publish.port), first.insert(publish.port, &service.name)) {
                (Some(label), _) => format!("port `{label}` has this number; choose another one"),
                (None, Some(other)) => {
                    format!("service `{other}` publishes this port, too; choose another one")
                }
                (None, None) => continue,
            };
            match task {
                None => problem(&own.item(number), message, findings),
                Some(index) => {
                    let task = tasks.item(index);
                    problem(&task.field("services").item(number), message, findings);
                }
            }
        }
    }
}

fn problem(service: &Trail<'_>, message: String, findings: &mut Findings<'_>) {
    findings.problem(&service.field("publish").field("port"), message);
}
