//! `sockaddr`: expressions of go-sockaddr on the addresses of the node, such as `GetPrivateIP` or
//! `GetAllInterfaces | include "network" "10.0.0.0/8" | attr "address"`.

mod math;

use core::net::IpAddr;

use crate::{
    context::Context,
    error::{Fault, Outcome},
    number,
    query::{Answer, NodeAddress, Query},
    value::Value,
};

use super::strings;

/// Evaluates an expression. No answer yet is an empty text.
pub(super) fn evaluate(context: &mut Context<'_>, expression: &str) -> Outcome<String> {
    let stages = stages(expression)?;
    let (asked, answer) = context.ask(Query::Addresses)?;
    if answer.is_nothing() {
        return Ok(String::new());
    }
    let Answer::Addresses(addresses) = answer else { return Err(context.unfitting(asked)) };
    let mut found = Found::Addresses(addresses.to_vec());
    for (index, stage) in stages.iter().enumerate() {
        let words: Vec<&str> = stage.iter().map(String::as_str).collect();
        context.charge(addresses.len() * 64)?;
        found = match (index, found) {
            (0, Found::Addresses(all)) => start(all, &words)?,
            (_, Found::Addresses(all)) => filter(context, all, &words)?,
            (_, Found::Text(_)) => return Err(unsupported("a step after one that gives a text")),
        };
    }
    match found {
        Found::Text(text) => Ok(text),
        Found::Addresses(all) => Ok(joined(&all, " ")),
    }
}

enum Found {
    Addresses(Vec<NodeAddress>),
    Text(String),
}

/// Splits an expression at pipes, and each part into words and strings.
fn stages(expression: &str) -> Outcome<Vec<Vec<String>>> {
    let mut stages = vec![Vec::new()];
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_quoted = first == '"' || first == '`';
        let length = match first {
            '|' => {
                stages.push(Vec::new());
                1
            }
            _ if is_quoted => {
                closing(rest).ok_or_else(|| Fault::new("a string of the expression has no end"))?
            }
            _ => rest.find(|char: char| char.is_whitespace() || char == '|').unwrap_or(rest.len()),
        };
        let word = &rest[..length];
        if let (Some(stage), true) = (stages.last_mut(), first != '|') {
            let text = if is_quoted {
                String::from_utf8_lossy(&number::unquote(word).map_err(Fault::new)?).into_owned()
            } else {
                word.to_owned()
            };
            stage.push(text);
        }
        rest = rest[length..].trim_start();
    }
    if stages.iter().any(Vec::is_empty) {
        return Err(Fault::new("expected an expression such as GetPrivateIP"));
    }
    Ok(stages)
}

/// The length of a string with its quotes.
fn closing(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut is_escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if char == quote {
            return Some(at + 1);
        } else {
            is_escaped = quote == '"' && char == '\\';
        }
    }
    None
}

fn start(all: Vec<NodeAddress>, words: &[&str]) -> Outcome<Found> {
    let usable = |all: Vec<NodeAddress>| {
        let mut kept: Vec<NodeAddress> =
            all.into_iter().filter(|address| address.is_up && is_forwardable(address.address)).collect();
        kept.sort_by_key(|address| (address.address.is_ipv6(), std::cmp::Reverse(address.prefix)));
        kept
    };
    let default =
        |all: Vec<NodeAddress>| all.into_iter().filter(|address| address.is_default).collect::<Vec<_>>();
    let of = |all: Vec<NodeAddress>, name: &str| {
        usable(all.into_iter().filter(|address| address.interface == name).collect())
    };
    let private = |all: Vec<NodeAddress>, private: bool| {
        usable(all).into_iter().filter(|address| is_private(address.address) == private).collect::<Vec<_>>()
    };
    Ok(match words {
        ["GetAllInterfaces"] => Found::Addresses(all),
        ["GetDefaultInterfaces"] => Found::Addresses(default(all)),
        ["GetPrivateInterfaces"] => Found::Addresses(private(default(all), true)),
        ["GetPublicInterfaces"] => Found::Addresses(private(default(all), false)),
        ["GetPrivateIP"] => Found::Text(first(&private(default(all), true))),
        ["GetPublicIP"] => Found::Text(first(&private(default(all), false))),
        ["GetPrivateIPs"] => Found::Text(joined(&private(all, true), " ")),
        ["GetPublicIPs"] => Found::Text(joined(&private(all, false), " ")),
        ["GetInterfaceIP", name] => Found::Text(first(&of(all, name))),
        ["GetInterfaceIPs", name] => Found::Text(joined(&of(all, name), " ")),
        _ => return Err(unsupported("the step")),
    })
}

fn filter(context: &mut Context<'_>, mut all: Vec<NodeAddress>, words: &[&str]) -> Outcome<Found> {
    let count = |text: &str| text.parse::<usize>().map_err(|_| unsupported("the count"));
    Ok(match words {
        [verb @ ("include" | "exclude"), selector, value] => {
            let is_match = condition(context, all.len(), (selector, value))?;
            let wanted = *verb == "include";
            all.retain(|address| is_match(address) == wanted);
            Found::Addresses(all)
        }
        ["sort", keys] => {
            for key in keys.split(',').rev() {
                context.charge(all.len() * 64)?;
                sort(&mut all, key.trim())?;
            }
            Found::Addresses(all)
        }
        ["unique", _] => {
            all.dedup_by(|one, other| one.address == other.address);
            Found::Addresses(all)
        }
        ["limit", limit] => {
            all.truncate(count(limit)?);
            Found::Addresses(all)
        }
        ["offset", offset] => {
            let offset = count(offset)?.min(all.len());
            Found::Addresses(all.split_off(offset))
        }
        ["math", operation, value] => {
            for address in &mut all {
                math::apply(operation, value, address)?;
            }
            Found::Addresses(all)
        }
        ["attr", name] => match all.first() {
            Some(address) => Found::Text(attribute(address, name)?),
            None => Found::Text(String::new()),
        },
        ["join", name, separator] => {
            context.charge(all.len().saturating_mul(separator.len() + 64))?;
            let texts = all.iter().map(|address| attribute(address, name)).collect::<Outcome<Vec<_>>>()?;
            Found::Text(texts.join(separator))
        }
        _ => return Err(unsupported("the step")),
    })
}

/// An expression that is not supported, without its text, which may be a secret: the error names the call in the template.
fn unsupported(what: &str) -> Fault {
    Fault::new(format!("{what} is not supported"))
}

/// Longest text of an address.
const ADDRESS_BYTES: usize = 45;

type Condition = Box<dyn Fn(&NodeAddress) -> bool>;

fn condition(
    context: &mut Context<'_>,
    addresses: usize,
    (selector, value): (&str, &str),
) -> Outcome<Condition> {
    let value = value.to_owned();
    Ok(match selector {
        "name" | "address" => {
            let expression = strings::compile(context, &Value::from(value.as_str()))?;
            context.charge(addresses.saturating_mul(ADDRESS_BYTES * expression.cost))?;
            let is_name = selector == "name";
            Box::new(move |address| {
                let text = if is_name { address.interface.clone() } else { address.address.to_string() };
                expression.regex.is_match(&text)
            })
        }
        "network" => {
            let (network, prefix) = value.split_once('/').ok_or_else(|| unsupported("the network"))?;
            let network: IpAddr = network.parse().map_err(|_| unsupported("the value"))?;
            let prefix: u8 = prefix.parse().map_err(|_| unsupported("the value"))?;
            Box::new(move |address| contains((network, prefix), address.address))
        }
        "type" => match value.to_lowercase().as_str() {
            "ip" => Box::new(|_| true),
            "ipv4" => Box::new(|address| address.address.is_ipv4()),
            "ipv6" => Box::new(|address| address.address.is_ipv6()),
            _ => return Err(unsupported("the value")),
        },
        "flag" | "flags" => match value.as_str() {
            "up" => Box::new(|address| address.is_up),
            "loopback" => Box::new(|address| address.address.is_loopback()),
            "forwardable" => Box::new(|address| is_forwardable(address.address)),
            _ => return Err(unsupported("the value")),
        },
        "rfc" | "RFC" => match value.as_str() {
            "1918" => {
                Box::new(|address| matches!(address.address, IpAddr::V4(address) if address.is_private()))
            }
            "6890" => Box::new(|address| is_private(address.address)),
            _ => return Err(unsupported("the value")),
        },
        "size" => {
            let size: u8 = value.parse().map_err(|_| unsupported("the value"))?;
            Box::new(move |address| address.prefix == size)
        }
        _ => return Err(unsupported("the selector")),
    })
}

fn sort(all: &mut [NodeAddress], key: &str) -> Outcome<()> {
    let name = key.trim_start_matches(['+', '-']);
    match name {
        "address" => all.sort_by_key(|address| address.address),
        "default" => all.sort_by_key(|address| !address.is_default),
        "name" => all.sort_by(|one, other| one.interface.cmp(&other.interface)),
        "private" => all.sort_by_key(|address| !is_private(address.address)),
        "size" => all.sort_by_key(|address| std::cmp::Reverse(address.prefix)),
        "type" => all.sort_by_key(|address| address.address.is_ipv6()),
        _ => return Err(unsupported("the key of `sort`")),
    }
    if key.starts_with('-') {
        all.reverse();
    }
    Ok(())
}

fn attribute(address: &NodeAddress, name: &str) -> Outcome<String> {
    match name {
        "address" => Ok(address.address.to_string()),
        "name" => Ok(address.interface.clone()),
        "size" | "mask_bits" => Ok(address.prefix.to_string()),
        "type" => Ok(if address.address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned()),
        "string" if is_single(address) => Ok(address.address.to_string()),
        "cidr" | "string" => Ok(format!("{}/{}", address.address, address.prefix)),
        _ => Err(unsupported("the attribute")),
    }
}

/// Whether its network has no other address.
fn is_single(address: &NodeAddress) -> bool {
    address.prefix == if address.address.is_ipv4() { 32 } else { 128 }
}

fn first(all: &[NodeAddress]) -> String {
    all.first().map(|address| address.address.to_string()).unwrap_or_default()
}

fn joined(all: &[NodeAddress], separator: &str) -> String {
    all.iter().map(|address| address.address.to_string()).collect::<Vec<_>>().join(separator)
}

fn contains((network, prefix): (IpAddr, u8), address: IpAddr) -> bool {
    let (network, address, bits) = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (u128::from(network.to_bits()), u128::from(address.to_bits()), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
        (_, _) => return false,
    };
    let shift = bits - u32::from(prefix).min(bits);
    network.checked_shr(shift).unwrap_or(0) == address.checked_shr(shift).unwrap_or(0)
}

/// Whether packets with this address can leave the machine.
fn is_forwardable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            !address.is_loopback() && !address.is_link_local() && !address.is_unspecified()
        }
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unicast_link_local() && !address.is_unspecified()
        }
    }
}

/// Whether an address is in a network of RFC 6890, which are not public.
fn is_private(address: IpAddr) -> bool {
    const V4: [([u8; 4], u8); 13] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 168, 0, 0], 16),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        ([240, 0, 0, 0], 4),
    ];
    match address {
        IpAddr::V4(_) => {
            V4.iter().any(|(network, prefix)| contains((IpAddr::from(*network), *prefix), address))
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}
