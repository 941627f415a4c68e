//! Tests each row of the table of job fields.

use super::*;

const TABLE: &str = include_str!("fields.txt");

/// The effect of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Becomes {
    /// It changes the planned allocation.
    Honoured,
    /// It changes nothing: only servers use it, or it does not apply to this kind of node.
    PassedOver,
    /// The allocation fails, and the reason names the field.
    Refused,
}

struct Row<'t> {
    becomes: Becomes,
    /// The field, and other values that servers require with it.
    values: Vec<(&'t str, Json)>,
}

fn rows() -> impl Iterator<Item = Row<'static>> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (word, rest) = line.split_once(' ').unwrap();
        let value = |text: &'static str| {
            let (path, value) = text.trim().split_once(' ').unwrap();
            (path, serde_json::from_str(value.trim()).expect(line))
        };
        let becomes = match word {
            "honoured" => Becomes::Honoured,
            "passed" => Becomes::PassedOver,
            "refused" => Becomes::Refused,
            other => panic!("{other:?} is not a verdict"),
        };
        Row { becomes, values: rest.split(" & ").map(value).collect() }
    })
}

/// A job with every field of 2.0.5 that runs here: blocks missing in the release's job are filled in.
fn whole() -> Json {
    let jobs: Map<String, Json> = serde_json::from_str(include_str!("../jobs.json")).unwrap();
    let mut job = jobs["2.0.5"].clone();
    let group = &mut job["TaskGroups"][0];
    group["Volumes"] = json!({ "data": {
        "Name": "data", "Type": "host", "Source": "data", "ReadOnly": false, "Sticky": false, "AccessMode": "", "AttachmentMode": "",
        "MountOptions": null, "PerAlloc": false,
    } });
    let task = &mut group["Tasks"][0];
    task["VolumeMounts"] = json!([{
        "Volume": "data", "Destination": "local/data", "ReadOnly": false, "PropagationMode": "private", "SELinuxLabel": "",
    }]);
    task["Templates"] = json!([{
        "SourcePath": "", "DestPath": "local/x", "EmbeddedTmpl": "x", "ChangeMode": "restart", "ChangeSignal": "", "ChangeScript": null,
        "Splay": 5_000_000_000_i64, "Perms": "0644", "Uid": null, "Gid": null, "LeftDelim": "{{", "RightDelim": "}}", "Envvars": false,
        "VaultGrace": 0, "Wait": null, "ErrMissingKey": false, "Once": false,
    }]);
    task["Identities"] = json!([{
        "Name": "aws", "Audience": ["aws"], "ChangeMode": "", "ChangeSignal": "", "Env": false, "File": true, "Filepath": "",
        "ServiceName": "", "TTL": 3_600_000_000_000_i64, "ExtraClaims": null,
    }]);
    job
}

/// `T/Env` is `/TaskGroups/0/Tasks/0/Env`.
fn pointer(path: &str) -> String {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let place = match first {
        "J" => "",
        "G" => "/TaskGroups/0",
        "T" => "/TaskGroups/0/Tasks/0",
        "N" => "/TaskGroups/0/Networks/0",
        "S" => "/TaskGroups/0/Services/0",
        "C" => "/TaskGroups/0/Services/0/Checks/0",
        other => panic!("{other:?} is not a field"),
    };
    format!("{place}/{rest}")
}

fn convert(job: &Json) -> Allocation {
    let alloc = wire::Allocation {
        namespace: "prod".to_owned(),
        job: wire::Job::new(value(job)),
        task_group: "Web_Group".to_owned(),
        ..of_group(json!({ "Tasks": [task()] }))
    };
    read(&alloc)
}

/// Sets the value, creating missing steps of the path.
fn set(job: &mut Json, pointer: &str, value: Json) {
    let mut place = job;
    for step in pointer.split('/').skip(1) {
        place = match step.parse::<usize>() {
            Ok(index) if place.is_array() => &mut place[index],
            Ok(_) | Err(_) => &mut place[step],
        };
    }
    *place = value;
}

#[test]
fn each_field_is_used_ignored_or_refused_by_name() {
    let as_it_is = convert(&whole());
    assert_eq!(as_it_is.server.as_ref().unwrap().refused, None);
    let mut mistakes = Vec::new();
    for Row { becomes, values } in rows() {
        let mut job = whole();
        for (path, value) in &values {
            set(&mut job, &pointer(path), value.clone());
        }
        let changed = convert(&job);
        let refused = changed.server.as_ref().unwrap().refused.clone();
        let is = match &refused {
            Some(_) => Becomes::Refused,
            None if changed == as_it_is => Becomes::PassedOver,
            None => Becomes::Honoured,
        };
        let why = refused.unwrap_or_default();
        let (path, value) = &values[0];
        let field = path.rsplit('/').find(|step| step.parse::<usize>().is_err()).unwrap();
        if is != becomes || is == Becomes::Refused && !why.to_lowercase().contains(&field.to_lowercase()) {
            mistakes.push(format!("{path} {value}: {is:?} {why}"));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn every_field_is_covered() {
    let listed: Vec<String> = rows().map(|row| pointer(row.values[0].0)).collect();
    let mut missing = Vec::new();
    let mut places = vec![(String::new(), whole())];
    while let Some((path, place)) = places.pop() {
        let goes_deeper =
            listed.iter().any(|listed| listed.starts_with(&format!("{path}/"))) || path.is_empty();
        match place {
            Json::Object(fields) if !fields.is_empty() && goes_deeper => {
                places.extend(fields.into_iter().map(|(name, value)| (format!("{path}/{name}"), value)));
            }
            Json::Array(items) if goes_deeper => {
                places.extend(items.into_iter().take(1).map(|value| (format!("{path}/0"), value)));
            }
            Json::Null
            | Json::Bool(_)
            | Json::Number(_)
            | Json::String(_)
            | Json::Array(_)
            | Json::Object(_) => {
                missing.extend(Some(path).filter(|path| !listed.contains(path)));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
