//! `vault` of a job, a group and a task.

use herdlet_api_types::{
    job::ChangeMode,
    manifest::{TaskSpec, Text, Vault},
    names::NameKind,
};

use super::{Findings, identity, text};
use crate::yaml::Trail;

/// Where the task finds its token.
const FILE: &str = "secrets/vault_token";

/// Validates a block.
pub(super) fn block(vault: Option<&Vault>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(vault) = vault else { return };
    let trail = trail.field("vault");
    if let Some(rule) = vault.cluster.as_deref().and_then(|name| NameKind::Cluster.problem(name)) {
        findings.problem(&trail.field("cluster"), rule);
    }
    for (field, value) in [("role", &vault.role), ("namespace", &vault.namespace)] {
        if value.as_ref().is_some_and(|Text(value)| !value.bytes().all(|byte| byte.is_ascii_graphic())) {
            findings.problem(&trail.field(field), "must be visible ASCII characters without spaces");
        }
    }
    if let Some(signal) = &vault.change_signal {
        text::signal(&signal.0, &trail.field("change_signal"), findings);
        let is_sent = vault.change_mode == Some(ChangeMode::Signal);
        // Servers write the default into every block.
        if !is_sent && !signal.0.eq_ignore_ascii_case("SIGHUP") {
            findings.problem(&trail.field("change_signal"), "is only allowed with `change_mode: signal`");
        }
    }
}

/// Validates the block of a task, and that no identity has the token's file.
pub(super) fn of_task(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    block(spec.vault.as_ref(), trail, findings);
    let is_written = |vault: &Vault| vault.disable_file != Some(true);
    if !spec.vault.as_ref().is_some_and(is_written) {
        return;
    }
    identity::leaves_file((FILE, "Vault"), spec, trail, findings);
}
