//! Host volumes of this machine: from the agent's config, or from a `Volume` manifest.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

/// A host volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Unique on the machine; `name[index]` for a per-allocation volume.
    pub name: String,
    /// Where its data is.
    pub kind: VolumeKind,
    /// Nobody may write.
    #[serde(default)]
    pub read_only: bool,
}

/// Where a volume's data is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// An existing directory of the host, never created and never removed by us.
    HostPath {
        /// Absolute path.
        path: String,
    },
    /// A directory that we make under the state directory (Nomad's built-in plugin `mkdir`).
    Mkdir {
        /// Permission bits, for instance 0o755.
        mode: u32,
        /// Owner, the agent's where absent.
        uid: Option<u32>,
        /// Group, the agent's where absent.
        gid: Option<u32>,
    },
}

/// What is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeStatus {
    /// Being made or looked for.
    Pending,
    /// Its directory exists.
    Ready {
        /// Absolute path of the data.
        path: String,
    },
    /// It could not be made; tried again later.
    Failed {
        /// Why.
        why: String,
    },
}
