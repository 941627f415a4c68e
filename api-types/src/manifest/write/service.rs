//! Writes the services of a group or a task, with their checks.
//!
//! In: the services, and the names that are their default names. Out: the blocks that a person would write, without the
//! defaults.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use super::{from_length, from_plain, identity::from_service_identity, unless_empty, yes};
use crate::{
    job::{self, AddressMode, CheckKind, ConsulAccess, Provider},
    manifest::{
        Check, CheckType, Service, Span, Text,
        defaults::{CHECK_GRACE, check_name},
        non_empty, non_empty_map,
        resolve::Names,
        service::{CheckRestart, Protocol, Publish, Weights},
        texts, unless,
    },
};

/// `block` is the Consul of the task or group.
pub(super) fn from_services(
    services: &[job::Service],
    block: Option<&ConsulAccess>,
    names: &Names<'_>,
) -> Option<Vec<Service>> {
    let of_block = block.map_or(ConsulAccess::DEFAULT_CLUSTER, |access| &access.cluster);
    let written = services.iter().map(|service| {
        let cluster = service.consul_cluster().filter(|cluster| *cluster != of_block);
        Service { cluster: cluster.map(ToOwned::to_owned), ..from_service(service, names) }
    });
    non_empty(written.collect())
}

fn from_service(service: &job::Service, names: &Names<'_>) -> Service {
    Service {
        name: unless(&service.name, &names.service(None)),
        provider: (service.provider != Provider::Nomad).then_some(service.provider),
        port: service.port.clone().map(Text),
        address: service.address.clone(),
        address_mode: (service.address_mode != AddressMode::Auto).then_some(service.address_mode),
        tags: from_plain(&service.tags),
        canary_tags: from_plain(&service.canary_tags),
        meta: texts(&service.meta),
        canary_meta: texts(&service.canary_meta),
        tagged_addresses: texts(&service.tagged_addresses),
        enable_tag_override: yes(service.enable_tag_override),
        weights: from_weights(service.weights),
        checks: non_empty(
            service.checks.iter().map(|check| from_check(check, &service.name, names.task)).collect(),
        ),
        task: service.task.clone(),
        // See `from_services`.
        cluster: None,
        identity: service.identity.as_ref().map(from_service_identity),
        publish: service
            .publish
            .as_ref()
            .map(|publish| Publish { port: Some(publish.port), host_network: publish.host_network.clone() }),
        // The checks have these settings.
        on_update: None,
        check_restart: None,
    }
}

fn from_weights(weights: job::Weights) -> Option<Weights> {
    let default = job::Weights::default();
    unless_empty(Weights {
        passing: (weights.passing != default.passing).then_some(weights.passing),
        warning: (weights.warning != default.warning).then_some(weights.warning),
    })
}

/// `of_task` is the service's task.
fn from_check(check: &job::Check, service: &str, of_task: Option<&str>) -> Check {
    let times = |number: u32| (number != 0).then_some(number);
    let thresholds = check.thresholds;
    let mut spec = Check {
        name: unless(&check.name, &check_name(service)),
        port: check.port.clone().map(Text),
        address_mode: check.address_mode,
        interval: Some(Span(check.interval)),
        timeout: Some(Span(check.timeout)),
        initial_status: check.initial_status,
        success_before_passing: times(thresholds.success_before_passing),
        failures_before_critical: times(thresholds.failures_before_critical),
        failures_before_warning: times(thresholds.failures_before_warning),
        on_update: (!check.on_update.is_default()).then_some(check.on_update),
        check_restart: check.check_restart.map(|restart| CheckRestart {
            limit: Some(restart.limit),
            grace: from_length(restart.grace, CHECK_GRACE),
            ignore_warnings: yes(restart.ignore_warnings),
        }),
        notes: unless(&check.notes, ""),
        ..Check::default()
    };
    match &check.kind {
        CheckKind::Tcp => spec.kind = Some(CheckType::Tcp),
        CheckKind::Http { path, method, protocol, header, body, tls_skip_verify, tls_server_name } => {
            spec.kind = Some(CheckType::Http);
            spec.path = Some(path.clone());
            spec.method = unless(method, "GET");
            spec.protocol = (protocol == "https").then_some(Protocol::Https);
            spec.header = from_header(header);
            spec.body = unless(body, "").map(Text);
            spec.tls_skip_verify = yes(*tls_skip_verify);
            spec.tls_server_name = unless(tls_server_name, "");
        }
        CheckKind::Grpc { service, tls, tls_skip_verify, tls_server_name } => {
            spec.kind = Some(CheckType::Grpc);
            spec.grpc_service = unless(service, "");
            spec.grpc_use_tls = yes(*tls);
            spec.tls_skip_verify = yes(*tls_skip_verify);
            spec.tls_server_name = unless(tls_server_name, "");
        }
        CheckKind::Script { command, args, task } => {
            spec.kind = Some(CheckType::Script);
            spec.command = Some(command.clone());
            spec.args = from_plain(args);
            spec.task = (Some(task.as_str()) != of_task).then(|| task.clone());
        }
    }
    spec
}

fn from_header(header: &BTreeMap<String, Vec<String>>) -> Option<BTreeMap<String, Vec<Text>>> {
    let texts = |values: &[String]| values.iter().cloned().map(Text).collect();
    non_empty_map(header.iter().map(|(field, values)| (field.clone(), texts(values))).collect())
}
