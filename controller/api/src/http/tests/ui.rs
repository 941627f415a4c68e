//! The status page.

use herdlet_api_types::view::ConvergenceState;
use herdlet_manifest::fixture::{alloc_view, job, job_view, verdict};

use super::*;

#[tokio::test]
async fn page_shows_problems_first_and_escapes_markup() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let (calm, late) = (job("calm", "g", "t"), job("late", "g", "t"));
    let mut view = job_view(&late, 8);
    view.convergence = verdict(ConvergenceState::Waiting, "");
    let mut alloc = alloc_view(&late, 0, 7);
    alloc.convergence = verdict(ConvergenceState::Waiting, "task t: <script>alert('x')</script>");
    ground.show(1, &[job_view(&calm, 1), view], &[alloc_view(&calm, 0, 8), alloc]);
    let (status, page) = ground.get("/ui").await;
    assert_eq!(status, 200);
    assert!(page.contains("1/2 converged"), "{page}");
    assert!(page.find("job-late") < page.find("job-calm"), "{page}");
    assert!(page.contains("late.g[0]: task t: &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"), "{page}");
    assert!(!page.contains("<script>"), "{page}");
    // The page is complete without scripts, and reloads itself.
    assert!(page.contains("<noscript><meta http-equiv=\"refresh\""), "{page}");
    let (_, body) = ground.get("/ui/body").await;
    assert!(page.contains(&body), "{body}");
}

/// Rows of jobs without allocations opened nothing.
#[tokio::test]
async fn page_explains_jobs_without_allocations() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    let (large, web) = (job("large", "g", "t"), job("web", "g", "t"));
    let mut view = job_view(&large, 3);
    view.convergence = verdict(ConvergenceState::Waiting, "large.g[0]: needs 9000 MiB of memory");
    let mut alloc = alloc_view(&web, 0, 7);
    let port =
        herdlet_api_types::alloc::AssignedPort { value: 20_001, to: 20_001, host_ip: "127.0.0.1".to_owned() };
    Arc::make_mut(&mut alloc.spec).ports.insert("http".to_owned(), port);
    ground.show(1, &[view, job_view(&web, 0)], &[alloc]);
    let (_, page) = ground.get("/ui").await;
    let large = page.split("id=\"job-large\"").nth(1).unwrap().split("</details>").next().unwrap();
    assert!(
        large.contains("needs 9000 MiB of memory") && large.contains("<dt>versions</dt><dd>3 ("),
        "{large}"
    );
    let web = page.split("id=\"job-web\"").nth(1).unwrap();
    assert!(web.contains(" http=127.0.0.1:20001") && web.contains("/ui/explain/"), "{web}");
}

#[tokio::test]
async fn page_loads_no_foreign_resource() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    for path in ["/ui", "/ui/body", "/ui/page.css", "/ui/page.js"] {
        let answer = ground.http().get(format!("http://localhost{path}")).send().await.unwrap();
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        let text = answer.text().await.unwrap();
        assert!(!text.contains("//") || path == "/ui/page.js", "{path}: {text}");
        assert!(!text.contains("http://") && !text.contains("https://"), "{path}: {text}");
    }
}
