//! The fields of manifests, each by its path without indexes and keys of maps.
//!
//! In: the JSON Schema, an example with every field, and a minimal job. Out: fields, found by any of their spellings, with
//! examples and defaults.

use std::{collections::BTreeSet, sync::LazyLock};

use herdlet_api_types::manifest::{JobManifest, VolumeManifest};
use herdlet_manifest::manifests::{Drivers, parse, to_manifest_name};
use herdlet_manifest::yaml::{nearest, to_yaml};
use serde_json::{Map, Value as Json};

use super::short;

/// A field of a document.
#[derive(Debug, Clone)]
pub struct Field {
    /// `spec.groups.tasks.restart`
    pub path: String,
    /// With resolved references.
    pub schema: Json,
    pub is_required: bool,
    /// The driver that has this field; none if it is common to all.
    pub driver: Option<String>,
}

/// The result of a search.
pub(super) enum Found<'f> {
    /// One field, or one in a job and one in a volume.
    Fields(Vec<&'f Field>),
    /// No field, but similar names.
    Near(Vec<&'f str>),
}

/// Larger than the depth of any field.
const DEPTH_MAX: usize = 12;

/// All fields, outer ones first.
pub fn fields(root: &Json) -> Vec<Field> {
    let mut found = Vec::new();
    collect(root, root, SchemaPath { path: "", driver: None, depth: 0 }, &mut found);
    found
}

/// The position of a schema.
#[derive(Clone, Copy)]
struct SchemaPath<'p> {
    path: &'p str,
    /// The driver that alone has the fields at this position.
    driver: Option<&'p str>,
    depth: usize,
}

fn collect(root: &Json, schema: &Json, place: SchemaPath<'_>, found: &mut Vec<Field>) {
    let SchemaPath { path, driver, depth } = place;
    if depth > DEPTH_MAX {
        return;
    }
    let inside = SchemaPath { depth: depth + 1, ..place };
    let whole = whole(root, schema);
    let required = whole.get("required").and_then(Json::as_array).cloned().unwrap_or_default();
    for (name, inner) in whole.get("properties").and_then(Json::as_object).into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let is_required = required.iter().any(|required| required == name);
        let schema = Json::Object(with_marks_of_items(root, self::whole(root, inner)));
        let field = Field { path: path.clone(), schema, is_required, driver: driver.map(str::to_owned) };
        let is_known = |other: &Field| {
            (&other.path, &other.driver) == (&field.path, &field.driver)
                && other.description() == field.description()
        };
        if !found.iter().any(is_known) {
            found.push(field);
        }
        collect(root, inner, SchemaPath { path: &path, ..inside }, found);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = whole.get(key).filter(|inner| inner.is_object()) {
            collect(root, inner, inside, found);
        }
    }
    if let Some(inner) = whole.get("then") {
        let driver = whole.get("if").and_then(|condition| condition.pointer("/properties/driver/const"));
        collect(
            root,
            inner,
            SchemaPath { driver: driver.and_then(Json::as_str).or(place.driver), ..inside },
            found,
        );
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        for inner in whole.get(key).and_then(Json::as_array).into_iter().flatten() {
            collect(root, inner, inside, found);
        }
    }
}

/// A schema with its `$ref` resolved; its own keywords take precedence.
fn whole(root: &Json, schema: &Json) -> Map<String, Json> {
    let mut whole = schema.as_object().cloned().unwrap_or_default();
    let target = whole.remove("$ref");
    let target =
        target.as_ref().and_then(Json::as_str).and_then(|target| root.pointer(target.strip_prefix('#')?));
    for (key, value) in target.and_then(Json::as_object).into_iter().flatten() {
        whole.entry(key.clone()).or_insert_with(|| value.clone());
    }
    whole
}

/// The schema of a list or map with the names that its items do not support.
fn with_marks_of_items(root: &Json, mut schema: Map<String, Json>) -> Map<String, Json> {
    for key in ["items", "additionalProperties"] {
        let Some(items) = schema.get(key).map(|items| whole(root, items)) else { continue };
        for mark in ["x-not-built", "x-no-effect"] {
            if let Some(names) = items.get(mark) {
                schema.entry(mark).or_insert_with(|| names.clone());
            }
        }
    }
    schema
}

/// Finds fields by a path in any spelling.
pub(super) fn find<'f>(all: &'f [Field], wanted: &str) -> Found<'f> {
    let steps: Vec<&str> = wanted.split('.').map(|step| step.split('[').next().unwrap_or(step)).collect();
    let steps = match steps.split_first() {
        Some((&("job" | "Job" | "spec"), rest)) if !rest.is_empty() => rest,
        _ => &steps[..],
    };
    let is_it = |field: &&Field| {
        let path: Vec<&str> = field.path.split('.').collect();
        let inner = path.strip_prefix(&["spec"]).filter(|inner| !inner.is_empty()).unwrap_or(&path);
        [inner, &path].into_iter().any(|path| {
            path.len() == steps.len() && path.iter().zip(steps).all(|(name, step)| is_spelling(step, name))
        })
    };
    let found: Vec<&Field> = all.iter().filter(is_it).collect();
    if !found.is_empty() {
        return Found::Fields(found);
    }
    let last = to_manifest_name(steps.last().copied().unwrap_or_default());
    let leaf = nearest(&last, all.iter().map(Field::name));
    // Each driver has its own `config` at the same path.
    let mut known = BTreeSet::new();
    let named = all.iter().filter(|field| leaf == Some(field.name())).map(|field| field.path.as_str());
    let mut near: Vec<&str> = named.filter(|path| known.insert(*path)).collect();
    near.truncate(5);
    Found::Near(near)
}

/// Whether a step names a field: exactly, in the singular, or as Nomad's API.
fn is_spelling(step: &str, name: &str) -> bool {
    step == name
        || name.strip_suffix('s').is_some_and(|singular| step == singular)
        || name.strip_suffix("ies").is_some_and(|stem| step.strip_suffix('y') == Some(stem))
        || to_manifest_name(step) == name
}

impl Field {
    pub fn name(&self) -> &str {
        self.path.rsplit('.').next().unwrap_or_default()
    }

    pub(super) fn is_directly_in(&self, path: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(outer, _)| outer == path)
    }

    pub fn description(&self) -> Option<String> {
        self.schema.get("description").and_then(Json::as_str).map(|text| text.replace('\n', " "))
    }

    /// The type in a word or two.
    pub fn kind(&self) -> String {
        let is = |keyword: &str| self.schema.get(keyword).is_some();
        if let Some(forms) = self.forms() {
            return forms;
        }
        let plain = match self.schema.get("type") {
            _ if is("x-duration") => "duration",
            _ if is("x-text") => "text",
            Some(Json::String(name)) => name,
            Some(_) | None if is("properties") => "object",
            Some(_) | None if is("items") => "array",
            Some(_) | None => "string",
        };
        match plain {
            "array" => "list".to_owned(),
            "object" if !is("properties") => "map".to_owned(),
            other => other.to_owned(),
        }
    }

    /// The types of a field that may be written in several ways, one of them as a string.
    fn forms(&self) -> Option<String> {
        let choices = self.schema.get("anyOf")?.as_array()?;
        let kind = |choice: &Json| match choice.get("type").and_then(Json::as_str) {
            Some("array") => Some("list"),
            Some("string") => Some("string"),
            Some(_) => None,
            None => choice.get("$ref").map(|_| "object"),
        };
        let kinds: Vec<&str> = choices.iter().map(kind).collect::<Option<_>>()?;
        (kinds.len() > 1 && kinds.contains(&"string")).then(|| kinds.join(" or "))
    }

    /// The allowed values, if they can be listed or bounded.
    pub(super) fn allowed(&self) -> Option<String> {
        let listed = |key: &str| self.schema.get(key).and_then(Json::as_array).cloned();
        let mut values = listed("enum").unwrap_or_default();
        values.extend(self.schema.get("const").cloned());
        for choice in listed("oneOf").into_iter().chain(listed("anyOf")).flatten() {
            values.extend(choice.get("const").cloned());
            values.extend(choice.get("enum").and_then(Json::as_array).cloned().unwrap_or_default());
            // A pattern beside names allows further ones.
            let pattern = choice.get("pattern").and_then(Json::as_str);
            values.extend(pattern.map(|pattern| format!("or names that match {pattern}").into()));
        }
        if !values.is_empty() {
            let mut names: Vec<String> = values.iter().map(short).collect();
            names.sort_by_key(|name| (name.starts_with("or "), name.clone()));
            return Some(names.join(", "));
        }
        match self.kind().as_str() {
            "boolean" => return Some("true, false".to_owned()),
            // The bounds in its schema are those of a number, which only 0 may be.
            "duration" => return None,
            _ => {}
        }
        match (self.schema.get("minimum"), self.schema.get("maximum")) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}")),
            (Some(least), None) => Some(format!("{least} or more")),
            (None, Some(most)) => Some(format!("at most {most}")),
            (None, None) => None,
        }
    }

    /// The default: of a minimal job, or the one in the schema.
    pub fn default(&self) -> Option<String> {
        let is_value = |value: &&Json| !value.is_array() && !value.is_object() && *value != "";
        let of_schema = || self.schema.get("default").filter(is_value).map(short);
        default_of(&self.path).or_else(of_schema)
    }

    /// Nomad's names that this release does not implement.
    pub(super) fn unbuilt(&self) -> Option<String> {
        let names = self.schema.get("x-not-built")?.as_array()?;
        Some(names.iter().map(short).collect::<Vec<_>>().join(", "))
    }

    /// Nomad's names that are accepted, but have no effect.
    pub(super) fn without_effect(&self) -> Option<String> {
        let names = self.schema.get("x-no-effect")?.as_object()?;
        Some(names.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
    }
}

/// A job with every field, for examples.
const EXAMPLE: &str = include_str!("example.yaml");
/// A minimal job, for defaults.
const LEAST: &str = include_str!("least.yaml");

/// Examples of fields that a document does not keep: reading it replaces them.
const UNKEPT: [(&str, &str); 6] = [
    ("spec.groups.tasks.env_file", "env_file: [common.env, {path: local.env, required: false}]\n"),
    ("spec.groups.tasks.env_file.path", "path: common.env\n"),
    ("spec.groups.tasks.env_file.required", "required: false\n"),
    // Only the network of a group can be one of CNI.
    ("spec.groups.tasks.resources.network.cni", "cni: {args: {KEY: value}}\n"),
    ("spec.groups.tasks.resources.network.cni.args", "args: {KEY: value}\n"),
    // Has no effect there.
    ("spec.groups.tasks.resources.network.ports.to", "to: 6060\n"),
];

static EXAMPLES: LazyLock<Vec<Json>> = LazyLock::new(|| documents(EXAMPLE, As::Written));
static DEFAULTS: LazyLock<Vec<Json>> = LazyLock::new(|| documents(LEAST, As::Whole));

/// The form of a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum As {
    Written,
    Whole,
}

fn documents(text: &str, form: As) -> Vec<Json> {
    // A test parses both texts.
    let set = parse("example.yaml", text.as_bytes(), &Drivers::built_in()).unwrap_or_default();
    let jobs = set.jobs.into_iter().map(|loaded| match form {
        As::Written => loaded.document,
        As::Whole => serde_json::to_value(JobManifest::whole(&loaded.object)).unwrap_or_default(),
    });
    let jobs: Vec<Json> = jobs.collect();
    let volumes = set.volumes.into_iter().map(|loaded| match form {
        As::Written => loaded.document,
        As::Whole => serde_json::to_value(VolumeManifest::whole(&loaded.object)).unwrap_or_default(),
    });
    jobs.into_iter().chain(volumes).collect()
}

/// The first value at a path, through lists and maps.
fn at<'v>(value: &'v Json, steps: &[&str]) -> Option<&'v Json> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match value {
        Json::Array(items) => items.iter().find_map(|item| at(item, steps)),
        Json::Object(fields) => match fields.get(*step) {
            Some(field) => at(field, rest),
            None => fields.values().filter(|field| field.is_object()).find_map(|field| at(field, steps)),
        },
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => None,
    }
}

/// The default of a field; none for blocks, and for fields without a default.
fn default_of(path: &str) -> Option<String> {
    let steps: Vec<&str> = path.split('.').collect();
    let value = DEFAULTS.iter().find_map(|document| at(document, &steps))?;
    let is_given = DEFAULT_IS_GIVEN.contains(&path);
    (!is_given
        && !value.is_object()
        && !value.as_array().is_some_and(|items| items.iter().any(Json::is_object)))
    .then(|| short(value))
}

/// Fields that even the minimal job must set, or whose default depends on its other values.
const DEFAULT_IS_GIVEN: [&str; 26] = [
    "spec.periodic.cron",
    "spec.periodic.crons",
    "spec.groups.scaling.min",
    "spec.groups.services.name",
    "spec.groups.services.port",
    "spec.groups.services.checks.name",
    "apiVersion",
    "kind",
    "metadata.name",
    "spec.name",
    "spec.groups.name",
    "spec.groups.tasks.name",
    "spec.groups.tasks.driver",
    "spec.groups.tasks.config.command",
    "spec.groups.volumes.type",
    "spec.groups.volumes.source",
    "spec.plugin_id",
    "spec.groups.tasks.volume_mounts.volume",
    "spec.groups.tasks.volume_mounts.destination",
    "spec.groups.tasks.lifecycle.hook",
    "spec.groups.tasks.prestop.command",
    "spec.groups.tasks.csi_plugin.id",
    "spec.groups.tasks.csi_plugin.type",
    "spec.groups.tasks.actions.name",
    "spec.groups.tasks.actions.command",
    "spec.groups.services.checks.path",
];

/// Whether the example of a field belongs to another driver, or to one driver while the field is common to all.
pub(super) fn is_of_another(field: &Field, all: &[Field]) -> bool {
    let steps: Vec<&str> = field.path.split('.').collect();
    let value = EXAMPLES.iter().find_map(|document| at(document, &steps)).and_then(Json::as_object);
    let is_other = |name: &String| {
        let is_it = |other: &&Field| other.is_directly_in(&field.path) && other.name() == name;
        let mut inner = all.iter().filter(is_it).peekable();
        inner.peek().is_some() && inner.all(|other| other.driver != field.driver)
    };
    value.is_some_and(|fields| fields.keys().any(is_other))
}

/// The example of a field.
pub(super) fn example_of(path: &str) -> Option<String> {
    if let Some((_, example)) = UNKEPT.iter().find(|(known, _)| *known == path) {
        return Some((*example).to_owned());
    }
    let steps: Vec<&str> = path.split('.').collect();
    let value = EXAMPLES.iter().find_map(|document| at(document, &steps))?;
    let name = steps.last().copied().unwrap_or_default();
    let single: Map<String, Json> = [(name.to_owned(), value.clone())].into_iter().collect();
    to_yaml(&single).ok()
}
