//! What servers of each release print is a job file: `servers.txt` has every field with the values that servers write
//! by themselves, and the effect of another value.

use serde_json::{Value as Json, json};

use super::{Job, good, read_set};

/// The blocks of the table, and where they are in the job.
const BLOCKS: [(&str, &str); 19] = [
    ("J", ""),
    ("G", "/TaskGroups/0"),
    ("U", "/TaskGroups/0/Update"),
    ("X", "/TaskGroups/0/RestartPolicy"),
    ("Y", "/TaskGroups/0/ReschedulePolicy"),
    ("D", "/TaskGroups/0/EphemeralDisk"),
    ("Z", "/TaskGroups/0/Scaling"),
    ("N", "/TaskGroups/0/Networks/0"),
    ("P", "/TaskGroups/0/Networks/0/DynamicPorts/0"),
    ("V", "/TaskGroups/0/Volumes/data"),
    ("S", "/TaskGroups/0/Services/0"),
    ("C", "/TaskGroups/0/Services/0/Checks/0"),
    ("T", "/TaskGroups/0/Tasks/0"),
    ("R", "/TaskGroups/0/Tasks/0/Resources"),
    ("L", "/TaskGroups/0/Tasks/0/LogConfig"),
    ("I", "/TaskGroups/0/Tasks/0/Identities/0"),
    ("M", "/TaskGroups/0/Tasks/0/VolumeMounts/0"),
    ("A", "/TaskGroups/0/Tasks/0/Artifacts/0"),
    ("E", "/TaskGroups/0/Tasks/0/Templates/0"),
];

/// A service job with one of each block.
fn job() -> Json {
    json!({ "ID": "probe", "TaskGroups": [{
        "Name": "one", "Update": {}, "RestartPolicy": {}, "ReschedulePolicy": {}, "EphemeralDisk": {}, "Scaling": { "Max": 3 },
        "Networks": [{ "DynamicPorts": [{ "Label": "http" }] }], "Volumes": { "data": { "Type": "host", "Source": "data" } },
        "Services": [{ "Name": "probe", "PortLabel": "http", "Checks": [
            { "Name": "up", "Type": "http", "Path": "/", "Interval": 10_000_000_000_i64, "Timeout": 2_000_000_000_i64 }] }],
        "Tasks": [{
            "Name": "main", "Driver": "raw_exec", "Config": { "command": "/bin/sleep" }, "Resources": {}, "LogConfig": {},
            "Identities": [{ "Name": "other", "Audience": ["x"], "File": true }],
            "VolumeMounts": [{ "Volume": "data", "Destination": "local/data" }],
            "Artifacts": [{ "GetterSource": "https://files.example.org/a" }],
            "Templates": [{ "EmbeddedTmpl": "x", "DestPath": "local/x" }] }] }] })
}

/// A line of the table.
struct Row<'t> {
    place: &'t str,
    field: &'t str,
    defaults: Vec<Json>,
    other: Option<(&'t str, Json)>,
}

fn rows() -> Vec<Row<'static>> {
    let lines = include_str!("servers.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let row = |line: &'static str| {
        let (path, values) = line.split_once(' ').unwrap();
        let (block, field) = path.split_once('/').unwrap();
        let place = BLOCKS.iter().find(|(name, _)| *name == block).unwrap().1;
        let (defaults, other) = match values.split_once(" => ") {
            Some((defaults, other)) => {
                let (verdict, other) = other.split_once(' ').unwrap();
                (defaults, Some((verdict, value(other))))
            }
            None => (values, None),
        };
        Row { place, field, defaults: defaults.split(" | ").map(value).collect(), other }
    };
    lines.map(row).collect()
}

fn with(job: &mut Json, row: &Row<'_>, value: &Json) {
    job.pointer_mut(row.place).unwrap()[row.field] = value.clone();
}

/// The result of reading a job, and the paths and messages about it.
fn outcome(job: &Json) -> (Option<Job>, Vec<String>) {
    match read_set("job.json", &json!({ "Job": job }).to_string()) {
        Ok(set) => {
            let warnings =
                set.warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message));
            (set.jobs.first().map(|job| job.object.clone()), warnings.collect())
        }
        Err(problems) => {
            (None, problems.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect())
        }
    }
}

#[test]
fn server_default_values_change_nothing() {
    let plain = good("job.json", &job().to_string());
    for row in rows() {
        for value in &row.defaults {
            let mut job = job();
            with(&mut job, &row, value);
            let (read, warnings) = outcome(&job);
            assert_eq!(warnings, [""; 0], "{}/{} {value}", row.place, row.field);
            assert_eq!(read.as_ref(), Some(&plain), "{}/{} {value}", row.place, row.field);
        }
    }
}

#[test]
fn all_server_default_values_together_change_nothing() {
    let plain = good("job.json", &job().to_string());
    let most = rows().iter().map(|row| row.defaults.len()).max().unwrap();
    for number in 0..most {
        let mut job = job();
        for row in rows() {
            // Lists in the job are blocks of the table.
            let is_block = |value: &Json| value.is_array() || value.is_object();
            let own = job.pointer(row.place).and_then(|block| block.get(row.field)).is_some_and(is_block);
            if !own {
                with(&mut job, &row, row.defaults.get(number).unwrap_or(&row.defaults[0]));
            }
        }
        let (read, warnings) = outcome(&job);
        assert_eq!((warnings, read.as_ref()), (Vec::new(), Some(&plain)));
    }
}

#[test]
fn other_values_are_read_or_reported() {
    let plain = good("job.json", &job().to_string());
    for row in rows() {
        let Some((verdict, value)) = &row.other else { continue };
        let mut job = job();
        with(&mut job, &row, value);
        let (read, warnings) = outcome(&job);
        let names_it = warnings
            .first()
            .is_some_and(|warning| warning.to_lowercase().contains(&row.field.to_lowercase()));
        let found = match &read {
            None => "refused",
            Some(_) if !warnings.is_empty() => "warned",
            Some(job) if *job != plain => "read",
            Some(_) => "without effect",
        };
        assert_eq!(found, *verdict, "{}/{} {value}: {warnings:?}", row.place, row.field);
        assert!(warnings.is_empty() || names_it, "{}/{} {value}: {warnings:?}", row.place, row.field);
    }
}

/// Regression: the payload of a parameterized job was taken for the payload of a dispatched one, which is state.
#[test]
fn the_rule_for_payloads_is_read() {
    let job = json!({ "ID": "probe", "Type": "batch", "ParameterizedJob": { "Payload": "forbidden", "MetaRequired": null }, "TaskGroups": [
        { "Name": "one", "Tasks": [{ "Name": "main", "Driver": "mock" }] }] });
    let job = good("job.json", &job.to_string());
    assert_eq!(job.parameterized.unwrap().payload, herdlet_api_types::job::PayloadRule::Forbidden);
}

/// A service is in the namespace of its job.
#[test]
fn services_name_the_namespace_of_their_job() {
    let mut job = job();
    job["Namespace"] = "team".into();
    job["TaskGroups"][0]["Services"][0]["Namespace"] = "team".into();
    job["TaskGroups"][0]["Services"][0]["Provider"] = "nomad".into();
    let (read, warnings) = outcome(&job);
    assert_eq!((warnings, read.unwrap().namespace), (Vec::new(), "team".to_owned()));
}

/// What servers of 2.0 write into system jobs as well.
#[test]
fn an_update_with_defaults_is_nothing_to_report_in_a_system_job() {
    let job = json!({ "ID": "probe", "Type": "system", "TaskGroups": [{
        "Name": "one", "Count": 1, "ReschedulePolicy": null,
        "Update": { "AutoPromote": false, "AutoRevert": false, "Canary": 0, "HealthCheck": "checks", "HealthyDeadline": 300_000_000_000_i64,
            "MaxParallel": 1, "MinHealthyTime": 10_000_000_000_i64, "ProgressDeadline": 600_000_000_000_i64, "Stagger": 30_000_000_000_i64 },
        "Tasks": [{ "Name": "main", "Driver": "mock" }] }] });
    let (read, warnings) = outcome(&job);
    assert!(read.is_some() && warnings.is_empty(), "{warnings:?}");
}

/// `herdlet job inspect` and this agent's `GET /v1/job/ID`.
#[test]
fn printed_job_is_a_valid_job_file() {
    for (name, text) in super::CORPUS.into_iter().flatten() {
        let job = good(name, text);
        let set = read_set("job.json", &herdlet_api_types::nomad::job(&job, 3).to_string());
        let set = set.unwrap_or_else(|problems| panic!("{name}: {problems}"));
        assert_eq!(set.jobs[0].object, job, "{name}");
    }
    let yaml = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: a}, spec: {groups: [{name: g, tasks: [{name: t, driver: mock}]}]}}";
    let job = good("a.yaml", yaml);
    assert_eq!(job.groups[0].update, None);
    assert_eq!(good("a.json", &herdlet_api_types::nomad::job(&job, 0).to_string()), job);
}
