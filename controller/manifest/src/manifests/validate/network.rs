//! `network`: port labels, and static ports, of which a machine has only one each.

use std::collections::BTreeMap;

use herdlet_api_types::job::Job;
use herdlet_api_types::manifest::{GroupSpec, JobManifest};

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

/// Validates the static ports of all groups: every allocation runs on this one machine.
pub(super) fn static_ports(
    manifest: &JobManifest,
    job: &Job,
    groups: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    for (index, (spec, group)) in manifest.spec.groups.iter().flatten().zip(&job.groups).enumerate() {
        let group_trail = groups.item(index);
        let network = group_trail.field("network");
        let ports = network.field("ports");
        for (label, port) in spec.network.iter().filter_map(|network| network.ports.as_ref()).flatten() {
            let Some(number) = port.fixed else { continue };
            let label = ports.field(label);
            let trail = label.field("static");
            if group.count > 1 {
                let message = format!(
                    "port {number} can be used only once on this machine, but `count` is {}; use a dynamic port (`{{}}`) or count 1",
                    group.count
                );
                findings.problem(&trail, message);
            }
            match taken.get(&number) {
                Some(first) => {
                    findings.problem(&trail, format!("port {number} is already taken at `{first}`"))
                }
                None => {
                    taken.insert(number, label.to_string());
                }
            }
        }
    }
}
