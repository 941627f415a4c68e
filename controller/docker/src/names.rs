//! Names and labels of containers. Both are functions of the attempt, so that a container is found without any record.
//!
//! In: attempt ids. Out: names, labels; and the ids that labels state.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use herdlet_api_types::AllocId;
use herdlet_driver::{AttemptId, TaskConfig};
use sha2::{Digest as _, Sha256};

/// The instance that owns a container.
pub(crate) const INSTANCE: &str = "herdlet.instance";
/// The driver that created a container. Two drivers of an instance may use the same engine.
pub(crate) const DRIVER: &str = "herdlet.driver";
/// The attempt that a container is, by [`AttemptId::name`].
pub(crate) const ATTEMPT: &str = "herdlet.attempt";
/// The allocation whose network a pause container holds.
pub(crate) const PAUSE: &str = "herdlet.pause";
/// A hash of the request that created a container.
pub(crate) const REQUEST: &str = "herdlet.request";
/// Nomad's label. A client on the same engine removes containers with this label that it does not know, so only a node of a
/// cluster sets it.
pub(crate) const NOMAD_ALLOC: &str = "com.hashicorp.nomad.alloc_id";

/// What owns containers: a driver of an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) instance: String,
    pub(crate) driver: String,
}

impl Owner {
    fn labels(&self) -> [(&str, &String); 2] {
        [(INSTANCE, &self.instance), (DRIVER, &self.driver)]
    }

    /// The labels of its containers, as an engine's filter.
    pub(crate) fn filters(&self) -> Vec<String> {
        self.labels().iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    /// Whether a container with these labels is its own.
    pub(crate) fn owns(&self, labels: &HashMap<String, String>) -> bool {
        self.labels().iter().all(|(name, value)| labels.get(*name) == Some(value))
    }
}

/// How containers are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// `TASK-ALLOC-ATTEMPT-INSTANCE`.
    Own,
    /// Nomad's name `TASK-ALLOC` and its label, which dashboards look for.
    Nomad,
}

/// The name of an attempt's container.
pub(crate) fn container(id: &AttemptId, instance: &str, naming: Naming) -> String {
    let task = task_part(&id.task);
    match naming {
        Naming::Nomad => format!("{task}-{}", id.alloc),
        Naming::Own => format!("{task}-{}-{}-{}", id.alloc, id.attempt, short_hash(instance)),
    }
}

/// The name of the pause container of an allocation; Nomad's on a node of a cluster.
pub(crate) fn pause(alloc: AllocId, instance: &str, naming: Naming) -> String {
    match naming {
        Naming::Nomad => format!("nomad_init_{alloc}"),
        Naming::Own => format!("herdlet_init_{alloc}-{}", short_hash(instance)),
    }
}

/// The labels of the pause container of an allocation.
pub(crate) fn labels_of_pause(alloc: AllocId, owner: &Owner, naming: Naming) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> =
        owner.labels().into_iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    labels.insert(PAUSE.to_owned(), alloc.to_string());
    if naming == Naming::Nomad {
        labels.insert(NOMAD_ALLOC.to_owned(), alloc.to_string());
    }
    labels
}

/// The allocation of a pause container of this owner. Its name counts as well, as for [`owned`].
pub(crate) fn owned_pause(container: &ContainerSummary, owner: &Owner) -> Option<AllocId> {
    let alloc = pause_of(container.labels.as_ref()?, owner)?;
    let names = [Naming::Own, Naming::Nomad].map(|naming| pause(alloc, &owner.instance, naming));
    let mut found = container.names.iter().flatten().map(|name| name.trim_start_matches('/'));
    found.any(|name| names.iter().any(|own| own == name)).then_some(alloc)
}

/// The allocation whose pause container these labels state, if it is one of this owner.
pub(crate) fn pause_of(labels: &HashMap<String, String>, owner: &Owner) -> Option<AllocId> {
    labels.get(PAUSE).filter(|_| owner.owns(labels)).and_then(|id| id.parse().ok()).map(AllocId)
}

/// The task's name, of the characters that engines allow. Names that lose a character get a hash, so that no two are equal.
fn task_part(task: &str) -> String {
    let is_plain = |at: usize, c: char| c.is_ascii_alphanumeric() || at > 0 && matches!(c, '_' | '.' | '-');
    if task.chars().enumerate().all(|(at, c)| is_plain(at, c)) {
        return task.to_owned();
    }
    let plain: String =
        task.chars().enumerate().map(|(at, c)| if is_plain(at, c) { c } else { '_' }).collect();
    let plain = plain.trim_start_matches('_');
    match task.replace('/', "_") == plain {
        // Nomad's name.
        true => plain.to_owned(),
        false => format!("t{plain}.{}", short_hash(task)),
    }
}

fn short_hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())).chars().take(6).collect()
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// The labels by which an attempt's container is recognised, and those that the config asks for.
pub(crate) fn labels(
    task: &TaskConfig,
    owner: &Owner,
    naming: Naming,
    extra: &[String],
) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (INSTANCE.to_owned(), owner.instance.clone()),
        (DRIVER.to_owned(), owner.driver.clone()),
        (ATTEMPT.to_owned(), task.id.name()),
        ("herdlet.alloc_id".to_owned(), task.id.alloc.to_string()),
    ]);
    if naming == Naming::Nomad {
        labels.insert(NOMAD_ALLOC.to_owned(), task.id.alloc.to_string());
    }
    let prefix = match naming {
        Naming::Nomad => "com.hashicorp.nomad",
        Naming::Own => "herdlet",
    };
    let known = [
        ("job_name", task.labels.get("job_name")),
        ("job_id", task.labels.get("job")),
        ("parent_job_id", task.labels.get("parent_job")),
        ("task_group_name", task.labels.get("group")),
        ("task_name", Some(&task.id.task)),
        ("namespace", task.labels.get("namespace")),
        ("node_name", task.labels.get("node")),
        ("node_id", task.labels.get("node_id")),
    ];
    for (name, value) in known {
        if let Some(value) = value.filter(|value| !value.is_empty())
            && extra.iter().any(|glob| matches_glob(glob, name))
        {
            labels.insert(format!("{prefix}.{name}"), value.clone());
        }
    }
    labels
}

/// Whether a name matches a pattern in which `*` is any text.
pub(crate) fn matches_glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|left| {
            (0..=left.len()).filter_map(|at| left.get(at..)).any(|left| matches_glob(rest, left))
        }),
    }
}

/// The attempt that these labels state, if it is one of this owner.
pub(crate) fn attempt_of(labels: &HashMap<String, String>, owner: &Owner) -> Option<AttemptId> {
    labels.get(ATTEMPT).filter(|_| owner.owns(labels)).and_then(|name| AttemptId::parse(name))
}

/// The attempt that a container is. Its name counts as well: images of a container that people commit pass its labels on.
pub(crate) fn owned(container: &ContainerSummary, owner: &Owner) -> Option<AttemptId> {
    let id = attempt_of(container.labels.as_ref()?, owner)?;
    let names = [Naming::Own, Naming::Nomad].map(|naming| self::container(&id, &owner.instance, naming));
    let is_named = container.names.iter().flatten().any(|name| {
        let name = name.trim_start_matches('/');
        names.iter().any(|own| own == name)
    });
    is_named.then_some(id)
}

/// The hash of the request that created a container.
pub(crate) fn request_of(about: &ContainerInspectResponse) -> Option<&str> {
    about.config.as_ref()?.labels.as_ref()?.get(REQUEST).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_functions_of_attempts() {
        let id = |task: &str, attempt| AttemptId {
            alloc: AllocId::from_hash([1; 16]),
            task: task.into(),
            attempt,
        };
        let alloc = AllocId::from_hash([1; 16]);
        assert_eq!(container(&id("redis", 3), "i", Naming::Nomad), format!("redis-{alloc}"));
        assert_eq!(container(&id("api/v1", 3), "i", Naming::Nomad), format!("api_v1-{alloc}"));
        let own = |task, attempt, instance| container(&id(task, attempt), instance, Naming::Own);
        assert!(own("redis", 3, "i").starts_with(&format!("redis-{alloc}-3-")));
        assert_ne!(own("redis", 3, "i"), own("redis", 4, "i"));
        assert_ne!(own("redis", 3, "i"), own("redis", 3, "j"));
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        for (one, other) in [("é", "è"), ("a b", "a_b"), ("-a", "a"), ("_", ".")] {
            assert_ne!(own(one, 1, "i"), own(other, 1, "i"));
            let name = own(one, 1, "i");
            assert!(
                name.chars().all(is_allowed) && name.starts_with(|c: char| c.is_ascii_alphanumeric()),
                "{name}"
            );
        }
    }

    #[test]
    fn globs() {
        for (pattern, name, is_match) in [
            ("job*", "job_name", true),
            ("*", "x", true),
            ("*_id", "node_id", true),
            ("job", "job_id", false),
        ] {
            assert_eq!(matches_glob(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
