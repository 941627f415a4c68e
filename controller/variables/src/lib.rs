//! Variables: small secrets and settings of jobs, encrypted on disk, with Nomad's semantics.
//!
//! In: requests of clients and of tasks, a file with keys. Out: variables, an index that grows with every change, an
//! event for each changed path, an audit line for each access. It must not know who may call it: [`access`] is the rule
//! for tasks, which the API of tasks applies.
//!
//! ```text
//!   API, templates ──► service ──► store ──► record ──► <state>/variables/NAMESPACE%2FPATH
//!                        │           │          └─────► keyring ◄── key_file ◄── file, credential, <state>/keys
//!                        └── audit   └── index, changes, leases of locks
//! ```
//!
//! - [`service`]: the calls of the agent, off the runtime's threads; re-encryption and expiry of locks.
//! - [`store`]: the variables of a state directory; every change is durable before it returns.
//! - `record`: the bytes of a variable's file.
//! - [`keyring`], [`key_file`]: keys, and where they come from.
//! - [`rules`]: what a variable may be called and contain.
//! - [`access`]: what a task may read.

pub mod access;
pub mod error;
pub mod key_file;
pub mod keyring;
mod record;
pub mod rules;
pub mod service;
pub mod store;

pub use error::{KeyError, VariableError};
pub use key_file::KeySource;
pub use service::{Actor, Changes, Variables};
pub use store::{Check, LockRequest, Store};
