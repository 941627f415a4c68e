//! Serde types → strict schemas for user input.
//!
//! In: a type. Out: its schema from `schemars`, made strict in two ways: an optional field may not be present
//! but empty (almost always a mistake), and a map with named fields allows no others unless it says so.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value as Json};

/// Returns the strict schema of a type. `#[schemars(extend("x-nullable" = true))]` allows null,
/// `extend("additionalProperties" = true)` other fields.
pub fn schema_for<T: JsonSchema>() -> Schema {
    strictly(SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>())
}

/// Makes a schema from `schemars` strict, like [`schema_for`].
pub fn strictly(mut schema: Schema) -> Schema {
    if let Some(root) = schema.as_object_mut() {
        strict(root);
    }
    schema
}

/// Keywords with one schema.
const SINGLE: [&str; 5] = ["items", "additionalProperties", "unevaluatedProperties", "propertyNames", "not"];
/// Keywords with a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords with a map of schemas.
const MAPS: [&str; 3] = ["properties", "patternProperties", "$defs"];

fn strict(schema: &mut Map<String, Json>) {
    for (keyword, value) in schema.iter_mut() {
        let keyword = keyword.as_str();
        if SINGLE.contains(&keyword) {
            value.as_object_mut().into_iter().for_each(strict);
        } else if LISTS.contains(&keyword) {
            value.as_array_mut().into_iter().flatten().filter_map(Json::as_object_mut).for_each(strict);
        } else if MAPS.contains(&keyword) {
            value
                .as_object_mut()
                .into_iter()
                .flat_map(|map| map.values_mut())
                .filter_map(Json::as_object_mut)
                .for_each(strict);
        }
    }
    if schema.get("x-nullable") != Some(&Json::Bool(true)) {
        without_null(schema);
    }
    let has = |keyword: &str| schema.contains_key(keyword);
    // With a reference or `allOf`, the fields listed here may be incomplete.
    let open = ["additionalProperties", "unevaluatedProperties", "allOf", "$ref"].into_iter().any(has);
    if has("properties") && !open {
        schema.insert("additionalProperties".to_owned(), Json::Bool(false));
    }
}

fn without_null(schema: &mut Map<String, Json>) {
    if let Some(Json::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Json::Array(values)) = schema.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    for keyword in ["anyOf", "oneOf"] {
        let Some(Json::Array(choices)) = schema.get_mut(keyword) else { continue };
        choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
        if let [Json::Object(only)] = choices.as_slice() {
            let only = only.clone();
            schema.remove(keyword);
            for (name, value) in only {
                schema.entry(name).or_insert(value);
            }
        }
    }
    if schema.get("default") == Some(&Json::Null) {
        schema.remove("default");
    }
}
