//! Collects node events and sends them in one call.

use std::{collections::VecDeque, time::Duration};

use herdlet_rpc::pool::{Chance, jitter};
use tokio::time::Instant;

use crate::wire::NodeEvent;

/// Maximum number of waiting events; beyond it the oldest are dropped.
const KEPT: usize = 10;

/// Each event delays the call by this, plus up to the same again at random.
const QUIET: Duration = Duration::from_secs(5);

/// The longest time that an event waits for others.
const LATEST: Duration = Duration::from_secs(60);

/// The waiting events.
#[derive(Debug, Default)]
pub struct Events {
    waiting: VecDeque<NodeEvent>,
    first: Option<Instant>,
    due: Option<Instant>,
}

impl Events {
    /// Adds an event.
    pub fn add(&mut self, event: NodeEvent, now: Instant, chance: &mut Chance) {
        self.waiting.push_back(event);
        if self.waiting.len() > KEPT {
            self.waiting.pop_front();
        }
        let first = *self.first.get_or_insert(now);
        self.due = Some((now + jitter(QUIET, chance)).min(first + LATEST));
    }

    /// When to send the events; `None` if there are none.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes all waiting events.
    pub fn take(&mut self) -> Vec<NodeEvent> {
        (self.first, self.due) = (None, None);
        self.waiting.drain(..).collect()
    }

    /// Puts back events whose call failed. If there are too many, the oldest are dropped.
    pub fn failed(&mut self, events: Vec<NodeEvent>, now: Instant, chance: &mut Chance) {
        let room = KEPT.saturating_sub(self.waiting.len());
        let drop = events.len().saturating_sub(room);
        for event in events.into_iter().skip(drop).rev() {
            self.waiting.push_front(event);
        }
        self.first = Some(now);
        self.due = Some(now + jitter(QUIET, chance));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: usize) -> NodeEvent {
        NodeEvent { message: number.to_string(), ..NodeEvent::default() }
    }

    #[test]
    fn events_are_batched_within_a_limit() {
        let (mut events, mut chance, now) = (Events::default(), Chance::of(1), Instant::now());
        assert_eq!(events.due(), None);
        for second in 0..100 {
            events.add(event(second), now + Duration::from_secs(second as u64), &mut chance);
            assert!(events.due().unwrap() <= now + LATEST);
        }
        let taken = events.take();
        let messages: Vec<_> = taken.iter().map(|event| &event.message[..]).collect();
        assert_eq!(messages, ["90", "91", "92", "93", "94", "95", "96", "97", "98", "99"]);
        assert!(events.due().is_none() && events.take().is_empty());
        events.add(event(100), now, &mut chance);
        events.failed(taken, now, &mut chance);
        let messages: Vec<_> = events.take().into_iter().map(|event| event.message).collect();
        assert_eq!((messages.len(), &messages[0][..], &messages[9][..]), (10, "91", "100"));
    }
}
