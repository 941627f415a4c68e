//! What is answered on a path that has no route here: 501 where Nomad's API has it, with the part of Nomad that is missing, and
//! otherwise 404.

use axum::http::Uri;

use super::{error::ApiError, routes};

/// The answer for a path that has no route.
pub(super) async fn answer(uri: Uri) -> ApiError {
    match routes::missing_feature(uri.path()) {
        Some(feature) => ApiError::NotBuilt(format!("{feature}: this part of Nomad's API is not built")),
        None => ApiError::NotFound("resource not found".to_owned()),
    }
}
