//! Rendering the templates of tasks, and fetching their secrets: data, files, and watches.
//!
//! In: the templates of a task, with its environment and its directories. Out: files, with a revision for each, or the
//! names of data that is missing; and, when data changes, the tasks that have used it. All tasks with the same query
//! share one watch, but each reads with its own rights. This crate does not know when a task runs, or what a change
//! means for it.
//!
//! - [`renderer`]: the entry: renders all templates of a task in rounds, until all data is there or known to be missing.
//! - [`sources`]: where data comes from: this agent, or
//! - [`servers`]: the servers of a cluster, through the port [`region`].
//! - [`consul`]: keys, services and certificates of a Consul, through the same port.
//! - [`data`]: what tasks share.
//! - [`watches`]: who has used which data, and who is due after a change.
//! - [`vault`]: secrets of Vault, kept with their leases.
//! - [`place`]: files of a task, opened without following links out of its directories.
//! - [`env_file`]: variables from outputs with `env = true`.
//! - [`secrets`]: values of `secret` blocks, and [`plugin`]s that fetch some of them.
//! - [`figures`]: figures about renders, for metrics.

pub mod consul;
pub mod data;
pub mod env_file;
pub mod figures;
mod peers;
pub mod place;
pub mod plugin;
mod record;
pub mod region;
pub mod renderer;
pub mod secrets;
pub mod servers;
pub mod sources;
pub mod vault;
pub mod watches;

pub use consul::{ConsulData, ConsulRegion};
pub use figures::Figures;
pub use region::{AccessToken, Region};
pub use renderer::{DataChange, Recheck, RenderError, Renderer, Rendering, Settings, TaskTemplates};
pub use servers::Following;
pub use sources::{Access, ConsulRights, Reader, Sources};
pub use vault::{OutdatedValues, Upkeep, VaultReader, VaultRights};
pub use watches::{Consumer, TaskKey, Wait};
