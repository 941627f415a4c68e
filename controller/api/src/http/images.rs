//! Images that tasks use or have used.

use std::sync::Arc;

use axum::{Json, extract::State};
use futures_util::future::join_all;
use herdlet_api_types::driver::ImageView;
use herdlet_driver::{Availability, DriverError};

use super::{
    Shared,
    error::{ApiError, ApiResult},
};

/// The images of all enabled drivers. A driver whose tasks could not be listed yet has images, too.
pub(super) async fn views(State(shared): State<Arc<Shared>>) -> ApiResult<Json<Vec<ImageView>>> {
    let entries = shared.drivers.entries();
    let enabled = entries.iter().filter(|(_, entry)| entry.availability == Availability::Enabled);
    let listed = enabled.map(async |(name, entry)| {
        let failed = |error: DriverError| {
            ApiError::Failed(format!("list the images of the driver {name}: {}", error.why()))
        };
        entry.driver.images().await.map_err(failed)
    });
    let mut all = Vec::new();
    for images in join_all(listed).await {
        all.extend(images?);
    }
    for user in all.iter_mut().flat_map(|image| &mut image.used_by) {
        if let Some(view) = shared.model.alloc(&user.alloc) {
            user.alloc_name = view.spec.name();
        }
    }
    Ok(Json(all))
}
