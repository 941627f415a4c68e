//! Where Nomad means something else by silence than manifests do.
//!
//! In: translated fields. Out: the same with Nomad's meaning written in: a service without a provider is Consul's, a service job
//! without `update` is replaced one by one, and what has failed is followed by another allocation. Limits that are not written
//! stay unlimited, in every format.

use std::sync::Arc;

use super::{Fields, collection, text};
use crate::yaml::Value;

/// A service.
pub(super) fn service(fields: &mut Fields) {
    let position = fields.position;
    fields.insert_default("provider", text("consul", position));
}

/// `spec`.
pub(super) fn job(spec: &mut Fields) {
    let is_service = spec.get("type").is_none_or(|kind| &*kind.text == "service");
    let groups = spec.get("groups").and_then(|groups| groups.items()).unwrap_or_default();
    let in_a_group = groups.iter().any(|group| group.get("update").is_some());
    let empty = collection(Value::Map(Vec::new()), spec.position);
    if is_service && !in_a_group {
        spec.insert_default("update", Arc::clone(&empty));
    }
    spec.insert_default("reschedule", empty);
}
