//! The requests of Nomad's own command line: what it dereferences is there, and what it prints is complete.

use std::sync::Arc;

use herdlet_api_types::{
    deployment::{Deployment, DeploymentStatus},
    job::Job,
    nomad,
    view::JobVersion,
};
use herdlet_manifest::fixture::{alloc_view, job, job_view};
use serde_json::{Value, json};

use super::*;

impl ApiFixture {
    async fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, String) {
        let request = self.http().post(format!("http://localhost{path}")).body(body.to_string());
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// Two versions of a job; the newer one runs and has a deployment.
async fn two_versions() -> ApiFixture {
    let ground = ApiFixture::new();
    let old = job("web", "front", "httpd");
    let mut new = Job::clone(&old);
    new.priority = 70;
    let new = Arc::new(new);
    let mut alloc = alloc_view(&new, 0, 7);
    Arc::make_mut(&mut alloc.spec).job_version = 1;
    let past = JobVersion { version: 0, index: 3, submit_time: UnixNanos(1), job: old, tag: None };
    let mut view = JobView { allocs: vec![alloc.spec.id], past: vec![past.into()], ..job_view(&new, 1) };
    view.modify_index = 5;
    view.deployments = vec![deployment(&view).into()];
    ground.show(9, &[view], &[alloc]);
    ground.unix(Limits::default()).await;
    ground
}

fn deployment(view: &JobView) -> Deployment {
    Deployment {
        id: herdlet_api_types::DeploymentId::from_hash([9; 16]),
        job_key: view.key.clone(),
        job_version: view.version,
        status: DeploymentStatus::Running,
        description: "Deployment is running".to_owned(),
        groups: Default::default(),
        paused: false,
        reverted_to: None,
        create_index: 6,
        modify_index: 6,
        create_time: UnixNanos(1),
        modify_time: UnixNanos(1),
    }
}

#[tokio::test]
async fn evaluation_links_deployment_and_allocations() {
    let ground = two_versions().await;
    let alloc = &ground.json("/v1/allocations").await[0];
    let key = ground.shared.model.jobs()[0].key.clone();
    let id = nomad::eval_id(&key, 5);
    assert_eq!(alloc["EvalID"], id);
    let whole = ground.json(&format!("/v1/allocation/{}", alloc["ID"].as_str().unwrap())).await;
    assert_eq!(whole["EvalID"], id);
    let eval = ground.json(&format!("/v1/evaluation/{id}")).await;
    assert_eq!((&eval["Status"], &eval["TriggeredBy"]), (&json!("complete"), &json!("job-register")));
    let latest = ground.json("/v1/job/web/deployment").await;
    assert_eq!(eval["DeploymentID"], latest["ID"]);
    let placed = ground.json(&format!("/v1/evaluation/{id}/allocations")).await;
    assert_eq!((placed.as_array().unwrap().len(), &placed[0]["ID"]), (1, &alloc["ID"]));
    // The older version has an evaluation of its own, without them.
    let older = nomad::eval_id(&key, 3);
    assert_eq!(ground.json(&format!("/v1/evaluation/{older}")).await["DeploymentID"], "");
    assert_eq!(ground.json(&format!("/v1/evaluation/{older}/allocations")).await, json!([]));
    assert_eq!(ground.json("/v1/job/web/evaluations").await.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn unplaced_group_has_a_blocked_evaluation() {
    use herdlet_api_types::view::{Reason, Unplaced};
    let ground = ApiFixture::new();
    let mut view = job_view(&job("web", "front", "httpd"), 0);
    let why = Unplaced {
        reason: Reason::Capacity,
        message: "no memory".to_owned(),
        filtered_by: Vec::new(),
        exhausted: vec!["memory".to_owned()],
    };
    view.unplaced = [("front".to_owned(), why)].into();
    view.modify_index = 4;
    ground.show(5, &[view], &[]);
    ground.unix(Limits::default()).await;
    let evals = ground.json("/v1/job/web/evaluations").await;
    let with_status =
        |status: &str| evals.as_array().unwrap().iter().find(|one| one["Status"] == status).unwrap();
    let (complete, blocked) = (with_status("complete"), with_status("blocked"));
    assert_eq!(complete["BlockedEval"], blocked["ID"]);
    assert_eq!(complete["FailedTGAllocs"]["front"]["DimensionExhausted"]["memory"], 1);
    assert_eq!(
        (&blocked["FailedTGAllocs"], &blocked["QueuedAllocations"]["front"]),
        (&Value::Null, &json!(1))
    );
}

#[tokio::test]
async fn amounts_used_by_the_nomad_cli_are_not_null() {
    let ground = two_versions().await;
    let node = ground.json("/v1/node/n1").await;
    for part in ["Resources", "Reserved"] {
        for amount in ["CPU", "MemoryMB", "DiskMB"] {
            assert!(node[part][amount].is_number(), "{part}.{amount}: {node}");
        }
    }
    assert!(node["NodeResources"]["Cpu"]["CpuShares"].is_number(), "{node}");
    let allocs = ground.json("/v1/node/n1/allocations").await;
    for amount in ["CPU", "MemoryMB", "DiskMB"] {
        assert!(allocs[0]["Resources"][amount].is_number(), "{amount}: {}", allocs[0]);
        assert!(allocs[0]["TaskResources"]["httpd"][amount].is_number(), "{amount}: {}", allocs[0]);
    }
    let stats = ground.json("/v1/client/stats?node_id=n1").await;
    assert!(stats["Memory"]["Total"].as_u64().is_some_and(|total| total > 0), "{stats}");
    assert!(!stats["CPU"].as_array().unwrap().is_empty() && stats["AllocDirStats"].is_object(), "{stats}");
    assert_eq!(ground.get("/v1/client/stats?node_id=other").await.0, 404);
    let metrics = ground.json("/v1/metrics").await;
    assert!(metrics["Gauges"].is_array(), "{metrics}");
    assert_eq!(ground.get("/v1/metrics?format=prometheus").await.1, "Text\n");
}

#[tokio::test]
async fn pools_are_read_and_not_changed() {
    let ground = two_versions().await;
    let pools = ground.json("/v1/node/pools").await;
    let names: Vec<&Value> = pools.as_array().unwrap().iter().map(|pool| &pool["Name"]).collect();
    assert_eq!(names, ["all", "default"]);
    assert_eq!(ground.json("/v1/node/pool/default").await["Description"], "Default node pool.");
    assert_eq!(ground.json("/v1/node/pool/all/nodes").await[0]["ID"], "n1");
    assert_eq!(ground.json("/v1/node/pool/default/jobs").await[0]["ID"], "web");
    assert_eq!(ground.get("/v1/node/pool/other").await, (404, "node pool not found".to_owned()));
    assert_eq!(ground.post("/v1/node/pools", &json!({})).await.0, 501);
}

#[tokio::test]
async fn versions_are_compared() {
    let ground = two_versions().await;
    assert_eq!(ground.json("/v1/job/web/versions").await["Diffs"], Value::Null);
    let diffs = ground.json("/v1/job/web/versions?diffs=true").await["Diffs"].clone();
    let field =
        json!([{ "Type": "Edited", "Name": "Priority", "Old": "50", "New": "70", "Annotations": null }]);
    assert_eq!((diffs.as_array().unwrap().len(), &diffs[0]["Fields"]), (1, &field));
    let diffs = ground.json("/v1/job/web/versions?diffs=true&diff_version=1").await["Diffs"].clone();
    assert_eq!((&diffs[0]["Type"], &diffs[1]["Fields"][0]["Old"]), (&json!("None"), &json!("70")));
    assert_eq!(ground.get("/v1/job/web/versions?diffs=true&diff_version=7").await.0, 404);
}

#[tokio::test]
async fn jobs_are_validated_and_refused_in_one_line() {
    let ground = two_versions().await;
    let sound = nomad::job(&job("web", "front", "httpd"), 0);
    let mut broken = sound.clone();
    broken["TaskGroups"][0]["Tasks"][0]["KillSignal"] = "SIGFOO".into();
    broken["Priority"] = 1000.into();
    let (status, text) = ground.post("/v1/validate/job", &json!({ "Job": sound })).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, &answer["Error"], &answer["ValidationErrors"]),
        (200, &json!(""), &Value::Null),
        "{text}"
    );
    let (status, text) = ground.post("/v1/validate/job", &json!({ "Job": broken })).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, answer["ValidationErrors"].as_array().unwrap().len()), (200, 2), "{text}");
    let (status, text) = ground.post("/v1/jobs", &json!({ "Job": broken })).await;
    assert_eq!((status, text.lines().count()), (400, 1), "{text}");
    assert!(text.contains("SIGFOO") && !text.starts_with('{') && !text.contains("job.json"), "{text}");
    // An unknown field is named as the caller has written it.
    let mut unknown = nomad::job(&job("web", "front", "httpd"), 0);
    unknown["TaskGroups"][0]["Bogus"] = 1.into();
    unknown["TaskGroups"][0]["Tasks"][0]["KillSignl"] = "SIGINT".into();
    let (status, text) = ground.post("/v1/jobs", &json!({ "Job": unknown })).await;
    assert_eq!(status, 400, "{text}");
    assert!(text.contains("unknown field `Bogus`") && !text.contains("`bogus`"), "{text}");
    assert!(text.contains("unknown field `KillSignl`; did you mean `kill_signal`?"), "{text}");
    let (status, text) =
        ground.post("/v1/jobs/parse", &json!({ "JobHCL": "job \"a\" {\n  nope = 1\n}" })).await;
    assert_eq!((status, text.starts_with("job.hcl:")), (400, true), "{text}");
}

#[tokio::test]
async fn plan_reports_changes_of_allocations() {
    let ground = two_versions().await;
    let mut changed = nomad::job(&ground.shared.model.jobs()[0].job, 0);
    changed["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "1" });
    let (status, text) = ground.post("/v1/job/web/plan", &json!({ "Job": changed, "Diff": true })).await;
    assert_eq!(status, 200, "{text}");
    let plan: Value = serde_json::from_str(&text).unwrap();
    let group = &plan["Diff"]["TaskGroups"][0];
    assert_eq!(group["Updates"], json!({ "create/destroy update": 1 }), "{text}");
    assert_eq!(group["Tasks"][0]["Annotations"], json!(["forces create/destroy update"]));
    assert_eq!(plan["JobModifyIndex"], 5);
}

#[tokio::test]
async fn statuses_and_names_are_found() {
    let ground = two_versions().await;
    let statuses = ground.json("/v1/jobs/statuses").await;
    assert_eq!(
        (&statuses[0]["ID"], &statuses[0]["LatestDeployment"]["IsActive"]),
        (&json!("web"), &json!(true))
    );
    assert_eq!(statuses[0]["Allocs"][0]["NodeID"], "n1");
    let wanted = json!({ "Jobs": [{ "id": "other", "namespace": "default" }] });
    assert_eq!(ground.post("/v1/jobs/statuses", &wanted).await.1, "[]");
    let (_, text) = ground.post("/v1/search/fuzzy", &json!({ "Text": "HTT", "Context": "all" })).await;
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["Matches"]["tasks"][0], json!({ "ID": "httpd", "Scope": ["default", "web", "front"] }));
    assert_eq!(ground.post("/v1/search/fuzzy", &json!({ "Text": "h" })).await.0, 400);
}

#[tokio::test]
async fn requests_for_another_region_are_refused() {
    let mut ground = ApiFixture::new();
    Arc::get_mut(&mut ground.shared).unwrap().facts.node.region = "eu".to_owned();
    ground.unix(Limits::default()).await;
    for own in ["", "region=", "region=eu", "region=global&prefix=w"] {
        assert_eq!(ground.get(&format!("/v1/jobs?{own}")).await.0, 200, "{own}");
    }
    let refused = "No path to region: this agent is in region \"eu\" and knows no other".to_owned();
    for path in ["/v1/jobs?region=us", "/v1/job/web?prefix=a&region=us", "/v1/agent/self?region=us"] {
        assert_eq!(ground.get(path).await, (500, refused.clone()), "{path}");
    }
    assert_eq!(ground.post("/v1/jobs?region=us", &json!({ "Job": {} })).await, (500, refused));
}
