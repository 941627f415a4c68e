//! Functions for networks in prefix notation, such as `10.1.0.0/16`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Answer, Arguments, Function};
use crate::hcl::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    Function { name: "cidrhost", arguments: (2, 2), call: cidrhost },
    Function { name: "cidrnetmask", arguments: (1, 1), call: cidrnetmask },
    Function { name: "cidrsubnet", arguments: (3, 3), call: cidrsubnet },
    Function { name: "cidrsubnets", arguments: (1, usize::MAX), call: cidrsubnets },
];

/// An IPv4 or IPv6 network.
#[derive(Debug, Clone, Copy)]
struct Network {
    /// The first address as a number.
    first: u128,
    /// The length of the prefix.
    prefix: u32,
    /// The number of bits of an address.
    bits: u32,
}

impl Network {
    fn read(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is not a network such as 10.1.0.0/16");
        let (address, prefix) = text.split_once('/').ok_or_else(error)?;
        let (number, bits) = match address.parse().map_err(|_| error())? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits).ok_or_else(error)?;
        let network = Self { first: number, prefix, bits };
        Ok(Self { first: number & !network.host_mask(), ..network })
    }

    /// The mask of the host bits.
    fn host_mask(self) -> u128 {
        1_u128.checked_shl(self.bits - self.prefix).map_or(u128::MAX, |beyond| beyond - 1)
    }

    /// Returns the subnet with this number among those whose prefix is `more` bits longer.
    fn subnet(self, more: i128, number: u128) -> Option<Self> {
        let more = u32::try_from(more).ok().filter(|more| *more <= self.bits - self.prefix)?;
        let within = Self { prefix: self.prefix + more, ..self };
        let is_there = 1_u128.checked_shl(more).is_none_or(|beyond| number < beyond);
        // If no host bits are left, the only subnet has the number 0.
        let offset = number.checked_shl(within.bits - within.prefix).unwrap_or(0);
        is_there.then_some(Self { first: self.first | offset, ..within })
    }

    fn address(self, number: u128) -> String {
        match u32::try_from(number) {
            Ok(number) if self.bits == 32 => Ipv4Addr::from(number).to_string(),
            Ok(_) | Err(_) => Ipv6Addr::from(number).to_string(),
        }
    }

    fn text(self) -> Value {
        Value::Str(format!("{}/{}", self.address(self.first), self.prefix))
    }
}

/// Returns the address of a host by its number. Negative numbers count from the end.
fn cidrhost(all: &Arguments<'_>) -> Answer {
    let (network, number) = (Network::read(&all.text(0)?)?, all.int(1)?);
    let hosts = network.host_mask();
    let host = match u128::try_from(number) {
        Ok(number) => Some(number).filter(|number| *number <= hosts),
        Err(_) => hosts.checked_sub(number.unsigned_abs() - 1),
    };
    let host =
        host.ok_or_else(|| format!("{} has no host {number}", all.value(0).text().unwrap_or_default()))?;
    Ok(Value::Str(network.address(network.first | host)))
}

fn cidrnetmask(all: &Arguments<'_>) -> Answer {
    let network = Network::read(&all.text(0)?)?;
    let whole = if network.bits == 32 { u128::from(u32::MAX) } else { u128::MAX };
    Ok(Value::Str(network.address(whole & !network.host_mask())))
}

fn cidrsubnet(all: &Arguments<'_>) -> Answer {
    let (text, more, number) = (all.text(0)?, all.int(1)?, all.int(2)?);
    let subnet =
        u128::try_from(number).ok().map(|number| Network::read(&text).map(|of| of.subnet(more, number)));
    match subnet.transpose()?.flatten() {
        Some(subnet) => Ok(subnet.text()),
        None => Err(format!("{text} has no subnet {number} with {more} more bits").into()),
    }
}

/// Returns consecutive subnets whose prefixes are the given numbers of bits longer. Each one begins as close
/// behind its predecessor as its alignment allows.
fn cidrsubnets(all: &Arguments<'_>) -> Answer {
    let text = all.text(0)?;
    let network = Network::read(&text)?;
    let mut free = Some(network.first);
    let mut subnets = Vec::new();
    for at in 1..all.len() {
        let more = all.int(at)?;
        let too_much = || format!("{text} has no room for another subnet with {more} more bits");
        let size = network.subnet(more, 0).ok_or_else(too_much)?.host_mask();
        // A subnet begins at a multiple of its size.
        let first = free.and_then(|free| free.checked_add(size)).map(|beyond| beyond & !size);
        let offset = first.and_then(|first| first.checked_sub(network.first)).ok_or_else(too_much)?;
        let number = offset.checked_div(size.saturating_add(1)).unwrap_or(0);
        let subnet = network.subnet(more, number).ok_or_else(too_much)?;
        free = subnet.first.checked_add(size).and_then(|last| last.checked_add(1));
        subnets.push(subnet.text());
    }
    Ok(Value::List(subnets))
}
