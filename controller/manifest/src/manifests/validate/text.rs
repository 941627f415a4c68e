//! Rules for names and texts that apply in many places.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::manifest::scalar::{SIGNALS, is_signal};
use herdlet_api_types::manifest::{Text, Ui};

use super::Findings;
use crate::yaml::{Trail, nearest};

/// Requires unique names in a list of blocks. `names` has an entry for each item, `None` if it has no name.
pub(super) fn unique<'a>(
    names: impl Iterator<Item = Option<&'a str>>,
    what: &str,
    list: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let mut seen = BTreeMap::new();
    for (index, name) in names.enumerate() {
        let Some(name) = name else { continue };
        if let Some(first) = seen.get(name) {
            let first = list.item(*first);
            let message = format!("{what} `{name}` is already defined at `{first}`; names must be unique");
            findings.problem(&list.item(index).field("name"), message);
        } else {
            seen.insert(name, index);
        }
    }
}

/// Validates the keys of a `meta` map, which become `NOMAD_META_<key>`.
pub(super) fn meta(meta: Option<&BTreeMap<String, Text>>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    for key in meta.into_iter().flatten().map(|(key, _)| key) {
        if let Some(complaint) = meta_key_complaint(key) {
            findings.problem(&trail.field(key), format!("the name {complaint}"));
        }
    }
}

/// Returns the problem with a key of meta, if any.
pub(super) fn meta_key_complaint(key: &str) -> Option<&'static str> {
    let fits = (1..=128).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    (!fits).then_some("must be 1 to 128 letters, digits, `.`, `_` and `-`")
}

/// Validates a text for people and programs: not empty, no control characters.
pub(super) fn plain(text: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if text.is_empty() {
        findings.problem(trail, "must not be empty");
    } else if text.len() > 1_024 {
        findings.problem(trail, "must have at most 1024 bytes");
    } else if text.contains(char::is_control) {
        findings.problem(trail, "must not contain control characters");
    }
}

/// The part of a signal's name in which names differ: compared whole, all would be similar.
fn short_of(name: &str) -> &str {
    name.trim_start_matches("SIG")
}

/// Validates the texts for user interfaces, by Nomad's limits.
pub(super) fn ui(ui: &Ui, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let description = ui.description.as_ref().map_or("", |text| &text.0);
    if description.chars().count() > UI_DESCRIPTION_MAX {
        let message = format!("must have at most {UI_DESCRIPTION_MAX} characters");
        findings.problem(&trail.field("description"), message);
    }
    let links = trail.field("links");
    for (index, link) in ui.links.iter().flatten().enumerate() {
        let trail = links.item(index);
        for (name, text) in [("label", &link.label), ("url", &link.url)] {
            if let Some(text) = text {
                plain(&text.0, &trail.field(name), findings);
            }
        }
    }
}

/// Maximum number of characters of `ui.description`.
const UI_DESCRIPTION_MAX: usize = 1_000;

/// Validates the name of a signal, which may be in any case.
pub(super) fn signal(name: &str, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if is_signal(&name.to_ascii_uppercase()) {
        return;
    }
    let known = match name {
        "1" => Some("SIGHUP".to_owned()),
        "2" => Some("SIGINT".to_owned()),
        "9" => Some("SIGKILL".to_owned()),
        "15" => Some("SIGTERM".to_owned()),
        name => {
            let upper = name.to_uppercase();
            let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
            let near = || nearest(short_of(&full), SIGNALS.into_iter().map(short_of));
            let known = is_signal(&full).then(|| full.clone());
            known.or_else(|| near().map(|near| format!("SIG{near}")))
        }
    };
    let sentence = "expected the name of a signal such as SIGTERM or SIGRTMIN+3";
    findings.problem(
        trail,
        match known {
            Some(known) => format!("{sentence}, found {name:?}; write {known}"),
            None => format!("{sentence}, found {name:?}"),
        },
    );
}

/// Returns "there is no … `x`" with the nearest name, or with all names.
pub(super) fn no_such<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: BTreeSet<&str> = names.collect();
    let all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    match nearest(name, names.iter().copied()) {
        Some(near) => format!("there is no {what} `{name}`; did you mean `{near}`?"),
        None if all.is_empty() => format!("there is no {what} `{name}`; there is none at all"),
        None if all.len() <= 12 => format!("there is no {what} `{name}`; available: {}", all.join(", ")),
        None => format!("there is no {what} `{name}`"),
    }
}
