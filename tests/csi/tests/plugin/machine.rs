//! A machine with a running plugin and its volumes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use herdlet_base::test_env::TestEnv;
use herdlet_csi::{
    capability::{MountOptions, Usage},
    client::Client,
    controller::NewVolume,
    node::{Context, NodeFeature, VolumeUse},
    secrets::Secrets,
    volumes::{Claim, NodePlugin, NodeVolumes, PluginRoot, VolumeError},
};
use herdlet_csi_plugin::conformance::WRITER;

use crate::running::Running;

/// A machine with a running plugin.
pub(crate) struct Machine {
    pub(crate) env: TestEnv,
    pub(crate) running: Running,
    pub(crate) client: Client,
    pub(crate) features: BTreeSet<NodeFeature>,
    pub(crate) root: PathBuf,
    pub(crate) volumes: NodeVolumes,
}

/// A volume that exists and is attached.
pub(crate) struct StoredVolume {
    pub(crate) id: String,
    pub(crate) context: Context,
    pub(crate) options: MountOptions,
    pub(crate) secrets: Secrets,
}

impl Machine {
    /// `None`: tests may not mount here.
    pub(crate) async fn start(options: &[&'static str]) -> Option<Self> {
        let env = TestEnv::mounting()?;
        let root = env.path().canonicalize().unwrap().join("csi/node/p");
        fs::create_dir_all(&root).unwrap();
        let running = Running::start(env.path(), options).await;
        let client = running.client();
        let features = client.node_features().await.unwrap();
        let volumes = volumes_of(&root);
        running.calls();
        Some(Self { env, running, client, features, root, volumes })
    }

    /// As the next agent, which knows nothing.
    pub(crate) fn restart_agent(&mut self) {
        self.volumes = volumes_of(&self.root);
    }

    pub(crate) async fn create(&self, name: &str) -> StoredVolume {
        let (options, secrets) = (MountOptions::default(), Secrets::default());
        let new = NewVolume {
            name,
            capacity: None,
            usages: &[WRITER],
            options: &options,
            parameters: &BTreeMap::new(),
            source: None,
            topology: None,
            secrets: &secrets,
        };
        let id = self.client.create_volume(&new).await.unwrap().volume_id;
        let mut stored = StoredVolume { id, context: Context::new(), options, secrets };
        stored.context = self.client.attach(&stored.used(WRITER), "node-1").await.unwrap();
        self.running.calls();
        stored
    }

    pub(crate) async fn up(&self, claim: &Claim, stored: &StoredVolume) -> Result<PathBuf, VolumeError> {
        let plugin = NodePlugin { client: &self.client, features: &self.features };
        self.volumes.up(plugin, claim, &stored.used(claim.usage)).await
    }

    pub(crate) async fn down(&self, claim: &Claim) -> Result<(), VolumeError> {
        self.volumes.down(&self.client, claim).await
    }

    /// Nothing is mounted, and no directory is left.
    pub(crate) fn assert_clean(&self, context: &str) {
        assert!(self.env.mounted().is_empty(), "{context}: {:?}", self.env.mounted());
        for folder in ["per-alloc", "staging"] {
            let left: Vec<_> = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{context}: {left:?}");
        }
    }
}

impl StoredVolume {
    pub(crate) fn used(&self, usage: Usage) -> VolumeUse<'_> {
        VolumeUse {
            volume_id: &self.id,
            usage,
            options: &self.options,
            publish_context: &self.context,
            volume_context: &self.context,
            secrets: &self.secrets,
        }
    }
}

fn volumes_of(root: &Path) -> NodeVolumes {
    NodeVolumes::new(PluginRoot { host: root.to_owned(), inside: root.display().to_string() })
}

pub(crate) fn claim(alloc: &str) -> Claim {
    Claim {
        alloc: alloc.to_owned(),
        namespace: "default".to_owned(),
        volume: "data".to_owned(),
        usage: WRITER,
    }
}
