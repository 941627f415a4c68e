//! `identities` of a task.

use std::path::Path;

use herdlet_api_types::job::ChangeMode;
use herdlet_api_types::manifest::TaskSpec;
use herdlet_api_types::manifest::defaults::DEFAULT_IDENTITY;

use super::{Findings, text};
use crate::desired::yaml::Trail;
use crate::drivers::identity::steps;

/// Validates the identities of a task.
pub(super) fn of_task(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("identities");
    let names = || {
        spec.identities.iter().flatten().map(|identity| identity.name.as_deref().unwrap_or(DEFAULT_IDENTITY))
    };
    text::unique(names().map(Some), "identity", &list, findings);
    for (index, (identity, name)) in spec.identities.iter().flatten().zip(names()).enumerate() {
        let trail = list.item(index);
        let fits = (1..=128).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !fits {
            findings.problem(&trail.field("name"), "must be 1 to 128 of letters, digits, `_` and `-`");
        }
        let aud = identity.aud.as_deref().unwrap_or_default();
        if name == DEFAULT_IDENTITY {
            if identity.aud.is_some() {
                let message = "the default identity has its own audience; give this one a `name`";
                findings.problem(&trail.field("aud"), message);
            }
            if identity.ttl.is_some() {
                let message = "the default identity doesn't expire; give this one a `name`";
                findings.problem(&trail.field("ttl"), message);
            }
        } else if aud.is_empty() {
            findings.absent(&trail, &trail, "`aud` is missing: who is the token for?");
        }
        for (index, audience) in aud.iter().enumerate() {
            text::plain(audience, &trail.field("aud").item(index), findings);
        }
        if identity.ttl.is_some_and(|ttl| ttl.0.is_zero()) {
            findings.problem(
                &trail.field("ttl"),
                "must be longer than 0; remove it for a token that doesn't expire",
            );
        }
        if let Some(path) = &identity.filepath {
            let trail = trail.field("filepath");
            file(path, &trail, findings);
            if identity.file != Some(true) {
                findings.problem(&trail, "stands only with `file: true`");
            }
        }
        if let Some(signal) = &identity.change_signal {
            text::signal(&signal.0, &trail.field("change_signal"), findings);
        }
        let is_signal = identity.change_mode == Some(ChangeMode::Signal);
        match (&identity.change_signal, is_signal) {
            (None, true) => {
                findings.absent(&trail, &trail, "`change_signal` is missing, for `change_mode: signal`")
            }
            (Some(_), false) => {
                findings.problem(&trail.field("change_signal"), "stands only with `change_mode: signal`");
            }
            (Some(_), true) | (None, false) => {}
        }
        if identity.env != Some(true) && identity.file != Some(true) {
            findings.warning(&trail, "neither `env` nor `file` is true, so the task won't see this token");
        }
    }
}

/// Of identities that servers have judged: where their files are.
pub(super) fn files(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("identities");
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        if let Some(path) = &identity.filepath {
            file(path, &list.item(index).field("filepath"), findings);
        }
    }
}

fn file(path: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if steps(Path::new(path)).is_none() || path.len() > 1_024 || path.contains('\0') {
        findings
            .problem(trail, "must be a path to a file in the task's directory, for instance secrets/token");
    }
}
