//! Jobs as command lines send them, and the completed jobs.

use super::*;
use crate::test_recordings;

fn completed(job: Json) -> Json {
    let Json::Object(mut job) = job else { panic!("expected an object") };
    complete(&mut job);
    Json::Object(job)
}

#[test]
fn missing_job_fields_are_filled_in() {
    let job = completed(json!({
        "ID": "web", "Datacenters": ["dc1"], "Status": "running", "ModifyIndex": 7, "Update": { "MaxParallel": 3, "Canary": 1 },
        "Reschedule": { "Delay": 1 },
        "TaskGroups": [{
            "Name": "front", "RestartPolicy": { "Attempts": 9 }, "Update": { "Canary": 2 }, "Scaling": { "Max": 5 },
            "Affinities": [{ "LTarget": "a" }], "Volumes": { "a": { "Type": "host" }, "b": { "Type": "else" }, "c": null },
            "Services": [{
                "CheckRestart": { "Limit": 3, "Grace": 5 }, "Checks": [{ "Type": "http", "TaskName": "httpd" }, { "CheckRestart": { "Limit": 1 } }],
            }],
            "Tasks": [{
                "Name": "httpd", "Driver": "docker", "Config": { "image": "httpd" }, "RestartPolicy": { "Mode": "delay" },
                "Resources": { "CPU": null, "Cores": 2 }, "Services": [{ "Checks": [{ "TaskName": "x" }] }],
                "Artifacts": [{ "GetterSource": "https://a/b.txt", "GetterMode": "file" }, {}],
                "Templates": [{ "EmbeddedTmpl": "a", "ChangeMode": "signal" }, { "ChangeSignal": "sigusr1" }],
                "VolumeMounts": [{ "Volume": "a" }, { "Destination": "/x" }],
            }],
        }],
    }));
    assert_eq!(
        (&job["Name"], &job["Type"], &job["Priority"]),
        (&"web".into(), &"service".into(), &50.into())
    );
    assert!(
        job.get("Status").is_none() && job.get("ModifyIndex").is_none() && job.get("Reschedule").is_none()
    );
    assert_eq!(job["Update"], json!({ "Stagger": 30_000_000_000_i64, "MaxParallel": 3 }));
    let group = &job["TaskGroups"][0];
    assert_eq!((&group["Count"], &group["EphemeralDisk"]["SizeMB"]), (&1.into(), &300.into()));
    assert_eq!((&group["Update"]["MaxParallel"], &group["Update"]["Canary"]), (&3.into(), &2.into()));
    assert_eq!(group["ReschedulePolicy"]["Delay"], 1);
    assert_eq!(group["ReschedulePolicy"]["Unlimited"], true);
    assert_eq!(
        (&group["RestartPolicy"]["Attempts"], &group["RestartPolicy"]["Mode"]),
        (&9.into(), &"fail".into())
    );
    assert_eq!(group["Migrate"]["HealthCheck"], "checks");
    assert_eq!(
        group["Scaling"],
        json!({
            "Enabled": true, "Min": 1, "Max": 5, "Type": "horizontal", "Target": { "Namespace": "default", "Job": "web", "Group": "front" },
        })
    );
    assert_eq!(group["Affinities"][0]["Weight"], 50);
    assert_eq!(group["Volumes"].as_object().unwrap().keys().collect::<Vec<_>>(), ["a"]);
    let service = &group["Services"][0];
    assert_eq!((&service["Name"], &service["Provider"]), (&"web-front".into(), &"consul".into()));
    assert_eq!(service["Checks"][0]["CheckRestart"], json!({ "Limit": 3, "Grace": 5 }));
    assert_eq!(service["Checks"][0]["TaskName"], "httpd");
    assert_eq!(service["Checks"][1]["CheckRestart"], json!({ "Limit": 1, "Grace": 5 }));
    let task = &group["Tasks"][0];
    assert_eq!(task["Resources"], json!({ "CPU": 0, "Cores": 2, "MemoryMB": 300 }));
    assert_eq!(
        (&task["RestartPolicy"]["Attempts"], &task["RestartPolicy"]["Mode"]),
        (&9.into(), &"delay".into())
    );
    assert_eq!(task["Services"][0]["Name"], "web-front-httpd");
    assert!(task["Services"][0]["Checks"][0].get("TaskName").is_none());
    assert_eq!(
        (&task["Artifacts"][0]["RelativeDest"], &task["Artifacts"][1]["RelativeDest"]),
        (&"local/b.txt".into(), &"local/".into())
    );
    assert_eq!(
        (&task["Templates"][0]["ChangeSignal"], &task["Templates"][1]["ChangeSignal"]),
        (&"SIGHUP".into(), &"SIGUSR1".into())
    );
    assert_eq!(task["VolumeMounts"].as_array().unwrap().len(), 1);
    assert_eq!(task["Config"], json!({ "image": "httpd" }), "independent of the driver");
}

#[test]
fn policies_are_of_the_kind_of_job() {
    for (kind, has_update, has_reschedule, has_migrate, attempts) in [
        ("service", true, true, true, 2),
        ("system", true, false, false, 2),
        ("batch", false, true, false, 3),
        ("sysbatch", false, false, false, 3),
    ] {
        let job = completed(json!({ "ID": "a", "Type": kind, "TaskGroups": [{ "Name": "g" }] }));
        let group = &job["TaskGroups"][0];
        let has = |name: &str| group.get(name).is_some_and(Json::is_object);
        assert_eq!(
            (has("Update"), has("ReschedulePolicy"), has("Migrate")),
            (has_update, has_reschedule, has_migrate),
            "{kind}"
        );
        assert_eq!(group["RestartPolicy"]["Attempts"], attempts, "{kind}");
    }
}

#[test]
fn job_region_and_namespace_are_resolved() {
    let job = |text: Json| text.as_object().unwrap().clone();
    for (fields, region, namespace, went) in [
        (json!({ "ID": "a" }), None, None, ("eu", "eu", "default")),
        (json!({ "ID": "a", "Region": "global", "Namespace": "dev" }), None, None, ("eu", "eu", "dev")),
        (json!({ "ID": "a", "Region": "us", "Namespace": "dev" }), None, Some("ops"), ("us", "us", "ops")),
        (json!({ "ID": "a", "Region": "us" }), Some("asia"), None, ("asia", "asia", "default")),
        (
            json!({ "ID": "a", "Multiregion": { "Regions": [{ "Name": "us" }] } }),
            None,
            None,
            ("us", "global", "default"),
        ),
    ] {
        let submitted = submitted(job(fields), region, namespace, "eu");
        let of_job = submitted.job["Region"].as_str().unwrap();
        assert_eq!((submitted.region.as_deref().unwrap(), of_job, &*submitted.namespace), went);
        assert_eq!(submitted.job["Namespace"], went.2);
    }
}

/// A job from a server's answer was completed by a stock agent, so completing it again changes nothing.
#[test]
fn complete_stock_job_is_unchanged() {
    let mut seen = 0;
    for message in test_recordings::messages().into_iter().filter(|message| message.kind == "response") {
        let (_, body) = message.plain();
        let first = body.get("Allocs").and_then(|allocs| {
            let herdlet_rpc::codec::Value::List(allocs) = allocs else { return None };
            allocs.first()?.get("Job").cloned()
        });
        let jobs = first.into_iter();
        for job in jobs.filter(|job| matches!(job, herdlet_rpc::codec::Value::Map(_))) {
            let Json::Object(whole) = super::super::json::to_json(&job, "Job") else {
                panic!("expected an object")
            };
            let mut again = whole.clone();
            complete(&mut again);
            for (name, value) in &again {
                let before = whole.get(name).cloned().unwrap_or_default();
                if before.is_null() || before == json!("") {
                    continue;
                }
                same(&before, value, name);
            }
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen} jobs");
}

/// Asserts that every field is unchanged; fields may have been added.
fn same(before: &Json, after: &Json, at: &str) {
    match (before, after) {
        (Json::Object(before), Json::Object(after)) => {
            for (name, value) in before {
                let at = format!("{at}.{name}");
                // Skip fields without a value, and those that servers set.
                let is_own =
                    ["Job.Update", "ID", "CreateIndex", "ModifyIndex"].iter().any(|own| at.ends_with(own));
                if value.is_null() || *value == json!("") || at.starts_with("Update.") || is_own {
                    continue;
                }
                same(value, after.get(name).unwrap_or(&Json::Null), &at);
            }
        }
        (Json::Array(before), Json::Array(after)) => {
            assert_eq!(before.len(), after.len(), "{at}");
            before.iter().zip(after).for_each(|(before, after)| same(before, after, at));
        }
        (before, after) => assert_eq!(before, after, "{at}"),
    }
}
