//! Where Nomad means something else by silence than manifests do.
//!
//! In: translated fields. Out: the same with Nomad's meaning written in: a service without a provider is Consul's, and a
//! service job without `update` is replaced one by one. Limits that are not written stay unlimited, in every format.

use super::{Fields, collection, text};
use crate::desired::yaml::Value;

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
    if is_service && !in_a_group {
        let position = spec.position;
        spec.insert_default("update", collection(Value::Map(Vec::new()), position));
    }
}
