//! The YAML form of jobs and volumes: as people write them, with everything optional and nothing resolved.
//!
//! In: a document already checked against the schema of these types; positions are kept elsewhere. Out: the canonical
//! [`Job`](crate::job::Job) or [`Volume`](crate::volume::Volume) through [`JobManifest::to_job`] and
//! [`VolumeManifest::to_volume`], and back through [`JobManifest::from_job`] and [`VolumeManifest::from_volume`]. All
//! four are total: validation happens before.
//!
//! Names are those of Nomad's HCL; repeatable blocks are lists with plural names. The fields' doc comments become the
//! descriptions in the published JSON Schema, so they address the authors of manifests. Our own schema keywords are
//! those of the YAML reader; `x-not-built`: fields or values that Nomad has and this release doesn't; and those of `unused`.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

/// The `apiVersion` of every document.
pub const API_VERSION: &str = "herdlet/v1";

/// Declares a block of the manifest: all fields are optional, unknown ones are refused, absent ones aren't serialized.
macro_rules! block {
    ($(#[$meta:meta])* pub struct $name:ident { $( $(#[$field_meta:meta])* pub $field:ident: $type:ty, )* }) => {
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$type>,
            )*
        }
    };
}

pub mod constraint;
pub mod consul;
pub mod csi;
pub mod defaults;
pub mod driver;
pub mod group;
pub mod job;
pub mod network_mode;
pub mod scalar;
pub mod secret;
pub mod service;
pub mod task;
pub mod template;
pub mod vault;
pub mod volume;

mod resolve;
#[cfg(feature = "schema")]
mod unused;
mod whole;
mod write;

#[cfg(test)]
mod tests;

pub use constraint::{Affinity, Constraint, Spread, SpreadTarget};
pub use consul::Consul;
pub use csi::CsiPlugin;
pub use group::{
    Cni, Dns, EphemeralDisk, GroupDependency, GroupSpec, Network, Port, Reschedule, Restart, RestartRule,
    RestartWord, Scaling, Update, VolumeRequest, VolumeType,
};
pub use job::{JobSpec, Parameterized, Periodic, Ui, UiLink};
pub use network_mode::NetworkMode;
pub use scalar::{Signal, Span, Text};
pub use secret::{Secret, SecretConfig};
pub use service::{Check, CheckType, Service};
pub use task::{
    Action, Artifact, Dependency, DispatchPayload, EnvFile, EnvFiles, Hook, Identity, Lifecycle, Logs,
    Prestop, Resources, TaskSpec, VolumeMount,
};
pub use template::{ChangeScript, Template, TemplateChangeMode, TemplateWait};
pub use vault::Vault;
pub use volume::{MkdirParameters, VolumePlugin, VolumeSpec};

/// A document of kind `Job`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("patternProperties" = {"^x-": true})))]
#[serde(deny_unknown_fields)]
pub struct JobManifest {
    /// The version of this format: `herdlet/v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    /// What this document describes: a job.
    pub kind: JobKind,
    /// Name, namespace and labels.
    pub metadata: Metadata,
    /// The job, in the terms of Nomad's job specification.
    pub spec: JobSpec,
}

/// A document of kind `Volume`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("patternProperties" = {"^x-": true})))]
#[serde(deny_unknown_fields)]
pub struct VolumeManifest {
    /// The version of this format: `herdlet/v1`.
    #[serde(rename = "apiVersion")]
    pub api_version: ApiVersion,
    /// What this document describes: a host volume.
    pub kind: VolumeKindName,
    /// Name and labels.
    pub metadata: VolumeMetadata,
    /// The volume itself.
    pub spec: VolumeSpec,
}

/// The only version.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ApiVersion {
    /// The first version.
    #[default]
    #[serde(rename = "herdlet/v1")]
    V1,
}

/// The kind of a [`JobManifest`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum JobKind {
    /// A job.
    #[default]
    Job,
}

/// The kind of a [`VolumeManifest`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum VolumeKindName {
    /// A host volume.
    #[default]
    Volume,
}

block! {
    /// Identifies the job of a document.
    pub struct Metadata {
        /// The id: 1 to 255 bytes without spaces and control characters.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "job-id")))]
        pub name: String,
        /// The job's namespace: 1 to 128 letters, digits and dashes; default `default`.
        #[cfg_attr(feature = "schema", schemars(extend("x-name" = "namespace")))]
        pub namespace: String,
        /// Labels to select by.
        pub labels: BTreeMap<String, Text>,
        /// Notes for people and tools; stored, but without effect.
        pub annotations: BTreeMap<String, Text>,
    }
}

block! {
    /// Identifies the volume of a document.
    #[cfg_attr(feature = "schema", schemars(extend("x-misplaced" = {
        "namespace": "a volume belongs to the machine, not to a namespace",
    })))]
    pub struct VolumeMetadata {
        /// 1 to 128 bytes without `/`, `\\` and control characters. The name of a volume for a single allocation ends with its index: `"data[0]"`.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-name" = "part")))]
        pub name: String,
        /// Labels to select by.
        pub labels: BTreeMap<String, Text>,
        /// Notes for people and tools; stored, but without effect.
        pub annotations: BTreeMap<String, Text>,
    }
}

/// Converts a map of texts to strings.
fn strings(texts: Option<&BTreeMap<String, Text>>) -> BTreeMap<String, String> {
    texts.into_iter().flatten().map(|(key, text)| (key.clone(), text.0.clone())).collect()
}

/// Converts a map of strings to texts; `None` if it is empty.
fn texts(strings: &BTreeMap<String, String>) -> Option<BTreeMap<String, Text>> {
    non_empty_map(strings.iter().map(|(key, text)| (key.clone(), Text(text.clone()))).collect())
}

/// The map; `None` if it is empty.
fn non_empty_map<K, V>(map: BTreeMap<K, V>) -> Option<BTreeMap<K, V>> {
    (!map.is_empty()).then_some(map)
}

/// The list; `None` if it is empty.
fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// The text; `None` if it is the default.
fn unless(text: &str, default: &str) -> Option<String> {
    (text != default).then(|| text.to_owned())
}
