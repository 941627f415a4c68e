//! Streaming answers: logs and changes, and how they end.

use futures_util::{Stream, StreamExt};
use herdlet_api_types::{
    AllocId, DeploymentId,
    api::Change,
    deployment::{Deployment, DeploymentStatus},
    service::Registration,
};
use herdlet_cli::{ClientError, client::LogRequest};
use herdlet_manifest::fixture::{alloc_view, ended, job, job_view};
use herdlet_services::catalog::ServiceOwner;

use super::*;

/// The next item. Fails after a time that only a bug can exceed.
async fn next<T>(stream: &mut (impl Stream<Item = T> + Unpin)) -> Option<T> {
    tokio::time::timeout(PATIENCE, stream.next()).await.expect("an item in time")
}

async fn text(stream: &mut (impl Stream<Item = Result<Vec<u8>, ClientError>> + Unpin), wanted: &str) {
    let mut seen = String::new();
    while seen.len() < wanted.len() {
        let bytes = next(stream).await.expect("the end of the log").unwrap();
        seen.push_str(std::str::from_utf8(&bytes).unwrap());
    }
    assert_eq!(seen, wanted);
}

fn whole(follow: bool, tail: Option<u64>) -> LogRequest {
    LogRequest { task: "httpd".to_owned(), stream: "stdout", follow, tail, since: None, timestamps: false }
}

#[tokio::test]
async fn followed_log_crosses_rotations_and_ends_with_its_task() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let view = alloc_view(&web, 0, 7);
    ground.show(5, &[job_view(&web, 0)], std::slice::from_ref(&view));
    let client = ground.unix(Limits::default()).await;
    let logs = ground.shared.paths.logs(&view.spec.id);
    std::fs::create_dir_all(&logs).unwrap();
    let write = |index: u32, text: &str| {
        use std::io::Write as _;
        let path = logs.join(format!("httpd.stdout.{index}"));
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    };
    // A reader without `follow` gets nothing yet, a follower waits.
    let mut nothing = client.logs(view.spec.id, &whole(false, None)).await.unwrap();
    assert!(next(&mut nothing).await.is_none());
    let mut early = client.logs(view.spec.id, &whole(true, None)).await.unwrap();
    write(3, "one\ntwo\n");
    text(&mut early, "one\ntwo\n").await;
    let mut log = client.logs(view.spec.id, &whole(true, Some(1))).await.unwrap();
    text(&mut log, "two\n").await;
    write(3, "three\n");
    text(&mut log, "three\n").await;
    write(3, "last of 3\n");
    write(4, "first of 4\n");
    text(&mut log, "last of 3\nfirst of 4\n").await;
    write(4, "bye\n");
    ground.show(6, &[], &[ended(view.clone())]);
    text(&mut log, "bye\n").await;
    assert!(next(&mut log).await.is_none());
    let mut all = client.logs(view.spec.id, &whole(false, None)).await.unwrap();
    text(&mut all, "one\ntwo\nthree\nlast of 3\nfirst of 4\nbye\n").await;
    assert!(next(&mut all).await.is_none());
}

#[tokio::test]
async fn frames_are_nomads_and_offsets_count_from_either_end() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    let view = ended(alloc_view(&web, 0, 7));
    let id = view.spec.id;
    ground.show(5, &[job_view(&web, 0)], &[view]);
    ground.unix(Limits::default()).await;
    let logs = ground.shared.paths.logs(&id);
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("httpd.stderr.0"), "abcd").unwrap();
    std::fs::write(logs.join("httpd.stderr.1"), "efgh").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", logs.join("httpd.stderr.2")).unwrap();
    let read = async |query: &str| {
        ground.get(&format!("/v1/client/fs/logs/{id}?task=httpd&type=stderr&{query}")).await.1
    };
    assert_eq!(read("plain=true").await, "abcdefgh", "links are not followed");
    assert_eq!(read("plain=true&origin=start&offset=6").await, "gh");
    assert_eq!(read("plain=true&origin=end&offset=6").await, "cdefgh");
    assert_eq!(read("plain=true&origin=end&offset=600").await, "abcdefgh");
    let frames = read("origin=end&offset=2").await;
    assert_eq!(frames, r#"{"Data":"Z2g=","File":"alloc/logs/httpd.stderr.1","Offset":4}"#);
}

#[tokio::test]
async fn watch_lists_all_objects_then_changes() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    ground.show(5, &[job_view(&web, 0)], &[alloc_view(&web, 0, 7)]);
    let client = ground.unix(Limits::default()).await;
    let mut events = client.events().await.unwrap();
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Reset))));
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Job(view))) if view.version == 0));
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Alloc(_)))));
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Index(5)))));
    ground.show(6, &[job_view(&web, 1)], &[]);
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Job(view))) if view.version == 1));
    assert!(matches!(next(&mut events).await, Some(Ok(Change::Index(6)))));
    let gone = View::JobGone(web.key());
    ground.shared.model.publisher().offer(CommitIndex(7), vec![gone]);
    assert!(matches!(next(&mut events).await, Some(Ok(Change::JobGone(_)))));
    // Resumed at the present index: only the index is sent.
    let mut answer = ground.http().get("http://localhost/v1/herdlet/events?index=7").send().await.unwrap();
    assert_eq!(answer.chunk().await.unwrap().unwrap(), "{\"index\":7}\n");
}

#[tokio::test]
async fn a_shutdown_ends_streams_and_waiting_queries() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    ground.show(5, &[job_view(&web, 0)], &[]);
    let client = ground.unix(Limits::default()).await;
    let mut events = client.events().await.unwrap();
    assert!(next(&mut events).await.is_some());
    let waiting = {
        let http = ground.http();
        tokio::spawn(async move { http.get("http://localhost/v1/jobs?index=5&wait=5m").send().await })
    };
    ground.shared.closing.cancel();
    ground.tasks.close();
    tokio::time::timeout(PATIENCE, ground.tasks.wait()).await.expect("a response of the server");
    // A truncated log looked like a complete one.
    let end = loop {
        match next(&mut events).await {
            Some(Ok(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Some(Err(ClientError::Broken { .. }))), "{end:?}");
    let message = end.and_then(Result::err).map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(
        message,
        "the connection to the agent broke: the agent closed it before the answer was complete"
    );
    // Either it was answered, or it came too late and was refused.
    let _ = tokio::time::timeout(PATIENCE, waiting).await.expect("a response to the query");
}

/// The next line of a stream, without the empty objects of an idle one.
pub(super) async fn line(answer: &mut reqwest::Response) -> serde_json::Value {
    loop {
        let piece = tokio::time::timeout(PATIENCE, answer.chunk()).await.expect("an item in time");
        let piece = piece.unwrap().expect("an open stream");
        let line: serde_json::Value = serde_json::from_slice(&piece).unwrap();
        if line != serde_json::json!({}) {
            return line;
        }
    }
}

#[tokio::test]
async fn event_stream_reports_changes_and_gaps() {
    let ground = ApiFixture::new();
    let (web, db) = (job("web", "front", "httpd"), job("db", "back", "sql"));
    ground.show(5, &[job_view(&web, 0)], &[alloc_view(&web, 0, 7)]);
    ground.unix(Limits::default()).await;
    let follow = async |query: &str| {
        let url = format!("http://localhost/v1/event/stream?{query}");
        ground.http().get(url).send().await.unwrap()
    };
    let mut jobs = follow("topic=Job").await;
    let mut of_web = follow("topic=Allocation:web&namespace=*").await;
    let new = |view: JobView, index| JobView { modify_index: index, ..view };
    ground.show(6, &[new(job_view(&db, 0), 6)], &[alloc_view(&db, 0, 8), alloc_view(&web, 0, 7)]);
    let events = line(&mut jobs).await;
    let event = &events["Events"][0];
    assert_eq!(
        (&events["Index"], &event["Type"], &event["Key"]),
        (&6.into(), &"JobRegistered".into(), &"db".into())
    );
    assert_eq!(event["Payload"]["Job"]["ID"], "db");
    let event = line(&mut of_web).await["Events"][0].clone();
    assert_eq!((&event["Topic"], &event["FilterKeys"][0]), (&"Allocation".into(), &"web".into()));
    assert_eq!(event["Payload"]["Allocation"]["Job"], serde_json::Value::Null);
    // Coming and going allocations are no event of their job; its deletion is.
    ground.show(7, &[new(job_view(&db, 0), 6)], &[]);
    ground.show(8, &[JobView { deleting: true, ..new(job_view(&db, 0), 8) }], &[]);
    let event = line(&mut jobs).await["Events"][0].clone();
    assert_eq!((&event["Type"], &event["Payload"]["Job"]["Stop"]), (&"JobDeregistered".into(), &true.into()));
    ground.shared.model.publisher().offer(CommitIndex(9), vec![View::JobGone(db.key())]);
    let other = job("zoo", "back", "pg");
    ground.show(10, &[new(job_view(&other, 0), 10)], &[]);
    assert_eq!(line(&mut jobs).await["Events"][0]["Key"], "zoo", "a deletion is sent once");
    // A resumed stream has the changes since, or everything if they are no longer known.
    let mut resumed = follow("topic=Job&index=9").await;
    assert_eq!(line(&mut resumed).await["Events"][0]["Type"], "JobDeregistered");
    let mut from_before = follow("topic=*&index=1").await;
    assert_eq!(line(&mut from_before).await["Events"][0]["Type"], "NodeRegistration");
    assert_eq!(line(&mut from_before).await["Events"][0]["Key"], "web");
    for (query, status) in [("topic=NodePool", 501), ("topic=Jobs", 400), ("index=x", 400)] {
        assert_eq!(follow(query).await.status().as_u16(), status, "{query}");
    }
}

#[tokio::test]
async fn deployments_services_and_evaluations_have_topics() {
    let ground = ApiFixture::new();
    let web = job("web", "front", "httpd");
    ground.show(5, &[job_view(&web, 0)], &[alloc_view(&web, 0, 7)]);
    ground.unix(Limits::default()).await;
    let follow = async |query: &str| {
        let url = format!("http://localhost/v1/event/stream?{query}");
        ground.http().get(url).send().await.unwrap()
    };
    let mut deployments = follow("topic=Deployment:web").await;
    let mut services = follow("topic=Service:http").await;
    let mut evaluations = follow("topic=Evaluation").await;
    let deployment = |index| Deployment {
        id: DeploymentId::from_hash([7; 16]),
        job_key: web.key(),
        job_version: 0,
        status: DeploymentStatus::Running,
        description: "Deployment is running".to_owned(),
        groups: Default::default(),
        paused: false,
        reverted_to: None,
        create_index: 6,
        modify_index: index,
        create_time: UnixNanos(0),
        modify_time: UnixNanos(0),
    };
    for index in [6, 7] {
        let view = JobView { deployments: vec![Arc::new(deployment(index))], ..job_view(&web, 0) };
        ground.show(index, std::slice::from_ref(&view), &[]);
        let event = line(&mut deployments).await["Events"][0].clone();
        let shown = &event["Payload"]["Deployment"];
        assert_eq!((&event["Type"], &shown["JobID"]), (&"DeploymentStatusUpdate".into(), &"web".into()));
        assert_eq!(shown["ModifyIndex"], index);
        // The same state again is no event.
        ground.show(index, &[view], &[]);
    }
    let id =
        ground.shared.evaluations.note(&web.key(), crate::http::trigger::Trigger::JobRegister, (7, None));
    assert_eq!(line(&mut evaluations).await["Events"][0]["Payload"]["Evaluation"]["ID"], id);
    let owner = ServiceOwner { alloc: AllocId::from_hash([7; 16]), task: None };
    let registration = Registration {
        name: "http".to_owned(),
        port: 80,
        job: web.key(),
        ..herdlet_api_types::fixture::registration("_herdlet-1", owner.alloc)
    };
    ground.shared.catalog.up(&owner, vec![registration]);
    let event = line(&mut services).await["Events"][0].clone();
    assert_eq!(event["FilterKeys"], serde_json::json!(["web", "http"]));
    assert_eq!(
        (&event["Type"], &event["Payload"]["Service"]["Port"]),
        (&"ServiceRegistration".into(), &80.into())
    );
    ground.shared.catalog.down(&owner);
    assert_eq!(line(&mut services).await["Events"][0]["Type"], "ServiceDeregistration");
}

#[tokio::test]
async fn invalid_monitor_request_is_refused() {
    let ground = ApiFixture::new();
    ground.unix(Limits::default()).await;
    for (query, status) in
        [("log_level=loud", 400), ("log_level=trace", 501), ("node_id=other", 404), ("server_id=x", 400)]
    {
        assert_eq!(ground.get(&format!("/v1/agent/monitor?{query}")).await.0, status, "{query}");
    }
    let mut frames = ground.http().get("http://localhost/v1/agent/monitor").send().await.unwrap();
    assert_eq!(frames.headers()["content-type"], "application/json");
    assert!(!frames.chunk().await.unwrap().unwrap().is_empty(), "an idle stream sends a sign of life");
}
