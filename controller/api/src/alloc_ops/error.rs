//! Errors of requests, for every interface: one line of plain text, and an HTTP status code.

use herdlet_agent::requests::RequestError;
use herdlet_manifest::{sets::SetError, yaml::Problems};
use herdlet_plan::event::{Refusal, Reply};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The request is invalid.
    #[error("{0}")]
    BadRequest(String),
    /// Manifests with errors; all of them, as JSON.
    #[error("{0}")]
    Problems(Problems),
    /// No caller may read it.
    #[error("{0}")]
    Forbidden(String),
    #[error("{0}")]
    NotFound(String),
    /// The present state does not permit it.
    #[error("{0}")]
    Conflict(String),
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    /// The body did not arrive in time.
    #[error("the body did not arrive within {0} s")]
    Slow(u64),
    /// Not implemented in this release.
    #[error("{0}")]
    NotBuilt(String),
    /// The agent can't do it now: it is shutting down, or its state can't be stored. Nothing was
    /// changed.
    #[error("{0}")]
    Unavailable(String),
    /// The same, but the change may still take effect.
    #[error("{0}")]
    Open(String),
    /// A bug in herdlet, as a whole sentence.
    #[error("{0}")]
    Defect(String),
    /// An operation of the agent failed. Reads after "failed to".
    #[error("failed to {0}")]
    Failed(String),
}

/// The answer of an endpoint.
pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub fn bad(message: impl Into<String>) -> Self {
        Self::BadRequest(message.into())
    }

    /// For a part of Nomad's API that is not built.
    pub fn not_built(feature: &str) -> Self {
        Self::NotBuilt(format!("not supported: {feature}"))
    }

    /// The HTTP status code.
    pub fn code(&self) -> u16 {
        match self {
            Self::BadRequest(_) | Self::Problems(_) => 400,
            Self::Forbidden(_) => 403,
            Self::NotFound(_) => 404,
            Self::Slow(_) => 408,
            Self::Conflict(_) => 409,
            Self::TooLarge(_) => 413,
            Self::Defect(_) | Self::Failed(_) => 500,
            Self::NotBuilt(_) => 501,
            Self::Unavailable(_) | Self::Open(_) => 503,
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

/// The error for a reply from the planner that does not fit the request.
pub(crate) fn unexpected(reply: Reply) -> ApiError {
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
