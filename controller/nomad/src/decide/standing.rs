//! How the node stands with its servers, as the answers to its heartbeats tell.
//!
//! In: whether an answer says that the node's status has changed, and what happened between heartbeats. Out: what that means, and whether
//! to send one more heartbeat as soon as servers have taken reports.
//!
//! ```text
//!            ┌── status changed ◄──────────────┐
//!            ▼                                 │
//!   Changed ─┬─ servers took reports ──► Told ─┼─ answered ──► Steady
//!            └─ there is nothing to tell ──────┴─ failed ────► Steady
//! ```
//!
//! A status changes when a node is ready for the first time, when it was away, and once servers that waited to hear of its allocations have
//! heard: from 1.3.10, 1.4.5 and 1.5.0 on a node that was away gets no work before (`hashicorp/nomad:nomad/node_endpoint.go`,
//! `UpdateStatus`). Only the last is no loss, and so what follows a report is told apart. The clock would tell nothing: it stands still
//! while the machine is suspended.

/// What servers make of the node.
#[derive(Debug, Default)]
pub struct Standing {
    state: State,
    /// A heartbeat was answered.
    is_known: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is owed to either side.
    #[default]
    Steady,
    /// Servers may wait to hear of allocations: with the next reports there is one more heartbeat.
    Changed,
    /// They have heard: a change that the next answer tells of is that.
    Told,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Nothing has happened, or what was to.
    Expected,
    /// The node is ready, or no longer away, at the first heartbeat: servers may know nothing of what goes on.
    First,
    /// Servers may have taken the node for dead meanwhile.
    Lost,
}

impl Standing {
    /// A heartbeat was answered, by an answer that says that the status `has_changed` or not.
    pub fn answered(&mut self, has_changed: bool) -> Meaning {
        let is_known = std::mem::replace(&mut self.is_known, true);
        match self.state {
            State::Told => {
                self.state = State::Steady;
                Meaning::Expected
            }
            State::Steady | State::Changed if has_changed => {
                self.state = State::Changed;
                if is_known { Meaning::Lost } else { Meaning::First }
            }
            State::Steady | State::Changed => Meaning::Expected,
        }
    }

    /// A heartbeat failed. What changes until the next one is answered may be anything.
    pub fn failed(&mut self) {
        if self.state == State::Told {
            self.state = State::Steady;
        }
    }

    /// Whether the next reports that servers take are waited for.
    #[must_use]
    pub fn awaits_reports(&self) -> bool {
        self.state == State::Changed
    }

    /// Servers have taken them.
    pub fn told(&mut self) {
        self.state = State::Told;
    }

    /// There is nothing to tell.
    pub fn has_nothing_to_tell(&mut self) {
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
        let mut standing = Standing::default();
        assert_eq!(standing.answered(true), Meaning::First);
        standing.has_nothing_to_tell();
        assert_eq!(standing.answered(false), Meaning::Expected);
        assert!(!standing.awaits_reports());
        assert_eq!(standing.answered(true), Meaning::Lost);
        // However long reports take.
        assert_eq!(standing.answered(false), Meaning::Expected);
        assert!(standing.awaits_reports());
        standing.told();
        assert_eq!(standing.answered(true), Meaning::Expected, "it is ready");
        assert_eq!(standing.answered(false), Meaning::Expected);
        assert_eq!(standing.answered(true), Meaning::Lost);
        assert_eq!(standing.answered(true), Meaning::Lost, "before anything was told");
    }

    #[test]
    fn after_a_failure_nothing_is_expected() {
        let mut standing = Standing::default();
        standing.answered(false);
        standing.answered(true);
        standing.told();
        standing.failed();
        assert_eq!(standing.answered(true), Meaning::Lost);
        standing.failed();
        assert!(standing.awaits_reports(), "they are owed all the same");
    }

    #[test]
    fn who_was_ready_before_its_agent_began_anew_has_lost_nothing() {
        let mut standing = Standing::default();
        assert_eq!(standing.answered(false), Meaning::Expected);
        assert!(!standing.awaits_reports());
    }
}
