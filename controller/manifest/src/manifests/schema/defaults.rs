//! Defaults of fields for editors. A default is written once, in the description of its field.
//!
//! In: the schema of manifests. Out: the same with `default` in each optional field whose description states one value. A
//! default that depends on other fields stays in the description only.

use herdlet_api_types::parse_duration;
use serde_json::{Map, Value as Json};

use super::parts;

/// Adds the defaults.
pub(super) fn add(schema: &mut Json) {
    let root = schema.clone();
    visit(&root, schema);
}

fn visit(root: &Json, schema: &mut Json) {
    match schema {
        Json::Object(keywords) => {
            let required = keywords.get("required").and_then(Json::as_array).cloned().unwrap_or_default();
            if let Some(Json::Object(fields)) = keywords.get_mut("properties") {
                for (name, field) in fields {
                    let is_required = required.iter().any(|required| required == name.as_str());
                    let default = (!is_required).then(|| of_field(root, field)).flatten();
                    if let (Some(default), Json::Object(field)) = (default, field) {
                        field.entry("default").or_insert(default);
                    }
                }
            }
            keywords.values_mut().for_each(|inner| visit(root, inner));
        }
        Json::Array(items) => items.iter_mut().for_each(|item| visit(root, item)),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// The default that the description of a field states.
fn of_field(root: &Json, field: &Json) -> Option<Json> {
    let parts = parts(root, field);
    let keyword = |name: &str| parts.iter().find_map(|part| part.get(name));
    let description = keyword("description")?.as_str()?;
    if keyword("x-duration").is_some() {
        let default = plain(description).filter(|word| parse_duration(word).is_ok() || word == "0")?;
        return Some(Json::from(default));
    }
    let values: Vec<&str> = parts.iter().flat_map(|part| values(part)).collect();
    let kind = keyword("type").and_then(Json::as_str).unwrap_or("string");
    match kind {
        _ if !values.is_empty() => {
            marked(description).map(|(value, _)| value).filter(|value| values.contains(value)).map(Json::from)
        }
        "boolean" => switch(description).map(Json::from),
        "integer" | "number" => number(description).map(Json::from),
        "array" => marked(description).and_then(|(value, _)| serde_json::from_str(value).ok()),
        "string" => text(description),
        _ => None,
    }
}

/// The values of a field that allows only a few.
fn values(part: &Map<String, Json>) -> Vec<&str> {
    let choices = ["oneOf", "anyOf"].iter().filter_map(|key| part.get(*key)?.as_array()).flatten();
    let schemas = choices.filter_map(Json::as_object).chain([part]);
    let named = schemas.flat_map(|schema| {
        let listed = schema.get("enum").and_then(Json::as_array).into_iter().flatten();
        listed.chain(schema.get("const"))
    });
    named.filter_map(Json::as_str).collect()
}

/// A switch without another default is off.
fn switch(description: &str) -> Option<bool> {
    let quoted = marked(description).and_then(|(value, _)| value.parse().ok());
    let stated = quoted.or_else(|| plain(description)?.parse().ok());
    let lower = description.to_lowercase();
    let depends = lower.contains("default true") || lower.contains("default is");
    stated.or_else(|| (!depends).then_some(false))
}

fn number(description: &str) -> Option<i64> {
    let quoted = marked(description).and_then(|(value, _)| value.parse().ok());
    quoted.or_else(|| plain(description)?.parse().ok())
}

/// A text is a default only if the sentence ends behind it. It is no reference to another field (`metadata.name`) and has no
/// part to be filled in (`<service>`).
fn text(description: &str) -> Option<Json> {
    let (value, after) = marked(description)?;
    let is_whole = after.is_empty() || after.starts_with(['.', ';', ')']) || after.starts_with(THE_DEFAULT);
    if !is_whole || value.contains(['.', '<']) {
        return None;
    }
    match value.starts_with('"') {
        true => serde_json::from_str(value).ok(),
        false => Some(Json::from(value)),
    }
}

const THE_DEFAULT: &str = " (the default";

/// The quoted default and the text behind it: "default `a`", or "`a` (the default)".
fn marked(description: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = description.split('`').collect();
    let is_marked = |at: &usize| {
        let before = parts.get(at - 1).copied().unwrap_or_default();
        before.ends_with("default ")
            || before.ends_with("Default ")
            || parts.get(at + 1).is_some_and(|after| after.starts_with(THE_DEFAULT))
    };
    let at = (1..parts.len()).step_by(2).find(is_marked)?;
    Some((parts.get(at)?, parts.get(at + 1).copied().unwrap_or_default()))
}

/// The amount in a description: "default 5m", "0, the default" or "0 (the default)"; none if it depends on other values
/// ("default 30s for a service").
fn plain(description: &str) -> Option<String> {
    const BEFORE: [&str; 2] = [", the default", THE_DEFAULT];
    let text = description.replace('−', "-").replace("Default ", "default ");
    let after = text.split_once("default ").and_then(|(_, rest)| {
        let end =
            rest.find(|char: char| !(char.is_ascii_alphanumeric() || char == '-')).unwrap_or(rest.len());
        let is_whole = rest[end..].is_empty() || rest[end..].starts_with(['.', ';', ')']);
        is_whole.then(|| &rest[..end])
    });
    let before = || {
        let end = BEFORE.iter().find_map(|mark| text.find(mark))?;
        text[..end].rsplit(' ').next()
    };
    after
        .filter(|word| is_amount(word))
        .or_else(|| before().filter(|word| is_amount(word)))
        .map(str::to_owned)
}

/// Whether a word is a number, a duration or a boolean.
fn is_amount(word: &str) -> bool {
    matches!(word, "true" | "false") || word.parse::<i64>().is_ok() || parse_duration(word).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn default(field: &Json) -> Option<Json> {
        of_field(&Json::Null, field)
    }

    #[test]
    fn defaults_are_read_from_descriptions() {
        let field = |kind: &str, description: &str| json!({"type": kind, "description": description});
        for (field, expected) in [
            (field("integer", "The weight; default 50. More."), Some(json!(50))),
            (field("integer", "The number. 0, the default, for none."), Some(json!(0))),
            (field("integer", "The owner; −1, the default, for the task's."), Some(json!(-1))),
            (field("integer", "Attempts; default 1 for a batch job."), None),
            (field("integer", "The minimum; default `count`."), None),
            (field("boolean", "Whether it must exist; default true."), Some(json!(true))),
            (field("boolean", "Stops the job. Default `false`."), Some(json!(false))),
            (field("boolean", "Set `A` (`B` for the default identity)."), Some(json!(false))),
            (field("boolean", "No limit; default true for a service."), None),
            (field("string", "The directory. Default `local/`."), Some(json!("local/"))),
            (field("string", "Begins an action; default `\"{{\"`."), Some(json!("{{"))),
            (field("string", "`pc` (the default) or another."), Some(json!("pc"))),
            (field("string", "The name; default `metadata.name`."), None),
            (field("string", "The name; default `check of <service>`."), None),
            (field("string", "The server; default `a` of the config."), None),
            (field("array", "Datacenters; default `[\"*\"]`."), Some(json!(["*"]))),
            (field("object", "Another; default `x`."), None),
            (json!({"type": "integer"}), None),
        ] {
            assert_eq!(default(&field), expected, "{field}");
        }
    }

    #[test]
    fn durations_and_choices_have_defaults() {
        let duration = json!({"x-duration": true, "description": "Time limit; default 5m."});
        assert_eq!(default(&duration), Some(json!("5m")));
        let choice = json!({"enum": ["fail", "delay"], "description": "It `fail`s (default `fail`)."});
        assert_eq!(default(&choice), Some(json!("fail")));
        let other = json!({"enum": ["fail", "delay"], "description": "default `never`."});
        assert_eq!(default(&other), None);
    }

    #[test]
    fn required_and_given_defaults_stay() {
        let mut schema = json!({
            "required": ["a"],
            "properties": {
                "a": {"type": "integer", "description": "default 5."},
                "b": {"type": "integer", "description": "default 5.", "default": 6},
                "c": {"items": {"properties": {"d": {"type": "integer", "description": "default 5."}}}},
            },
        });
        add(&mut schema);
        let at = |path: &str| schema.pointer(&format!("/properties/{path}/default")).cloned();
        assert_eq!((at("a"), at("b")), (None, Some(json!(6))));
        assert_eq!(at("c/items/properties/d"), Some(json!(5)));
    }
}
