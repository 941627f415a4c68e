//! What Nomad's servers write into a job by themselves, in releases 1.1 to 2.0: its state, fields whose zero is no value,
//! the default identity, a service's namespace, the constraints that features imply.
//!
//! In: fields and values of the API's JSON. Out: whether their author asked for anything. Defaults of features that are
//! not built are in the schema (`x-default`), because people write them too.

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

/// Fields whose only value is this one.
const FIXED: [(&str, &str, &str); 2] =
    [("Periodic", "SpecType", "cron"), ("Service", "Namespace", "default")];

/// The constraints that servers add for services in Consul and for Vault. This agent registers services once Consul
/// answers.
const CONSTRAINTS: [(&str, &str); 3] = [
    ("${attr.consul.version}", ">= 1.7.0"),
    ("${attr.consul.version}", ">= 1.8.0"),
    ("${attr.vault.version}", ">= 0.6.1"),
];

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
    text("Operand") == "semver" && CONSTRAINTS.contains(&(text("LTarget"), text("RTarget")))
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
