//! go-sockaddr templates such as `{{ GetInterfaceIP "eth0" }}`, in the forms that are common in agent files.
//!
//! In: a text and this machine's interfaces. Out: the address; or what is not supported.
//!
//! ```text
//! {{ GetPrivateInterfaces | include "network" "10.0.0.0/8" | limit 1 | attr "address" }}
//!    source                 filters …                                  attribute
//! ```

use std::net::IpAddr;

use herdlet_fingerprint::{Interface, Network};

/// The supported templates.
const KNOWN: &str = "herdlet supports GetInterfaceIP \"NAME\", GetPrivateIP, GetPublicIP, and GetAllInterfaces, \
                     GetDefaultInterfaces, GetPrivateInterfaces or GetPublicInterfaces with include and exclude (name, \
                     network, type), limit, and attr \"address\"";

/// An address of an interface.
type Found<'i> = (&'i Interface, IpAddr);

/// Expands the template in a text. A text without a template is returned unchanged.
///
/// # Errors
/// What is not supported, as the end of a sentence.
pub(super) fn expand(text: &str, interfaces: &[Interface]) -> Result<String, String> {
    let Some((before, rest)) = text.split_once("{{") else { return Ok(text.to_owned()) };
    let Some((template, after)) = rest.split_once("}}") else {
        return Err("begins a template `{{` that is not closed".to_owned());
    };
    if after.contains("{{") {
        return Err("has more than one template".to_owned());
    }
    let template = template.trim_matches(|char: char| char == '-' || char.is_whitespace());
    Ok(format!("{before}{}{after}", evaluate(template, interfaces)?))
}

fn evaluate(template: &str, interfaces: &[Interface]) -> Result<String, String> {
    let unknown = || format!("has a template that herdlet does not support, `{template}`; {KNOWN}");
    let mut steps = steps(template).into_iter();
    let source = steps.next().unwrap_or_default();
    let addresses = || interfaces.iter().flat_map(|one| one.addresses.iter().map(move |(ip, _)| (one, *ip)));
    let source: Vec<&str> = source.iter().map(String::as_str).collect();
    let (mut found, is_done): (Vec<Found<'_>>, bool) = match source[..] {
        ["GetInterfaceIP", name] => (addresses().filter(|(one, _)| one.name == name).collect(), true),
        ["GetPrivateIP"] => (privates(addresses()), true),
        ["GetPublicIP"] => (publics(addresses()), true),
        ["GetAllInterfaces"] => (addresses().collect(), false),
        ["GetDefaultInterfaces"] => (addresses().filter(|(one, _)| one.is_default).collect(), false),
        ["GetPrivateInterfaces"] => (privates(addresses()), false),
        ["GetPublicInterfaces"] => (publics(addresses()), false),
        _ => return Err(unknown()),
    };
    // IPv4 first, as in other choices among addresses.
    found.sort_by_key(|(_, ip)| ip.is_ipv6());
    let mut is_said = is_done;
    for step in steps {
        let step: Vec<&str> = step.iter().map(String::as_str).collect();
        match step[..] {
            ["include", what, which] => found = filtered(found, what, which, true).ok_or_else(unknown)?,
            ["exclude", what, which] => found = filtered(found, what, which, false).ok_or_else(unknown)?,
            ["limit", count] => found.truncate(count.parse().map_err(|_| unknown())?),
            ["attr", "address"] if !is_said => is_said = true,
            ["join", "address", _] if !is_said => is_said = true,
            _ => return Err(unknown()),
        }
    }
    if !is_said {
        return Err(unknown());
    }
    let first = found.first().map(|(_, ip)| ip.to_string());
    first.ok_or_else(|| format!("matches no address of this machine: `{template}`"))
}

/// Returns private addresses, those on the interface with the default route first.
fn privates<'i>(all: impl Iterator<Item = Found<'i>>) -> Vec<Found<'i>> {
    let up = all.filter(|(one, ip)| one.is_up && !one.is_loopback && is_private(*ip));
    let mut found: Vec<_> = up.collect();
    found.sort_by_key(|(one, _)| !one.is_default);
    found
}

fn publics<'i>(all: impl Iterator<Item = Found<'i>>) -> Vec<Found<'i>> {
    let is_public =
        |ip: IpAddr| !is_private(ip) && !ip.is_loopback() && !herdlet_fingerprint::is_link_local(ip);
    all.filter(|(one, ip)| one.is_up && is_public(*ip)).collect()
}

/// Returns whether an address is private by RFC 1918, 4193 or 6598.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64,
        IpAddr::V6(ip) => ip.is_unique_local(),
    }
}

/// Keeps the addresses for which a condition is `wanted`. `None` if the condition is not supported.
fn filtered<'i>(found: Vec<Found<'i>>, what: &str, which: &str, wanted: bool) -> Option<Vec<Found<'i>>> {
    let holds: Box<dyn Fn(&Found<'_>) -> bool> = match what {
        "name" => {
            let name = regex::Regex::new(which).ok()?;
            Box::new(move |(one, _)| name.is_match(&one.name))
        }
        "network" => {
            let network: Network = which.parse().ok()?;
            Box::new(move |(_, ip)| network.contains(*ip))
        }
        "type" => {
            let is_ip6 = match which.to_ascii_lowercase().as_str() {
                "ipv4" => false,
                "ipv6" => true,
                "ip" => return Some(if wanted { found } else { Vec::new() }),
                _ => return None,
            };
            Box::new(move |(_, ip)| ip.is_ipv6() == is_ip6)
        }
        _ => return None,
    };
    Some(found.into_iter().filter(|one| holds(one) == wanted).collect())
}

/// Splits a template into steps, and each step into words and quoted texts.
fn steps(template: &str) -> Vec<Vec<String>> {
    let mut steps = vec![Vec::new()];
    for (nth, part) in template.split(['"', '`']).enumerate() {
        if nth % 2 == 1 {
            steps.last_mut().into_iter().for_each(|words: &mut Vec<String>| words.push(part.to_owned()));
            continue;
        }
        for (nth, part) in part.split('|').enumerate() {
            if nth > 0 {
                steps.push(Vec::new());
            }
            let words = part.split_whitespace().map(str::to_owned);
            steps.last_mut().into_iter().for_each(|step| step.extend(words.clone()));
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Vec<Interface> {
        let interface = |name: &str, addresses: &[(&str, u8)]| Interface {
            name: name.to_owned(),
            is_up: true,
            is_loopback: name == "lo",
            is_default: name == "eth0",
            addresses: addresses.iter().map(|(ip, prefix)| (ip.parse().unwrap(), *prefix)).collect(),
            ..Interface::default()
        };
        vec![
            interface("lo", &[("127.0.0.1", 8), ("::1", 128)]),
            interface("docker0", &[("172.17.0.1", 16)]),
            interface("eth0", &[("fe80::1", 64), ("10.0.0.7", 24)]),
            interface("eth1", &[("2001:db8::1", 64), ("203.0.113.9", 24)]),
        ]
    }

    #[test]
    fn templates_are_addresses_of_this_machine() {
        for (text, expected) in [
            ("10.1.1.1", "10.1.1.1"),
            ("{{ GetInterfaceIP \"eth1\" }}", "203.0.113.9"),
            ("{{GetInterfaceIP `eth0`}}:4647", "10.0.0.7:4647"),
            ("{{ GetPrivateIP }}", "10.0.0.7"),
            ("{{ GetPublicIP }}", "203.0.113.9"),
            (
                "{{ GetPrivateInterfaces | include \"network\" \"172.16.0.0/12\" | attr \"address\" }}",
                "172.17.0.1",
            ),
            (
                "{{ GetAllInterfaces | exclude \"name\" \"^(lo|docker.*)$\" | limit 1 | attr \"address\" }}",
                "10.0.0.7",
            ),
            ("{{ GetDefaultInterfaces | include \"type\" \"IPv6\" | join \"address\" \" \" }}", "fe80::1"),
        ] {
            assert_eq!(expand(text, &machine()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unknown_template_is_refused() {
        for (text, expected) in [
            (
                "{{ GetInterfaceIP \"eth9\" }}",
                "matches no address of this machine: `GetInterfaceIP \"eth9\"`",
            ),
            ("{{ GetPrivateIP", "begins a template `{{` that is not closed"),
            ("{{ GetPrivateInterfaces }}", "herdlet supports GetInterfaceIP"),
            ("{{ env \"HOME\" }}", "herdlet supports GetInterfaceIP"),
            ("{{ GetAllInterfaces | sort \"size\" | attr \"address\" }}", "herdlet supports GetInterfaceIP"),
            ("{{ GetPrivateIP }}{{ GetPublicIP }}", "has more than one template"),
        ] {
            let error = expand(text, &machine()).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
