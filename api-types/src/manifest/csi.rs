//! `csi_plugin` of a task: as people write it, and its conversion to and from the canonical form.

use std_alloc::{borrow::ToOwned, string::String};

use super::{
    Span,
    defaults::{CSI_HEALTH_TIMEOUT, CSI_MOUNT_DIR, CSI_STAGE_PUBLISH_BASE_DIR},
    unless,
};
use crate::{
    Duration,
    job::{self, CsiPluginType},
};

block! {
    /// Makes the task a plugin for storage (Container Storage Interface). Its socket is in `CSI_ENDPOINT`.
    pub struct CsiPlugin {
        /// The name under which volumes refer to it: 1 to 128 characters. Several tasks may have the same one.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub id: String,
        /// The services that are used: `node` mounts volumes on its machine, `controller` makes and attaches them, `monolith` does both.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required))]
        pub kind: CsiPluginType,
        /// Where the directory of the socket is mounted; default `/csi`. With raw_exec, which mounts nothing, it has no effect.
        pub mount_dir: String,
        /// Where the directory of all volumes is mounted; default `/local/csi`. With raw_exec it has no effect.
        pub stage_publish_base_dir: String,
        /// The time to become ready after the start, or else the task is restarted; default 30s.
        pub health_timeout: Span,
    }
}

impl CsiPlugin {
    /// The canonical block.
    pub fn to_plugin(&self) -> job::CsiPlugin {
        let path = |path: &Option<String>, default: &str| {
            path.clone().filter(|path| !path.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        // As in Nomad, 0 is the default.
        let timeout = self.health_timeout.map(|span| span.0).filter(|timeout| *timeout != Duration::ZERO);
        job::CsiPlugin {
            id: self.id.clone().unwrap_or_default(),
            kind: self.kind.unwrap_or_default(),
            mount_dir: path(&self.mount_dir, CSI_MOUNT_DIR),
            stage_publish_base_dir: path(&self.stage_publish_base_dir, CSI_STAGE_PUBLISH_BASE_DIR),
            health_timeout: timeout.unwrap_or(CSI_HEALTH_TIMEOUT),
        }
    }

    /// The block as people write it.
    pub(super) fn from_plugin(plugin: &job::CsiPlugin) -> Self {
        Self {
            id: Some(plugin.id.clone()),
            kind: Some(plugin.kind),
            mount_dir: unless(&plugin.mount_dir, CSI_MOUNT_DIR),
            stage_publish_base_dir: unless(&plugin.stage_publish_base_dir, CSI_STAGE_PUBLISH_BASE_DIR),
            health_timeout: (plugin.health_timeout != CSI_HEALTH_TIMEOUT)
                .then_some(Span(plugin.health_timeout)),
        }
    }

    /// Fills in the defaults.
    pub(super) fn fill(&mut self, plugin: &job::CsiPlugin) {
        self.mount_dir.get_or_insert_with(|| plugin.mount_dir.clone());
        self.stage_publish_base_dir.get_or_insert_with(|| plugin.stage_publish_base_dir.clone());
        self.health_timeout.get_or_insert(Span(plugin.health_timeout));
    }
}
