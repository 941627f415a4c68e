//! The record of a started attempt, independent of later changes of the facts that it was started with.
//!
//! In: the driver's result of the start, and the revisions of the facts that the attempt has read. Out: the launch
//! record, stored for later agents.

use std_alloc::{collections::BTreeMap, sync::Arc};

pub use herdlet_api_types::driver::Handle;
use serde::{Deserialize, Serialize};

use crate::{
    facts::{Input, Revision},
    network::DriverNetwork,
    op::Part,
};

/// A started attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Its number.
    pub attempt: u32,
    /// Revisions of the facts that it has read, by part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", with = "crate::state::pairs")]
    pub revisions: BTreeMap<Part, Revision>,
    /// The driver's handle, passed back when the attempt is recovered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// The network that its driver created for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<DriverNetwork>,
}

impl Launch {
    /// The record of an attempt about which nothing else is known.
    pub fn of(attempt: u32) -> Self {
        Self { attempt, ..Self::default() }
    }

    /// The record of an attempt that reads these facts.
    pub fn with(attempt: u32, inputs: &[Input]) -> Self {
        let revisions = inputs.iter().map(|input| (input.part, input.facts.revision)).collect();
        Self { revisions, ..Self::of(attempt) }
    }

    /// As stored: `None` if it contains only the number, which the state of the task has.
    pub(crate) fn into_record(self) -> Option<Arc<Self>> {
        (self != Self::of(self.attempt)).then(|| Arc::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::TaskState;

    #[test]
    fn only_what_says_more_than_its_number_is_stored() {
        assert_eq!(Launch::of(3).into_record(), None);
        let handle = Some(Handle { version: 1, state: [7].into() });
        let launch = Launch { handle, ..Launch::of(3) };
        assert_eq!(launch.clone().into_record().as_deref(), Some(&launch));
    }

    #[test]
    fn a_record_is_of_one_attempt() {
        let launch = Some(Arc::new(Launch::of(3)));
        let known = TaskState { attempt: 4, launch, ..TaskState::default() };
        assert_eq!((known.launch_of(3).is_some(), known.launch_of(4).is_some()), (true, false));
    }
}
