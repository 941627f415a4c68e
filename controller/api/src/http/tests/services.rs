//! Services: which instances are listed, what wakes blocking queries, and deletions.

use herdlet_api_types::{
    fixture,
    service::{CheckResult, CheckStatus, Registration},
    task::TaskPhase,
};
use herdlet_manifest::fixture::{THEN, alloc_view, job, job_view, registration as registration_of};
use herdlet_services::catalog::{CatalogEvent, ServiceOwner};
use serde_json::{Value, json};

use super::{streams::line, *};

fn registration(view: &AllocView, id: &str) -> Registration {
    Registration { checks: vec![fixture::registered_check("c1")], ..registration_of(view, "front", id) }
}

fn result(status: CheckStatus) -> CheckResult {
    CheckResult { at: THEN, service: "front".to_owned(), ..fixture::check_result("c1", status) }
}

/// Proxies that route by this list need every change at once, committed or not.
#[tokio::test]
async fn passing_service_is_listed_and_readers_are_woken() {
    let ground = ApiFixture::new();
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
    pause().await;
    ground.shared.catalog.up(&owner, vec![registration(&view, "s1")]);
    assert_eq!(index().await.1, 0, "its check has not run yet");
    let known: Vec<Value> =
        serde_json::from_str(&ground.get(&format!("/v1/allocation/{}/services", view.spec.id)).await.1)
            .unwrap();
    assert_eq!(known[0]["ID"], "s1", "the allocation lists it");
    assert!(!waiting.is_finished(), "the list has not changed");
    // Not a commit: the index of the model stays the same.
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
    assert_eq!(
        wait("99999".to_owned()).await.unwrap(),
        0,
        "an index of another agent gets an answer at once"
    );
    let services: Vec<Value> = serde_json::from_str(&ground.get("/v1/services").await.1).unwrap();
    assert_eq!(services[0]["Services"], json!([{ "ServiceName": "front", "Tags": ["a"] }]));
    for (filter, count) in [("Tags%20contains%20a", 1), ("ServiceName%20!=%20front", 0)] {
        let answer = ground.get(&format!("/v1/services?filter={filter}")).await.1;
        assert_eq!(serde_json::from_str::<Vec<Value>>(&answer).unwrap().len(), count, "{filter}");
    }
}

/// A blocking query, and its final answer.
fn reader(ground: &ApiFixture, path: &str) -> tokio::task::JoinHandle<Vec<Value>> {
    let (http, url) = (ground.http(), format!("http://localhost{path}"));
    tokio::spawn(async move {
        let now = http.get(&url).send().await.unwrap();
        let index = now.headers()["x-nomad-index"].to_str().unwrap().to_owned();
        let answer = http.get(&url).query(&[("index", &*index), ("wait", "1m")]);
        answer.send().await.unwrap().json().await.unwrap()
    })
}

async fn pause() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn a_waiting_reader_sleeps_through_changes_of_other_services() {
    let ground = ApiFixture::new();
    let (web, db) = (job("web", "front", "httpd"), job("db", "g", "t"));
    let (one, two, other) = (alloc_view(&web, 0, 7), alloc_view(&web, 1, 8), alloc_view(&db, 0, 9));
    let passing = |view: &AllocView| AllocView { checks: vec![result(CheckStatus::Success)], ..view.clone() };
    ground.show(5, &[job_view(&web, 0), job_view(&db, 0)], &[passing(&one), passing(&two), passing(&other)]);
    ground.unix(Limits::default()).await;
    let up = |view: &AllocView, name: &str, id: &str| {
        let owner = ServiceOwner { alloc: view.spec.id, task: None };
        ground
            .shared
            .catalog
            .up(&owner, vec![Registration { name: name.to_owned(), ..registration(view, id) }]);
        owner
    };
    up(&one, "front", "s1");
    let readers = ["/v1/service/front", "/v1/service/front?all=true", "/v1/service/front?choose=1|k"];
    let readers = readers.map(|path| reader(&ground, path));
    pause().await;
    // Another service comes, is checked and goes, and a job changes.
    let owner = up(&other, "db", "s9");
    ground.show(6, &[], &[AllocView { checks: vec![result(CheckStatus::Failure)], ..other.clone() }]);
    pause().await;
    ground.shared.catalog.down(&owner);
    ground.show(7, &[job_view(&db, 1)], &[]);
    pause().await;
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    up(&two, "front", "s2");
    let [listed, all, chosen] = readers;
    assert_eq!((listed.await.unwrap().len(), all.await.unwrap().len()), (2, 2));
    if chosen.is_finished() {
        assert_eq!(chosen.await.unwrap()[0]["ID"], "s2", "s2 has the higher weight");
    }
}

#[tokio::test]
async fn all_or_chosen_instances_are_listed() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let allocs: Vec<_> = [0x11, 0x22, 0x33].iter().map(|seed| alloc_view(&web, 0, *seed)).collect();
    ground.show(5, &[job_view(&web, 0)], &allocs);
    for (at, view) in allocs.iter().enumerate() {
        let owner = ServiceOwner { alloc: view.spec.id, task: None };
        ground.shared.catalog.up(&owner, vec![registration(view, &format!("s{at}"))]);
    }
    ground.show(6, &[], &[AllocView { checks: vec![result(CheckStatus::Success)], ..allocs[1].clone() }]);
    ground.unix(Limits::default()).await;
    let ids = async |query: &str| {
        let answer = ground.get(&format!("/v1/service/front{query}")).await;
        assert_eq!(answer.0, 200, "{}", answer.1);
        let shown: Vec<Value> = serde_json::from_str(&answer.1).unwrap();
        shown.iter().map(|one| one["ID"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, ["s1"]);
    assert_eq!(ids("?all=true").await, ["s0", "s1", "s2"]);
    assert_eq!(ids("?all=true&filter=ID%20!=%20s0").await, ["s1", "s2"]);
    assert_eq!(ids("?all=true&namespace=*").await.len(), 3);
    assert!(ids("?all=true&namespace=other").await.is_empty());
    assert_eq!(ids("?choose=2%7Ckey").await, ["s1"], "only listed instances are chosen");
    let chosen = ids("?all&choose=2%7Ckey").await;
    assert_eq!((chosen.len(), &chosen), (2, &ids("?all&choose=2%7Ckey").await));
    let refused = ground.get("/v1/service/front?choose=2").await;
    let why = "failed to choose services: Parameter for choose must be in form '<number>|<key>'";
    assert_eq!(refused, (400, why.to_owned()));
    assert_eq!(ground.get("/v1/service/front?all=perhaps").await.0, 400);
    let shown: Vec<Value> = serde_json::from_str(&ground.get("/v1/service/front").await.1).unwrap();
    let alloc = allocs[1].spec.id.to_string();
    assert_eq!(
        shown[0],
        json!({
            "ID": "s1", "ServiceName": "front", "Namespace": "default", "NodeID": "n1", "Datacenter": "", "JobID": "web",
            "AllocID": alloc, "Tags": ["a"], "Address": "127.0.0.1", "Port": 8080, "CreateIndex": 0x22, "ModifyIndex": 0x22,
        })
    );
}

#[tokio::test]
async fn catalog_entry_is_deleted_by_id_with_an_event() {
    let mut ground = ApiFixture::new();
    let (sender, mut events) = tokio::sync::mpsc::channel(4);
    let catalog = Arc::new(BuiltIn::new(sender));
    Arc::get_mut(&mut ground.shared).unwrap().catalog = Arc::clone(&catalog);
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    ground.show(5, &[job_view(&web, 0)], std::slice::from_ref(&view));
    ground.unix(Limits::default()).await;
    let owner = ServiceOwner { alloc: view.spec.id, task: None };
    catalog.up(&owner, vec![registration(&view, "s1"), registration(&view, "s2")]);
    let delete = async |path: &str| {
        let answer =
            ground.http().delete(format!("http://localhost/v1/service/{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let unknown = (404, "service registration not found".to_owned());
    assert_eq!(delete("front/s3").await, unknown);
    assert_eq!(delete("front/s1?namespace=other").await, unknown);
    assert_eq!(ground.get("/v1/service/front/s1").await.0, 405);
    let waiting = reader(&ground, "/v1/service/front?all=true");
    pause().await;
    assert!(events.try_recv().is_err());
    assert_eq!(delete("front/s1").await, (200, String::new()));
    assert_eq!(waiting.await.unwrap().len(), 1);
    assert_eq!(events.recv().await, Some(CatalogEvent::Changed(owner)));
    assert_eq!(delete("front/s1").await, unknown);
    assert_eq!(delete("front/s2").await.0, 200);
    assert!(catalog.all().is_empty());
}

/// A proxy that follows the topic `Service` reads the list after each event: both must agree.
#[tokio::test]
async fn instance_events_match_the_list() {
    let ground = ApiFixture::new();
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
    for (index, status, phase, kind, len, health) in [
        (7, CheckStatus::Success, TaskPhase::Running, "ServiceRegistration", 1, "passing"),
        (8, CheckStatus::Failure, TaskPhase::Running, "ServiceDeregistration", 0, "critical"),
        (9, CheckStatus::Success, TaskPhase::Running, "ServiceRegistration", 1, "passing"),
        // The task is stopping for a restart: its checks may pass until it ends.
        (10, CheckStatus::Success, TaskPhase::Stopping, "ServiceDeregistration", 0, "pending"),
    ] {
        assert_eq!(listed(index, status, phase).await, (len, health.to_owned()));
        assert_eq!(line(&mut events).await["Events"][0]["Type"], kind);
    }
}
