//! The published ports of a job's services: whether they are open, and where they lead.
//!
//! In: the job, and the built-in catalogue. Out: lines for people, or a part of the report. A port without an instance in the catalogue is
//! not listed.

use std::collections::BTreeMap;

use herdlet_api_types::{
    job::Group,
    service::{PublishedView, ServiceView},
    view::JobView,
};
use serde::Serialize;

use super::Depth;
use crate::{client::Client, failure::Failure, show, style, table::plain};

/// A published port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct PublishedPort {
    service: String,
    port: u16,
    /// Where clients connect.
    addresses: Vec<String>,
    /// The instances to which connections lead.
    targets: Vec<String>,
    /// Why it is not open, or does not lead to healthy instances.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
}

pub(super) async fn ports(client: &Client, job: Option<&JobView>) -> Result<Vec<PublishedPort>, Failure> {
    let Some(job) = job else { return Ok(Vec::new()) };
    if job.job.groups.iter().flat_map(Group::published_ports).next().is_none() {
        return Ok(Vec::new());
    }
    let services = client.services().await?;
    Ok(of_job(services.iter().filter(|one| one.registration.job == job.key)))
}

fn of_job<'s>(services: impl Iterator<Item = &'s ServiceView>) -> Vec<PublishedPort> {
    let mut ports: BTreeMap<(&str, u16), PublishedPort> = BTreeMap::new();
    for ServiceView { registration, published, .. } in services {
        let (Some(publish), Some(view)) = (&registration.publish, published) else { continue };
        let PublishedView { addresses, receives, problem } = view;
        let one = ports.entry((&registration.name, publish.port)).or_insert_with(|| PublishedPort {
            service: registration.name.clone(),
            port: publish.port,
            addresses: addresses.clone(),
            targets: Vec::new(),
            problems: Vec::new(),
        });
        if *receives {
            one.targets.push(format!("{}:{}", publish.target_address, publish.target_port));
        }
        one.problems
            .extend(problem.iter().filter(|why| !one.problems.contains(why)).cloned().collect::<Vec<_>>());
    }
    ports.into_values().collect()
}

/// `explain` prints only what prevents something.
pub(super) fn show(ports: &[PublishedPort], depth: Depth) {
    for port in ports {
        let name = format!("service {}, published port {}", plain(&port.service), port.port);
        for why in &port.problems {
            show::out(&format!("  {name}: {}\n", show::styled(style::WARNING, plain(why))));
        }
        if port.targets.is_empty() && port.problems.is_empty() {
            show::out(&format!("  {name}: no instance is healthy, connections are refused\n"));
        } else if depth == Depth::Everything && port.problems.is_empty() {
            let (addresses, targets) = (port.addresses.join(" "), port.targets.join(" "));
            show::out(&format!("  {name}: {addresses} leads to {targets}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{
        AllocId, fixture,
        service::{Publication, ServiceHealth},
    };

    use super::*;

    fn instance(last: u8, view: PublishedView) -> ServiceView {
        let id = format!("s{last}");
        let publish = Publication {
            port: 8080,
            host_network: None,
            target_address: format!("172.26.64.{last}"),
            target_address6: None,
            target_port: 80,
        };
        let mut registration = fixture::registration(&id, AllocId::from_hash([last; 16]));
        registration.publish = Some(publish);
        ServiceView {
            registration,
            health: ServiceHealth::Passing,
            results: Vec::new(),
            published: Some(view),
        }
    }

    #[test]
    fn instances_of_a_port_are_listed_together() {
        let open =
            PublishedView { addresses: vec!["127.0.0.1:8080".to_owned()], receives: true, problem: None };
        let left = PublishedView { receives: false, ..open.clone() };
        let taken = PublishedView { problem: Some("it is taken".to_owned()), ..left.clone() };
        let ports = of_job([instance(2, open.clone()), instance(3, left), instance(4, open)].iter());
        let [port] = ports.as_slice() else { panic!("one port: {ports:?}") };
        assert_eq!(port.targets, ["172.26.64.2:80", "172.26.64.4:80"]);
        assert_eq!((port.addresses.len(), port.problems.len()), (1, 0));
        let ports = of_job([instance(2, taken.clone()), instance(3, taken)].iter());
        assert_eq!(ports[0].problems, ["it is taken"], "once");
        let none = ServiceView { published: None, ..instance(2, PublishedView::default()) };
        assert_eq!(of_job([none].iter()), []);
    }
}
