//! Holds back requests while the agent restores its state, so that no client gets an empty answer.
//!
//! In: a request. Out: the request, once the stored state is available or is known to be unavailable; after some seconds, 503.
//! Probes and metrics are answered at once: they report that the agent is not ready.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{DISCOVERY_PATH, JWKS_PATH, Shared, error::ApiError};

/// Shorter than the timeouts of clients.
const WAIT_MAX: Duration = Duration::from_secs(4);

/// Paths that don't depend on the state.
const AT_ONCE: [&str; 8] = [
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/metrics",
    "/v1/agent/health",
    "/v1/agent/monitor",
    JWKS_PATH,
    DISCOVERY_PATH,
];

/// Paths whose answers report that the state is missing.
const SAYS_SO: [&str; 2] = ["/v1/herdlet/status", "/v1/herdlet/overview"];

pub(super) async fn wait(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if !shared.restored.is_open() && !AT_ONCE.contains(&request.uri().path()) {
        let is_shown = tokio::select! {
            opened = shared.restored.opened() => opened.is_ok(),
            // The disk is full, perhaps until an admin frees space.
            () = shared.requests.until_degraded() => SAYS_SO.contains(&request.uri().path()),
            () = tokio::time::sleep(WAIT_MAX) => false,
        };
        if !is_shown {
            let why = "the agent is still restoring its state; try again in a moment, or see: herdlet status"
                .to_owned();
            return ApiError::Unavailable(why).into_response();
        }
    }
    next.run(request).await
}
