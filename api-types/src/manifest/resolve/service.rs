//! Resolves the services of a group or a task, with their checks.
//!
//! In: the service's block, and the names that its name may contain. Out: a [`Service`] with all defaults.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec::Vec};

use super::{identity::to_service_identity, length, names::Names, plain};
use crate::{
    Duration,
    job::{
        AddressMode, Check, CheckKind, CheckRestart, ConsulAccess, Network, Provider, Publish, Service,
        Thresholds, Weights,
    },
    manifest::{
        CheckType, Consul, Text,
        defaults::{CHECK_GRACE, check_name},
        service, strings,
    },
};

/// `consul` is the block of the task or group.
pub(super) fn to_services(
    services: Option<&[service::Service]>,
    consul: Option<&Consul>,
    names: &Names<'_>,
) -> Vec<Service> {
    services.into_iter().flatten().map(|service| to_service(service, consul, names)).collect()
}

fn to_service(spec: &service::Service, consul: Option<&Consul>, names: &Names<'_>) -> Service {
    let name = names.service(spec.name.as_deref());
    let weights = spec.weights.clone().unwrap_or_default();
    let default = Weights::default();
    let provider = spec.provider.unwrap_or(Provider::Nomad);
    let port = spec.port.as_ref().map(|port| &*port.0);
    Service {
        provider,
        identity: spec
            .identity
            .as_ref()
            .map(|identity| to_service_identity(identity, (&name, provider, port), names)),
        port: spec.port.clone().map(|port| port.0),
        address: spec.address.clone(),
        address_mode: spec.address_mode.unwrap_or(AddressMode::Auto),
        tags: plain(spec.tags.as_deref()),
        canary_tags: plain(spec.canary_tags.as_deref()),
        meta: strings(spec.meta.as_ref()),
        canary_meta: strings(spec.canary_meta.as_ref()),
        tagged_addresses: strings(spec.tagged_addresses.as_ref()),
        enable_tag_override: spec.enable_tag_override.unwrap_or(false),
        weights: Weights {
            // As in Nomad, 0 is the default.
            passing: weights.passing.filter(|weight| *weight > 0).unwrap_or(default.passing),
            warning: weights.warning.filter(|weight| *weight > 0).unwrap_or(default.warning),
        },
        task: spec.task.clone().filter(|_| names.task.is_none()),
        consul: to_access(spec, consul),
        publish: spec.publish.as_ref().map(to_publish),
        checks: spec.checks.iter().flatten().map(|check| to_check(check, spec, &name, names)).collect(),
        name,
    }
}

/// The Consul of a service; `None` for the default one, and for the built-in catalogue.
fn to_access(spec: &service::Service, block: Option<&Consul>) -> Option<ConsulAccess> {
    let mut access = block.cloned().unwrap_or_default();
    if let Some(cluster) = spec.cluster.as_ref().filter(|cluster| !cluster.is_empty()) {
        access.cluster = Some(cluster.clone());
    }
    let is_in_consul = spec.provider == Some(Provider::Consul);
    Some(access.to_access())
        .filter(|access| is_in_consul && *access != ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER))
}

fn to_publish(spec: &service::Publish) -> Publish {
    Publish {
        port: spec.port.unwrap_or_default(),
        host_network: spec.host_network.clone().filter(|name| name != Network::DEFAULT_HOST_NETWORK),
    }
}

/// Converts a check; settings of the service apply to each of its checks.
fn to_check(spec: &service::Check, of: &service::Service, service: &str, names: &Names<'_>) -> Check {
    let tls_server_name = || spec.tls_server_name.clone().unwrap_or_default();
    let kind = match spec.kind.unwrap_or_default() {
        CheckType::Tcp => CheckKind::Tcp,
        CheckType::Http => CheckKind::Http {
            path: to_path(spec.path.as_deref().unwrap_or_default()),
            method: spec.method.as_ref().map_or_else(|| "GET".to_owned(), |method| to_method(method)),
            protocol: match spec.protocol.unwrap_or_default() {
                service::Protocol::Http => "http".to_owned(),
                service::Protocol::Https => "https".to_owned(),
            },
            header: to_header(spec.header.as_ref()),
            body: spec.body.clone().unwrap_or_default().0,
            tls_skip_verify: spec.tls_skip_verify.unwrap_or(false),
            tls_server_name: tls_server_name(),
        },
        CheckType::Grpc => CheckKind::Grpc {
            service: spec.grpc_service.clone().unwrap_or_default(),
            tls: spec.grpc_use_tls.unwrap_or(false),
            tls_skip_verify: spec.tls_skip_verify.unwrap_or(false),
            tls_server_name: tls_server_name(),
        },
        CheckType::Script => CheckKind::Script {
            command: spec.command.clone().unwrap_or_default(),
            args: plain(spec.args.as_deref()),
            task: names.script_task(spec.task.as_deref().or(of.task.as_deref())),
        },
    };
    Check {
        name: spec.name.clone().unwrap_or_else(|| check_name(service)),
        kind,
        port: spec.port.clone().map(|port| port.0),
        address_mode: spec.address_mode,
        interval: length(spec.interval, Duration::ZERO),
        timeout: length(spec.timeout, Duration::ZERO),
        initial_status: spec.initial_status,
        thresholds: Thresholds {
            success_before_passing: spec.success_before_passing.unwrap_or(0),
            failures_before_critical: spec.failures_before_critical.unwrap_or(0),
            failures_before_warning: spec.failures_before_warning.unwrap_or(0),
        },
        on_update: spec.on_update.or(of.on_update).unwrap_or_default(),
        check_restart: to_check_restart(of.check_restart.as_ref(), spec.check_restart.as_ref()),
        notes: spec.notes.clone().unwrap_or_default(),
    }
}

/// A path needs no leading `/`, and may begin with a variable.
fn to_path(path: &str) -> String {
    let is_whole = path.is_empty() || path.starts_with('/') || path.starts_with("${");
    if is_whole { path.to_owned() } else { format!("/{path}") }
}

/// Nomad takes the names of methods in any case.
fn to_method(method: &str) -> String {
    if method.contains("${") { method.to_owned() } else { method.to_ascii_uppercase() }
}

/// Each field comes from the check, else from the service.
fn to_check_restart(
    service: Option<&service::CheckRestart>,
    check: Option<&service::CheckRestart>,
) -> Option<CheckRestart> {
    let (outer, inner) = (service.cloned().unwrap_or_default(), check.cloned().unwrap_or_default());
    let limit = inner.limit.or(outer.limit).filter(|limit| *limit > 0)?;
    Some(CheckRestart {
        limit,
        grace: length(inner.grace.or(outer.grace), CHECK_GRACE),
        ignore_warnings: inner.ignore_warnings.or(outer.ignore_warnings).unwrap_or(false),
    })
}

fn to_header(header: Option<&BTreeMap<String, Vec<Text>>>) -> BTreeMap<String, Vec<String>> {
    header.into_iter().flatten().map(|(field, values)| (field.clone(), plain(Some(values)))).collect()
}
