//! Checks the `driver` and `config` of every task against the driver's own schema, and converts `config` to
//! JSON.
//!
//! In: the tree, and a typed manifest whose configs are unreliable because typing lost how numbers were
//! written. Out: configs in which every text is as written and every duration is in one notation, and
//! problems.

use std::path::Path;

use herdlet_api_types::driver::built_in;
use herdlet_api_types::manifest::{JobManifest, TaskSpec};
use herdlet_api_types::{format_duration, parse_duration};
use serde_json::{Map, Number, Value as Json};

use super::drivers::{Drivers, KNOWN};
use super::findings::Findings;
use super::schema::parts;
use crate::yaml::{self, Located, Node, Trail, Value, nearest};

/// Checks and converts the configs of all tasks.
pub(super) fn read(manifest: &mut JobManifest, drivers: &Drivers, findings: &mut Findings<'_>) {
    let (spec, name) = (Trail::begin("spec"), "groups");
    let groups = spec.field(name);
    for (index, group) in manifest.spec.groups.iter_mut().flatten().enumerate() {
        let group_trail = groups.item(index);
        let tasks = group_trail.field("tasks");
        for (index, task) in group.tasks.iter_mut().flatten().enumerate() {
            read_task(task, &tasks.item(index), drivers, findings);
        }
    }
}

fn read_task(task: &mut TaskSpec, trail: &Trail<'_>, drivers: &Drivers, findings: &mut Findings<'_>) {
    let Some(driver) = &task.driver else { return };
    let Some(rules) = drivers.get(driver) else {
        return findings.problem(&trail.field("driver"), unknown(driver, drivers));
    };
    let path = trail.field("config").to_string();
    let document = findings.document;
    let Some(place) = document.at(&path) else {
        // The config is missing: check an empty one at the task's position.
        let Some(at) = document.at(&trail.to_string()) else { return };
        let empty = Node { value: Value::Map(Vec::new()), ..at.node.clone() };
        return findings.problems.append(yaml::check(&Located { path, node: &empty, ..at }, &rules.config));
    };
    let problems = yaml::check(&place, &rules.config);
    if problems.is_empty() {
        let schema = rules.config.as_value();
        task.config = to_json(schema, schema, place.node).as_object().cloned();
        if let Some(warning) = task.config.as_ref().and_then(words_as_command) {
            findings.warning(&trail.field("config").field("command"), warning);
        }
    }
    // The structural check already reported a config that is not a map.
    if matches!(place.node.value, Value::Map(_)) {
        findings.problems.append(problems);
    }
}

/// The warning about a whole command line as the name of the program.
fn words_as_command(config: &Map<String, Json>) -> Option<String> {
    let command = config.get("command")?.as_str()?;
    let has_args = config.get("args").and_then(Json::as_array).is_some_and(|args| !args.is_empty());
    let mut words = command.split_whitespace();
    let (program, args) = (words.next()?, words.map(|word| format!("{word:?}")).collect::<Vec<_>>());
    // A program may have a space in its path.
    if has_args || args.is_empty() || Path::new(command).is_file() {
        return None;
    }
    Some(format!(
        "the whole text is the name of the program, because there are no `args`; to pass arguments: `command` {program:?}, \
         `args` [{}]",
        args.join(", ")
    ))
}

fn unknown(driver: &str, drivers: &Drivers) -> String {
    let names: Vec<String> = drivers.names().map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    if driver == "mock_driver" && drivers.get("mock").is_some() {
        return "is named `mock` in herdlet".to_owned();
    }
    if built_in().iter().any(|info| info.name == driver) {
        return format!(
            "the driver `{driver}` is disabled on this agent; enable it with `drivers.{driver}.enabled` in the agent's config"
        );
    }
    if KNOWN.contains(&driver) {
        return format!("the driver `{driver}` is not supported; available: {names}");
    }
    match nearest(driver, drivers.names()) {
        Some(name) => format!("there is no driver `{driver}`; did you mean `{name}`?"),
        None => format!("there is no driver `{driver}`; available: {names}"),
    }
}

/// Converts a checked node to JSON. Scalars that the schema takes as text keep their source text.
fn to_json(root: &Json, schema: &Json, node: &Node) -> Json {
    let parts = parts(root, schema);
    let is = |keyword: &str| parts.iter().any(|part| part.contains_key(keyword));
    // One notation: `60s` and `1m` must not differ.
    if let Some(length) = parse_duration(&node.text).ok().filter(|_| is("x-duration")) {
        return Json::String(format_duration(length));
    }
    let keeps_text = is("x-text") || is("x-duration");
    match &node.value {
        Value::Bool(_) | Value::Int(_) | Value::Float(_) if keeps_text => Json::String(node.text.to_string()),
        Value::Null | Value::Refused => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(value) => Number::from_i128(*value).map_or(Json::Null, Json::Number),
        Value::Float(value) => Number::from_f64(*value).map_or(Json::Null, Json::Number),
        Value::Str => Json::String(node.text.to_string()),
        Value::Seq(items) => {
            let schema = parts.iter().find_map(|part| part.get("items")).unwrap_or(&Json::Bool(true));
            items.iter().map(|item| to_json(root, schema, item)).collect()
        }
        Value::Map(entries) => {
            let fields = entries.iter().map(|entry| {
                let named = parts.iter().find_map(|part| part.get("properties")?.get(&*entry.key));
                let schema = named.or_else(|| parts.iter().find_map(|part| part.get("additionalProperties")));
                (entry.key.to_string(), to_json(root, schema.unwrap_or(&Json::Bool(true)), &entry.value))
            });
            Json::Object(fields.collect::<Map<_, _>>())
        }
    }
}
