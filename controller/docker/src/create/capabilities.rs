//! The capabilities of a container: what it adds and drops, as far as the agent allows it.
//!
//! In: the names in the task's config, the allowed ones. Out: lists for the engine. Without options a container has
//! [`DEFAULT_CAPABILITIES`], which is less than the engine's own default (no NET_RAW), as in Nomad.

use std::collections::BTreeSet;

use bollard::models::HostConfig;
use herdlet_api_types::manifest::Text;

use crate::{
    config::FieldError,
    policy::{DEFAULT_CAPABILITIES, capability},
};

/// Docker's own default. Podman's is smaller, so that what is wanted is added in full.
const OF_ENGINE: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

const ALL: &str = "ALL";

/// The capabilities of a container by its request, without `ALL`.
pub(crate) fn granted(host: &HostConfig) -> BTreeSet<&str> {
    fn names(list: &Option<Vec<String>>) -> impl Iterator<Item = &str> {
        list.iter().flatten().map(String::as_str)
    }
    let dropped: BTreeSet<&str> = names(&host.cap_drop).collect();
    let kept = OF_ENGINE.into_iter().filter(|name| !dropped.contains(ALL) && !dropped.contains(name));
    kept.chain(names(&host.cap_add)).filter(|name| *name != ALL).collect()
}

/// What the engine adds to and drops from its own default.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) add: Vec<String>,
    pub(super) drop: Vec<String>,
}

/// Computes the change.
///
/// # Errors
/// A capability that the agent's config does not allow.
pub(super) fn change(add: &[Text], drop: &[Text], allowed: &[String]) -> Result<Change, FieldError> {
    let names = |list: &[Text]| -> BTreeSet<String> { list.iter().map(|name| capability(&name.0)).collect() };
    let (add, drop) = (names(add), names(drop));
    let allows_all = allowed.iter().any(|name| name == ALL);
    let denied: Vec<&str> =
        add.iter().filter(|name| !allows_all && !allowed.contains(name)).map(String::as_str).collect();
    if !denied.is_empty() {
        return Err(FieldError::new(
            "cap_add",
            format!(
                "driver does not allow the following capabilities: {}; allow them with `allow_caps` of the driver's options",
                denied.join(", ").to_ascii_lowercase()
            ),
        ));
    }
    if add.contains(ALL) {
        let drop = drop.into_iter().filter(|name| name != ALL).collect();
        return Ok(Change { add: vec![ALL.to_owned()], drop });
    }
    let basis = DEFAULT_CAPABILITIES.iter().map(|name| (*name).to_owned());
    let basis = basis.filter(|name| allows_all || allowed.contains(name));
    let kept = basis.filter(|name| !drop.contains(ALL) && !drop.contains(name));
    let wanted: BTreeSet<String> = kept.chain(add).collect();
    let of_engine: BTreeSet<String> = OF_ENGINE.iter().map(|name| (*name).to_owned()).collect();
    if wanted.is_empty() {
        return Ok(Change { add: Vec::new(), drop: vec![ALL.to_owned()] });
    }
    let drop = of_engine.difference(&wanted).cloned().collect();
    Ok(Change { add: wanted.into_iter().collect(), drop })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(add: &[&str], drop: &[&str], allowed: &[&str]) -> Result<Change, FieldError> {
        let texts = |names: &[&str]| names.iter().map(|name| Text::from(*name)).collect::<Vec<_>>();
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        change(&texts(add), &texts(drop), &allowed)
    }

    #[test]
    fn the_default_is_nomads_and_only_what_is_allowed_is_added() {
        assert_eq!(
            of(&[], &[], &DEFAULT_CAPABILITIES).unwrap(),
            Change { add: DEFAULT_CAPABILITIES.map(str::to_owned).to_vec(), drop: vec!["NET_RAW".into()] }
        );
        let refused = of(&["net_admin"], &[], &DEFAULT_CAPABILITIES).unwrap_err().to_string();
        assert!(refused.contains("config.cap_add") && refused.contains("net_admin"), "{refused}");
        let added = of(&["CAP_NET_ADMIN"], &["all"], &["ALL"]).unwrap();
        assert_eq!((added.add, added.drop.len()), (vec!["NET_ADMIN".to_owned()], 14));
        // Not in Podman's default.
        let raw = of(&["net_raw"], &[], &["ALL"]).unwrap();
        assert!(raw.add.contains(&"NET_RAW".to_owned()) && raw.drop.is_empty(), "{raw:?}");
        assert_eq!(of(&[], &["ALL"], &["ALL"]).unwrap().drop, ["ALL"]);
        assert_eq!(
            of(&["all"], &["kill"], &["ALL"]).unwrap(),
            Change { add: vec!["ALL".into()], drop: vec!["KILL".into()] }
        );
    }
}
