//! Annotations of a job's differences: the effect of each change on allocations, as in `POST /v1/job/ID/plan`.
//!
//! Source of the texts: Nomad's `scheduler/annotate.go` (1.6).

use std_alloc::{collections::BTreeMap, string::String};

use serde_json::{Map, Value, json};

use super::Updates;

const CREATES: &str = "forces create";
const DESTROYS: &str = "forces destroy";
const IN_PLACE: &str = "forces in-place update";
const DESTRUCTIVE: &str = "forces create/destroy update";

/// What a new version of a job does to the allocations of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupChange {
    /// The number of allocations by effect.
    pub updates: Updates,
    /// Whether its running allocations continue.
    pub is_in_place: bool,
}

/// Adds the effects to the differences of a job. Groups without differences are added, because they are affected too.
pub fn annotate(diff: &mut Value, changes: &BTreeMap<String, GroupChange>) {
    let Some(diff) = diff.as_object_mut() else { return };
    let groups = diff.entry("TaskGroups").or_insert(Value::Null);
    if groups.is_null() {
        *groups = Value::Array(Default::default());
    }
    let Some(groups) = groups.as_array_mut() else { return };
    for (name, change) in changes {
        match groups.iter_mut().find(|group| group["Name"].as_str() == Some(name)) {
            Some(group) => annotate_group(group, change),
            None => groups.push(json!({
                "Type": "None", "Name": name, "Fields": null, "Objects": null, "Tasks": null,
                "Updates": updates(&change.updates),
            })),
        }
    }
}

fn annotate_group(group: &mut Value, change: &GroupChange) {
    group["Updates"] = updates(&change.updates);
    let kind = group["Type"].as_str().map(String::from).unwrap_or_default();
    let fields = group["Fields"].as_array_mut().into_iter().flatten();
    for field in fields.filter(|field| field["Name"] == "Count") {
        let number = |name: &str| field[name].as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let (old, new) = (number("Old"), number("New"));
        if old != new {
            field["Annotations"] = json!([if old < new { CREATES } else { DESTROYS }]);
        }
    }
    for task in group["Tasks"].as_array_mut().into_iter().flatten() {
        let effect = match (kind.as_str(), task["Type"].as_str()) {
            ("Added", Some("Added")) => CREATES,
            ("Deleted", Some("Deleted")) => DESTROYS,
            _ if change.is_in_place => IN_PLACE,
            _ => DESTRUCTIVE,
        };
        task["Annotations"] = json!([effect]);
    }
}

/// The numbers that are not 0, by Nomad's names.
fn updates(of: &Updates) -> Value {
    let named = [
        ("ignore", of.ignore),
        ("create", of.place),
        ("destroy", of.stop),
        ("canary", of.canary),
        ("in-place update", of.in_place_update),
        ("create/destroy update", of.destructive_update),
    ];
    let counted = named.into_iter().filter(|(_, count)| *count > 0);
    Value::Object(counted.map(|(name, count)| (String::from(name), count.into())).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nomad::job_diff;
    use std_alloc::borrow::ToOwned;

    #[test]
    fn each_change_has_its_effect() {
        let old = json!({ "ID": "web", "TaskGroups": [
            { "Name": "front", "Count": 1, "Tasks": [{ "Name": "httpd", "User": "a" }] },
            { "Name": "same", "Count": 1, "Tasks": [] },
            { "Name": "gone", "Count": 1, "Tasks": [{ "Name": "t" }] },
        ] });
        let mut new = old.clone();
        new["TaskGroups"][0]["Count"] = 3.into();
        new["TaskGroups"][0]["Tasks"][0]["User"] = "b".into();
        new["TaskGroups"][2] = json!({ "Name": "new", "Count": 1, "Tasks": [{ "Name": "t" }] });
        let change = |updates, is_in_place| GroupChange { updates, is_in_place };
        let none = Updates::default();
        let changes = BTreeMap::from([
            ("front".to_owned(), change(Updates { place: 2, destructive_update: 1, ..none }, false)),
            ("same".to_owned(), change(Updates { ignore: 1, ..none }, true)),
            ("gone".to_owned(), change(Updates { stop: 1, ..none }, false)),
            ("new".to_owned(), change(Updates { place: 1, ..none }, false)),
        ]);
        let mut diff = job_diff(Some(&old), &new);
        annotate(&mut diff, &changes);
        let group = |name: &str| {
            let groups = diff["TaskGroups"].as_array().expect("groups");
            groups.iter().find(|group| group["Name"] == name).expect("the group").clone()
        };
        let front = group("front");
        assert_eq!(front["Updates"], json!({ "create": 2, "create/destroy update": 1 }));
        assert_eq!(front["Fields"][0]["Annotations"], json!(["forces create"]));
        assert_eq!(front["Tasks"][0]["Annotations"], json!(["forces create/destroy update"]));
        assert_eq!(
            (&group("same")["Updates"], &group("same")["Type"]),
            (&json!({ "ignore": 1 }), &json!("None"))
        );
        assert_eq!(group("gone")["Tasks"][0]["Annotations"], json!(["forces destroy"]));
        assert_eq!(group("new")["Tasks"][0]["Annotations"], json!(["forces create"]));

        let mut in_place = job_diff(Some(&old), &new);
        annotate(&mut in_place, &BTreeMap::from([("front".to_owned(), change(none, true))]));
        let front = &in_place["TaskGroups"][1];
        assert_eq!(front["Tasks"][0]["Annotations"], json!(["forces in-place update"]), "{in_place}");
    }
}
