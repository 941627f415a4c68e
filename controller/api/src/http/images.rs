//! Images that tasks use or have used, and orders to the store of a driver that keeps images itself.
//!
//! In: orders, archives. Out: lists, and what was done. The answer to a pull is a stream of JSON lines with its progress; it stops
//! when its client disconnects, and the next one continues.

use std::{fs::File, io::Write as _, sync::Arc, time::Duration};

use axum::{Json, body::Body, extract::State, response::Response};
use futures_util::{StreamExt as _, future::join_all};
use herdlet_api_types::{
    driver::ImageView,
    images::{ImagePrune, ImagePull, ImageVerify, PruneReport, PullStep, StoreCheck, StoredImage},
};
use herdlet_driver::{Availability, DriverError, ImageStore};
use herdlet_runtime::off_thread;

use super::{
    Shared, body,
    error::{ApiError, ApiResult},
    stream::{Gone, Pieces, streamed},
};

/// How long a client may send nothing of an archive.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How much of an archive is written at once.
const BLOCK_LEN: usize = 1024 * 1024;

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

/// Pulls an image.
pub(super) async fn pull(
    State(shared): State<Arc<Shared>>,
    body::Json(order): body::Json<ImagePull>,
) -> ApiResult<Response> {
    let store = store(&shared)?;
    if order.image.is_empty() {
        return Err(ApiError::bad("the body names no image: {\"image\": \"redis:7.2\"}"));
    }
    Ok(streamed(&shared, "application/x-ndjson", |pieces| report_pull(store, order.image, pieces)))
}

async fn report_pull(store: Arc<dyn ImageStore>, name: String, pieces: Pieces) -> Result<(), Gone> {
    // A report that finds the client busy is dropped: the next one has more.
    let report = |progress: String| {
        let _ = pieces.try_send(line(&PullStep::Progress(progress)));
    };
    let last = match store.pull(&name, &report).await {
        Ok(image) => PullStep::Image(image),
        Err(error) => PullStep::Error(error.why()),
    };
    pieces.send(line(&last)).await.map_err(|_| Gone)
}

fn line(step: &PullStep) -> Vec<u8> {
    let mut line = serde_json::to_vec(step).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Loads the archive that is the body.
pub(super) async fn load(State(shared): State<Arc<Shared>>, body: Body) -> ApiResult<Json<Vec<StoredImage>>> {
    let store = store(&shared)?;
    let file = receive(store.file().await.map_err(failed)?, body).await?;
    store.load(file).await.map(Json).map_err(failed)
}

async fn receive(mut file: File, body: Body) -> ApiResult<File> {
    let mut pieces = body.into_data_stream();
    let mut block = Vec::new();
    loop {
        let next = tokio::time::timeout(SILENCE_MAX, pieces.next()).await;
        let next = next.map_err(|_| ApiError::Slow(SILENCE_MAX.as_secs()))?;
        let piece = next.transpose();
        let piece =
            piece.map_err(|error| ApiError::bad(format!("the archive could not be read: {error}")))?;
        let is_end = piece.is_none();
        block.extend_from_slice(&piece.unwrap_or_default());
        if is_end || block.len() >= BLOCK_LEN {
            let full = std::mem::take(&mut block);
            let written = off_thread(move || file.write_all(&full).map(|()| file)).await;
            let written = written.map_err(std::io::Error::other).flatten();
            file = written.map_err(|error| ApiError::Failed(format!("write the archive: {error}")))?;
        }
        if is_end {
            return Ok(file);
        }
    }
}

/// Removes images that nobody uses.
pub(super) async fn prune(
    State(shared): State<Arc<Shared>>,
    body::Json(order): body::Json<ImagePrune>,
) -> ApiResult<Json<PruneReport>> {
    store(&shared)?.prune(order).await.map(Json).map_err(failed)
}

/// Compares the layers with what was unpacked.
pub(super) async fn verify(
    State(shared): State<Arc<Shared>>,
    body::Json(order): body::Json<ImageVerify>,
) -> ApiResult<Json<StoreCheck>> {
    store(&shared)?.verify(order.damaged).await.map(Json).map_err(failed)
}

fn store(shared: &Shared) -> ApiResult<Arc<dyn ImageStore>> {
    let entries = shared.drivers.entries();
    let enabled = entries.iter().filter(|(_, entry)| entry.availability == Availability::Enabled);
    let missing = || {
        let why = "no driver of this node keeps images itself: Docker and Podman have their own, so use docker or podman for this; \
                   with drivers: {docker: {engine: builtin}} the agent has them";
        ApiError::Conflict(why.to_owned())
    };
    enabled.filter_map(|(_, entry)| entry.driver.image_store()).next().ok_or_else(missing)
}

fn failed(error: DriverError) -> ApiError {
    ApiError::Failed(error.why())
}
