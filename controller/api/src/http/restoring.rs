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

/// What says itself that the state is not there yet.
const SAYS_SO: [&str; 2] = ["/v1/herdlet/status", "/v1/herdlet/overview"];

pub(super) async fn wait(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    if !shared.restored.is_open() && !AT_ONCE.contains(&request.uri().path()) {
        let is_shown = tokio::select! {
            opened = shared.restored.opened() => opened.is_ok(),
            // It may take until somebody makes room.
            () = shared.requests.until_degraded() => SAYS_SO.contains(&request.uri().path()),
            () = tokio::time::sleep(WAIT_MAX) => false,
        };
        if !is_shown {
            let why =
                "the agent is restoring its state and can't say yet; ask again in a moment, or see: herdlet status"
                    .to_owned();
            return ApiError::Unavailable(why).into_response();
        }
    }
    next.run(request).await
}
