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
        let plugins = CsiPlugins::open(&paths, inbox);
        let key = (AllocId::from_hash([1; 16]), "t".to_owned());
        // Nothing is mounted for a controller.
        let spec = CsiPlugin { kind: CsiPluginType::Controller, ..fixture::csi_plugin("disks") };
        let alloc = key.0.to_string();
        let owner = Owner { alloc: &alloc, task: &key.1 };
        plugins.directories.make(owner, (PluginType::Controller, "disks"), None).unwrap();
        Self { folder, plugins, arrivals, key, spec }
    }

    /// Starts the plugin.
    fn serve(&self) {
        let alloc = self.key.0.to_string();
        let socket = self.plugins.directories.socket(Owner { alloc: &alloc, task: &self.key.1 });
        let listener = UnixListener::bind(socket).unwrap();
        let plugin = Plugin::open(&self.data(), "n1", Staging::Present).unwrap();
        tokio::spawn(server::serve(listener, plugin));
    }

    fn data(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("data")
    }

    /// The next report to the planner, with its attempt.
    async fn report(&mut self) -> (u32, PluginHealth) {
        loop {
            match self.arrivals.take() {
                Some(Input::Event(Event::Plugin { attempt, health, .. })) => return (attempt, health),
                Some(_) => panic!("another event"),
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    fn is_registered(&self) -> bool {
        self.plugins.registry.find("disks", Service::Controller).is_ok()
    }
}

#[tokio::test]
async fn a_plugin_is_registered_from_its_first_response_until_its_end() {
    let mut bench = Bench::new();
    bench.plugins.begin(bench.key.clone(), 1, &bench.spec);
    assert!(!bench.is_registered());
    bench.serve();
    let healthy = PluginHealth::Healthy { plugin: "disks".to_owned() };
    assert_eq!(bench.report().await, (1, healthy.clone()));
    assert!(bench.is_registered());
    let [view]: [CsiPluginView; 1] = bench.plugins.views().try_into().unwrap();
    assert_eq!((view.id.as_str(), view.provider.as_str()), ("disks", "csi.test.herdlet"));
    assert_eq!((view.serves_node(), view.serves_controller(), view.unhealthy), (false, true, None));
    assert_eq!((view.alloc, view.task), bench.key);
    // As the recovery of the same attempt.
    bench.plugins.begin(bench.key.clone(), 1, &bench.spec);
    assert!(bench.is_registered());
    bench.plugins.begin(bench.key.clone(), 2, &bench.spec);
    assert!(!bench.is_registered(), "the next attempt has not answered yet");
    assert_eq!(bench.report().await, (2, healthy));
    assert!(bench.is_registered());
    for _ in 0..2 {
        bench.plugins.end(&bench.key);
        assert!(!bench.is_registered());
    }
}

#[tokio::test]
async fn a_plugin_that_is_not_ready_in_time_is_reported() {
    let mut bench = Bench::new();
    bench.spec.health_timeout = herdlet_api_types::Duration::from_secs(1);
    std::fs::create_dir_all(bench.data()).unwrap();
    std::fs::write(bench.data().join("starting"), "").unwrap();
    bench.serve();
    bench.plugins.begin(bench.key.clone(), 1, &bench.spec);
    let (attempt, PluginHealth::Overdue { why }) = bench.report().await else { panic!("another report") };
    assert_eq!(attempt, 1);
    assert_eq!(
        why,
        "failed to start the CSI plugin: it was not ready within 1 s: use the CSI plugin `disks`: it reports that it is not \
         initialized yet"
    );
    assert!(!bench.is_registered());
}

/// An earlier agent was killed, and its database was lost.
#[tokio::test]
async fn sockets_without_an_allocation_are_removed() {
    let bench = Bench::new();
    let paths = Paths { state: bench.folder.path().join("state"), runtime: bench.folder.path().join("run") };
    let alloc = bench.key.0.to_string();
    let dir =
        |plugins: &CsiPlugins| plugins.directories.socket_dir(Owner { alloc: &alloc, task: &bench.key.1 });
    std::fs::create_dir_all(paths.alloc(&bench.key.0)).unwrap();
    let (inbox, _arrivals) = Inbox::with_capacity(1);
    assert!(dir(&CsiPlugins::open(&paths, inbox.clone())).exists());
    std::fs::remove_dir_all(paths.alloc(&bench.key.0)).unwrap();
    assert!(!dir(&CsiPlugins::open(&paths, inbox)).exists());
}
