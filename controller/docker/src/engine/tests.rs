//! Engines of other releases, and answers that bollard's types can't express: with a stand-in.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bollard::models::ContainerSummary;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use herdlet_driver::{Health, TaskDriver as _};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::{Notify, mpsc, watch},
};

use super::{Engine, EngineReport, Kind, Listener, Place, follow::PROBE_PERIOD};
use crate::{Containers, Mode, Setup, names::Owner};

/// A stand-in for an engine: the version of its API, its list of containers, and its description.
#[derive(Clone)]
struct StandIn {
    api: &'static str,
    containers: String,
    info: &'static str,
    /// The name of its component in the answer about its version.
    component: &'static str,
    /// Whether it completes its answer about events before it closes the connection.
    ends_events: bool,
    /// The last words of the paths of all requests.
    asked: Arc<Mutex<Vec<String>>>,
}

impl StandIn {
    fn new(api: &'static str) -> Self {
        Self {
            api,
            containers: "[]".to_owned(),
            info: "{}",
            component: "Engine",
            ends_events: false,
            asked: Arc::default(),
        }
    }
}

/// Starts it. A change closes all connections, as a restart does.
fn serve(path: &Path, state: watch::Receiver<StandIn>, followed: Arc<Notify>) {
    let listener = UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(answer(client, state.clone(), Arc::clone(&followed)));
        }
    });
}

async fn answer(mut client: UnixStream, mut state: watch::Receiver<StandIn>, followed: Arc<Notify>) {
    let StandIn { api, containers, info, component, asked, .. } = state.borrow_and_update().clone();
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match client.read(&mut byte).await {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let path = head.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
        let name = path.rsplit_once('/').map(|(_, name)| name);
        asked.lock().unwrap().push(name.unwrap_or_default().to_owned());
        let (status, body) = match name {
            Some("version") => {
                let components = json!([{ "Name": component, "Version": "x" }]);
                let version = json!({ "ApiVersion": api, "Version": "x", "Components": components });
                (200, version.to_string())
            }
            // bollard 0.21 names no version, which is the engine's own then.
            _ if path.starts_with("/v") && !path.starts_with(&format!("/v{api}/")) => {
                (400, "{\"message\": \"client version is too old\"}".to_owned())
            }
            Some("events") => {
                let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
                client.write_all(head.as_bytes()).await.unwrap();
                followed.notify_one();
                let _ = state.changed().await;
                if state.borrow().ends_events {
                    client.write_all(b"0\r\n\r\n").await.unwrap();
                }
                return;
            }
            Some("info") => (200, info.to_owned()),
            Some("_ping") => (200, "OK".to_owned()),
            Some("json") if head.contains("status") => (200, RUNNING.to_owned()),
            Some("json") => (200, containers.clone()),
            _ => (404, "{\"message\": \"none\"}".to_owned()),
        };
        let answer = format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if client.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

struct ChannelListener(mpsc::Sender<EngineReport>);

impl Listener for ChannelListener {
    fn report(&self, _: &Arc<Engine>, report: EngineReport) -> BoxFuture<'_, ()> {
        async move {
            let _ = self.0.send(report).await;
        }
        .boxed()
    }
}

fn follow(dir: &Path) -> (Arc<Engine>, mpsc::Receiver<EngineReport>) {
    let place = Place { kind: Kind::Docker, socket: dir.join("e.sock") };
    let engine = Engine::new(place, Duration::from_secs(5));
    let (sender, reports) = mpsc::channel(16);
    let owner = Owner { instance: "i".into(), driver: "docker".into() };
    tokio::spawn(Arc::clone(&engine).follow(owner, Arc::new(ChannelListener(sender)), dir.join("memory")));
    (engine, reports)
}

/// The containers of the next connection.
async fn listed(engine: &Arc<Engine>, reports: &mut mpsc::Receiver<EngineReport>) -> Vec<ContainerSummary> {
    match tokio::time::timeout(Duration::from_secs(60), reports.recv()).await {
        Ok(Some(EngineReport::Listed(list, _))) => list.all,
        _ => panic!("no list: {:?}", engine.watch().borrow().clone()),
    }
}

/// Podman ends a stream of events when it rotates their file: commands in its containers failed until the next connection.
#[tokio::test]
async fn an_engine_that_ends_its_events_is_not_down() {
    let dir = tempfile::tempdir().unwrap();
    let (engine_is, state) = watch::channel(StandIn::new("1.41"));
    let followed = Arc::new(Notify::new());
    serve(&dir.path().join("e.sock"), state, Arc::clone(&followed));
    let (engine, mut reports) = follow(dir.path());
    listed(&engine, &mut reports).await;
    let mut states = engine.watch();
    followed.notified().await;
    // One that ends them at once, each time, counts as down.
    tokio::time::sleep(Duration::from_millis(300)).await;
    engine_is.send_replace(StandIn { ends_events: true, ..StandIn::new("1.41") });
    listed(&engine, &mut reports).await;
    followed.notified().await;
    assert!(!states.has_changed().unwrap(), "{:?}", states.borrow_and_update().clone());
}

/// After an upgrade of the engine the driver was down until the agent was restarted.
#[tokio::test]
async fn an_upgraded_engine_is_spoken_to_in_its_own_version() {
    let dir = tempfile::tempdir().unwrap();
    let (engine_is, state) = watch::channel(StandIn::new("1.41"));
    let followed = Arc::new(Notify::new());
    serve(&dir.path().join("e.sock"), state, Arc::clone(&followed));
    let (engine, mut reports) = follow(dir.path());
    let owner = Owner { instance: "i".into(), driver: "docker".into() };
    listed(&engine, &mut reports).await;
    for api in ["1.52", "1.41"] {
        followed.notified().await;
        engine_is.send_replace(StandIn::new(api));
        listed(&engine, &mut reports).await;
        assert!(engine.is_up());
        engine.containers(&owner).await.unwrap();
    }
}

/// Podman starts several programs for each description of itself.
#[tokio::test]
async fn a_podman_service_at_rest_is_only_asked_whether_it_answers() {
    let requests = requests_at_rest("Podman Engine").await;
    assert_eq!(requests, ["_ping", "_ping"]);
}

/// Docker has other runtimes once it has reloaded its configuration.
#[tokio::test]
async fn a_docker_daemon_at_rest_is_described_again() {
    let requests = requests_at_rest("Engine").await;
    assert_eq!(requests.iter().filter(|name| *name == "info").count(), 2);
}

/// What is requested during two periods without events.
async fn requests_at_rest(component: &'static str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let stand_in = StandIn { component, ..StandIn::new("1.41") };
    let asked = Arc::clone(&stand_in.asked);
    let (_engine_is, state) = watch::channel(stand_in);
    let followed = Arc::new(Notify::new());
    serve(&dir.path().join("e.sock"), state, Arc::clone(&followed));
    let (engine, mut reports) = follow(dir.path());
    listed(&engine, &mut reports).await;
    followed.notified().await;
    asked.lock().unwrap().clear();
    tokio::time::pause();
    tokio::time::sleep(2 * PROBE_PERIOD + Duration::from_secs(1)).await;
    assert!(engine.is_up());
    asked.lock().unwrap().clone()
}

const RUNNING: &str = r#"[{"Id": "a", "State": "running"}]"#;

/// One container that Podman had not cleaned up made the whole engine unreachable.
#[tokio::test]
async fn a_container_that_cannot_be_read_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let containers = r#"[{"Id": "a", "State": "running"}, {"Id": "b", "State": "stopped"}]"#.to_owned();
    let (_engine_is, state) = watch::channel(StandIn { containers, ..StandIn::new("1.41") });
    serve(&dir.path().join("e.sock"), state, Arc::new(Notify::new()));
    let (engine, mut reports) = follow(dir.path());
    let all = listed(&engine, &mut reports).await;
    assert_eq!(all[0].id.as_deref(), Some("a"));
    assert!(all.len() == 1 && engine.is_up());
}

/// Tasks of such an engine could not enter their own directories.
#[tokio::test]
async fn an_engine_without_root_is_not_offered() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("e.sock");
    let rootless =
        StandIn { info: r#"{"SecurityOptions": ["name=seccomp", "name=rootless"]}"#, ..StandIn::new("1.41") };
    let (_engine_is, state) = watch::channel(rootless);
    serve(&socket, state, Arc::new(Notify::new()));
    let options = serde_json::json!({"endpoint": format!("unix://{}", socket.display())});
    let driver = Containers::open(Setup {
        driver: "docker".to_owned(),
        dir: dir.path().join("records"),
        instance: "i".to_owned(),
        options: serde_json::from_value(options).unwrap(),
        mode: Mode::Standalone,
        compute: (1, 1),
    });
    let driver = driver.unwrap();
    let mut fingerprints = driver.fingerprint();
    let fingerprint = fingerprints.next().await.unwrap();
    assert_eq!(fingerprint.health, Health::Unhealthy);
    assert!(fingerprint.description.starts_with("the engine is rootless: "), "{fingerprint:?}");
    assert!(fingerprint.attributes.is_empty());
}
