//! `secrets` of a task: names, providers, and which options a provider takes.

use herdlet_api_types::{
    job::{self, Task},
    manifest::{Secret, SecretConfig, TaskSpec, Text},
};

use super::{Findings, text};
use crate::yaml::Trail;

/// Maximum length of a name, as in Nomad, and of a provider.
const NAME_LEN_MAX: usize = 128;

/// Maximum length of a path: one argument of a plugin.
const PATH_LEN_MAX: usize = 4_096;

pub(super) fn of_task(spec: &TaskSpec, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("secrets");
    let names = spec.secrets.iter().flatten().map(|secret| secret.name.as_deref());
    text::unique(names, "secret", &list, findings);
    of_servers(spec, task, trail, findings);
}

/// Validates secrets of a job that servers have validated: they know neither the plugins of this agent nor what it lacks.
pub(super) fn of_servers(spec: &TaskSpec, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("secrets");
    for (index, secret) in spec.secrets.iter().flatten().enumerate() {
        one(secret, task, &list.item(index), findings);
    }
}

fn one(secret: &Secret, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if let Some(name) = &secret.name
        && !((1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_letter))
    {
        findings.problem(&trail.field("name"), "must be 1 to 128 letters, digits and `_`");
    }
    if let Some(Text(path)) = &secret.path
        && (path.is_empty() || path.len() > PATH_LEN_MAX || path.contains(char::is_control))
    {
        let message = "must be 1 to 4096 characters without control characters";
        findings.problem(&trail.field("path"), message);
    }
    let Some(Text(provider)) = &secret.provider else { return };
    match provider.as_str() {
        job::Secret::VAULT => of_vault(secret, task, trail, findings),
        job::Secret::VARIABLES => {
            if secret.env.as_ref().is_some_and(|env| !env.is_empty()) {
                let message = "is only for plugins; the provider `nomad` starts no program";
                findings.problem(&trail.field("env"), message);
            }
            if secret.config.as_ref().is_some_and(|config| config.engine.is_some()) {
                findings.problem(&trail.field("config").field("engine"), "is only for the provider `vault`");
            }
        }
        plugin => {
            if !is_plugin(plugin) {
                let message = "must be `nomad`, `vault`, or the name of a secrets plugin: letters, digits, `.`, `_` and `-`, not beginning with `.`";
                findings.problem(&trail.field("provider"), message);
            }
            let is_set = |config: &SecretConfig| config.namespace.is_some() || config.engine.is_some();
            if secret.config.as_ref().is_some_and(is_set) {
                let message = "is not for plugins; pass options to a plugin in `env`";
                findings.problem(&trail.field("config"), message);
            }
        }
    }
}

fn of_vault(secret: &Secret, task: &Task, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if task.vault.is_none() {
        let message = "needs a token of Vault; add a block `vault` to the task";
        findings.problem(&trail.field("provider"), message);
    }
    if secret.env.as_ref().is_some_and(|env| !env.is_empty()) {
        let message = "is only for plugins; the provider `vault` starts no program";
        findings.problem(&trail.field("env"), message);
    }
    let config = secret.config.as_ref();
    if config.is_some_and(|config| config.namespace.is_some()) {
        let message = "is only for the provider `nomad`; write `namespace` in the block `vault`";
        findings.problem(&trail.field("config").field("namespace"), message);
    }
    let engine = config.and_then(|config| config.engine.as_ref()).map(|Text(engine)| engine.as_str());
    if !matches!(engine, None | Some("" | "kv_v1" | "kv_v2")) {
        let message = "must be `kv_v1` or `kv_v2`; both are recognized without it";
        findings.problem(&trail.field("config").field("engine"), message);
    }
}

/// The name is that of a file in the directory of plugins.
fn is_plugin(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
