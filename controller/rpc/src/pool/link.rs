//! The way to one server: one connection, dialled where there is none. Knows no list and no call.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    call::Caller,
    error::{CallError, DialError},
};

/// A connection over which nobody has called for so long is not needed, unless the server calls us over it.
pub(super) const IDLE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Link {
    dialled: tokio::sync::Mutex<Dialled>,
    used: Mutex<Instant>,
}

/// What came of dialling the server.
#[derive(Debug)]
enum Dialled {
    /// Nobody has.
    Not,
    /// A connection, which may be lost by now.
    Open(Caller),
    /// It failed. Whoever waited for it meanwhile need not dial again.
    Failed { at: Instant, why: Arc<DialError> },
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { dialled: tokio::sync::Mutex::new(Dialled::Not), used: Mutex::new(Instant::now()) })
    }

    /// The connection, or what comes of `dial`. Whoever comes while it is dialled waits for it.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub(super) async fn caller<F: Future<Output = Result<Caller, DialError>>>(
        &self,
        dial: impl FnOnce() -> F,
    ) -> Result<Caller, CallError> {
        let asked = Instant::now();
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = asked;
        let mut dialled = self.dialled.lock().await;
        match &*dialled {
            Dialled::Open(caller) if caller.mux().lost().is_none() => return Ok(caller.clone()),
            Dialled::Failed { at, why } if *at >= asked => {
                return Err(CallError::Unreachable(Arc::clone(why)));
            }
            Dialled::Open(_) | Dialled::Failed { .. } | Dialled::Not => {}
        }
        // Boxed: calls that wait long over a connection hold no room for making one.
        match Box::pin(dial()).await {
            Ok(caller) => {
                *dialled = Dialled::Open(caller.clone());
                Ok(caller)
            }
            Err(error) => {
                let why = Arc::new(error);
                *dialled = Dialled::Failed { at: Instant::now(), why: Arc::clone(&why) };
                Err(CallError::Unreachable(why))
            }
        }
    }

    /// Takes leave of the server. Where it is dialled just now, whoever dials drops that.
    pub(super) fn close(&self) {
        if let Ok(dialled) = self.dialled.try_lock()
            && let Dialled::Open(caller) = &*dialled
        {
            caller.mux().close();
        }
    }

    /// Whether it was used not long ago.
    pub(super) fn is_used(&self) -> bool {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < IDLE
    }

    /// Whether the server has streams of its own over it, such as somebody's terminal, or it is dialled just now.
    pub(super) fn is_serving(&self) -> bool {
        self.dialled
            .try_lock()
            .map_or(true, |dialled| matches!(&*dialled, Dialled::Open(caller) if caller.mux().is_serving()))
    }

    #[cfg(test)]
    pub(super) async fn mux(&self) -> crate::mux::Mux {
        let Dialled::Open(caller) = &*self.dialled.lock().await else { panic!("a connection") };
        caller.mux().clone()
    }
}
