//! Identifiers. They are newtypes, so that a job id can't be confused with an allocation id.

use core::{cmp::Ordering, fmt};
use std_alloc::{string::String, sync::Arc};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::names;

/// A newtype of a UUID in the usual hyphenated form, created from a hash.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// Builds a version-8 UUID from 16 bytes of a hash (RFC 9562 §5.8).
            pub fn from_hash(bytes: [u8; 16]) -> Self {
                Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
            }

            /// The first eight characters, the short form for people.
            pub fn short(&self) -> String {
                let mut text = std_alloc::format!("{}", self.0);
                text.truncate(8);
                text
            }
        }

        /// Ordered by bytes, compared as one number: tables are searched in this order.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.as_u128().cmp(&other.0.as_u128())
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

uuid_id! {
    /// Identifies an allocation.
    AllocId
}

uuid_id! {
    /// Identifies a deployment.
    DeploymentId
}

/// Identifies one agent's state: 16 lower-case hexadecimal characters, generated once and kept in the state directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstanceId(pub String);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies a job by namespace and id. Every event and record contains a copy, so copies share their text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobKey {
    /// Nomad namespace; `default` if none is given.
    pub namespace: Arc<str>,
    /// Job id, unique in its namespace.
    pub id: Arc<str>,
}

impl JobKey {
    /// `NAMESPACE/ID`, with the namespace also where it is the default one.
    pub fn full(&self) -> String {
        std_alloc::format!("{}/{}", self.namespace, self.id)
    }

    /// The job as an argument of a command that a person can copy into a shell.
    pub fn argument(&self) -> String {
        let name = std_alloc::format!("{self}");
        names::shell_word(if name.starts_with('-') { self.full() } else { name })
    }
}

/// The id, after the namespace if it is not the default one.
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if &*self.namespace == "default" {
            f.write_str(&self.id)
        } else {
            write!(f, "{}/{}", self.namespace, self.id)
        }
    }
}
