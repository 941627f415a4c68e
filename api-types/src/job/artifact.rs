//! `artifacts` of a task: what is fetched into its directory before it starts.

use std_alloc::{collections::BTreeMap, string::String};

use serde::{Deserialize, Serialize};

/// What is fetched from where to where. Every text may hold `${…}`, and may be secret: nothing of it but the bare address is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// The address, in the form of go-getter: `https://host/path.tgz//folder?checksum=…`.
    pub source: String,
    /// What may also stand in the query of the address: `checksum`, `archive`, `filename`; others are sent to the server.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// Header fields of the requests.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// What is made of it.
    #[serde(default)]
    pub mode: ArtifactMode,
    /// Certificates are not verified.
    #[serde(default)]
    pub insecure: bool,
    /// A directory, or with [`ArtifactMode::File`] a file; relative to the task's directory.
    pub destination: String,
    /// The files are to be the task's user's.
    #[serde(default)]
    pub chown: bool,
}

/// What is made of what was fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ArtifactMode {
    /// Archives are unpacked into the destination, all else is a file in it.
    #[default]
    Any,
    /// One file, which is the destination.
    File,
    /// What an archive holds, in the destination.
    Dir,
}

impl ArtifactMode {
    /// Nomad's word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::File => "file",
            Self::Dir => "dir",
        }
    }
}
