//! Gates: "nothing is removed before the first complete list was received", and "the agent is ready".
//!
//! [`Ready`] is a plain value for worlds (pure, no waiting); the shell awaits [`Gate`]. Neither knows the content of
//! the lists.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// Tracks which sources of desired state have delivered their first complete list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready<S> {
    sources: BTreeMap<S, FirstList>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstList {
    Awaited,
    Seen,
}

impl<S: Ord> Default for Ready<S> {
    fn default() -> Self {
        Self { sources: BTreeMap::new() }
    }
}

impl<S: Ord> Ready<S> {
    /// Registers a source whose first complete list is pending, even if an earlier one was received (a source that
    /// starts over, such as after its database was rebuilt).
    pub fn register(&mut self, source: S) {
        self.sources.insert(source, FirstList::Awaited);
    }

    /// Records that `source` has delivered a complete list, even if it was never registered.
    pub fn complete(&mut self, source: S) {
        self.sources.insert(source, FirstList::Seen);
    }

    /// Forgets a source that will deliver no more lists.
    pub fn unregister(&mut self, source: &S) {
        self.sources.remove(source);
    }

    /// Whether `source` has delivered its first complete list. Only then may objects that it does not list be
    /// removed.
    #[must_use]
    pub fn has_seen(&self, source: &S) -> bool {
        self.sources.get(source) == Some(&FirstList::Seen)
    }

    /// Whether every registered source has delivered its list; `false` without any source.
    #[must_use]
    pub fn has_seen_all(&self) -> bool {
        !self.sources.is_empty() && self.missing().next().is_none()
    }

    /// The sources whose list is pending, in order.
    pub fn missing(&self) -> impl Iterator<Item = &S> {
        self.sources.iter().filter(|(_, list)| **list == FirstList::Awaited).map(|(source, _)| source)
    }
}

/// A gate that opens once and can be awaited by any number of clones.
#[derive(Debug, Clone)]
pub struct Gate {
    open: watch::Receiver<bool>,
}

/// Opens its [`Gate`]. If it is dropped without opening, the gate stays closed.
#[derive(Debug)]
pub struct GateOpener {
    open: watch::Sender<bool>,
}

/// The opener was dropped without opening the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wait for a gate that will never open")]
pub struct NeverOpens;

impl Gate {
    /// Creates a closed gate.
    #[must_use]
    pub fn closed() -> (GateOpener, Self) {
        let (sender, receiver) = watch::channel(false);
        (GateOpener { open: sender }, Self { open: receiver })
    }

    /// Creates an open gate.
    #[must_use]
    pub fn opened_before() -> Self {
        let (opener, gate) = Self::closed();
        opener.open();
        gate
    }

    /// Whether the gate is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Waits until the gate is open.
    /// # Errors
    /// [`NeverOpens`] when the opener was dropped and the gate is closed.
    pub async fn opened(&self) -> Result<(), NeverOpens> {
        self.open.clone().wait_for(|open| *open).await.map(drop).map_err(|_| NeverOpens)
    }
}

impl GateOpener {
    /// Opens the gate permanently.
    pub fn open(self) {
        self.open.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_may_be_removed_before_the_first_complete_list() {
        let mut ready = Ready::default();
        assert!(!ready.has_seen_all(), "nothing is known without a source");
        ready.register("files");
        ready.register("server");
        ready.complete("files");
        assert!(ready.has_seen(&"files") && !ready.has_seen(&"server") && !ready.has_seen_all());
        assert_eq!(ready.missing().collect::<Vec<_>>(), [&"server"]);
        ready.complete("server");
        assert!(ready.has_seen_all());
        ready.register("files");
        assert!(!ready.has_seen_all(), "a source that starts over is pending again");
        ready.unregister(&"files");
        assert!(ready.has_seen_all());
    }

    #[tokio::test]
    async fn a_gate_opens_once_for_all() {
        let (opener, gate) = Gate::closed();
        let waiting = gate.clone();
        let waiter = tokio::spawn(async move { waiting.opened().await });
        tokio::task::yield_now().await;
        assert!(!gate.is_open() && !waiter.is_finished());
        opener.open();
        assert!(matches!(waiter.await, Ok(Ok(()))));
        assert!(gate.is_open());
        assert_eq!(gate.opened().await, Ok(()), "stays open after the opener is gone");
    }

    #[tokio::test]
    async fn an_abandoned_gate_is_an_error() {
        let (opener, gate) = Gate::closed();
        drop(opener);
        assert_eq!(gate.opened().await, Err(NeverOpens));
    }
}
