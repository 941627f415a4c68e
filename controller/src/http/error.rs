//! How requests fail: a status code and one line of plain text, as Nomad's API does.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use herdlet_plan::event::{Refusal, Reply};

use crate::{
    desired::{sets::SetError, yaml::Problems},
    requests::RequestError,
};

/// Of a request that was answered 503: whether it may still take effect.
pub(crate) const EFFECT_HEADER: &str = "herdlet-effect";
/// It may.
pub(crate) const EFFECT_OPEN: &str = "open";

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// It makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// Manifests with mistakes; all of them, as JSON.
    #[error("{0}")]
    Problems(Problems),
    /// Nobody may see it.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// It can't be done in the present state.
    #[error("{0}")]
    Conflict(String),
    /// The body is too large.
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not come in time.
    #[error("the body did not come within {0} s")]
    Slow(u64),
    /// It will come with a later release.
    #[error("{0}")]
    NotBuilt(String),
    /// The agent can't do it now: it is going down, or its state can't be written. Nothing was changed.
    #[error("{0}")]
    Unavailable(String),
    /// The same, but too late to know that nothing was changed.
    #[error("{0}")]
    Open(String),
    /// A defect of ours, in a whole sentence.
    #[error("{0}")]
    Defect(String),
    /// Something of ours failed.
    #[error("failed to {0}")]
    Failed(String),
}

/// The answer of an endpoint.
pub(super) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::BadRequest(message.into())
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Problems(_) => StatusCode::BAD_REQUEST,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::NotBuilt(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable(_) | Self::Open(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Defect(_) | Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound(why) => Self::NotFound(why),
            Refusal::Conflict(why) => Self::Conflict(why),
            Refusal::Invalid(why) => Self::BadRequest(why),
        }
    }
}

impl From<SetError> for ApiError {
    fn from(error: SetError) -> Self {
        let message = error.to_string();
        match error {
            SetError::Name(_) | SetError::Empty(_) => Self::BadRequest(message),
            SetError::OfAnother { .. } => Self::Conflict(message),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let message = error.to_string();
        match error {
            RequestError::Withheld(_) | RequestError::Down => Self::Unavailable(message),
            RequestError::Open(_) => Self::Open(message),
            RequestError::Owned(_) => Self::Conflict(message),
            RequestError::Lost => Self::Defect(message),
        }
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

/// A planner's answer of a kind that the request can't have.
pub(super) fn unexpected(reply: Reply) -> ApiError {
    match reply {
        Reply::Refused(refusal) => refusal.into(),
        Reply::Accepted { .. }
        | Reply::Applied { .. }
        | Reply::DeploymentFailed { .. }
        | Reply::Dispatched { .. }
        | Reply::Collected { .. }
        | Reply::Explanation(_) => ApiError::Failed("understand the planner's answer".to_owned()),
    }
}

pub(super) async fn no_such_resource() -> ApiError {
    ApiError::NotFound("resource not found".to_owned())
}

pub(super) async fn no_such_method() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "Invalid method")
}
