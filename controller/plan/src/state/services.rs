//! The state of services: which of them a catalogue may hold. It is stored, because an unreachable catalogue can't
//! report it.

use std_alloc::collections::BTreeSet;

use crate::{op::Part, state::Durable};

impl Durable {
    /// Whether a Consul may hold these services.
    pub fn may_be_held(&self, services: Part) -> bool {
        self.offered.as_ref().is_none_or(|offered| offered.contains(&services))
    }

    /// Records that nothing was sent to a Consul yet.
    pub(crate) fn begin_offers(&mut self) {
        self.offered = Some(BTreeSet::new());
    }

    /// Records that it is unknown what was sent to a Consul: it may hold all services.
    pub(crate) fn lose_offers(&mut self) {
        self.offered = None;
    }

    /// Records that a Consul may hold these services from now on.
    pub(crate) fn offer(&mut self, services: Part) {
        if let Some(offered) = &mut self.offered {
            offered.insert(services);
        }
    }

    /// Whether these are services of an older version of the job that the current version does not have.
    pub(crate) fn is_retired(&self, services: Part) -> bool {
        self.retired.contains(&services)
    }

    /// Records that the job's version no longer has these services.
    pub(crate) fn retire(&mut self, services: Part) {
        self.retired.insert(services);
    }

    /// Records that the job's version has these services again, or that they are deregistered.
    pub(crate) fn end_retirement(&mut self, services: Part) {
        self.retired.remove(&services);
    }
}
