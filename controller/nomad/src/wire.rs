//! Messages between a node and its servers: requests, responses and their parts.
//!
//! Serde types with Go's field names, for herdlet-rpc's codec. Each type is the superset of all versions from 1.1 to 2.0: peers skip fields
//! that they do not know, and a missing field is the zero value. Must not know who sends a message, or when.
//!
//! Facts: `hashicorp/nomad:nomad/structs/structs.go` and its neighbours, and recordings of stock peers, which the tests compare these with.

pub mod alloc;
pub mod assigned;
pub mod catalogue;
pub mod csi;
pub mod device;
pub mod id;
pub mod job;
pub mod node;
pub mod options;
pub mod queries;
pub mod registration;
pub mod resources;
pub mod secret;
pub mod task;
pub mod words;

pub use alloc::{AllocReport, Allocation};
pub use id::{AllocId, NodeId};
pub use job::Job;
pub use node::{Node, NodeEvent};
pub use options::{QueryMeta, QueryOptions, WriteOptions};
pub use secret::Secret;
pub use task::{TaskEvent, TaskState};
pub use words::{ClientStatus, DesiredStatus, Eligibility, NodeStatus, RunState};

/// Whether a value is the zero value, which Go omits.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A struct of which fields with the zero value are omitted, except those under `always`.
macro_rules! omit_empty {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
    } $(and always { $($(#[$kept_meta:meta])* pub $kept:ident: $kept_type:ty,)* })?) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
        #[serde(default, rename_all = "PascalCase")]
        pub struct $name {
            $($(#[$field_meta])* #[serde(skip_serializing_if = "crate::wire::is_default")] pub $field: $type,)*
            $($($(#[$kept_meta])* pub $kept: $kept_type,)*)?
        }
    };
}
pub(crate) use omit_empty;
