//! Error responses: a status code and one line of plain text, as in Nomad's API.

pub(super) use crate::alloc_ops::error::{ApiError, ApiResult, unexpected};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use herdlet_api_types::api::{EFFECT_HEADER, EFFECT_OPEN};

impl ApiError {
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        if let Self::Problems(problems) = self {
            return (status, axum::Json(problems)).into_response();
        }
        let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        let mut response = (status, text, self.to_string()).into_response();
        if let Self::Open(_) = self {
            response.headers_mut().insert(EFFECT_HEADER, HeaderValue::from_static(EFFECT_OPEN));
        }
        response
    }
}

pub(super) async fn no_such_resource() -> ApiError {
    ApiError::NotFound("resource not found".to_owned())
}

pub(super) async fn no_such_method() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "Invalid method")
}
