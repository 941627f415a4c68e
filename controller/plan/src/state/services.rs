//! The memory of services: which a catalogue may hold. It is stored, since no catalogue tells it while it is down.

use std_alloc::collections::BTreeSet;

use crate::{op::Part, state::Durable};

impl Durable {
    /// Whether a Consul may hold these services.
    pub fn may_be_held(&self, services: Part) -> bool {
        self.offered.as_ref().is_none_or(|offered| offered.contains(&services))
    }

    /// Nothing was sent to a Consul yet.
    pub(crate) fn begin_offers(&mut self) {
        self.offered = Some(BTreeSet::new());
    }

    /// Nobody knows what was sent to a Consul: it may hold all services.
    pub(crate) fn lose_offers(&mut self) {
        self.offered = None;
    }

    /// From now on a Consul may hold these services.
    pub(crate) fn offer(&mut self, services: Part) {
        if let Some(offered) = &mut self.offered {
            offered.insert(services);
        }
    }

    /// Whether these are services of an older version of the job, where this one has none.
    pub(crate) fn is_retired(&self, services: Part) -> bool {
        self.retired.contains(&services)
    }

    /// The job's version has none of these services any more.
    pub(crate) fn retire(&mut self, services: Part) {
        self.retired.insert(services);
    }

    /// The job's version has these services, or they are taken back.
    pub(crate) fn end_retirement(&mut self, services: Part) {
        self.retired.remove(&services);
    }
}
