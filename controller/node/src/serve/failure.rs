//! Failures of calls, with the texts of Nomad's clients: servers, the command line and the user interface depend on them.

use std::fmt;

use herdlet_api::alloc_ops::error::ApiError;
use herdlet_rpc::{
    codec::{DecodeError, EncodeError},
    error::{MessageError, Refusal},
    framed::{StreamError, StreamFrame},
};

use crate::acl::Denied;

/// Why a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    Denied(Denied),
    /// It can't be done.
    Failed(ApiError),
    /// The method does not exist, or its response cannot be encoded.
    Refusal(Refusal),
    /// The arguments are invalid.
    Arguments(String),
}

/// Why a stream ended. The peer has received the reason if possible.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    /// The peer has gone.
    #[error(transparent)]
    Gone(#[from] MessageError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denied) => denied.fmt(f),
            Self::Failed(error) => error.fmt(f),
            Self::Refusal(refusal) => write!(f, "{refusal:?}"),
            Self::Arguments(why) => f.write_str(why),
        }
    }
}

impl From<Denied> for Failure {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refusal(refusal)
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self::Arguments(format!("failed to {error}"))
    }
}

impl From<EncodeError> for Failure {
    fn from(error: EncodeError) -> Self {
        Self::Refusal(Refusal::Error(format!("failed to {error}")))
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Denied(denied) => Self::Error(denied.to_string()),
            Failure::Refusal(refusal) => refusal,
            Failure::Arguments(why) => Self::Error(why),
            // Stock clients send no code with these errors. The others keep theirs.
            Failure::Failed(error) => match error {
                ApiError::BadRequest(_)
                | ApiError::Conflict(_)
                | ApiError::Forbidden(_)
                | ApiError::NotFound(_) => Self::Error(error.to_string()),
                ApiError::Problems(_)
                | ApiError::TooLarge(_)
                | ApiError::Slow(_)
                | ApiError::NotBuilt(_)
                | ApiError::Unavailable(_)
                | ApiError::Open(_)
                | ApiError::Defect(_)
                | ApiError::Failed(_) => Self::coded(error.code(), error),
            },
        }
    }
}

/// The last frame of a stream: an error, with an HTTP status code.
pub(super) fn last_frame(message: impl fmt::Display, code: Option<u16>) -> StreamFrame {
    let error = StreamError { message: message.to_string(), code: code.map(i64::from) };
    StreamFrame { error: Some(error), payload: Vec::new() }
}
