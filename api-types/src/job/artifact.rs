//! `artifacts` of a task: downloads into its directory before it starts.

use std_alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

/// An artifact. Every text may contain `${…}` and secrets: only the bare address may be shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The address in go-getter's form: `https://host/path.tgz//folder?checksum=…`.
    pub source: String,
    /// Options that may also be in the address's query: `checksum`, `archive`, `filename`; others are sent to the
    /// server.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Header fields of the requests.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How to process the download.
    #[serde(default)]
    pub mode: ArtifactMode,
    /// Don't verify certificates.
    #[serde(default)]
    pub insecure: bool,
    /// A directory, or with [`ArtifactMode::File`] a file; relative to the task's directory.
    pub destination: String,
    /// Whether the files should belong to the task's user.
    #[serde(default)]
    pub chown: bool,
}

/// How a download is processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ArtifactMode {
    /// Archives are unpacked into the destination; any other download is a file in it.
    #[default]
    Any,
    /// A single file at the destination.
    File,
    /// The contents of an archive in the destination.
    Dir,
}

impl ArtifactMode {
    /// Nomad's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::File => "file",
            Self::Dir => "dir",
        }
    }
}
