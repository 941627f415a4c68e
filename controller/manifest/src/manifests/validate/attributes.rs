//! Whether any node can have an attribute: `${attr.kernel.nam}` is a typing error, and a constraint on it is
//! never met.
//!
//! In: the text of a constraint, an affinity or a spread. Out: a warning if no node can have the attribute,
//! with the nearest name. Which attributes a given node has is not known here. The names come from Nomad's
//! fingerprinters (`client/fingerprint`) and its node (`client/taskenv`).

use super::Findings;
use crate::yaml::{Trail, nearest};

/// `${attr.…}`. A trailing `*` matches a prefix.
const ATTRIBUTES: [&str; 41] = [
    "consul.*",
    "cpu.arch",
    "cpu.frequency",
    "cpu.frequency.efficiency",
    "cpu.frequency.performance",
    "cpu.modelname",
    "cpu.numcores",
    "cpu.numcores.efficiency",
    "cpu.numcores.performance",
    "cpu.reservablecores",
    "cpu.totalcompute",
    "cpu.usablecompute",
    "driver.*",
    "kernel.arch",
    "kernel.landlock",
    "kernel.name",
    "kernel.version",
    "memory.totalbytes",
    "nomad.advertise.address",
    "nomad.bridge.hairpin_mode",
    "nomad.revision",
    "nomad.service_discovery",
    "nomad.version",
    "numa.*",
    "os.build",
    "os.cgroups.version",
    "os.name",
    "os.signals",
    "os.version",
    "platform.*",
    "plugins.*",
    "secrets.*",
    "storage.*",
    "unique.advertise.address",
    "unique.cgroup.*",
    "unique.consul.*",
    "unique.hostname",
    "unique.network.*",
    "unique.platform.*",
    "unique.storage.*",
    "vault.*",
];

/// `${node.…}`.
const NODE: [&str; 6] = ["class", "datacenter", "pool", "region", "unique.id", "unique.name"];

/// Warns of an attribute that no node has. Other texts are literals.
pub(super) fn known(text: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(name) = text.strip_prefix("${").and_then(|name| name.strip_suffix('}')) else { return };
    if let Some(message) = complaint(name) {
        findings.warning(trail, message);
    }
}

fn complaint(name: &str) -> Option<String> {
    let of_attributes =
        name.strip_prefix("attr.").is_some_and(|name| ATTRIBUTES.iter().any(|listed| matches(listed, name)));
    let of_node = name.strip_prefix("node.").is_some_and(|name| NODE.contains(&name));
    // The operator of a node defines its meta.
    let of_meta = name.strip_prefix("meta.").is_some_and(|name| !name.is_empty());
    if of_meta || of_attributes || of_node {
        return None;
    }
    let attributes = ATTRIBUTES.iter().filter(|listed| !listed.ends_with('*'));
    let names: Vec<String> = attributes
        .map(|listed| format!("attr.{listed}"))
        .chain(NODE.iter().map(|listed| format!("node.{listed}")))
        .collect();
    let meant = nearest(name, names.iter().map(String::as_str));
    let what = match meant {
        Some(meant) => format!("did you mean `${{{meant}}}`?"),
        None => "herdlet get node lists the attributes of this one".to_owned(),
    };
    Some(format!("no node has `${{{name}}}`; {what}"))
}

fn matches(listed: &str, name: &str) -> bool {
    match listed.strip_suffix('*') {
        Some(prefix) => name.len() > prefix.len() && name.starts_with(prefix),
        None => name == listed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_attribute_has_a_suggestion() {
        for (name, expected) in [
            ("attr.kernel.name", None),
            ("attr.driver.raw_exec", None),
            ("attr.unique.platform.aws.ami-id", None),
            ("meta.rack", None),
            ("node.unique.id", None),
            (
                "attr.kernel.nam",
                Some("no node has `${attr.kernel.nam}`; did you mean `${attr.kernel.name}`?"),
            ),
            ("node.datacentre", Some("no node has `${node.datacentre}`; did you mean `${node.datacenter}`?")),
            ("kernel.name", Some("no node has `${kernel.name}`; did you mean `${attr.kernel.name}`?")),
            (
                "attr.xyzzy",
                Some("no node has `${attr.xyzzy}`; herdlet get node lists the attributes of this one"),
            ),
            (
                "attr.driver.",
                Some("no node has `${attr.driver.}`; herdlet get node lists the attributes of this one"),
            ),
            ("meta.", Some("no node has `${meta.}`; herdlet get node lists the attributes of this one")),
        ] {
            assert_eq!(complaint(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn attributes_of_this_machine_are_known() {
        let room = herdlet_fingerprint::room(std::path::Path::new("/"));
        for name in herdlet_fingerprint::attributes(room).keys() {
            assert_eq!(complaint(&format!("attr.{name}")), None, "{name}");
        }
    }
}
