//! Which ports should be published, at which addresses, and to which instances they should lead.
//!
//! In: live allocations, the built-in catalogue, the machine's addresses. Out: one entry for each port. It changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use herdlet_api_types::{
    AllocId, JobKey,
    alloc::ClientStatus,
    job::Publish,
    service::{Publication, Registration},
    task::TaskPhase,
    view::AllocView,
};
use herdlet_network::firewall::published::{PublishedPort, Target};
use herdlet_plan::job::ports::HostNetwork;
use herdlet_services::catalog::BuiltIn;

use crate::{publish::ReadModel, service_health::is_listed};

/// The machine's addresses for published ports.
#[derive(Debug, Clone)]
pub struct Places {
    /// The usual address of ports.
    pub host_ip: String,
    /// The machine's networks, by name.
    pub networks: BTreeMap<String, HostNetwork>,
}

/// A port that should be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PortPlan {
    pub(super) owner: JobKey,
    /// The addresses, or why there is none.
    pub(super) addresses: Result<Vec<IpAddr>, String>,
    /// The healthy instances.
    pub(super) instances: Vec<Instance>,
}

/// A healthy instance of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Instance {
    /// Its registration.
    pub(super) id: String,
    pub(super) alloc: AllocId,
    /// Where it listens, at most once for each family of addresses, or why the port can't lead there.
    pub(super) at: Result<Vec<SocketAddr>, String>,
}

/// The jobs that publish a port, each with the `publish` of its newest version.
type Candidates = BTreeMap<u16, BTreeMap<JobKey, (u64, Publish)>>;

pub(super) fn wanted(places: &Places, model: &ReadModel, catalogue: &BuiltIn) -> BTreeMap<u16, PortPlan> {
    wanted_by(&BTreeMap::new(), (places, model, catalogue))
}

/// `owners`: the jobs that have ports now, and keep them.
pub(super) fn wanted_by(
    owners: &BTreeMap<u16, JobKey>,
    (places, model, catalogue): (&Places, &ReadModel, &BuiltIn),
) -> BTreeMap<u16, PortPlan> {
    let candidates = candidates(&model.allocs());
    if candidates.is_empty() {
        return BTreeMap::new();
    }
    let registrations = catalogue.select(|one| one.publish.is_some() && is_ready(model, one));
    let one = |(port, mut jobs): (u16, BTreeMap<JobKey, (u64, Publish)>)| {
        let kept = owners.get(&port).and_then(|owner| jobs.remove_entry(owner));
        let (owner, (_, publish)) = kept.or_else(|| jobs.pop_first())?;
        let own = registrations.iter().filter(|one| one.job == owner);
        let instances = own.filter_map(|one| instance(one, port)).collect();
        Some((
            port,
            PortPlan { addresses: places.addresses(publish.host_network.as_deref()), owner, instances },
        ))
    };
    candidates.into_iter().filter_map(one).collect()
}

fn candidates(allocs: &[Arc<AllocView>]) -> Candidates {
    let mut candidates = Candidates::new();
    for view in allocs.iter().filter(|view| !view.status.is_terminal()) {
        let version = view.spec.job_version;
        for publish in view.spec.group().into_iter().flat_map(|group| group.published_ports()) {
            let jobs = candidates.entry(publish.port).or_default();
            let newest = jobs.entry(view.spec.job_key.clone()).or_insert_with(|| (version, publish.clone()));
            if newest.0 < version {
                *newest = (version, publish.clone());
            }
        }
    }
    candidates
}

/// Whether it may get connections: its checks pass, and without checks its tasks run. Discovery lists the latter earlier.
fn is_ready(model: &ReadModel, registration: &Registration) -> bool {
    let runs = |alloc: &AllocView| match &registration.task {
        None => alloc.status == ClientStatus::Running,
        Some(name) => alloc.tasks.iter().any(|task| *task.name == **name && task.phase == TaskPhase::Running),
    };
    is_listed(model, registration)
        && (!registration.checks.is_empty()
            || model.alloc(&registration.alloc).is_some_and(|alloc| runs(&alloc)))
}

fn instance(registration: &Registration, port: u16) -> Option<Instance> {
    let Publication { target_address, target_address6, target_port, .. } =
        registration.publish.as_ref().filter(|publish| publish.port == port)?;
    let at = match target_address.parse::<IpAddr>() {
        Ok(ip) if !ip.is_unspecified() && *target_port != 0 => {
            let also = target_address6.iter().filter_map(|ip| ip.parse().ok());
            Ok(std::iter::once(ip).chain(also).map(|ip| SocketAddr::new(ip, *target_port)).collect())
        }
        Ok(_) | Err(_) => Err(format!(
            "the address {target_address:?} of the instance is no address of one interface: use network mode `bridge`, or a \
             `host_network` with such an address for its port"
        )),
    };
    Some(Instance { id: registration.id.clone(), alloc: registration.alloc, at })
}

impl Places {
    /// A usual address of IPv4 is also reached at 127.0.0.1, by the machine itself.
    fn addresses(&self, network: Option<&str>) -> Result<Vec<IpAddr>, String> {
        let ip = match network {
            None => self.host_ip.as_str(),
            Some(name) => {
                let found = self.networks.get(name).and_then(|network| network.ip.as_deref());
                found.ok_or_else(|| {
                    format!(
                        "use the host network `{name}`: `network.host_networks` of the agent's config has none with an address of \
                         this machine"
                    )
                })?
            }
        };
        match ip.parse::<IpAddr>() {
            Ok(ip) if !ip.is_unspecified() && (ip.is_ipv4() || !ip.is_loopback()) => {
                let is_usual = network.is_none() && ip.is_ipv4() && !ip.is_loopback();
                Ok(std::iter::once(ip).chain(is_usual.then_some(Ipv4Addr::LOCALHOST.into())).collect())
            }
            Ok(_) | Err(_) => Err(format!(
                "publish at {ip}: ports are published at one address, and the kernel can't translate ::1; name a `host_network` that has \
                 another one, or change `host_ip` of the agent's config"
            )),
        }
    }
}

impl PortPlan {
    /// The port at each address, with the instances that it can lead to, and why it does not lead to others. An instance that listens on
    /// 127.0.0.1 is for the machine alone, and gets connections only at this address.
    pub(super) fn targets_at(
        &self,
        addresses: &[SocketAddr],
    ) -> (Vec<PublishedPort>, BTreeMap<String, String>) {
        let mut barred = BTreeMap::new();
        let mut ports: Vec<PublishedPort> =
            addresses.iter().map(|at| PublishedPort { at: *at, targets: BTreeSet::new() }).collect();
        for instance in &self.instances {
            for port in &mut ports {
                match instance.target_for(port.at) {
                    Ok(at) => drop(port.targets.insert(Target { at, owner: instance.alloc.to_string() })),
                    Err(why) => drop(barred.insert(instance.id.clone(), why)),
                }
            }
        }
        (ports, barred)
    }
}

impl Instance {
    /// Where connections to a published port lead, or why they don't lead to this instance.
    fn target_for(&self, published: SocketAddr) -> Result<SocketAddr, String> {
        let all = self.at.as_ref().map_err(Clone::clone)?;
        match all.iter().find(|at| at.is_ipv4() == published.is_ipv4()) {
            None => Err(without_address(published)),
            Some(at) if at.ip().is_loopback() && !published.ip().is_loopback() => {
                Err(for_the_machine_alone(*at, published))
            }
            Some(at) => Ok(*at),
        }
    }
}

fn without_address(published: SocketAddr) -> String {
    let remedy = match published {
        SocketAddr::V4(_) => "publish at a `host_network` with an IPv6 address",
        SocketAddr::V6(_) => {
            "use network mode `bridge` with `network.subnet6` in the agent's config, or publish at a `host_network` with an IPv4 address"
        }
    };
    format!("the instance has no address of the family of {published}, and gets no connections: {remedy}")
}

fn for_the_machine_alone(at: SocketAddr, published: SocketAddr) -> String {
    format!(
        "the instance listens on {at}, for the machine alone, and gets no connections to {published}: give its port a `host_network`, or \
         use network mode `bridge`"
    )
}

#[cfg(test)]
mod tests;
