//! Gates: "nothing is removed before the first complete list was seen", and "the agent is ready".
//!
//! [`Ready`] is a plain value for worlds (pure, no waiting); [`Gate`] is awaited by the shell. Neither knows what the
//! lists hold.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// Which sources of desired state have shown their first complete list.
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
    /// Registers a source whose first complete list is awaited from now on, also when it was seen before (a source that
    /// starts over, such as after a rebuilt database).
    pub fn register(&mut self, source: S) {
        self.sources.insert(source, FirstList::Awaited);
    }

    /// Notes that `source` has shown a complete list. A source that never registered counts too.
    pub fn complete(&mut self, source: S) {
        self.sources.insert(source, FirstList::Seen);
    }

    /// Forgets a source that will never speak again.
    pub fn unregister(&mut self, source: &S) {
        self.sources.remove(source);
    }

    /// Whether `source` has shown its first complete list: only then may what it does not list be removed.
    #[must_use]
    pub fn has_seen(&self, source: &S) -> bool {
        self.sources.get(source) == Some(&FirstList::Seen)
    }

    /// Whether every registered source has shown its list. Without any source nothing is known, so it is false.
    #[must_use]
    pub fn has_seen_all(&self) -> bool {
        !self.sources.is_empty() && self.missing().next().is_none()
    }

    /// The sources still awaited, in order.
    pub fn missing(&self) -> impl Iterator<Item = &S> {
        self.sources.iter().filter(|(_, list)| **list == FirstList::Awaited).map(|(source, _)| source)
    }
}

/// A gate that opens once and can be awaited by any number of clones.
#[derive(Debug, Clone)]
pub struct Gate {
    open: watch::Receiver<bool>,
}

/// Opens its [`Gate`]. Dropped without opening, the gate stays closed for good.
#[derive(Debug)]
pub struct GateOpener {
    open: watch::Sender<bool>,
}

/// The gate's opener went away without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("wait for a gate which will never open")]
pub struct NeverOpens;

impl Gate {
    /// A closed gate.
    #[must_use]
    pub fn closed() -> (GateOpener, Self) {
        let (sender, receiver) = watch::channel(false);
        (GateOpener { open: sender }, Self { open: receiver })
    }

    /// A gate that has been open ever since.
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
    ///
    /// # Errors
    /// [`NeverOpens`] when the opener is gone and the gate is closed.
    pub async fn opened(&self) -> Result<(), NeverOpens> {
        self.open.clone().wait_for(|open| *open).await.map(drop).map_err(|_| NeverOpens)
    }
}

impl GateOpener {
    /// Opens the gate for good.
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
        assert!(!ready.has_seen_all(), "no source, no knowledge");
        ready.register("files");
        ready.register("server");
        ready.complete("files");
        assert!(ready.has_seen(&"files") && !ready.has_seen(&"server") && !ready.has_seen_all());
        assert_eq!(ready.missing().collect::<Vec<_>>(), [&"server"]);
        ready.complete("server");
        assert!(ready.has_seen_all());
        ready.register("files");
        assert!(!ready.has_seen_all(), "a source that starts over is awaited again");
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
