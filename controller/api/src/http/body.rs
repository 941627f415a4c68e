//! Request bodies: JSON, bounded in size and in time.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{FromRequest, Request},
};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;

/// The largest body; a larger manifest is a mistake.
pub(super) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// How long a body may take. Most arrive with the header; this bounds what a stalled client can occupy.
const BODY_SECONDS_MAX: u64 = 30;

/// A JSON body; an empty body is an empty object. The content type is ignored, because `curl -d` sends a wrong
/// one.
pub(super) struct Json<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let reading = read(request.into_body());
        let limit = Duration::from_secs(BODY_SECONDS_MAX);
        let bytes =
            tokio::time::timeout(limit, reading).await.map_err(|_| ApiError::Slow(BODY_SECONDS_MAX))??;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let invalid = |error| ApiError::bad(format!("the body is not valid for this endpoint: {error}"));
        let mut body: Value = serde_json::from_slice(bytes).map_err(invalid)?;
        drop_nulls(&mut body);
        serde_json::from_value(body).map(Self).map_err(invalid)
    }
}

/// Removes the fields that are null: for Nomad they are the same as absent, and clients send them. Jobs, and the items of
/// variables, have rules of their own.
fn drop_nulls(body: &mut Value) {
    let Some(fields) = body.as_object_mut() else { return };
    fields.retain(|_, value| !value.is_null());
    for (_, value) in fields.iter_mut().filter(|(name, _)| !matches!(name.as_str(), "Job" | "Items")) {
        drop_nulls(value);
    }
}

async fn read(body: Body) -> Result<Vec<u8>, ApiError> {
    let mut pieces = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| ApiError::bad(format!("the body could not be read: {error}")))?;
        if bytes.len() + piece.len() > BODY_BYTES_MAX {
            return Err(ApiError::TooLarge(BODY_BYTES_MAX));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
