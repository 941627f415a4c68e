//! Serde types → the schema a person's text is checked against.
//!
//! In: a type. Out: its schema as `schemars` makes it, made strict in two ways: a field that may be left out may not
//! be written and left empty (almost always a slip), and a map with named fields takes no others unless it says so.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value as Json};

/// The strict schema of a type. `#[schemars(extend("x-nullable" = true))]` lets null be written,
/// `extend("additionalProperties" = true)` other fields.
pub fn schema_for<T: JsonSchema>() -> Schema {
    strictly(SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>())
}

/// The same of a type's schema that somebody else has made.
pub fn strictly(mut schema: Schema) -> Schema {
    if let Some(root) = schema.as_object_mut() {
        strict(root);
    }
    schema
}

/// Keywords that hold one schema.
const SINGLE: [&str; 5] = ["items", "additionalProperties", "unevaluatedProperties", "propertyNames", "not"];
/// Keywords that hold a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];
/// Keywords that hold schemas by name.
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
    // Beside a reference or `allOf` the fields named here are not all there are.
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
