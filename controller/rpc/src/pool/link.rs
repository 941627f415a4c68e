//! The connection to one server, dialled on demand. Knows neither the list nor the calls.

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

/// A connection that has not been used for this long is closed, unless the server has open calls over it.
pub(super) const IDLE: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct Link {
    dialled: tokio::sync::Mutex<Dialled>,
    used: Mutex<Instant>,
}

/// The outcome of dialling the server.
#[derive(Debug)]
enum Dialled {
    /// Not dialled yet.
    Not,
    /// A connection, possibly lost by now.
    Open(Caller),
    /// Dialling failed. Callers that waited for it need not dial again.
    Failed { at: Instant, why: Arc<DialError> },
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { dialled: tokio::sync::Mutex::new(Dialled::Not), used: Mutex::new(Instant::now()) })
    }

    /// The open connection, or the result of `dial`. Concurrent callers wait for one dial.
    ///
    /// # Errors
    /// If the server cannot be reached.
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
        // Boxed, so that a call that waits long over an open connection holds no memory for dialling.
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

    /// Closes the connection. If it is being dialled, the dialling caller is expected to drop that.
    pub(super) fn close(&self) {
        if let Ok(dialled) = self.dialled.try_lock()
            && let Dialled::Open(caller) = &*dialled
        {
            caller.mux().close();
        }
    }

    /// Whether it was used recently.
    pub(super) fn is_used(&self) -> bool {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed() < IDLE
    }

    /// Whether the server has open streams over it, such as a terminal session, or it is being dialled.
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
