//! Supervision of the plugin for tests, which runs in this process.

use std::{path::Path, time::Duration};

use herdlet_api_types::{fixture, job::CsiPluginType};
use herdlet_csi::description::Service;
use herdlet_csi_plugin::{
    plugin::{Plugin, Staging},
    server,
};
use herdlet_plan::event::PluginHealth;
use herdlet_runtime::Arrivals;
use tempfile::TempDir;
use tokio::net::UnixListener;

use super::*;

/// An agent's plugins, and the task that is one.
struct Bench {
    folder: TempDir,
    plugins: Arc<CsiPlugins>,
    arrivals: Arrivals<Input>,
    key: TaskKey,
    spec: CsiPlugin,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (inbox, arrivals) = Inbox::with_capacity(8);
        let paths = Paths { state: folder.path().join("state"), runtime: folder.path().join("run") };
        let plugins = CsiPlugins::new(&paths, inbox);
        let key = (AllocId::from_hash([1; 16]), "t".to_owned());
        // Nothing is mounted for a controller.
        let spec = CsiPlugin { kind: CsiPluginType::Controller, ..fixture::csi_plugin("disks") };
        plugins.directories.make(&owner(&key), (PluginType::Controller, "disks"), None).unwrap();
        Self { folder, plugins, arrivals, key, spec }
    }

    /// Starts the plugin.
    fn serve(&self) {
        let listener = UnixListener::bind(self.plugins.directories.socket(&owner(&self.key))).unwrap();
        let plugin = Plugin::open(&self.data(), "n1", Staging::Present).unwrap();
        tokio::spawn(server::serve(listener, plugin));
    }

    fn data(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("data")
    }

    fn begin(&self, attempt: u32) {
        self.plugins.begin(self.key.clone(), attempt, &self.spec);
    }

    /// The next report to the planner, with its attempt.
    async fn report(&mut self) -> (u32, PluginHealth) {
        let report = async {
            loop {
                match self.arrivals.take() {
                    Some(Input::Event(Event::Plugin { attempt, health, .. })) => return (attempt, health),
                    Some(_) => panic!("another event"),
                    None => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), report).await.expect("a report")
    }

    fn is_registered(&self) -> bool {
        self.plugins.registry.find("disks", Service::Controller).is_ok()
    }

    fn view(&self) -> CsiPluginView {
        let [view]: [CsiPluginView; 1] = self.plugins.views().try_into().unwrap();
        view
    }
}

#[tokio::test]
async fn a_plugin_is_registered_from_its_first_response_until_its_end() {
    let mut bench = Bench::new();
    bench.begin(1);
    assert!(!bench.is_registered());
    let starting = bench.view();
    assert_eq!((starting.description, starting.unhealthy.as_deref()), (None, Some(NOT_READY)));
    bench.serve();
    let healthy = PluginHealth::Healthy { plugin: "disks".to_owned() };
    assert_eq!(bench.report().await, (1, healthy.clone()));
    assert!(bench.is_registered());
    let view = bench.view();
    let provider = view.description.as_ref().map(|description| description.provider.as_str());
    assert_eq!((view.id.as_str(), provider), ("disks", Some("csi.test.herdlet")));
    assert_eq!((view.serves_node(), view.serves_controller(), &view.unhealthy), (false, true, &None));
    assert_eq!((view.alloc, view.task), bench.key);
    // As the recovery of the same attempt.
    bench.begin(1);
    assert!(bench.is_registered());
    bench.begin(2);
    assert!(!bench.is_registered(), "the next attempt has not answered yet");
    assert_eq!(bench.report().await, (2, healthy));
    bench.plugins.forget(&bench.key, 1);
    assert!(bench.is_registered(), "another attempt has ended");
    for _ in 0..2 {
        bench.plugins.forget(&bench.key, 2);
        assert!(!bench.is_registered());
    }
    assert!(bench.plugins.views().is_empty());
}

/// A stop was not completed, and the attempt is recovered.
#[tokio::test]
async fn an_attempt_that_is_to_end_is_not_supervised_again() {
    let mut bench = Bench::new();
    bench.serve();
    bench.begin(1);
    bench.report().await;
    bench.plugins.end(bench.key.clone(), 1, &bench.spec);
    assert!(!bench.is_registered());
    bench.begin(1);
    assert!(bench.plugins.views().is_empty());
    bench.begin(2);
    assert_eq!(bench.report().await.0, 2);
    bench.plugins.end(bench.key.clone(), 1, &bench.spec);
    assert!(bench.is_registered(), "an earlier attempt is removed");
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_in_time_is_reported() {
    let mut bench = Bench::new();
    bench.spec.health_timeout = herdlet_api_types::Duration::from_secs(1);
    std::fs::create_dir_all(bench.data()).unwrap();
    std::fs::write(bench.data().join("starting"), "").unwrap();
    bench.serve();
    bench.begin(1);
    let (attempt, PluginHealth::Overdue { why }) = bench.report().await else { panic!("another report") };
    assert_eq!(attempt, 1);
    assert_eq!(
        why,
        "the CSI plugin was not ready within 1 s of the start of its task or of the agent: failed to use the CSI plugin \
         `disks`: it reports that it is not initialized yet"
    );
    assert!(!bench.is_registered());
    assert_eq!(bench.view().unhealthy, Some(why));
}
