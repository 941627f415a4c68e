//! Images that tasks use or have used.

use std::sync::Arc;

use axum::{Json, extract::State};
use futures_util::future::join_all;
use herdlet_api_types::driver::ImageView;

use super::{Shared, error::ApiResult};

/// The images of all drivers that answer.
pub(super) async fn views(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Vec<ImageView>>> {
    let entries = shared.drivers.entries();
    let drivers = entries.iter().filter_map(|(_, entry)| entry.attached());
    let listed = join_all(drivers.map(|driver| driver.images())).await;
    let mut all: Vec<ImageView> = listed.into_iter().filter_map(Result::ok).flatten().collect();
    for user in all.iter_mut().flat_map(|image| &mut image.used_by) {
        if let Some(view) = shared.model.alloc(&user.alloc) {
            user.alloc_name = view.spec.name();
        }
    }
    Ok(Json(all))
}
