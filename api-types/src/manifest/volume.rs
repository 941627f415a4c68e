//! `spec` of a volume.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use super::{Text, VolumeType};

block! {
    /// A host volume: a directory that the agent creates (`plugin_id: mkdir`), or an existing one (`host_path`).
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "access_mode", "attachment_mode", "capabilities", "capability", "capacity", "capacity_max", "capacity_min",
        "constraint", "constraints", "mount_options", "node_id", "node_pool", "secrets", "topology_request",
    ])))]
    pub struct VolumeSpec {
        /// `host`: a directory of this machine.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required, extend("x-not-built" = ["csi"])))]
        pub kind: VolumeType,
        /// The plugin that creates the directory: `mkdir`.
        pub plugin_id: VolumePlugin,
        /// Settings of the plugin.
        pub parameters: MkdirParameters,
        /// An existing directory of this machine, as an absolute path; the agent never creates or removes it.
        pub host_path: String,
        /// The volume can't be written to.
        pub read_only: bool,
    }
}

/// `plugin_id` of a host volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum VolumePlugin {
    /// Creates a directory in the agent's state directory.
    #[default]
    Mkdir,
}

block! {
    /// Settings of the plugin `mkdir`.
    pub struct MkdirParameters {
        /// Permissions in octal; default `"0700"`.
        #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^0?[0-7]{3,4}$")))]
        pub mode: Text,
        /// Owner, as a number; default the agent's user.
        pub uid: u32,
        /// Group, as a number; default the agent's group.
        pub gid: u32,
    }
}
