//! Whether this node takes new allocations, and its drain: set by requests, stored, kept over restarts.

use std_alloc::{format, string::String, vec::Vec};

use herdlet_api_types::{
    Duration, UnixNanos,
    view::{DrainView, LastDrain, NodeView, Reason, Unplaced},
};
use serde::{Deserialize, Serialize};

use crate::time::{Deadline, Now};

/// Stored state of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// It takes no new allocations.
    #[serde(default)]
    pub ineligible: bool,
    /// The drain in progress.
    #[serde(default)]
    pub drain: Option<Drain>,
    /// The last drain, which may be the one in progress.
    #[serde(default)]
    pub last_drain: Option<LastDrain>,
    /// The commit of the last change; 0 if there was none.
    #[serde(default)]
    pub modify_index: u64,
}

/// A drain: the allocations of this node are stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// When all remaining allocations are stopped.
    pub until: DrainLimit,
    /// Whether allocations of system jobs continue.
    pub ignore_system: bool,
    /// When it began.
    pub started_at: UnixNanos,
}

/// When the rules of a drain no longer apply and everything is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainLimit {
    /// Never.
    None,
    /// At once.
    Now,
    /// At this time.
    At(Deadline),
}

impl DrainLimit {
    /// The limit for a deadline in Nomad's form: a negative one means at once, 0 means never.
    pub fn of(now: Now, deadline: Duration) -> Self {
        match deadline.as_nanos() {
            0 => Self::None,
            nanos if nanos < 0 => Self::Now,
            _ => Self::At(Deadline::after(now, deadline)),
        }
    }

    /// Whether everything is stopped now.
    pub fn is_due(self, now: Now) -> bool {
        match self {
            Self::None => false,
            Self::Now => true,
            Self::At(deadline) => deadline.is_due(now),
        }
    }

    /// When everything is stopped, if that is ahead.
    pub fn wake_ns(self, now: Now) -> Option<u64> {
        match self {
            Self::At(deadline) if !deadline.is_due(now) => Some(deadline.due_ns(now)),
            Self::None | Self::Now | Self::At(_) => None,
        }
    }
}

impl NodeState {
    /// Binds its deadline to this boot.
    pub(crate) fn rebase(&mut self, now: Now) {
        if let Some(Drain { until: DrainLimit::At(deadline), .. }) = &mut self.drain {
            *deadline = deadline.rebased(now);
        }
    }

    /// Whether nothing was ever set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Why new allocations are not placed; `None` if they are.
    pub(crate) fn held(&self) -> Option<Unplaced> {
        let why = match (&self.drain, self.ineligible) {
            (Some(_), _) => "it is being drained; to end that: herdlet drain --disable",
            (None, true) => "it is ineligible; to change that: herdlet eligibility --enable",
            (None, false) => return None,
        };
        let message = format!("this node takes no new allocations, because {why}");
        Some(Unplaced { reason: Reason::Constraint, message, filtered_by: Vec::new(), exhausted: Vec::new() })
    }

    /// The state as shown.
    pub fn view(&self) -> NodeView {
        NodeView {
            eligible: !self.ineligible && self.drain.is_none(),
            drain: self.drain.as_ref().map(|drain| {
                let (deadline, force_at) = match drain.until {
                    DrainLimit::None => (Duration(0), None),
                    DrainLimit::Now => (Duration(-1), None),
                    DrainLimit::At(deadline) => (deadline.length, Some(deadline.wall)),
                };
                DrainView {
                    deadline,
                    force_at,
                    ignore_system: drain.ignore_system,
                    started_at: drain.started_at,
                }
            }),
            last_drain: self.last_drain.clone(),
            modify_index: self.modify_index,
        }
    }
}

/// What a request for a drain contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainRequest {
    /// Nomad's deadline: negative for at once, 0 for none.
    pub deadline: Duration,
    /// Whether allocations of system jobs continue.
    pub ignore_system: bool,
}

/// The text of a refused change.
pub(crate) const DRAINING: &str = "can't set node's scheduling eligibility to eligible while it is draining";

/// Why an allocation is stopped by a drain.
pub(crate) fn reason() -> String {
    String::from(herdlet_api_types::alloc::DRAINED)
}
