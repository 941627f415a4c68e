//! Networks of allocations, and their bridge.

use std::sync::Arc;

use axum::{Json, extract::State};
use herdlet_api_types::network::NetworkView;
use herdlet_runtime::off_thread;

use super::{
    Shared,
    error::{ApiError, ApiResult},
};

/// The networks as found now, sorted by the names of their allocations; the bridge comes first.
pub(super) async fn views(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Vec<NetworkView>>> {
    let Some(ports) = shared.requests.ports() else { return Ok(Json(Vec::new())) };
    let allocs = shared.model.allocs();
    let views = off_thread(move || ports.networks().views(&allocs)).await;
    let mut views = views.map_err(|error| ApiError::Failed(format!("inspect the networks: {error}")))?;
    views.sort_by_key(|view| match view {
        NetworkView::Bridge(bridge) => (0, bridge.name.clone()),
        NetworkView::Alloc(alloc) => (1, alloc.name.clone()),
    });
    Ok(Json(views))
}
