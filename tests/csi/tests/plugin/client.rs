//! The client: conformance, faults, deaths of the plugin, secrets.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use herdlet_base::test_env::TestEnv;
use herdlet_csi::{
    capability::{MountOptions, Usage, Writing},
    client::Client,
    controller::NewVolume,
    description::{PluginType, Service, UnusableError},
    directories::Owner,
    error::{CallError, CallFailure, Code, ErrorClass},
    identity::Readiness,
    node::{Context, PublishPaths, VolumeUse},
    registry::{Instance, Plugins},
    secrets::Secrets,
    supervision::{PluginHealth, supervise},
};
use herdlet_csi_plugin::{
    conformance::{self, WRITER},
    mounted::{self, MountState},
};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{campaign::Random, running::Running};

/// A volume, and where it is used.
struct Volume {
    client: Client,
    id: String,
    context: Context,
    options: MountOptions,
    secrets: Secrets,
    staging: String,
    target: String,
}

impl Volume {
    async fn create(running: &Running, folder: &Path, parameters: &[(&str, &str)]) -> Self {
        let secrets = Secrets::default();
        let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let new = NewVolume {
            name: "data",
            capacity: None,
            usages: &[WRITER],
            options: &MountOptions::default(),
            parameters: &parameters.collect(),
            source: None,
            topology: None,
            secrets: &secrets,
        };
        let volume = running.client().create_volume(&new).await.unwrap();
        let path = |name: &str| folder.join(name).display().to_string();
        let (staging, target) = (path("staging"), path("target"));
        fs::create_dir_all(&staging).unwrap();
        let context = BTreeMap::new();
        let options = MountOptions::default();
        Self { client: running.client(), id: volume.volume_id, context, options, secrets, staging, target }
    }

    fn used(&self) -> VolumeUse<'_> {
        VolumeUse {
            volume_id: &self.id,
            usage: WRITER,
            options: &self.options,
            publish_context: &self.context,
            volume_context: &self.context,
            secrets: &self.secrets,
        }
    }

    fn paths(&self) -> PublishPaths<'_> {
        PublishPaths { staging: Some(&self.staging), target: &self.target }
    }

    async fn up(&mut self) -> Result<(), CallError> {
        self.context = self.client.attach(&self.used(), "node-1").await?;
        self.client.stage(&self.used(), &self.staging).await?;
        self.client.publish(&self.used(), self.paths()).await
    }

    async fn down(&self) -> Result<(), CallError> {
        self.client.unpublish(&self.id, &self.target).await?;
        self.client.unstage(&self.id, &self.staging).await?;
        self.client.detach(&self.id, "node-1", &self.secrets).await?;
        self.client.delete_volume(&self.id, &self.secrets).await
    }
}

async fn passes_the_suite(options: &[&'static str]) {
    let Some(env) = TestEnv::mounting() else { return };
    let running = Running::start(env.path(), options).await;
    let folder = env.path().join("volumes");
    fs::create_dir(&folder).unwrap();
    let report = conformance::run(running.client(), &folder).await.unwrap();
    assert!(report.failed.is_empty() && report.passed.len() == 8, "{report:#?}");
    assert!(env.mounted().is_empty(), "{:?}", env.mounted());
}

#[tokio::test]
async fn plugin_passes_the_suite() {
    passes_the_suite(&[]).await;
}

#[tokio::test]
async fn plugin_without_staging_passes_the_suite() {
    passes_the_suite(&["--no-staging"]).await;
}

/// The suite itself: a plugin that is not idempotent fails by the name of the requirement.
#[tokio::test]
async fn suite_names_what_a_plugin_violates() {
    let Some(env) = TestEnv::mounting() else { return };
    let running = Running::start(env.path(), &[]).await;
    running.fail("NodeUnpublishVolume", "always status 13 no mount point");
    let report = conformance::run(running.client(), env.path()).await.unwrap();
    let failed: Vec<_> = report.failed.iter().map(|(name, _)| *name).collect();
    assert!(failed.contains(&"every call of a volume's life can be repeated"), "{report:#?}");
    assert!(report.failed.iter().any(|(_, why)| why.contains("no mount point")), "{report:#?}");
}

/// Each response that no correct plugin sends is an error with a class; the next call succeeds.
#[tokio::test]
async fn wrong_responses_are_errors_with_classes() {
    let env = TestEnv::plain();
    let mut running = Running::start(env.path(), &[]).await;
    for (fault, text, class) in [
        ("status 5 no volume", "it reports NOT_FOUND (5): no volume", ErrorClass::NotFound),
        ("status 6", "it reports ALREADY_EXISTS (6)", ErrorClass::Exists),
        ("status 9 in use", "it reports FAILED_PRECONDITION (9): in use", ErrorClass::Precondition),
        ("status 13 100% wrong", "it reports INTERNAL (13): 100% wrong", ErrorClass::Final),
        ("status 14 later", "it reports UNAVAILABLE (14): later", ErrorClass::Retry),
        ("garbage", "the response is invalid", ErrorClass::Retry),
        ("truncated", "should have 9 bytes, and 1 were received", ErrorClass::Retry),
        ("endless", "longer than 262144 bytes", ErrorClass::Retry),
        ("statusless", "it has no status", ErrorClass::Retry),
        ("html", "it is not gRPC; its content type is \"text/html\"", ErrorClass::Retry),
        ("close", "the connection ended before the response", ErrorClass::Retry),
        ("after close", "the connection ended before the response", ErrorClass::Retry),
    ] {
        running.fail("NodeGetInfo", fault);
        let error = running.client().node_info().await.unwrap_err();
        assert!(error.to_string().contains(text), "{fault}: {error}");
        assert!(error.to_string().starts_with("call Node/NodeGetInfo of the CSI plugin `p`: "), "{error}");
        assert_eq!(error.class(), class, "{fault}");
        assert_eq!(running.client().node_info().await.unwrap().id, "node-1", "after {fault}");
    }
    running.fail("NodeGetInfo", "die");
    let error = running.client().node_info().await.unwrap_err();
    assert!(matches!(error.failure, CallFailure::Interrupted { .. }), "{error}");
    running.child.wait().unwrap();
    let error = running.client().node_info().await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("cannot connect to ") && text.contains("Connection refused"), "{text}");
    assert_eq!(error.class(), ErrorClass::Retry);
}

/// A call that hangs ends at its deadline, and delays no other call.
#[tokio::test]
async fn hanging_calls_end_at_their_deadline() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    running.fail("NodeGetInfo", "hang");
    running.fail("Probe", "hang");
    let client = running.client();
    let (hanging, probe) = (client.node_info(), client.probe());
    tokio::pin!(hanging);
    let error = tokio::select! {
        result = &mut hanging => panic!("{result:?}"),
        result = probe => result.unwrap_err(),
    };
    assert_eq!(error.to_string(), "call Identity/Probe of the CSI plugin `p`: no response within 5 s");
    assert_eq!(error.class(), ErrorClass::Retry);
    assert_eq!(running.client().probe().await.unwrap(), Readiness::Ready);
}

#[tokio::test]
async fn a_plugin_that_starts_is_not_ready() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    fs::write(running.data.join("starting"), "").unwrap();
    assert_eq!(running.client().probe().await.unwrap(), Readiness::Starting);
    fs::remove_file(running.data.join("starting")).unwrap();
    assert_eq!(running.client().probe().await.unwrap(), Readiness::Ready);
}

/// Whatever call the plugin dies in, before or after its effect, the calls that undo it leave nothing.
#[tokio::test]
async fn a_volume_can_be_undone_after_a_death_in_any_call() {
    let Some(env) = TestEnv::mounting() else { return };
    let mut running = Running::start(env.path(), &[]).await;
    for call in ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"] {
        for fault in ["die", "after die"] {
            let mut volume = Volume::create(&running, env.path(), &[]).await;
            running.fail(call, fault);
            let error = volume.up().await.unwrap_err();
            assert!(error.call.ends_with(call) && error.class() == ErrorClass::Retry, "{error}");
            running.restart().await;
            volume.down().await.unwrap_or_else(|error| panic!("{call}, {fault}: {error}"));
            assert!(env.mounted().is_empty(), "{call}, {fault}: {:?}", env.mounted());
        }
    }
    for call in ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume"] {
        for fault in ["die", "after die"] {
            let mut volume = Volume::create(&running, env.path(), &[]).await;
            volume.up().await.unwrap();
            assert_eq!(mounted::find(Path::new(&volume.target)).unwrap(), MountState::ReadWrite);
            running.fail(call, fault);
            let error = volume.down().await.unwrap_err();
            assert!(error.call.ends_with(call), "{error}");
            running.restart().await;
            // Calls before the one that failed are repeated, as after a crash of the caller.
            let again = volume.down().await;
            let is_gone = matches!(&again, Err(error) if error.class() == ErrorClass::NotFound);
            assert!(again.is_ok() || call == "DeleteVolume" && is_gone, "{call}, {fault}: {again:?}");
            assert!(env.mounted().is_empty(), "{call}, {fault}: {:?}", env.mounted());
        }
    }
}

/// The plugin insists on the order that the specification demands.
#[tokio::test]
async fn calls_out_of_order_are_refused() {
    let Some(env) = TestEnv::mounting() else { return };
    let running = Running::start(env.path(), &[]).await;
    let mut volume = Volume::create(&running, env.path(), &[]).await;
    let class = |result: Result<(), CallError>| result.unwrap_err().class();
    let staged = volume.client.stage(&volume.used(), &volume.staging).await;
    assert_eq!(class(staged), ErrorClass::Precondition, "staged before it is attached");
    volume.context = volume.client.attach(&volume.used(), "node-1").await.unwrap();
    let published = volume.client.publish(&volume.used(), volume.paths()).await;
    assert_eq!(class(published), ErrorClass::Precondition, "published before it is staged");
    volume.up().await.unwrap();
    let other = Usage { writing: Writing::ReadOnly, ..WRITER };
    let published = volume.client.publish(&VolumeUse { usage: other, ..volume.used() }, volume.paths()).await;
    assert_eq!(class(published), ErrorClass::Exists, "published read-only at the same target");
    let unstaged = volume.client.unstage(&volume.id, &volume.staging).await;
    assert_eq!(class(unstaged), ErrorClass::Precondition, "unstaged while it is published");
    let detached = volume.client.detach(&volume.id, "node-1", &volume.secrets).await;
    assert_eq!(class(detached), ErrorClass::Precondition, "detached while it is published");
    let deleted = volume.client.delete_volume(&volume.id, &volume.secrets).await;
    assert_eq!(class(deleted), ErrorClass::Precondition, "deleted while it is attached");
    let attached = volume.client.attach(&volume.used(), "node-2").await;
    assert_eq!(attached.unwrap_err().class(), ErrorClass::NotFound, "attached to an unknown node");
    fs::create_dir(running.data.join("nodes")).unwrap();
    fs::write(running.data.join("nodes/node-2"), "").unwrap();
    let attached = volume.client.attach(&volume.used(), "node-2").await;
    assert_eq!(attached.unwrap_err().class(), ErrorClass::Precondition, "attached to a second node");
    running.calls();
    volume.down().await.unwrap();
    let expected =
        ["NodeUnpublishVolume 0", "NodeUnstageVolume 0", "ControllerUnpublishVolume 0", "DeleteVolume 0"];
    assert_eq!(running.calls(), expected);
}

/// A plugin may repeat a secret in its message.
#[tokio::test]
async fn errors_contain_no_secrets() {
    let Some(env) = TestEnv::mounting() else { return };
    let running = Running::start(env.path(), &[]).await;
    let mut volume = Volume::create(&running, env.path(), &[("token", "right-token")]).await;
    volume.secrets = Secrets::new([("token".to_owned(), "wrong-token".to_owned())]);
    let error = volume.up().await.unwrap_err();
    let CallFailure::Reported { code, message } = &error.failure else { panic!("{error}") };
    assert_eq!((*code, message.as_str()), (Code(16), "the token [secret] is wrong"));
    assert_eq!(error.class(), ErrorClass::Final);
    volume.secrets = Secrets::new([("token".to_owned(), "right-token".to_owned())]);
    volume.up().await.unwrap();
    volume.down().await.unwrap();
}

/// A plugin can replace its socket by a link to another one.
#[tokio::test]
async fn links_in_place_of_the_socket_are_not_followed() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    let link = env.path().join("link.sock");
    std::os::unix::fs::symlink(&running.socket, &link).unwrap();
    for path in [link, running.data.clone()] {
        let error = Client::new("p", path).probe().await.unwrap_err().to_string();
        assert!(error.ends_with("it is not a socket"), "{error}");
    }
    let error = Client::new("p", env.path().join("absent.sock")).probe().await.unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}

/// An address of a socket has at most 107 bytes, a path more.
#[tokio::test]
async fn sockets_may_have_long_paths() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    let folder = env.path().join("f".repeat(200));
    fs::create_dir(&folder).unwrap();
    let socket = folder.join("csi.sock");
    fs::rename(&running.socket, &socket).unwrap();
    assert_eq!(Client::new("p", socket).probe().await.unwrap(), Readiness::Ready);
}

/// A plugin that was replaced may report another node.
#[tokio::test]
async fn a_restarted_plugin_may_have_another_node_id() {
    let env = TestEnv::plain();
    let mut running = Running::start(env.path(), &["--node-id", "before"]).await;
    assert_eq!(running.client().node_info().await.unwrap().id, "before");
    running.child.kill().unwrap();
    running.options = vec!["--node-id", "after"];
    running.restart().await;
    assert_eq!(running.client().node_info().await.unwrap().id, "after");
}

/// As its type demands, a plugin is described with one service or both.
#[tokio::test]
async fn plugins_are_described_by_their_type() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    for (kind, has_node, has_controller) in [
        (PluginType::Node, true, false),
        (PluginType::Controller, false, true),
        (PluginType::Monolith, true, true),
    ] {
        let found = running.client().describe(kind).await.unwrap();
        assert_eq!(found.info.name, "csi.test.herdlet");
        assert_eq!(
            (found.node.is_some(), found.controller.is_some()),
            (has_node, has_controller),
            "{kind:?}"
        );
    }
    running.fail("GetPluginCapabilities", "nothing");
    let error = running.client().describe(PluginType::Controller).await.unwrap_err();
    assert!(error.to_string().contains("has no Controller service; set `type = \"node\"`"), "{error}");
    fs::write(running.data.join("starting"), "").unwrap();
    let error = running.client().describe(PluginType::Node).await.unwrap_err();
    assert_eq!(error, UnusableError::Starting { plugin: "p".to_owned() });
}

/// The task's plugin listens late; then it is registered, and found.
#[tokio::test]
async fn a_plugin_that_listens_late_is_supervised() {
    let env = TestEnv::plain();
    let client = Client::new("p", env.path().join("csi.sock"));
    let plugins = Plugins::default();
    let mut changes = plugins.changes();
    let registered = |health| {
        let PluginHealth::Healthy(description) = health else { return };
        let owner = Owner { alloc: "a1".to_owned(), task: "plugin".to_owned() };
        let (kind, client) = (PluginType::Monolith, client.clone());
        plugins.register("p", Instance { owner, kind, client, description: *description, unhealthy: None });
    };
    let describe = async || client.describe(PluginType::Monolith).await;
    let supervision = supervise(Duration::from_secs(60), describe, registered);
    let start = async {
        assert!(plugins.find("p", Service::Node).is_err());
        let running = Running::start(env.path(), &[]).await;
        changes.changed().await.unwrap();
        running
    };
    let _running = tokio::select! {
        ended = supervision => panic!("{ended:?}"),
        running = start => running,
    };
    let found = plugins.find("p", Service::Node).unwrap();
    assert_eq!(found.client.probe().await.unwrap(), Readiness::Ready);
}

/// A peer that speaks no HTTP/2, or ends at any byte of it.
#[tokio::test]
async fn arbitrary_bytes_of_a_peer_are_errors() {
    let env = TestEnv::plain();
    let running = Running::start(env.path(), &[]).await;
    // What a correct plugin sends, to be cut and damaged.
    let mut stream = tokio::net::UnixStream::connect(&running.socket).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let mut correct = vec![0; 9];
    stream.read_exact(&mut correct).await.unwrap();
    let socket = env.path().join("other.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let client = Client::new("p", socket);
    let mut random = Random(1);
    for round in 0..300 {
        let mut bytes = correct.clone();
        match round % 3 {
            0 => bytes.truncate(random.below(bytes.len())),
            1 => bytes.extend((0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap())),
            _ => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
        let peer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The client may have ended the connection.
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        };
        let (result, ()) = tokio::join!(client.probe(), peer);
        assert_eq!(result.unwrap_err().class(), ErrorClass::Retry, "round {round}: {bytes:?}");
    }
}
