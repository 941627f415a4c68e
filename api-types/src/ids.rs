//! Identifiers. Newtypes, so that a job id is never taken for an allocation id.

use core::{cmp::Ordering, fmt};
use std_alloc::{string::String, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifies an allocation: a UUID, written in the usual hyphenated form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AllocId(pub Uuid);

/// As bytes are ordered, compared as one number: every table of allocations is searched by it.
impl Ord for AllocId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.as_u128().cmp(&other.0.as_u128())
    }
}

impl PartialOrd for AllocId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl AllocId {
    /// Builds a version-8 UUID from 16 bytes of a hash (RFC 9562 §5.8).
    pub fn from_hash(bytes: [u8; 16]) -> Self {
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The first eight characters, as `NOMAD_SHORT_ALLOC_ID` has them.
    pub fn short(&self) -> String {
        let mut text = std_alloc::format!("{}", self.0);
        text.truncate(8);
        text
    }
}

impl fmt::Display for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Identifies a deployment: a UUID, written in the usual hyphenated form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DeploymentId(pub Uuid);

impl DeploymentId {
    /// Builds a version-8 UUID from 16 bytes of a hash (RFC 9562 §5.8).
    pub fn from_hash(bytes: [u8; 16]) -> Self {
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The first eight characters, as people write it.
    pub fn short(&self) -> String {
        let mut text = std_alloc::format!("{}", self.0);
        text.truncate(8);
        text
    }
}

impl fmt::Display for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for DeploymentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Identifies one agent's state: 16 lower-case hexadecimal characters, drawn once and kept in the state directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub String);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies a job: its namespace and its id. Copied with each event and each record, so that copies share their text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// Nomad namespace; `default` where none is written.
    pub namespace: Arc<str>,
    /// Job id, unique in its namespace.
    pub id: Arc<str>,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if &*self.namespace == "default" {
            f.write_str(&self.id)
        } else {
            write!(f, "{}/{}", self.namespace, self.id)
        }
    }
}
