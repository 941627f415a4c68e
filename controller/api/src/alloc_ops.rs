//! Operations on an allocation on this machine, requested by the local API or through Nomad's servers.
//!
//! In: an allocation and an operation. Out: its files, its logs, a command in one of its tasks, its resource usage; restarts,
//! signals and garbage collection, as requests to the planner. The caller has already been authorized. It must know neither HTTP
//! nor RPC: streaming answers are pieces ([`stream`]), failures are [`error::ApiError`].

pub mod bounds;
pub mod error;
pub mod exec;
pub mod files;
pub mod host;
pub mod lifecycle;
pub mod logs;
pub mod monitor;
mod stamps;
pub(crate) mod stats;
pub mod stream;
mod target;

use std::sync::{Arc, LazyLock};

use herdlet_agent::{gc::Collector, publish::ReadModel, requests::Requests};
use herdlet_base::paths::Paths;
use herdlet_driver::Registry;

use self::bounds::Bounds;

/// The number of processors that this process may use.
pub(crate) static CORES: LazyLock<u64> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64));

/// The parts of the agent that the operations need; cheap to clone.
#[derive(Clone)]
pub struct AllocOps {
    pub model: Arc<ReadModel>,
    pub drivers: Registry,
    pub paths: Paths,
    pub requests: Requests,
    pub gc: Arc<Collector>,
    /// The speed of one core of this machine, in MHz.
    pub core_mhz: u64,
    /// Limits on what callers may occupy.
    pub bounds: Bounds,
}

impl std::fmt::Debug for AllocOps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").field("drivers", &self.drivers).finish_non_exhaustive()
    }
}
