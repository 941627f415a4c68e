//! Services as a catalogue should hold them: with interpolated names, resolved addresses and deterministic ids.
//!
//! In: a [`Workload`]. Out: a [`Registration`] or an error for each service, so that an invalid one does not block the
//! others. It knows no catalogue.

pub mod address;
mod check;

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use herdlet_api_types::{
    InstanceId,
    alloc::Allocation,
    job::{AddressMode, Publish, Service, Task},
    names::{NameKind, SERVICE_RULE},
    service::{Publication, Registration},
};

use crate::{
    env::TaskEnv,
    hash::Fields,
    network::{AllocNetwork, DriverNetwork},
};
use address::{Address, AddressError, Scope};

/// Meta key with the kind of agent that registered a service; Consul's UI shows it.
pub const META_SOURCE: &str = "external-source";
/// Meta key of our owner mark: the instance.
pub const META_INSTANCE: &str = "herdlet-instance";
/// Meta key of our owner mark: the allocation.
pub const META_ALLOC: &str = "herdlet-alloc";
/// Meta key with a hash of the tags, for a service whose tags others may change in the catalogue: if the job's tags
/// change, the service is registered again.
pub const META_TAGS: &str = "herdlet-tags";

/// The kind of agent that registers services; prefix of all ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Ids begin with `_herdlet-`, so that a Nomad client on the same Consul agent leaves them alone.
    Standalone,
    /// Ids begin with `_nomad-`, as the servers of the cluster expect.
    Node,
}

impl Origin {
    /// The name in ids and in [`META_SOURCE`].
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standalone => "herdlet",
            Self::Node => "nomad",
        }
    }
}

/// An owner of services: a task, or the group if `task` is `None`.
#[derive(Debug, Clone, Copy)]
pub struct Workload<'a> {
    /// The allocation.
    pub alloc: &'a Allocation,
    /// The task; `None` for the group's services.
    pub task: Option<&'a Task>,
    /// The task's environment; for the group one that was built without a task.
    pub env: &'a TaskEnv,
    /// The network that the task's driver created, if it did.
    pub driver_network: Option<&'a DriverNetwork>,
    /// The network namespace of the allocation, if it has one.
    pub alloc_network: Option<&'a AllocNetwork>,
    /// Our instance.
    pub instance: &'a InstanceId,
    /// The kind of agent that registers the services.
    pub origin: Origin,
}

/// Why one service could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("register service {service:?}: {why}")]
pub struct RegistrationError {
    /// Name after interpolation.
    pub service: String,
    /// The problem.
    pub why: Invalid,
}

/// A problem of a service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The name is no DNS label.
    #[error("the name {SERVICE_RULE}")]
    Name,
    /// The service has no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A check has no address.
    #[error("check {check:?}: {why}")]
    Check {
        /// Name of the check.
        check: String,
        /// The problem.
        why: AddressError,
    },
    /// Another service of the workload has the same name and port.
    #[error("another service has the same name and port")]
    Duplicate,
}

/// The registrations of a workload, one result for each of its services, in their order.
///
/// Nomad interpolates these fields: a service's name, port, addresses, tags and meta; a check's name, port, path,
/// method, protocol and header.
pub fn registrations(workload: &Workload<'_>) -> Vec<Result<Registration, RegistrationError>> {
    let mut taken = BTreeSet::new();
    services(workload)
        .iter()
        .map(|service| {
            let name = workload.env.interpolate(&service.name);
            register(workload, service, &name, &mut taken)
                .map_err(|why| RegistrationError { service: name, why })
        })
        .collect()
}

/// The ids of a workload's registrations. They need no address, so that they are known also while no address is.
pub fn ids(workload: &Workload<'_>) -> Vec<String> {
    let id = |service: &Service| {
        let label = workload.env.interpolate(service.port.as_deref().unwrap_or_default());
        service_id(workload, &workload.env.interpolate(&service.name), &label)
    };
    services(workload).iter().map(id).collect()
}

fn services<'a>(workload: &Workload<'a>) -> &'a [Service] {
    match workload.task {
        Some(task) => task.services.as_slice(),
        None => workload.alloc.group().map_or(&[][..], |group| &group.services),
    }
}

fn register(
    workload: &Workload<'_>,
    service: &Service,
    name: &str,
    taken: &mut BTreeSet<String>,
) -> Result<Registration, Invalid> {
    if !NameKind::Service.accepts(name) {
        return Err(Invalid::Name);
    }
    let Workload { alloc, task, env, origin, .. } = *workload;
    let label = env.interpolate(service.port.as_deref().unwrap_or_default());
    let literal = env.interpolate(service.address.as_deref().unwrap_or_default());
    let scope = Scope { workload, named_task: service.task.as_deref() };
    let Address { ip, port } = address::resolve(&scope, service.address_mode, &label, &literal)?;
    let id = service_id(workload, name, &label);
    if !taken.insert(id.clone()) {
        return Err(Invalid::Duplicate);
    }
    let of = check::Of { scope, id: &id, label: &label, literal: &literal, provider: service.provider };
    let checks = service.checks.iter().map(|check| of.register(check)).collect::<Result<_, _>>()?;
    let of_canary = is_canary(workload) && !service.canary_tags.is_empty();
    let tags = if of_canary { &service.canary_tags } else { &service.tags };
    let tags: BTreeSet<String> = tags.iter().map(|tag| env.interpolate(tag)).collect();
    let mut meta = meta(workload, service, origin);
    if service.enable_tag_override {
        let mut fields = Fields::default();
        tags.iter().for_each(|tag| fields.text(tag));
        meta.insert(META_TAGS.to_string(), fields.hex::<8>());
    }
    let tagged = service.tagged_addresses.iter();
    let tagged = tagged.map(|(name, address)| (env.interpolate(name), env.interpolate(address)));
    let publish = publication(&scope, service, &label);
    Ok(Registration {
        id,
        provider: service.provider,
        name: name.to_string(),
        address: ip,
        port,
        tags: tags.into_iter().collect(),
        enable_tag_override: service.enable_tag_override,
        meta,
        tagged_addresses: tagged.collect(),
        weights: service.weights,
        checks,
        consul: service.consul.clone(),
        publish,
        alloc: alloc.id,
        task: task.map(|task| task.name.clone()),
        job: alloc.job_key.clone(),
    })
}

/// Where the published port of a service leads: to the port in the network of the allocation if it has one, else to the machine's.
fn publication(scope: &Scope<'_>, service: &Service, label: &str) -> Option<Publication> {
    let Publish { port, host_network } = service.publish.clone()?;
    let mode = if scope.workload.alloc_network.is_some() { AddressMode::Alloc } else { AddressMode::Host };
    // An invalid port makes the registration fail.
    let target = address::resolve(scope, mode, label, "").unwrap_or_default();
    let target_address6 = scope.workload.alloc_network.and_then(|network| network.address6.clone());
    Some(Publication {
        port,
        host_network,
        target_address6: target_address6.filter(|ip| *ip != target.ip),
        target_address: target.ip,
        target_port: target.port,
    })
}

/// `_herdlet-task-<alloc>-<task, or group-GROUP>-<service>-<port label>`. Without a port the last dash remains.
fn service_id(workload: &Workload<'_>, name: &str, label: &str) -> String {
    let owner = match workload.task {
        Some(task) => task.name.clone(),
        None => format!("group-{}", workload.alloc.group),
    };
    format!("_{}-task-{}-{owner}-{name}-{label}", workload.origin.as_str(), workload.alloc.id)
}

/// The job's meta, overridden by our mark.
fn meta(workload: &Workload<'_>, service: &Service, origin: Origin) -> BTreeMap<String, String> {
    let env = workload.env;
    let of_canary = is_canary(workload) && !service.canary_meta.is_empty();
    let written = if of_canary { &service.canary_meta } else { &service.meta };
    let mut meta: BTreeMap<String, String> =
        written.iter().map(|(key, value)| (env.interpolate(key), env.interpolate(value))).collect();
    meta.insert(META_SOURCE.to_string(), origin.as_str().to_string());
    meta.insert(META_INSTANCE.to_string(), workload.instance.to_string());
    meta.insert(META_ALLOC.to_string(), workload.alloc.id.to_string());
    meta
}

fn is_canary(workload: &Workload<'_>) -> bool {
    workload.alloc.deployment.is_some_and(|deployment| deployment.canary)
}

#[cfg(test)]
mod tests;
