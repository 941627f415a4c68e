//! `network.cni` of a group: arguments of the plugins of its CNI network.
//!
//! Plugins get them in one variable, as `KEY=VALUE` separated by `;`, which nothing can escape.

use herdlet_api_types::manifest::{Network, NetworkMode};

use super::Findings;
use crate::yaml::Trail;

/// Keys that the agent sets.
const OF_AGENT: [&str; 2] = ["IgnoreUnknown", "NOMAD_"];

/// Validates the arguments.
pub(super) fn arguments(network: &Network, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(cni) = &network.cni else { return };
    let trail = trail.field("cni");
    let args = trail.field("args");
    for (key, value) in cni.args.iter().flatten() {
        let trail = args.field(key);
        if key.is_empty() || key.contains([';', '=']) || value.0.contains(';') {
            findings.problem(
                &trail,
                "names must have no `;` and no `=`, values no `;`: plugins get KEY=VALUE;KEY=VALUE",
            );
        } else if OF_AGENT.iter().any(|own| key.starts_with(own)) {
            findings.warning(&trail, "has no effect: the agent sets it");
        }
    }
    let has_any = cni.args.iter().flatten().next().is_some();
    if has_any && !matches!(network.mode, Some(NetworkMode::Cni(_))) {
        findings.warning(&trail, "has no effect without `mode: cni/NAME`");
    }
}
