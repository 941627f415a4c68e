//! `secrets` of a task: names, providers, and which options a provider takes.

use herdlet_api_types::{
    job,
    manifest::{Secret, SecretConfig, TaskSpec, Text},
};

use super::{Findings, text};
use crate::yaml::Trail;

/// Maximum length of a name, as in Nomad, and of a provider.
const NAME_LEN_MAX: usize = 128;

/// Maximum length of a path: one argument of a plugin.
const PATH_LEN_MAX: usize = 4_096;

pub(super) fn of_task(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("secrets");
    let names = spec.secrets.iter().flatten().map(|secret| secret.name.as_deref());
    text::unique(names, "secret", &list, findings);
    of_servers(spec, trail, findings);
}

/// Validates secrets of a job that servers have validated: they know neither the plugins of this agent nor what it lacks.
pub(super) fn of_servers(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("secrets");
    for (index, secret) in spec.secrets.iter().flatten().enumerate() {
        one(secret, &list.item(index), findings);
    }
}

fn one(secret: &Secret, trail: &Trail<'_>, findings: &mut Findings<'_>) {
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
        job::Secret::VAULT => {
            let message = "needs Vault, which this release does not support; \
                           write the values to a variable and use `provider: nomad`, or use a secrets plugin";
            findings.problem(&trail.field("provider"), message);
        }
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
                let message = "must be `nomad`, or the name of a secrets plugin: letters, digits, `.`, `_` and `-`, not beginning with `.`";
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

/// The name is that of a file in the directory of plugins.
fn is_plugin(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}
