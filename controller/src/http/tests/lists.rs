//! Lists, page by page, and what wakes those who wait for a change of them.

use herdlet_api_types::{
    fixture,
    service::{CheckResult, CheckStatus, Registration},
    task::TaskPhase,
};
use serde_json::{Value, json};

use super::{streams::line, *};
use crate::{
    drivers::catalog::ServiceOwner,
    test_views::{THEN, alloc_view, job, job_view},
};

#[tokio::test]
async fn lists_come_in_pages_in_either_direction() {
    let ground = Ground::new();
    let web = job("web", "front", "httpd");
    let allocs: Vec<_> = [0x33, 0x11, 0x22].iter().map(|seed| alloc_view(&web, 0, *seed)).collect();
    ground.show(9, &[job_view(&web, 2)], &allocs);
    ground.unix(Limits::default()).await;
    for path in ["/v1/allocations", "/v1/job/web/allocations", "/v1/node/n1/allocations"] {
        let page = async |query: String| {
            let answer = ground.http().get(format!("http://localhost{path}?{query}")).send().await.unwrap();
            assert_eq!(answer.headers()["x-nomad-index"], "9");
            assert_eq!(answer.headers()["x-nomad-knownleader"], "true");
            assert_eq!(answer.headers()["x-nomad-lastcontact"], "0");
            let next =
                answer.headers().get("x-nomad-nexttoken").map(|token| token.to_str().unwrap().to_owned());
            let shown: Vec<Value> = answer.json().await.unwrap();
            (shown.iter().map(|one| one["CreateIndex"].as_u64().unwrap()).collect::<Vec<_>>(), next)
        };
        assert_eq!(page(String::new()).await, (vec![0x11, 0x22, 0x33], None), "the oldest first");
        assert_eq!(page("reverse=true".to_owned()).await.0, [0x33, 0x22, 0x11]);
        let (first, next) = page("per_page=2".to_owned()).await;
        assert_eq!(first, [0x11, 0x22]);
        assert_eq!(page(format!("per_page=2&next_token={}", next.unwrap())).await, (vec![0x33], None));
        assert!(page("filter=TaskGroup%20==%20%22other%22".to_owned()).await.0.is_empty());
    }
    for (query, status) in [
        ("filter=any%20Name%20as%20x", 400),
        ("filter=No%20==%20x", 400),
        ("next_token=x", 400),
        ("per_page=-1", 400),
    ] {
        assert_eq!(ground.get(&format!("/v1/allocations?{query}")).await.0, status, "{query}");
    }
    assert!(ground.get("/v1/jobs?pretty").await.1.contains("\n  "), "for people");
}

#[tokio::test]
async fn lists_that_have_no_pages_take_a_filter_too() {
    let ground = Ground::new();
    let (web, db) = (job("web", "front", "httpd"), job("db", "g", "t"));
    ground.show(9, &[job_view(&web, 2), job_view(&db, 0)], &[alloc_view(&web, 0, 0x11)]);
    ground.unix(Limits::default()).await;
    let count = async |path: &str, filter: &str| {
        let answer = ground.http().get(format!("http://localhost{path}")).query(&[("filter", filter)]);
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path} {filter}");
        let shown: Value = answer.json().await.unwrap();
        shown.get("Versions").unwrap_or(&shown).as_array().unwrap().len()
    };
    assert_eq!(count("/v1/herdlet/jobs", "key.id == web").await, 1);
    assert_eq!(count("/v1/herdlet/jobs", "").await, 2);
    assert_eq!(count("/v1/herdlet/allocs", "status != running").await, 0);
    assert_eq!(count("/v1/job/web/versions", "Version == 2").await, 1);
    assert_eq!(count("/v1/job/web/versions", "Version == 7").await, 0);
    assert_eq!(count("/v1/herdlet/job/web/versions", "version == 7").await, 0);
    for path in ["/v1/services", "/v1/job/web/deployments", "/v1/herdlet/volumes", "/v1/herdlet/drift"] {
        assert_eq!(count(path, "any == x").await, 0, "{path}");
        assert_eq!(ground.get(&format!("{path}?filter=x")).await.0, 400, "{path}");
    }
}

fn registration(view: &AllocView, id: &str) -> Registration {
    Registration {
        name: "front".to_owned(),
        tags: vec!["a".to_owned()],
        checks: vec![fixture::registered_check("c1")],
        job: view.spec.job_key.clone(),
        ..fixture::registration(id, view.spec.id)
    }
}

fn result(status: CheckStatus) -> CheckResult {
    CheckResult { at: THEN, service: "front".to_owned(), ..fixture::check_result("c1", status) }
}

/// Whoever routes requests by this list must hear at once of what comes and goes, whether it was committed or not.
#[tokio::test]
async fn a_service_is_listed_while_its_checks_pass_and_a_waiting_reader_hears_of_each_change() {
    let ground = Ground::new();
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    ground.show(5, &[job_view(&web, 0)], std::slice::from_ref(&view));
    ground.unix(Limits::default()).await;
    let owner = ServiceOwner { alloc: view.spec.id, task: None };
    let index = async || {
        let answer = ground.http().get("http://localhost/v1/service/front").send().await.unwrap();
        let index = answer.headers()["x-nomad-index"].to_str().unwrap().to_owned();
        (index, answer.json::<Vec<Value>>().await.unwrap().len())
    };
    let wait = |index: String| {
        let http = ground.http();
        tokio::spawn(async move {
            let answer = http.get(format!("http://localhost/v1/service/front?index={index}&wait=1m"));
            answer.send().await.unwrap().json::<Vec<Value>>().await.unwrap().len()
        })
    };
    let (before, none) = index().await;
    assert_eq!(none, 0);
    let waiting = wait(before);
    ground.shared.catalog.up(&owner, vec![registration(&view, "s1")]);
    assert_eq!(waiting.await.unwrap(), 0, "it has not been checked yet");
    let known: Vec<Value> =
        serde_json::from_str(&ground.get(&format!("/v1/allocation/{}/services", view.spec.id)).await.1)
            .unwrap();
    assert_eq!(known[0]["ID"], "s1", "but it is there");
    let waiting = wait(index().await.0);
    // No commit: the index of the model stays.
    let passing = AllocView { checks: vec![result(CheckStatus::Success)], ..view.clone() };
    ground.show(5, &[], std::slice::from_ref(&passing));
    assert_eq!(waiting.await.unwrap(), 1);
    let waiting = wait(index().await.0);
    ground.shared.catalog.down(&owner);
    assert_eq!(waiting.await.unwrap(), 0);
    ground.shared.catalog.up(&owner, vec![registration(&view, "s1")]);
    let waiting = wait(index().await.0);
    let failing = AllocView { checks: vec![result(CheckStatus::Failure)], ..view };
    ground.show(6, &[], &[failing]);
    assert_eq!(waiting.await.unwrap(), 0);
    assert_eq!(wait("99999".to_owned()).await.unwrap(), 0, "an index of another life is answered at once");
    let services: Vec<Value> = serde_json::from_str(&ground.get("/v1/services").await.1).unwrap();
    assert_eq!(services[0]["Services"], json!([{ "ServiceName": "front", "Tags": ["a"] }]));
    for (filter, count) in [("Tags%20contains%20a", 1), ("ServiceName%20!=%20front", 0)] {
        let answer = ground.get(&format!("/v1/services?filter={filter}")).await.1;
        assert_eq!(serde_json::from_str::<Vec<Value>>(&answer).unwrap().len(), count, "{filter}");
    }
}

/// A proxy that follows the topic `Service` reads the list with each event: they must say the same.
#[tokio::test]
async fn an_instance_comes_and_goes_in_events_as_it_does_in_the_list() {
    let ground = Ground::new();
    let web = job("web", "front", "httpd");
    let mut view = alloc_view(&web, 0, 7);
    ground.show(5, &[job_view(&web, 0)], std::slice::from_ref(&view));
    ground.unix(Limits::default()).await;
    let url = "http://localhost/v1/event/stream?topic=Service";
    let mut events = ground.http().get(url).send().await.unwrap();
    let owner = ServiceOwner { alloc: view.spec.id, task: None };
    ground.shared.catalog.up(&owner, vec![registration(&view, "s1")]);
    let mut listed = async |index, status, phase| {
        view.checks = vec![result(status)];
        view.tasks[0].phase = phase;
        ground.show(index, &[], std::slice::from_ref(&view));
        let services: Vec<Value> = serde_json::from_str(&ground.get("/v1/service/front").await.1).unwrap();
        let views: Vec<Value> = serde_json::from_str(&ground.get("/v1/herdlet/services").await.1).unwrap();
        assert_eq!(views[0]["name"], "front");
        assert_eq!(views[0]["results"][0]["status"], status.as_str());
        (services.len(), views[0]["health"].as_str().unwrap().to_owned())
    };
    assert_eq!(listed(6, CheckStatus::Pending, TaskPhase::Running).await, (0, "pending".to_owned()));
    for (index, status, phase, told, len, health) in [
        (7, CheckStatus::Success, TaskPhase::Running, "ServiceRegistration", 1, "passing"),
        (8, CheckStatus::Failure, TaskPhase::Running, "ServiceDeregistration", 0, "critical"),
        (9, CheckStatus::Success, TaskPhase::Running, "ServiceRegistration", 1, "passing"),
        // To be restarted: it may pass until it ends.
        (10, CheckStatus::Success, TaskPhase::Stopping, "ServiceDeregistration", 0, "pending"),
    ] {
        assert_eq!(listed(index, status, phase).await, (len, health.to_owned()));
        assert_eq!(line(&mut events).await["Events"][0]["Type"], told);
    }
}
