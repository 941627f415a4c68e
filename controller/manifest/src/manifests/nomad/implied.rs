//! What Nomad's servers write into a job by themselves, in releases 1.1 to 2.0: its state, fields whose zero is no value,
//! the default identity, a service's namespace, the constraints that features imply.
//!
//! In: fields and values of the API's JSON. Out: whether their author asked for anything. Defaults of features that are
//! not built are in the schema (`x-default`), because people write them too.

use super::collection;
use crate::yaml::{Entry, Node, Value};

/// Fields with the server's state of a job, not its specification.
const STATE_OF_JOB: [&str; 17] = [
    "CreateIndex",
    "CreateTime",
    "DispatchIdempotencyToken",
    "Dispatched",
    "JobModifyIndex",
    "ModifyIndex",
    "ModifyTime",
    "NomadTokenID",
    "ParentID",
    "Payload",
    "Stable",
    "Status",
    "StatusDescription",
    "Submission",
    "SubmitTime",
    "Version",
    "VersionTag",
];

/// The same of a scaling policy; `ID` and `Target` only repeat the path.
const STATE_OF_SCALING: [&str; 4] = ["CreateIndex", "ID", "ModifyIndex", "Target"];

/// Fields that are no values if they are 0, which Go writes for an absent one.
const ZERO_IS_NOTHING: [(&str, &str); 4] = [
    ("GroupSpec", "MaxRunDuration"),
    ("JobSpec", "Priority"),
    ("Resources", "CPU"),
    ("Resources", "MemoryMB"),
];

/// Fields whose only value is this one: a Consul that is not Enterprise has one namespace and one partition.
const FIXED: [(&str, &str, &str); 4] = [
    ("Consul", "Namespace", "default"),
    ("Consul", "Partition", "default"),
    ("Periodic", "SpecType", "cron"),
    ("Service", "Namespace", "default"),
];

/// The `semver` constraints that servers add for services in Consul, for Vault, and from 1.8 on for bridges. This agent
/// registers services once Consul answers, and makes bridges without CNI plugins.
const CONSTRAINTS: [(&str, &str); 8] = [
    ("${attr.consul.version}", ">= 1.7.0"),
    ("${attr.consul.version}", ">= 1.8.0"),
    ("${attr.vault.version}", ">= 0.6.1"),
    ("${attr.plugins.cni.version.bridge}", ">= 0.4.0"),
    ("${attr.plugins.cni.version.firewall}", ">= 0.4.0"),
    ("${attr.plugins.cni.version.host-local}", ">= 0.4.0"),
    ("${attr.plugins.cni.version.loopback}", ">= 0.4.0"),
    ("${attr.plugins.cni.version.portmap}", ">= 0.4.0"),
];

/// The beginning and the end of the attribute of a secrets provider, which servers from 1.11 on require with `is_set`.
/// This agent reports a missing provider when it reads the job, or when a task needs the secret.
const SECRETS_PROVIDER: (&str, &str) = ("${attr.plugins.secrets.", ".version}");

/// The audience that servers write into the default identity.
const AUDIENCE: &str = "nomadproject.io";

/// What servers write into the parts of one job.
pub(super) struct Implied<'j> {
    namespace: Option<&'j str>,
}

impl<'j> Implied<'j> {
    pub(super) fn of(job: &'j Node) -> Self {
        Self { namespace: job.get("Namespace").and_then(Node::scalar_text) }
    }

    /// Returns whether a field of a block is not part of the specification.
    pub(super) fn is_state(&self, block: Option<&str>, entry: &Entry) -> bool {
        let (Some(block), key) = (block, &*entry.key) else { return false };
        let is_fixed = FIXED.iter().any(|(of, name, value)| {
            (*of, *name) == (block, key) && entry.value.scalar_text().is_some_and(|text| text == *value)
        });
        let is_own_namespace =
            (block, key) == ("Service", "Namespace") && entry.value.scalar_text() == self.namespace;
        is_fixed
            || is_own_namespace
            || block == "JobSpec" && STATE_OF_JOB.contains(&key)
            || block == "Scaling" && STATE_OF_SCALING.contains(&key)
    }
}

/// Returns whether a supported field has the same meaning as if it were absent.
pub(super) fn adds_nothing(block: Option<&str>, entry: &Entry) -> bool {
    let node = &*entry.value;
    match &node.value {
        Value::Null => true,
        Value::Str => node.text.is_empty(),
        Value::Int(0) => block.is_some_and(|block| ZERO_IS_NOTHING.contains(&(block, &*entry.key))),
        Value::Seq(items) => items.is_empty(),
        // In a server, the job's own `Update` has at most `Stagger` and `MaxParallel`; its groups have the whole.
        Value::Map(_) if (block, &*entry.key) == (Some("JobSpec"), "Update") => {
            is_nothing(node) || node.get("HealthyDeadline").is_some_and(is_nothing)
        }
        // An empty block asks for a token.
        Value::Map(_) if &*entry.key == "Vault" => false,
        Value::Map(entries) => entries.is_empty(),
        Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Refused => false,
    }
}

/// Returns whether a value is empty at every level.
pub(super) fn is_nothing(node: &Node) -> bool {
    match &node.value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Int(value) => *value == 0,
        Value::Float(value) => *value == 0.0,
        Value::Str => node.text.is_empty(),
        Value::Seq(items) => items.iter().all(|item| is_nothing(item)),
        Value::Map(entries) => entries.iter().all(|entry| is_nothing(&entry.value)),
        Value::Refused => false,
    }
}

/// Returns whether a constraint is one that servers add.
pub(super) fn is_constraint(node: &Node) -> bool {
    let text = |field: &str| node.get(field).and_then(Node::scalar_text).unwrap_or_default();
    let (subject, value) = (text("LTarget"), text("RTarget"));
    let is_of_secrets = || subject.starts_with(SECRETS_PROVIDER.0) && subject.ends_with(SECRETS_PROVIDER.1);
    match text("Operand") {
        "semver" => CONSTRAINTS.contains(&(subject, value)),
        "is_set" => value.is_empty() && is_of_secrets(),
        _ => false,
    }
}

/// The fields of a service without the name that servers from 1.7 on repeat in its identity.
pub(super) fn without_repeated_name(service: &[Entry]) -> Vec<Entry> {
    let name = service.iter().find(|entry| &*entry.key == "Name").and_then(|entry| entry.value.scalar_text());
    let is_repeated =
        |entry: &Entry| &*entry.key == "ServiceName" && name.is_some() && entry.value.scalar_text() == name;
    let of_service = |entry: &Entry| match entry.value.entries() {
        Some(identity) if &*entry.key == "Identity" => {
            let own = identity.iter().filter(|inner| !is_repeated(inner)).cloned().collect();
            Entry { value: collection(Value::Map(own), entry.value.position), ..entry.clone() }
        }
        Some(_) | None => entry.clone(),
    };
    service.iter().map(of_service).collect()
}

/// Returns whether an identity is the default one without any wish of the author.
pub(super) fn is_identity(node: &Node) -> bool {
    node.entries().is_some_and(|entries| {
        entries.iter().all(|entry| match (&*entry.key, entry.value.scalar_text()) {
            ("Name", Some(name)) => matches!(name, "" | "default"),
            ("ChangeMode", Some(mode)) => matches!(mode, "" | "noop"),
            ("Audience", _) => {
                let audience = entry.value.items().unwrap_or_default();
                audience.iter().all(|name| &*name.text == AUDIENCE)
            }
            _ => is_nothing(&entry.value),
        })
    })
}
