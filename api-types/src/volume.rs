//! Host volumes of this machine: from the agent's config, or from a `Volume` manifest.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

/// A host volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Unique on the machine; `name[index]` for a per-allocation volume.
    pub name: String,
    /// The source of its data.
    pub kind: VolumeKind,
    /// Whether it can't be written to.
    #[serde(default)]
    pub read_only: bool,
}

/// The source of a volume's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// An existing directory of the host, which we never create or remove.
    HostPath {
        /// Absolute path.
        path: String,
    },
    /// A directory that we create under the state directory (Nomad's built-in plugin `mkdir`).
    Mkdir {
        /// Permission bits, for instance 0o755.
        mode: u32,
        /// Owner; the agent's user if absent.
        uid: Option<u32>,
        /// Group; the agent's group if absent.
        gid: Option<u32>,
    },
}

/// The status of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeStatus {
    /// Being created or searched.
    Pending,
    /// Its directory exists.
    Ready {
        /// Absolute path of the data.
        path: String,
    },
    /// It could not be created; another try will follow.
    Failed {
        /// The reason.
        why: String,
    },
}
