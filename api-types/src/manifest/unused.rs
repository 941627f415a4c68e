//! Values of Nomad's fields that ask for nothing, and reasons why a field has no effect, for the schema.
//!
//! The schema keywords that use them: `x-default` lists the values of an unbuilt field, or of one without effect, that are
//! accepted silently, because servers write them by themselves or because they turn the feature off. `false`, 0, an empty
//! text and an empty list need no entry. `x-no-effect` gives the reason for fields that are accepted with a warning, and
//! `x-default-warning` the warning for a default that an author may rely on.

use serde_json::{Value, json};

/// Why fields that concern several machines have no effect.
pub(super) const ONE_MACHINE: &str = "has no effect: all allocations are on this machine";
/// Why the limits of `migrate` have no effect.
pub(super) const ONE_AT_A_TIME: &str =
    "has no effect: a drain of this machine stops one allocation of each group at a time";
/// Why fields about lost contact with servers have no effect.
pub(super) const NO_SERVERS: &str =
    "has no effect: this agent has no servers that it could lose contact with";
/// Why fields that Nomad only keeps for old job files have no effect.
pub(super) const OLD: &str = "has no effect: Nomad ignores it too";
/// Why the token of the person who submits a job has no effect.
pub(super) const NO_SUBMITTER: &str =
    "has no effect: this agent doesn't check the submitter's rights elsewhere";
/// Why `scaling` of a task has no effect.
pub(super) const VERTICAL: &str = "has no effect: only Nomad Enterprise's autoscaler reads it";
/// Why `policies` of `vault` have no effect.
pub(super) const ROLE_HAS_POLICIES: &str =
    "has no effect: the task logs in with its identity, and the role in Vault has the policies";

/// `consul` as servers write it.
pub(super) fn consul() -> Value {
    json!({ "cluster": "default", "namespace": "default", "partition": "default" })
}

/// `migrate` as servers write it.
pub(super) fn migrate() -> Value {
    json!({ "max_parallel": 1, "health_check": "checks", "min_healthy_time": "10s", "healthy_deadline": "5m" })
}
