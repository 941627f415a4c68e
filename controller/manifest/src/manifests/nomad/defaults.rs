//! Defaults of Nomad that differ from those of manifests.
//!
//! In: translated fields. Out: the same fields with Nomad's defaults written out: a service without a
//! provider is registered in Consul, a service job without `update` is replaced one allocation at a time, and
//! a failed allocation is rescheduled. Limits that are absent stay unlimited in every format.

use std::sync::Arc;

use super::{Fields, collection, text};
use crate::yaml::Value;

/// Fills in the defaults of a service.
pub(super) fn service(fields: &mut Fields) {
    let position = fields.position;
    fields.insert_default("provider", text("consul", position));
}

/// Fills in the defaults of `spec`.
pub(super) fn job(spec: &mut Fields) {
    let is_service = spec.get("type").is_none_or(|kind| &*kind.text == "service");
    let empty = collection(Value::Map(Vec::new()), spec.position);
    if is_service {
        spec.insert_default("update", Arc::clone(&empty));
    }
    spec.insert_default("reschedule", empty);
}
