//! Answers to reads, and refusals.

use herdlet_api_types::view::{ConvergenceState, NodeView};
use herdlet_manifest::fixture::{alloc_view, job, job_view, verdict};
use herdlet_runtime::Now;
use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn an_allocation_has_nomads_shape() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    ground.show(5, &[job_view(&web, 0)], std::slice::from_ref(&view));
    ground.unix(Limits::default()).await;
    let (status, text) = ground.get(&format!("/v1/allocation/{}", view.spec.id)).await;
    assert_eq!(status, 200);
    let shown: Value = serde_json::from_str(&text).unwrap();
    let expected: Value = serde_json::from_str(include_str!("allocation.json")).unwrap();
    assert_eq!(shown, expected, "{}", serde_json::to_string_pretty(&shown).unwrap());
    // Our type of this shape loses nothing.
    let typed: herdlet_api_types::nomad::Allocation = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), expected);
}

#[tokio::test]
async fn lists_are_filtered_and_name_their_index() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    ground.show(9, &[job_view(&web, 2)], &[alloc_view(&web, 0, 0x11), alloc_view(&web, 1, 0x22)]);
    ground.unix(Limits::default()).await;
    let answer = ground.http().get("http://localhost/v1/allocations?prefix=22").send().await.unwrap();
    assert_eq!(answer.headers()["x-nomad-index"], "9");
    let list: Vec<Value> = answer.json().await.unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["Name"], "web.front[1]");
    let jobs: Vec<Value> = serde_json::from_str(&ground.get("/v1/jobs").await.1).unwrap();
    assert_eq!(
        (&jobs[0]["ID"], &jobs[0]["Status"], &jobs[0]["Version"]),
        (&json!("web"), &json!("running"), &json!(2))
    );
    assert_eq!(ground.get("/v1/jobs?namespace=other").await.1, "[]");
    let whole: Value = serde_json::from_str(&ground.get("/v1/job/web").await.1).unwrap();
    assert_eq!(whole["TaskGroups"][0]["Tasks"][0]["Driver"], "mock");
    let of_job: Vec<Value> = serde_json::from_str(&ground.get("/v1/job/web/allocations").await.1).unwrap();
    assert_eq!(of_job.len(), 2);
}

#[tokio::test]
async fn transition_is_published_with_its_change() {
    let ground = ApiFixture::new();
    let client = ground.unix(Limits::default()).await;
    let web = job("web", "front", "httpd");
    ground.show(4, &[job_view(&web, 0)], &[alloc_view(&web, 0, 7)]);
    let index = client.changed(0).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.changed(index).await.unwrap() }
    });
    let mut late = alloc_view(&web, 0, 7);
    late.convergence = verdict(ConvergenceState::Waiting, "task httpd: waits");
    ground.show(6, &[], &[late]);
    assert!(waiting.await.unwrap() > index);
    let transitions = client.transitions().await.unwrap();
    let causes: Vec<_> = transitions.iter().map(|one| (&*one.job.id, &*one.cause)).collect();
    assert_eq!(causes, [("web", "task httpd: waits"), ("web", "version 0 was applied")]);
}

#[tokio::test]
async fn versions_are_listed_newest_first() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let past = herdlet_api_types::view::JobVersion {
        version: 1,
        index: 4,
        submit_time: herdlet_api_types::UnixNanos(7),
        job: web.clone(),
        tag: None,
    };
    ground.show(9, &[JobView { past: vec![past.into()], ..job_view(&web, 2) }], &[]);
    ground.unix(Limits::default()).await;
    let nomad: Value = serde_json::from_str(&ground.get("/v1/job/web/versions").await.1).unwrap();
    let numbers = nomad["Versions"].as_array().unwrap().iter().map(|version| version["Version"].as_u64());
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(2), Some(1)]);
    assert_eq!(
        (&nomad["Versions"][1]["SubmitTime"], &nomad["Versions"][1]["ModifyIndex"]),
        (&json!(7), &json!(4))
    );
    let ours: Value = serde_json::from_str(&ground.get("/v1/herdlet/job/web/versions").await.1).unwrap();
    assert_eq!((&ours[0]["version"], &ours[1]["job"]["id"]), (&json!(2), &json!("web")));
    assert_eq!(ground.get("/v1/job/other/versions").await.0, 404);
}

#[tokio::test]
async fn scale_status_has_nomad_form() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let mut scaled = herdlet_api_types::scaling::ScalingEvents::default();
    for count in [Some(3), None] {
        let event = herdlet_api_types::scaling::ScalingEvent {
            time: herdlet_api_types::UnixNanos(7),
            count,
            previous_count: 2,
            note: Default::default(),
            create_index: 4,
        };
        scaled.remember("front", event, 2);
    }
    let view = alloc_view(&web, 0, 7);
    let shown = JobView { scaled: scaled.into(), allocs: vec![view.spec.id], ..job_view(&web, 2) };
    ground.show(9, &[shown], &[view]);
    ground.unix(Limits::default()).await;
    let scale: Value = serde_json::from_str(&ground.get("/v1/job/web/scale").await.1).unwrap();
    assert_eq!(
        (&scale["JobID"], &scale["JobStopped"], &scale["Namespace"]),
        (&json!("web"), &json!(false), &json!("default"))
    );
    let event = |count: Value| {
        json!({ "Time": 7, "Count": count, "PreviousCount": 2, "Message": "", "Error": false, "Meta": null,
                "EvalID": null, "CreateIndex": 4 })
    };
    let front = json!({ "Desired": 1, "Placed": 1, "Running": 1, "Healthy": 1, "Unhealthy": 0,
                        "Events": [event(json!(null)), event(json!(3))] });
    assert_eq!(scale["TaskGroups"]["front"], front);
    assert_eq!(ground.get("/v1/job/other/scale").await.0, 404);
}

#[tokio::test]
async fn a_blocking_query_waits_for_the_next_commit() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    ground.show(5, &[job_view(&web, 0)], &[]);
    ground.unix(Limits::default()).await;
    let waiting = {
        let http = ground.http();
        tokio::spawn(
            async move { http.get("http://localhost/v1/jobs?index=5&wait=1m").send().await.unwrap() },
        )
    };
    // A query that waits can't be told from one that has not arrived yet; in either case it must see the change.
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    ground.show(6, &[job_view(&web, 1)], &[]);
    let answer = waiting.await.unwrap();
    assert_eq!(answer.headers()["x-nomad-index"], "6");
    assert_eq!(answer.json::<Vec<Value>>().await.unwrap()[0]["Version"], 1);
    assert_eq!(ground.get("/v1/jobs?index=6&wait=1ms").await.0, 200, "the wait is over: the same response");
    assert_eq!(ground.get("/v1/jobs?index=x").await.0, 400);
    assert_eq!(ground.get("/v1/jobs?index=6&wait=soon").await.0, 400);
}

#[tokio::test]
async fn unanswerable_request_is_refused_in_plain_text() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    let id = view.spec.id;
    ground.show(5, &[job_view(&web, 0)], &[view]);
    ground.unix(Limits::default()).await;
    let unknown = "00000000-0000-0000-0000-000000000000";
    for (path, status, fragment) in [
        ("/v1/nothing".to_owned(), 404, "resource not found"),
        (format!("/v1/allocation/{unknown}"), 404, "alloc not found"),
        ("/v1/allocation/0707".to_owned(), 404, "alloc not found"),
        ("/v1/job/none".to_owned(), 404, "job not found"),
        (format!("/v1/client/fs/logs/{unknown}?task=t&type=stdout"), 404, "Unknown allocation"),
        (format!("/v1/client/fs/logs/{id}?type=stdout"), 400, "must provide task name"),
        (format!("/v1/client/fs/logs/{id}?task=httpd&type=both"), 400, "must provide log type"),
        (format!("/v1/client/fs/logs/{id}?task=x&type=stdout"), 400, "unknown task name"),
        (format!("/v1/client/fs/logs/{id}?task=httpd&type=stdout&origin=x"), 400, "origin must be"),
        (format!("/v1/client/fs/logs/{id}?task=httpd&type=stdout"), 404, "log entry for task"),
        (format!("/v1/client/allocation/{unknown}/exec?task=t&command=[\"a\"]"), 404, "Unknown allocation"),
        (format!("/v1/client/allocation/{id}/exec?task=httpd&command=a"), 400, "JSON list"),
        (format!("/v1/client/allocation/{id}/exec?task=httpd&command=[]"), 400, "command is not present"),
        (format!("/v1/herdlet/explain/{id}"), 503, "shutting down"),
    ] {
        let (found, text) = ground.get(&path).await;
        assert_eq!(found, status, "{path}: {text}");
        assert!(text.contains(fragment), "{path}: {text}");
    }
    let http = ground.http();
    let post =
        |path: &str, body: &str| http.post(format!("http://localhost{path}")).body(body.to_owned()).send();
    let (restart, signal) =
        (format!("/v1/client/allocation/{id}/restart"), format!("/v1/client/allocation/{id}/signal"));
    for (path, body, status, fragment) in [
        ("/v1/jobs", "{\"Job\":{},\"PreserveResources\":true}", 501, "PreserveResources"),
        ("/v1/jobs/parse", "{}", 400, "empty"),
        ("/v1/job/web/summary", "{}", 405, "Invalid method"),
        ("/v1/herdlet/apply", "{\"file\":[]}", 400, "unknown field"),
        ("/v1/herdlet/apply", "{\"files\":[]}", 400, "no manifest"),
        (&restart, "{\"TaskName\":\"x\"}", 404, "Could not find task"),
        (&restart, "{\"TaskName\":\"httpd\",\"AllTasks\":true}", 400, "cannot be set"),
        (&restart, "", 503, "shutting down"),
        (&signal, "{\"Signal\":\"SIGNOTHING\"}", 400, "invalid signal"),
        (&signal, "{\"Signal\":\"hup\",\"Task\":\"x\"}", 404, "unknown task"),
    ] {
        let answer = post(path, body).await.unwrap();
        let (found, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert_eq!(found, status, "{path} {body}: {text}");
        assert!(text.contains(fragment), "{path} {body}: {text}");
    }
}

#[tokio::test]
async fn manifest_problems_are_returned_with_positions() {
    let ground = ApiFixture::new();
    let client = ground.unix(Limits::default()).await;
    let text = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: web}\nspec: {typ: service, groups: [{name: a, tsks: []}]}\n";
    let files =
        vec![herdlet_api_types::api::ManifestText { name: "web.yaml".to_owned(), text: text.to_owned() }];
    let refused = client
        .apply(&herdlet_api_types::api::ApplyRequest { files, ..Default::default() })
        .await
        .unwrap_err();
    let herdlet_cli::ClientError::Problems(problems) = refused else { panic!("{refused}") };
    assert!(problems.len() >= 2, "{problems}");
    let first = problems.iter().next().unwrap();
    assert_eq!((first.source.as_str(), first.line), ("web.yaml", 4));
}

// It was 200 although every change was refused with 503.
#[tokio::test]
async fn an_agent_that_cannot_write_its_state_is_not_ready() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    assert_eq!(ground.get("/readyz").await.0, 200);
    let error = "No space left on device".to_owned();
    ground.store.send_replace(StoreHealth::Degraded {
        since: Now { boot_ns: 0, wall_ns: 0 },
        failures: 1,
        error,
    });
    let (code, why) = ground.get("/readyz").await;
    assert!(code == 503 && why.contains("No space left on device"), "{code}: {why}");
    assert_eq!(ground.get("/healthz").await.0, 200);
    ground.store.send_replace(StoreHealth::Ok);
    assert_eq!(ground.get("/readyz").await.0, 200);
}

// A drained machine was not visible in the status, except by its waiting jobs.
#[tokio::test]
async fn the_status_names_a_drain() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let warnings = async || {
        let status: Value = serde_json::from_str(&ground.get("/v1/herdlet/status").await.1).unwrap();
        status["warnings"].to_string()
    };
    assert_eq!(warnings().await, "[]");
    let view = NodeView { eligible: false, ..NodeView::default() };
    ground.shared.model.publisher().offer(CommitIndex(1), vec![View::Node(Arc::new(view))]);
    assert!(warnings().await.contains("herdlet eligibility --enable"));
}

#[tokio::test]
async fn health_probes_show_the_agent_state() {
    let mut ground = ApiFixture::new();
    let shared = Arc::get_mut(&mut ground.shared).unwrap();
    shared.vitals = Box::new(|| Vitals {
        not_ready: Some("restoring".to_owned()),
        degraded: None,
        disk_full: Some("the disk of /state is full".to_owned()),
        warnings: vec!["the certificate in a.pem expires in 3 days".to_owned()],
        seen: Some(crate::http::SeenByServers { status: "ready", eligibility: "eligible" }),
        manifest_problems: vec![herdlet_manifest::yaml::Problem {
            source: "jobs.d/web.yaml".to_owned(),
            line: 4,
            column: 8,
            path: "spec.typ".to_owned(),
            message: "unknown field".to_owned(),
        }],
    });
    ground.unix(Limits::default()).await;
    assert_eq!(ground.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(ground.get("/readyz").await, (503, "restoring\n".to_owned()));
    assert_eq!(ground.get("/v1/agent/health").await.0, 500);
    let status: Value = serde_json::from_str(&ground.get("/v1/herdlet/status").await.1).unwrap();
    assert_eq!(status["not_ready"], "restoring");
    assert_eq!(status["warnings"][0], "the certificate in a.pem expires in 3 days");
    assert_eq!(status["in_cluster"], true);
    assert_eq!(status["disk_full"], "the disk of /state is full");
    assert_eq!(status["jobs"]["converged"], 0);
    assert_eq!(
        status["manifest_problems"][0],
        json!({ "source": "jobs.d/web.yaml", "line": 4, "column": 8, "path": "spec.typ", "message": "unknown field" })
    );
    let base = ground.tcp(metrics_router(Arc::clone(&ground.shared)), None).await;
    let status_of = async |path: &str| reqwest::get(format!("{base}{path}")).await.unwrap().status().as_u16();
    assert_eq!(status_of("/metrics").await, 200);
    assert_eq!(status_of("/healthz").await, 200);
    assert_eq!(status_of("/v1/jobs").await, 404, "the metrics listener serves nothing else");
}

#[tokio::test]
async fn metrics_format_follows_the_accept_header() {
    let ground = ApiFixture::new();
    let base = ground.tcp(metrics_router(Arc::clone(&ground.shared)), None).await;
    let page = async |accept: Option<&str>| {
        let request = reqwest::Client::new().get(format!("{base}/metrics"));
        let request = accept.iter().fold(request, |request, accept| request.header("accept", *accept));
        let answer = request.send().await.unwrap();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        (kind, answer.text().await.unwrap())
    };
    let (plain, open) = (
        "text/plain; version=0.0.4; charset=utf-8",
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
    );
    assert_eq!(page(None).await, (plain.to_owned(), "Text\n".to_owned()));
    assert_eq!(page(Some("*/*")).await.0, plain);
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(page(Some(prometheus)).await, (open.to_owned(), "OpenMetrics\n".to_owned()));
}

#[tokio::test]
async fn empty_apply_is_refused_with_the_file_name() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let body = r#"{"files":[{"name":"empty.yaml","text":" "}]}"#;
    let answer = ground.http().post("http://localhost/v1/herdlet/apply").body(body).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    let problems: herdlet_manifest::yaml::Problems = answer.json().await.unwrap();
    assert_eq!(problems.to_string(), "empty.yaml: it contains no manifest");
}
