//! The answer to a path without a route: 501 with the missing part of Nomad if Nomad's API has the path, otherwise 404.

use axum::http::Uri;

use super::{error::ApiError, routes};

pub(super) async fn answer(uri: Uri) -> ApiError {
    match routes::missing_feature(uri.path()) {
        Some(feature) => ApiError::not_built(feature),
        None => ApiError::NotFound("resource not found".to_owned()),
    }
}
