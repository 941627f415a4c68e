//! While an agent restores its state nobody is told that there is nothing.
//!
//! In: a request. Out: the same once what was stored is shown, or once it is known that this can't be; after some seconds, 503.
//! Probes and metrics are answered at once: they say that the agent is not ready.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{JWKS_PATH, Shared, error::ApiError};

/// Less than the patience of clients.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// What does not depend on the state.
const AT_ONCE: [&str; 7] =
    ["/healthz", "/readyz", "/metrics", "/v1/metrics", "/v1/agent/health", "/v1/agent/monitor", JWKS_PATH];

pub(super) async fn wait(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if !shared.restored.is_open() && !AT_ONCE.contains(&request.uri().path()) {
        let is_shown = tokio::select! {
            opened = shared.restored.opened() => opened.is_ok(),
            () = shared.requests.until_degraded() => true,
            () = tokio::time::sleep(WAIT_MAX) => false,
        };
        if !is_shown {
            let why = "the agent is restoring its state; ask again in a moment".to_owned();
            return ApiError::Unavailable(why).into_response();
        }
    }
    next.run(request).await
}
