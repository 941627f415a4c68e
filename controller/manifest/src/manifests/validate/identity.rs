//! `identities` of a task.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use herdlet_api_types::{
    job::ChangeMode,
    manifest::{Identity, TaskSpec, defaults::DEFAULT_IDENTITY},
};
use herdlet_base::{below::below, token_path::path_of};

use super::{Findings, text};
use crate::yaml::Trail;

/// The audience of the default identity.
const DEFAULT_AUDIENCE: &str = "nomadproject.io";

/// The beginnings of names of identities for logins at Vault and Consul. Servers write them into tasks, which need not
/// see these tokens.
const OF_LOGINS: [&str; 2] = ["vault_", "consul_"];

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
            findings.problem(&trail.field("name"), "must be 1 to 128 letters, digits, `_` and `-`");
        }
        let aud = identity.aud.as_deref().unwrap_or_default();
        if name == DEFAULT_IDENTITY {
            if aud.iter().any(|audience| audience != DEFAULT_AUDIENCE) {
                let message = "the default identity has its own audience; give this one a `name`";
                findings.problem(&trail.field("aud"), message);
            }
            if identity.ttl.is_some_and(|ttl| !ttl.0.is_zero()) {
                let message = "the default identity doesn't expire; give this one a `name`";
                findings.problem(&trail.field("ttl"), message);
            }
        } else if aud.is_empty() {
            findings.warning(
                &trail,
                "`aud` is missing, so a service can't tell whether this token is meant for it",
            );
        }
        for (index, audience) in aud.iter().enumerate() {
            text::plain(audience, &trail.field("aud").item(index), findings);
        }
        if let Some(path) = &identity.filepath {
            let trail = trail.field("filepath");
            file(path, &trail, findings);
            if identity.file != Some(true) {
                findings.problem(&trail, "is only allowed with `file: true`");
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
                findings.problem(&trail.field("change_signal"), "is only allowed with `change_mode: signal`");
            }
            (Some(_), true) | (None, false) => {}
        }
        let is_seen = identity.env == Some(true) || identity.file == Some(true);
        if !is_seen && !OF_LOGINS.iter().any(|prefix| name.starts_with(prefix)) {
            findings.warning(&trail, "neither `env` nor `file` is true, so the task won't see this token");
        }
    }
    apart(spec, &list, findings);
    outside_of_volumes(spec, &list, findings);
}

/// Validates the identity of a service.
pub(super) fn of_service(identity: &Identity, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if identity.aud.as_deref().unwrap_or_default().is_empty() {
        findings.absent(trail, trail, "`aud` is missing: name the audience of the token");
    }
    for (index, audience) in identity.aud.iter().flatten().enumerate() {
        text::plain(audience, &trail.field("aud").item(index), findings);
    }
    let no_effect = [
        ("env", identity.env.is_some_and(|is| is)),
        ("file", identity.file.is_some_and(|is| is)),
        ("filepath", identity.filepath.is_some()),
        ("change_mode", identity.change_mode.is_some_and(|mode| mode != ChangeMode::Noop)),
        ("change_signal", identity.change_signal.is_some()),
    ];
    for (field, _) in no_effect.into_iter().filter(|(_, is_set)| *is_set) {
        findings.warning(&trail.field(field), "has no effect: no task gets the token of a service");
    }
}

/// Validates the files of identities that servers have validated.
pub(super) fn files(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("identities");
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        if let Some(path) = &identity.filepath {
            file(path, &list.item(index).field("filepath"), findings);
        }
    }
    apart(spec, &list, findings);
    outside_of_volumes(spec, &list, findings);
}

/// Refuses a file in a volume: volumes are mounted after the token is written, so the mount hides the file
/// until the token's first renewal, which then writes it to the volume, where other tasks can read it.
fn outside_of_volumes(spec: &TaskSpec, list: &Trail<'_>, findings: &mut Findings<'_>) {
    let mounts: Vec<(PathBuf, &str)> = spec
        .volume_mounts
        .iter()
        .flatten()
        .filter_map(|mount| mount.destination.as_deref())
        .filter_map(|text| Some((below(text)?, text)))
        .collect();
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        let path = path_of("", identity.filepath.as_deref()).filter(|_| identity.filepath.is_some());
        let over = path.and_then(|path| mounts.iter().find(|(mount, _)| path.starts_with(mount)));
        if let Some((_, destination)) = over {
            let message = format!(
                "is inside the volume mounted at `{destination}`, which would hide the token from the task and keep it; \
                 write a path outside of that, for instance secrets/token"
            );
            findings.problem(&list.item(index).field("filepath"), message);
        }
    }
}

/// Requires that no file is the file of another identity or a parent directory of it.
fn apart(spec: &TaskSpec, list: &Trail<'_>, findings: &mut Findings<'_>) {
    let mut known: BTreeMap<PathBuf, &str> = BTreeMap::new();
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        let name = identity.name.as_deref().unwrap_or(DEFAULT_IDENTITY);
        let path = path_of(name, identity.filepath.as_deref()).filter(|_| identity.file == Some(true));
        let Some(path) = path else { continue };
        let above = path.ancestors().find_map(|above| known.get(above));
        // In path order, a path is directly followed by its descendants.
        let below = known.range(path.clone()..).next().filter(|(below, _)| below.starts_with(&path));
        match above.or(below.map(|(_, other)| other)) {
            // The duplicate name is already reported.
            Some(other) if *other == name => {}
            Some(other) => {
                let item = list.item(index);
                let field = item.field("filepath");
                let at = if identity.filepath.is_some() { &field } else { &item };
                findings.problem(at, format!("its file conflicts with that of the identity `{other}`"));
            }
            None => {
                known.insert(path, name);
            }
        }
    }
}

fn file(path: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if path_of("", Some(path)).is_none() {
        let message = "must be a path to a file in the task's directory, for instance secrets/token, and not in `private` or `alloc`";
        findings.problem(trail, message);
    }
}

/// Requires that no identity has the file of the token of a system.
pub(super) fn leaves_file(
    (file, system): (&str, &str),
    spec: &TaskSpec,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("identities");
    for (index, identity) in spec.identities.iter().flatten().enumerate() {
        let name = identity.name.as_deref().unwrap_or(DEFAULT_IDENTITY);
        let path = path_of(name, identity.filepath.as_deref()).filter(|_| identity.file == Some(true));
        if path.is_some_and(|path| path == Path::new(file)) {
            let message = format!("its file conflicts with that of the token of {system}");
            findings.problem(&list.item(index).field("filepath"), message);
        }
    }
}
