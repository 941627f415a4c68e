//! An allocation as the planner reads it: the specification with everything derived from it alone.
//!
//! In: an allocation from a source. Out: the allocation with its required parts and its policy. These are derived once
//! for each change of the allocation, read in each plan, and never stored.

use core::ops::Deref;
use std_alloc::{boxed::Box, sync::Arc};

use herdlet_api_types::alloc::Allocation;

use crate::{
    op::{Part, TaskIndex},
    parts::{AllocNeeds, Need, PartSet},
    policy::Policy,
};

/// An allocation as it is planned.
#[derive(Debug, Clone)]
pub struct AllocSpec {
    allocation: Arc<Allocation>,
    /// `None` if its group could not be read.
    own: Option<AllocNeeds>,
    tasks: Box<[PartSet]>,
    policy: Policy,
}

impl AllocSpec {
    /// Reads an allocation.
    pub fn read(allocation: Arc<Allocation>) -> Self {
        let group = allocation.group();
        let own = group.map(AllocNeeds::of);
        let tasks = group.map_or(&[][..], |group| &group.tasks);
        let tasks = tasks.iter().map(PartSet::needed_by).collect();
        let policy = Policy::of(&allocation);
        Self { allocation, own, tasks, policy }
    }

    /// The allocation as stored and passed on.
    pub fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }

    /// Changes the allocation, and derives the rest again.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Allocation)) {
        change(Arc::make_mut(&mut self.allocation));
        *self = Self::read(Arc::clone(&self.allocation));
    }

    /// The rules that depend on its owner.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The parts that a task needs.
    pub(crate) fn task_parts(&self, task: TaskIndex) -> PartSet {
        self.tasks.get(usize::from(task)).copied().unwrap_or_default()
    }

    /// Whether the allocation needs the part.
    pub(crate) fn need(&self, part: Part) -> Need {
        let own = |need: fn(&AllocNeeds) -> Need| self.own.as_ref().map_or(Need::Unneeded, need);
        match part {
            Part::Dir => own(|needs| needs.dir),
            Part::Network => own(|needs| needs.network),
            Part::Services => own(|needs| needs.services),
            Part::Checks => own(|needs| needs.checks),
            Part::Task(index, part) => self.task_parts(index).need(part),
        }
    }
}

impl Deref for AllocSpec {
    type Target = Allocation;

    fn deref(&self) -> &Allocation {
        &self.allocation
    }
}
