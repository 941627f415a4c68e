//! Fields of manifests with their types and allowed values, without descriptions.

use herdlet_manifest::manifests;
use serde_json::Value;

use super::assert_golden;

/// Keys of a schema that are only descriptions.
const TEXTS: [&str; 4] = ["description", "title", "examples", "$comment"];

#[test]
fn manifests_keep_their_fields() {
    let mut lines = Vec::new();
    list(&manifests::schema(), "", &mut lines);
    lines.sort();
    assert_golden("manifest-schema.txt", &lines);
}

/// Lists the values of a schema, one per line.
fn list(value: &Value, path: &str, lines: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            // A property may be named `description`: its value is then a schema.
            let kept =
                fields.iter().filter(|(key, value)| !TEXTS.contains(&key.as_str()) || value.is_object());
            kept.for_each(|(key, value)| list(value, &format!("{path}/{key}"), lines));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| list(item, &format!("{path}/{at}"), lines));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            lines.push(format!("{path}: {value}"))
        }
    }
}
