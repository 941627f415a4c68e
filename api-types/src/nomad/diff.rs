//! Differences between two versions of a job, as in `POST /v1/job/ID/plan`.
//!
//! In: jobs in Nomad's JSON. Out: `{Type, ID, Fields, Objects, TaskGroups}`, where a group has `Tasks`; contains only
//! differences. Lists of named items are compared regardless of order, other lists by position.

use std_alloc::{borrow::ToOwned, format, string::String, string::ToString, vec::Vec};

use serde_json::{Map, Value, json};

/// Fields that the agent adds are not part of the job.
const NOTED: [&str; 8] = [
    "Version",
    "Status",
    "StatusDescription",
    "Stable",
    "SubmitTime",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
];

/// Lists of named items with a separate field in a diff, each inside the items of the previous one.
const NAMED: [&str; 2] = ["TaskGroups", "Tasks"];

/// The number of a group's allocations that a new job version would leave, create, change and stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct Updates {
    pub ignore: u64,
    pub place: u64,
    pub in_place_update: u64,
    pub destructive_update: u64,
    pub canary: u64,
    pub stop: u64,
}

impl Updates {
    /// In Nomad's form.
    pub fn to_json(&self) -> Value {
        json!({
            "Ignore": self.ignore, "Place": self.place, "Migrate": 0, "Stop": self.stop,
            "InPlaceUpdate": self.in_place_update, "DestructiveUpdate": self.destructive_update, "Canary": self.canary,
            "Preemptions": 0,
        })
    }
}

/// The differences. Without an old job everything is new.
pub fn job_diff(old: Option<&Value>, new: &Value) -> Value {
    let empty = Map::new();
    let fields = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or(empty.clone());
    let (mut old_fields, mut new_fields) = (fields(old), fields(Some(new)));
    for name in NOTED {
        old_fields.remove(name);
        new_fields.remove(name);
    }
    let mut diff = object(&old_fields, &new_fields, &NAMED);
    diff.kind = kind(old, Some(new), &diff);
    let mut shown = diff.shown();
    shown.insert("ID".into(), new.get("ID").cloned().unwrap_or_default());
    Value::Object(shown)
}

/// The differences between two objects.
#[derive(Default)]
struct Diff {
    kind: &'static str,
    fields: Vec<Value>,
    objects: Vec<Value>,
    named: Option<(String, Vec<Value>)>,
}

impl Diff {
    fn is_empty(&self) -> bool {
        let named = self.named.as_ref().is_none_or(|(_, things)| things.is_empty());
        self.fields.is_empty() && self.objects.is_empty() && named
    }

    fn shown(self) -> Map<String, Value> {
        let mut shown = Map::new();
        shown.insert("Type".into(), self.kind.into());
        shown.insert("Fields".into(), list(self.fields));
        shown.insert("Objects".into(), list(self.objects));
        if let Some((name, things)) = self.named {
            shown.insert(name, list(things));
        }
        shown
    }
}

fn object(old: &Map<String, Value>, new: &Map<String, Value>, named: &[&str]) -> Diff {
    let mut diff = Diff::default();
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (before, after) = (old.get(name), new.get(name));
        match named {
            [list, inner @ ..] if list == name => {
                diff.named = Some((name.clone(), things(before, after, inner)));
            }
            _ => differ(name, before, after, &mut diff),
        }
    }
    diff
}

/// Adds the differences of one member: a field, fields of a list, or objects.
fn differ(name: &str, old: Option<&Value>, new: Option<&Value>, into: &mut Diff) {
    let (old, new) = (present(old), present(new));
    if old == new {
        return;
    }
    match (old, new) {
        (Some(Value::Object(_)), _) | (_, Some(Value::Object(_))) => {
            into.objects.extend(inner(name, old, new));
        }
        (Some(Value::Array(_)), _) | (_, Some(Value::Array(_))) => {
            for (key, before, after) in pairs(old, new) {
                differ_item(name, &key, before, after, into);
            }
        }
        _ => into.fields.push(field(name, old, new)),
    }
}

fn differ_item(name: &str, key: &str, old: Option<&Value>, new: Option<&Value>, into: &mut Diff) {
    if old == new {
        return;
    }
    if old.or(new).is_some_and(Value::is_object) {
        into.objects.extend(inner(name, old, new));
    } else {
        into.fields.push(field(&format!("{name}[{key}]"), old, new));
    }
}

fn inner(name: &str, old: Option<&Value>, new: Option<&Value>) -> Option<Value> {
    let mut diff = object(&members(old), &members(new), &[]);
    if diff.is_empty() {
        return None;
    }
    diff.kind = kind(old, new, &diff);
    let mut shown = diff.shown();
    shown.insert("Name".into(), name.into());
    Some(Value::Object(shown))
}

/// The differing groups or tasks, with their names.
fn things(old: Option<&Value>, new: Option<&Value>, named: &[&str]) -> Vec<Value> {
    let differing = pairs(old, new).into_iter().filter_map(|(key, before, after)| {
        let mut diff = object(&members(before), &members(after), named);
        if diff.is_empty() {
            return None;
        }
        diff.kind = kind(before, after, &diff);
        let mut shown = diff.shown();
        shown.insert("Name".into(), key.into());
        Some(Value::Object(shown))
    });
    differing.collect()
}

/// Matching items of two lists: by name or label if they have one, else by position.
fn pairs<'v>(
    old: Option<&'v Value>,
    new: Option<&'v Value>,
) -> Vec<(String, Option<&'v Value>, Option<&'v Value>)> {
    let items = |value: Option<&'v Value>| value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let keyed = |value| {
        let key = |(place, item): (usize, &'v Value)| {
            let name = ["Name", "Label"].iter().find_map(|key| item.get(key)?.as_str());
            (name.map_or_else(|| place.to_string(), ToOwned::to_owned), item)
        };
        items(value).iter().enumerate().map(key).collect::<Vec<(String, &Value)>>()
    };
    let (old, new) = (keyed(old), keyed(new));
    let find = |list: &[(String, &'v Value)], key: &str| {
        list.iter().find(|(known, _)| known == key).map(|(_, item)| *item)
    };
    let gone = old.iter().filter(|(key, _)| find(&new, key).is_none());
    let mut pairs: Vec<_> = gone.map(|(key, item)| (key.clone(), Some(*item), None)).collect();
    pairs.extend(new.iter().map(|(key, item)| (key.clone(), find(&old, key), Some(*item))));
    pairs
}

fn members(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}

fn field(name: &str, old: Option<&Value>, new: Option<&Value>) -> Value {
    let kind = match (old, new) {
        (None, _) => "Added",
        (_, None) => "Deleted",
        (Some(_), Some(_)) => "Edited",
    };
    json!({ "Type": kind, "Name": name, "Old": text(old), "New": text(new), "Annotations": null })
}

fn kind(old: Option<&Value>, new: Option<&Value>, diff: &Diff) -> &'static str {
    match (present(old), present(new)) {
        _ if diff.is_empty() => "None",
        (None, _) => "Added",
        (_, None) => "Deleted",
        (Some(_), Some(_)) => "Edited",
    }
}

/// Absence has several representations.
fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => true,
    })
}

fn text(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn list(items: Vec<Value>) -> Value {
    if items.is_empty() { Value::Null } else { Value::Array(items) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_template_is_an_object_of_its_task() {
        let template = |text: &str, script: Value| json!({ "DestPath": "local/x", "EmbeddedTmpl": text, "ChangeScript": script });
        let job = |templates: Value| json!({ "ID": "web", "TaskGroups": [{ "Name": "g", "Tasks": [{ "Name": "t", "Templates": templates }] }] });
        let script = json!({ "Command": "x", "Timeout": 5 });
        let (old, new) = (template("a", Value::Null), template("b", script));
        let diff = job_diff(Some(&job(json!([new, old]))), &job(json!([new, new])));
        let changed = &diff["TaskGroups"][0]["Tasks"][0]["Objects"];
        assert_eq!((&changed[0]["Name"], &changed[0]["Type"]), (&json!("Templates"), &json!("Edited")));
        let field = json!([{ "Type": "Edited", "Name": "EmbeddedTmpl", "Old": "a", "New": "b", "Annotations": null }]);
        assert_eq!(changed[0]["Fields"], field);
        let script = &changed[0]["Objects"][0];
        assert_eq!((&script["Name"], &script["Type"]), (&json!("ChangeScript"), &json!("Added")));
        assert_eq!(changed.as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn job_diff_lists_changes_by_group_and_task() {
        let old = json!({
            "ID": "web", "Priority": 50, "Version": 3, "Datacenters": ["a", "b"], "Meta": null,
            "TaskGroups": [
                { "Name": "db", "Count": 1, "Tasks": [] },
                { "Name": "front", "Count": 1, "Tasks": [
                    { "Name": "httpd", "Env": { "A": "1" }, "Driver": "mock" }, { "Name": "log" },
                ] },
            ],
        });
        let mut new = old.clone();
        new["Version"] = 4.into();
        assert_eq!(job_diff(Some(&old), &new)["Type"], "None");
        new["Datacenters"] = json!(["a", "c"]);
        new["TaskGroups"] = json!([
            { "Name": "front", "Count": 2, "Tasks": [
                { "Name": "log" }, { "Name": "httpd", "Env": { "A": "1", "B": "2" }, "Driver": "mock" },
            ] },
        ]);
        let diff = job_diff(Some(&old), &new);
        assert_eq!((&diff["Type"], &diff["ID"]), (&json!("Edited"), &json!("web")));
        let field = |kind: &str, name: &str, old: &str, new: &str| json!([{ "Type": kind, "Name": name, "Old": old, "New": new, "Annotations": null }]);
        assert_eq!(diff["Fields"], field("Edited", "Datacenters[1]", "b", "c"));
        let groups = &diff["TaskGroups"];
        assert_eq!((&groups[0]["Name"], &groups[0]["Type"]), (&json!("db"), &json!("Deleted")));
        assert_eq!((&groups[1]["Name"], &groups[1]["Type"]), (&json!("front"), &json!("Edited")));
        assert_eq!(groups[1]["Fields"], field("Edited", "Count", "1", "2"));
        let tasks = &groups[1]["Tasks"];
        assert_eq!((&tasks[0]["Name"], &tasks[1]), (&json!("httpd"), &Value::Null));
        assert_eq!(tasks[0]["Objects"][0]["Name"], "Env");
        assert_eq!(tasks[0]["Objects"][0]["Fields"], field("Added", "B", "", "2"));
        assert_eq!(job_diff(None, &new)["Type"], "Added");
    }
}
