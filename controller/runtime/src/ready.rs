//! Gates: the first commit was made, the agent is ready.

use tokio::sync::watch;

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
