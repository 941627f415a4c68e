//! The servers' view of the node, derived from heartbeat responses.
//!
//! In: whether a response reports a changed node status, and events between heartbeats. Out: what the response means, and whether to send
//! an extra heartbeat as soon as servers have accepted reports.
//!
//! ```text
//!            ┌── status changed ◄──────────┐
//!            ▼                             │
//!   Changed ─┬─ reports accepted ──► Told ─┼─ answered ──► Steady
//!            └─ nothing to report ─────────┴─ failed ────► Steady
//! ```
//!
//! A status changes in three cases: a node is ready for the first time, it was away, or servers have received the reports that they waited
//! for (since 1.3.10, 1.4.5 and 1.5.0 a node that was away gets no work before that; `hashicorp/nomad:nomad/node_endpoint.go`,
//! `UpdateStatus`). Only the last case is not a loss, so the state machine tracks reports. The clock could not distinguish the cases: it
//! stops while the machine is suspended.

/// Derives the servers' view of the node.
#[derive(Debug, Default)]
pub struct StatusTracker {
    state: State,
    /// Whether a heartbeat was answered before.
    is_known: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Neither side waits for the other.
    #[default]
    Steady,
    /// Servers may wait for reports on allocations: once they have them, send an extra heartbeat.
    Changed,
    /// Servers have the reports: the next response's status change results from that.
    Acknowledged,
}

/// What a heartbeat has done to the node's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// Nothing.
    None,
    /// It has changed it.
    Changed,
}

/// The meaning of a heartbeat response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing has happened, or only the expected change.
    Expected,
    /// The first heartbeat made the node ready or ended its absence: servers may not know the state of its allocations.
    First,
    /// Servers may have marked the node as down in the meantime.
    Lost,
}

impl StatusTracker {
    /// Processes a heartbeat response.
    pub fn on_heartbeat_answer(&mut self, transition: Transition) -> Meaning {
        let is_known = std::mem::replace(&mut self.is_known, true);
        match self.state {
            State::Acknowledged => {
                self.state = State::Steady;
                Meaning::Expected
            }
            State::Steady | State::Changed if transition == Transition::Changed => {
                self.state = State::Changed;
                if is_known { Meaning::Lost } else { Meaning::First }
            }
            State::Steady | State::Changed => Meaning::Expected,
        }
    }

    /// Processes a failed heartbeat. A status change in the next response may then have any cause.
    pub fn failed(&mut self) {
        if self.state == State::Acknowledged {
            self.state = State::Steady;
        }
    }

    /// Whether to wait until servers have accepted reports.
    #[must_use]
    pub fn awaits_reports(&self) -> bool {
        self.state == State::Changed
    }

    /// Servers have accepted the reports.
    pub fn on_updates_acknowledged(&mut self) {
        self.state = State::Acknowledged;
    }

    /// There is nothing to report.
    pub fn on_no_updates(&mut self) {
        if self.state == State::Changed {
            self.state = State::Steady;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_after_reports_is_no_loss_and_any_other_is() {
        let mut standing = StatusTracker::default();
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::First);
        standing.on_no_updates();
        assert_eq!(standing.on_heartbeat_answer(Transition::None), Meaning::Expected);
        assert!(!standing.awaits_reports());
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::Lost);
        // However long the reports take.
        assert_eq!(standing.on_heartbeat_answer(Transition::None), Meaning::Expected);
        assert!(standing.awaits_reports());
        standing.on_updates_acknowledged();
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::Expected, "the node is ready");
        assert_eq!(standing.on_heartbeat_answer(Transition::None), Meaning::Expected);
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::Lost);
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::Lost, "no report was sent");
    }

    #[test]
    fn after_a_failure_nothing_is_expected() {
        let mut standing = StatusTracker::default();
        standing.on_heartbeat_answer(Transition::None);
        standing.on_heartbeat_answer(Transition::Changed);
        standing.on_updates_acknowledged();
        standing.failed();
        assert_eq!(standing.on_heartbeat_answer(Transition::Changed), Meaning::Lost);
        standing.failed();
        assert!(standing.awaits_reports(), "the reports are still outstanding");
    }

    #[test]
    fn ready_node_loses_nothing_at_an_agent_restart() {
        let mut standing = StatusTracker::default();
        assert_eq!(standing.on_heartbeat_answer(Transition::None), Meaning::Expected);
        assert!(!standing.awaits_reports());
    }
}
