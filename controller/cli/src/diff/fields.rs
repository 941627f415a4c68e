//! The differences between two documents.
//!
//! In: manifests as JSON. Out: the fields that differ, by path. It does not know what the fields mean.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// Values in a manifest; a missing value is the default.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct FieldChange {
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) after: Option<Value>,
}

/// The fields that differ, sorted by path.
pub(super) fn differing(before: &Value, after: &Value) -> Vec<FieldChange> {
    let (before, after) = (leaves(before), leaves(after));
    let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    paths
        .into_iter()
        .map(|path| FieldChange {
            path: path.clone(),
            before: before.get(path).cloned(),
            after: after.get(path).cloned(),
        })
        .filter(|field| field.before != field.after)
        .collect()
}

fn leaves(document: &Value) -> BTreeMap<String, Value> {
    let mut leaves = BTreeMap::new();
    flatten("", document, &mut leaves);
    leaves
}

/// Collects every leaf under its path. Items of lists are identified by name if they have one, so that their order is no
/// change.
fn flatten(path: &str, value: &Value, into: &mut BTreeMap<String, Value>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields.iter().for_each(|(name, value)| flatten(&below(name), value, into));
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                let name = item.get("name").and_then(Value::as_str);
                let step = name.map_or_else(|| index.to_string(), ToOwned::to_owned);
                flatten(&format!("{path}[{step}]"), item, into);
            }
        }
        Value::Null => {}
        Value::Object(_) | Value::Array(_) | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            into.insert(path.to_owned(), value.clone());
        }
    }
}
