//! What people do with an allocation on this machine, whichever way they ask: by the local API, or through Nomad's servers.
//!
//! In: an allocation, and what is wanted of it. Out: its files, its logs, a command in one of its tasks, what it uses; restarts, signals
//! and collecting, asked of the planner. Whether somebody may was settled before. It must know neither HTTP nor RPC: what goes on is told in
//! pieces ([`stream`]), what fails as an [`error::ApiError`].

pub mod bounds;
pub mod error;
pub mod exec;
pub mod files;
pub mod host;
pub mod lifecycle;
pub mod logs;
pub mod monitor;
pub(crate) mod stats;
pub mod stream;
mod target;

use std::sync::{Arc, LazyLock};

use herdlet_agent::{gc::Collector, publish::ReadModel, requests::Requests};
use herdlet_base::paths::Paths;
use herdlet_driver::Registry;

use self::bounds::Bounds;

/// How many processors this machine has for us.
pub(crate) static CORES: LazyLock<u64> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64));

/// What of the agent is needed for it; cheap to clone.
#[derive(Clone)]
pub struct Reach {
    pub model: Arc<ReadModel>,
    pub drivers: Registry,
    pub paths: Paths,
    pub requests: Requests,
    /// Collects what has ended.
    pub gc: Arc<Collector>,
    /// What one core of this machine does, in MHz.
    pub core_mhz: u64,
    /// How much callers may occupy.
    pub bounds: Bounds,
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").field("drivers", &self.drivers).finish_non_exhaustive()
    }
}
