//! `network`: port labels and static ports.

use std::collections::BTreeMap;

use herdlet_api_types::manifest::GroupSpec;

use super::Findings;
use crate::yaml::Trail;

/// Validates the labels of a group's ports.
pub(super) fn ports(spec: &GroupSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let network = trail.field("network");
    let trail = network.field("ports");
    let mut variables: BTreeMap<String, &str> = BTreeMap::new();
    for label in
        spec.network.iter().filter_map(|network| network.ports.as_ref()).flatten().map(|(label, _)| label)
    {
        let fits = (1..=64).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
            && label.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !fits {
            let rule = "the label must be 1 to 64 letters, digits, `_` and `-`, and not begin with a digit";
            findings.problem(&trail.field(label), rule);
            continue;
        }
        // Names of environment variables have no dashes.
        let variable = format!("NOMAD_PORT_{}", label.replace('-', "_"));
        match variables.get(&variable) {
            Some(other) => {
                let message = format!("labels `{other}` and `{label}` both make {variable}");
                findings.problem(&trail.field(label), message);
            }
            None => {
                variables.insert(variable, label);
            }
        }
    }
}

/// Validates the static ports of a group: each of its allocations would need such a port twice. Several allocations
/// or groups with the same port are valid: one of them runs, the others wait.
pub(super) fn static_ports(spec: &GroupSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    let network = trail.field("network");
    let ports = network.field("ports");
    for (label, port) in spec.network.iter().filter_map(|network| network.ports.as_ref()).flatten() {
        let Some(number) = port.fixed else { continue };
        let label = ports.field(label);
        match taken.get(&number) {
            Some(first) => {
                let message = format!("port {number} is already taken at `{first}`");
                findings.problem(&label.field("static"), message);
            }
            None => {
                taken.insert(number, label.to_string());
            }
        }
    }
}
