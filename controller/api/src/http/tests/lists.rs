//! Lists and their pages.

use herdlet_manifest::fixture::{alloc_view, job, job_view};
use serde_json::Value;

use super::*;

#[tokio::test]
async fn lists_come_in_pages_in_either_direction() {
    let ground = ApiFixture::new();
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
    assert!(ground.get("/v1/jobs?pretty").await.1.contains("\n  "), "the output is indented");
}

#[tokio::test]
async fn lists_that_have_no_pages_take_a_filter_too() {
    let ground = ApiFixture::new();
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
