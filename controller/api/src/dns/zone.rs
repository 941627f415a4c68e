//! The names of the zone `herdlet`.
//!
//! In: the labels of a name, the catalogue and the results of checks. Out: the addresses and ports of services. It must not know
//! DNS messages.
//!
//! ```text
//! web.service.herdlet                  the service web of the namespace default
//! web.prod.service.herdlet             the same of the namespace prod
//! blue.web.prod.service.herdlet        of these the instances with the tag blue
//! c0000207.addr.herdlet                the address 192.0.2.7, for SRV records to point to; IPv6 likewise
//! ```

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use herdlet_agent::{publish::ReadModel, service_health::is_listed};
use herdlet_api_types::service::Registration;
use herdlet_runtime::Gate;
use herdlet_services::catalog::BuiltIn;

pub(super) const ZONE: &str = "herdlet";
const SERVICES: &str = "service";
const ADDRESSES: &str = "addr";

#[derive(Debug)]
pub struct Zone {
    pub model: Arc<ReadModel>,
    pub catalog: Arc<BuiltIn>,
    /// Opens once the read model has the stored state.
    pub restored: Gate,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The name is in another zone.
    Elsewhere,
    Unknown,
    /// Neither the name nor a name below it exists.
    Nothing,
    Apex,
    /// The name exists; its list may be empty at present.
    Name(Vec<Endpoint>),
}

impl Found {
    /// Whether this server is authoritative for the answer.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Self::Elsewhere | Self::Unknown => false,
            Self::Nothing | Self::Apex | Self::Name(_) => true,
        }
    }
}

/// The address of an instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Endpoint {
    pub(super) host: Host,
    /// None for the name of an address.
    pub(super) port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Host {
    Address(IpAddr),
    /// A host name outside of the zone.
    Name(String),
}

impl Zone {
    /// Looks up a name. `labels`: in lower case, leftmost first, without the root.
    pub(super) fn look_up(&self, labels: &[String]) -> Found {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        match labels.as_slice() {
            [.., zone] if *zone != ZONE => Found::Elsewhere,
            [] => Found::Elsewhere,
            [_] => Found::Apex,
            [SERVICES | ADDRESSES, _] => Found::Name(Vec::new()),
            [address, ADDRESSES, _] => named_address(address),
            [.., SERVICES, _] if !self.restored.is_open() => Found::Unknown,
            [service, SERVICES, _] => {
                let found = self.service(None, service, "default");
                // It may be a namespace, which has names below it.
                let is_namespace = || !self.catalog.select(|one| is(&one.job.namespace, service)).is_empty();
                if found == Found::Nothing && is_namespace() { Found::Name(Vec::new()) } else { found }
            }
            [service, namespace, SERVICES, _] => self.service(None, service, namespace),
            [tag, service, namespace, SERVICES, _] => self.service(Some(tag), service, namespace),
            _ => Found::Nothing,
        }
    }

    fn service(&self, tag: Option<&str>, name: &str, namespace: &str) -> Found {
        let mut instances = self.catalog.select(|one| {
            is(&one.name, name)
                && is(&one.job.namespace, namespace)
                && tag.is_none_or(|tag| one.tags.iter().any(|known| is(known, tag)))
        });
        if instances.is_empty() {
            return Found::Nothing;
        }
        instances.retain(|one| is_listed(&self.model, one));
        Found::Name(instances.iter().filter_map(place).collect())
    }
}

/// DNS names are case-insensitive (RFC 4343).
fn is(known: &str, asked: &str) -> bool {
    known.eq_ignore_ascii_case(asked)
}

/// None if the registration has no address.
fn place(one: &Registration) -> Option<Endpoint> {
    let host = match one.address.parse() {
        Ok(address) => Host::Address(address),
        Err(_) if one.address.is_empty() => return None,
        Err(_) => Host::Name(one.address.clone()),
    };
    Some(Endpoint { host, port: (one.port > 0).then_some(one.port) })
}

/// The first label of an address's name.
pub(super) fn label_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{:08x}", address.to_bits()),
        IpAddr::V6(address) => format!("{:032x}", address.to_bits()),
    }
}

pub(super) fn name_of(address: IpAddr) -> String {
    format!("{}.{ADDRESSES}.{ZONE}.", label_of(address))
}

fn named_address(label: &str) -> Found {
    let address = match label.len() {
        8 => u32::from_str_radix(label, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(label, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    };
    // The label must be in canonical form: `from_str_radix` also accepts a sign.
    match address.filter(|address| label_of(*address) == label) {
        Some(address) => Found::Name(vec![Endpoint { host: Host::Address(address), port: None }]),
        None => Found::Nothing,
    }
}
