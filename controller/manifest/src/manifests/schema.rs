//! The JSON Schema of manifests, for editors and other tools, and helpers to read schemas.
//!
//! In: the manifest types and the built-in drivers. Out: one schema for documents of any kind.

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
    label_patterns(&mut schema);
    if let Some(Json::Object(signal)) = schema.pointer_mut("/$defs/Signal") {
        signal.insert("anyOf".to_owned(), json!([{ "enum": SIGNALS }, { "pattern": REALTIME }]));
    }
    if let Some(Json::Object(task)) = schema.pointer_mut("/$defs/TaskSpec") {
        task.insert("allOf".to_owned(), Json::Array(rules));
    }
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

/// Translates our keyword for DNS labels into a `pattern`, which editors understand.
fn label_patterns(schema: &mut Json) {
    match schema {
        Json::Object(fields) => {
            if fields.get("x-name").is_some_and(|kind| kind == "dns-label") {
                fields.insert("pattern".to_owned(), json!("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"));
            }
            fields.values_mut().for_each(label_patterns);
        }
        Json::Array(items) => items.iter_mut().for_each(label_patterns),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

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

/// Returns a schema and those that it refers to, outermost first.
pub(super) fn parts<'s>(root: &'s Json, schema: &'s Json) -> Vec<&'s Map<String, Json>> {
    let mut parts = Vec::new();
    let mut next = Some(schema);
    while let Some(Json::Object(part)) = next
        && parts.len() < PARTS_MAX
    {
        parts.push(part);
        let reference = part.get("$ref").and_then(Json::as_str);
        next = reference.and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    }
    parts
}
