//! The JSON Schema of manifests, for editors and other tools, and helpers to read schemas.
//!
//! In: the manifest types and the built-in drivers. Out: one schema for documents of any kind.

mod defaults;

use std::borrow::Cow;

use herdlet_api_types::driver::{DriverInfo, built_in};
use herdlet_api_types::manifest::scalar::SIGNALS;
use herdlet_api_types::manifest::{JobManifest, VolumeManifest};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value as Json, json};

use crate::yaml;

/// Names of real-time signals.
const REALTIME: &str = "^SIGRT(MIN(\\+([12]?[0-9]|30))?|MAX(-([12]?[0-9]|30))?)$";

/// Returns the schema of a document, a job or a volume. The repository has a copy in `manifests/schema.json`.
pub fn schema() -> Json {
    let mut schema = yaml::schema_for::<Document>().to_value();
    let rules: Vec<Json> = built_in().into_iter().map(|driver| config_rule(&mut schema, driver)).collect();
    name_patterns(&mut schema);
    if let Some(Json::Object(signal)) = schema.pointer_mut("/$defs/Signal") {
        signal.insert("anyOf".to_owned(), json!([{ "enum": SIGNALS }, { "pattern": REALTIME }]));
    }
    if let Some(Json::Object(task)) = schema.pointer_mut("/$defs/TaskSpec") {
        task.insert("allOf".to_owned(), Json::Array(rules));
    }
    defaults::add(&mut schema);
    schema
}

/// Adds the schema of a driver's config to the definitions. Returns the rule for tasks of this driver.
fn config_rule(schema: &mut Json, driver: DriverInfo) -> Json {
    let mut config = yaml::strictly(driver.schema).to_value();
    let mut take = |key: &str| config.as_object_mut().and_then(|fields| fields.remove(key));
    let (title, inner, _) = (take("title"), take("$defs"), take("$schema"));
    let title = title.as_ref().and_then(Json::as_str).unwrap_or(&driver.name).to_owned();
    if let Some(Json::Object(definitions)) = schema.pointer_mut("/$defs") {
        let inner = inner.and_then(|inner| inner.as_object().cloned()).unwrap_or_default();
        for (name, definition) in inner.into_iter().chain([(title.clone(), config)]) {
            definitions.entry(name).or_insert(definition);
        }
    }
    json!({
        "if": { "properties": { "driver": { "const": driver.name } }, "required": ["driver"] },
        "then": { "properties": { "config": { "$ref": format!("#/$defs/{title}") } } },
    })
}

/// Adds a `pattern` beside our keyword for names: editors know it, and it accepts every valid name.
fn name_patterns(schema: &mut Json) {
    match schema {
        Json::Object(fields) => {
            let kind = fields.get("x-name").and_then(Json::as_str);
            let pattern = kind.and_then(|kind| NAME_PATTERNS.iter().find(|(known, _)| *known == kind));
            if let Some((_, pattern)) = pattern {
                fields.insert("pattern".to_owned(), json!(pattern));
            }
            fields.values_mut().for_each(name_patterns);
        }
        Json::Array(items) => items.iter_mut().for_each(name_patterns),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// Patterns of the kinds of names. They count characters, the rules count bytes.
const NAME_PATTERNS: [(&str, &str); 3] = [
    ("job-id", "^[^\\s\\u0000-\\u001f\\u007f]{1,255}$"),
    ("namespace", "^[a-zA-Z0-9-]{1,128}$"),
    ("part", "^[^/\\\\\\u0000-\\u001f\\u007f]{1,128}$"),
];

/// A document of any kind.
struct Document;

impl JsonSchema for Document {
    fn schema_name() -> Cow<'static, str> {
        "herdlet manifest".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let job = generator.subschema_for::<JobManifest>();
        let volume = generator.subschema_for::<VolumeManifest>();
        json_schema!({ "description": "A document of a herdlet manifest.", "oneOf": [job, volume] })
    }
}

/// Maximum length of a chain of references; a longer one is a cycle.
const PARTS_MAX: usize = 16;

/// Returns a schema and those that it refers to, outermost first. Of a value that may be written in a short form (`restart:
/// always`), the form with fields.
pub(super) fn parts<'s>(root: &'s Json, schema: &'s Json) -> Vec<&'s Map<String, Json>> {
    let mut parts = Vec::new();
    let mut next = Some(schema);
    while let Some(Json::Object(part)) = next
        && parts.len() < PARTS_MAX
    {
        parts.push(part);
        let reference = part.get("$ref").and_then(Json::as_str);
        next = reference
            .and_then(|reference| referred(root, reference))
            .or_else(|| form_with_fields(root, part));
    }
    parts
}

fn referred<'s>(root: &'s Json, reference: &str) -> Option<&'s Json> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The alternative that is a map.
fn form_with_fields<'s>(root: &'s Json, part: &'s Map<String, Json>) -> Option<&'s Json> {
    let alternatives = part.get("anyOf")?.as_array()?;
    alternatives.iter().find(|form| {
        let reference = form.get("$ref").and_then(Json::as_str);
        let form = reference.and_then(|reference| referred(root, reference)).unwrap_or(form);
        form.get("properties").is_some() || form.get("additionalProperties").is_some_and(Json::is_object)
    })
}
