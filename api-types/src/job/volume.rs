//! Volumes of a group, and their mounts in tasks.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

/// `volumes.<name>` of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    /// Name of a host volume; with `per_alloc` the allocation's index is appended as `[n]`.
    pub source: String,
    /// Whether the group's tasks may only read.
    pub read_only: bool,
    /// Whether each allocation index has its own volume.
    pub per_alloc: bool,
}

/// `volume_mounts[]` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Name of a volume of the group.
    pub volume: String,
    /// Path of the mount; relative to the task directory for drivers without file system isolation.
    pub destination: String,
    /// Whether this task may only read.
    pub read_only: bool,
    /// What becomes of mounts that are made below it later.
    #[serde(default, skip_serializing_if = "MountPropagation::is_private")]
    pub propagation: MountPropagation,
}

/// Where mounts appear that are made below a volume later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum MountPropagation {
    /// Where they are made.
    #[default]
    Private,
    /// Those of the machine in the task, too.
    HostToTask,
    /// In both.
    Bidirectional,
}

impl MountPropagation {
    /// Whether it is the default.
    pub fn is_private(&self) -> bool {
        *self == Self::Private
    }
}
