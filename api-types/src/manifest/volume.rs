//! `spec` of a volume.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

use super::{Text, VolumeType};

block! {
    /// A host volume: a directory that is made for you (`plugin_id: mkdir`), or one that exists (`host_path`).
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "access_mode", "attachment_mode", "capabilities", "capability", "capacity", "capacity_max", "capacity_min",
        "constraint", "constraints", "mount_options", "node_id", "node_pool", "secrets", "topology_request",
    ])))]
    pub struct VolumeSpec {
        /// `host`: a directory of this machine.
        #[serde(rename = "type")]
        #[cfg_attr(feature = "schema", schemars(required, extend("x-not-built" = ["csi"])))]
        pub kind: VolumeType,
        /// What makes the directory: `mkdir`.
        pub plugin_id: VolumePlugin,
        /// Settings of the plugin.
        pub parameters: MkdirParameters,
        /// An existing directory of this machine, as an absolute path; it is never made and never removed.
        pub host_path: String,
        /// Nobody may write.
        pub read_only: bool,
    }
}

/// `plugin_id` of a host volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum VolumePlugin {
    /// Makes a directory under the agent's state directory.
    #[default]
    Mkdir,
}

block! {
    /// Settings of the plugin `mkdir`.
    pub struct MkdirParameters {
        /// Permissions in octal; default `"0700"`.
        #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^0?[0-7]{3,4}$")))]
        pub mode: Text,
        /// Owner, as a number; the agent's user unless written.
        pub uid: u32,
        /// Group, as a number; the agent's group unless written.
        pub gid: u32,
    }
}
