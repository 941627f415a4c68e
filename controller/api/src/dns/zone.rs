//! What there is under a name of the zone `herdlet`.
//!
//! In: a name, label by label, and what the catalogue and the checks say now. Out: addresses and ports that requests may be sent
//! to. It must not know messages.
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

use herdlet_agent::publish::ReadModel;
use herdlet_api_types::service::Registration;
use herdlet_runtime::Gate;
use herdlet_services::catalog::BuiltIn;

use crate::http;

/// The zone.
pub(super) const ZONE: &str = "herdlet";
const SERVICES: &str = "service";
const ADDRESSES: &str = "addr";

/// The services of an agent, by name.
#[derive(Debug)]
pub struct Zone {
    pub model: Arc<ReadModel>,
    pub catalog: Arc<BuiltIn>,
    /// Opens once what was stored is shown.
    pub restored: Gate,
}

/// What there is under a name.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is of another zone.
    Elsewhere,
    Unknown,
    /// There is no such name, and none below it.
    Nothing,
    Apex,
    /// There is such a name; what it leads to may be nothing now.
    Name(Vec<Place>),
}

impl Found {
    /// Whether we are the ones to say so.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Self::Elsewhere | Self::Unknown => false,
            Self::Nothing | Self::Apex | Self::Name(_) => true,
        }
    }
}

/// Where requests may be sent to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) host: Host,
    /// None where it is a mere address.
    pub(super) port: Option<u16>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Host {
    Address(IpAddr),
    /// By a name of somebody else's.
    Name(String),
}

impl Zone {
    /// Looks up a name: its labels in lower case, the first one first, without the root.
    pub(super) fn look(&self, labels: &[String]) -> Found {
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
                // It may be a namespace, below which there are names.
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
        instances.retain(|one| http::is_listed(&self.model, one));
        Found::Name(instances.iter().filter_map(place).collect())
    }
}

/// Names of DNS are the same in whatever case (RFC 4343).
fn is(known: &str, asked: &str) -> bool {
    known.eq_ignore_ascii_case(asked)
}

/// None where it has no address.
fn place(one: &Registration) -> Option<Place> {
    let host = match one.address.parse() {
        Ok(address) => Host::Address(address),
        Err(_) if one.address.is_empty() => return None,
        Err(_) => Host::Name(one.address.clone()),
    };
    Some(Place { host, port: (one.port > 0).then_some(one.port) })
}

/// The first label of an address's name.
pub(super) fn label_of(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => format!("{:08x}", address.to_bits()),
        IpAddr::V6(address) => format!("{:032x}", address.to_bits()),
    }
}

/// The name of an address.
pub(super) fn name_of(address: IpAddr) -> String {
    format!("{}.{ADDRESSES}.{ZONE}.", label_of(address))
}

fn named_address(label: &str) -> Found {
    let address = match label.len() {
        8 => u32::from_str_radix(label, 16).ok().map(|bits| Ipv4Addr::from_bits(bits).into()),
        32 => u128::from_str_radix(label, 16).ok().map(|bits| Ipv6Addr::from_bits(bits).into()),
        _ => None,
    };
    // Only what is written as we write it: a sign is a digit to nobody else.
    match address.filter(|address| label_of(*address) == label) {
        Some(address) => Found::Name(vec![Place { host: Host::Address(address), port: None }]),
        None => Found::Nothing,
    }
}
