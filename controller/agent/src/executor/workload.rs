//! A task of an allocation, as actions refer to it.

use std::sync::Arc;

use herdlet_api_types::{alloc::Allocation, job::Task};
use herdlet_plan::{facts::Facts, network::AllocNetwork};

/// A task of an allocation.
#[derive(Clone)]
pub struct Workload {
    /// The allocation.
    pub alloc: Arc<Allocation>,
    /// The task's index in its group.
    index: usize,
    /// The facts of the network that it shares.
    network: Option<Arc<Facts>>,
}

impl Workload {
    /// The task at `index`.
    pub fn of(alloc: &Arc<Allocation>, index: u16) -> Option<Self> {
        let index = usize::from(index);
        alloc.group()?.tasks.get(index)?;
        Some(Self { alloc: Arc::clone(alloc), index, network: None })
    }

    /// The task with this name.
    pub fn named(alloc: &Arc<Allocation>, name: &str) -> Option<Self> {
        let index = alloc.group()?.tasks.iter().position(|task| task.name == name)?;
        Some(Self { alloc: Arc::clone(alloc), index, network: None })
    }

    /// The same task, in the network of its allocation.
    #[must_use]
    pub fn in_network(self, network: Option<Arc<Facts>>) -> Self {
        Self { network, ..self }
    }

    /// The network that it shares with the other tasks of its allocation; `None` if that uses the machine's.
    pub fn network(&self) -> Option<&AllocNetwork> {
        self.network.as_ref()?.network.as_ref()
    }

    /// Its index in its group.
    pub fn position(&self) -> u16 {
        u16::try_from(self.index).unwrap_or(u16::MAX)
    }

    /// Its specification.
    pub fn task(&self) -> Option<&Task> {
        self.alloc.group()?.tasks.get(self.index)
    }
}
