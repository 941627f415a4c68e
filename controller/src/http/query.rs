//! Query parameters that many endpoints share, and blocking queries: a read with `index` waits until something was committed
//! after it, at most for `wait`; the answer names the index it was read at.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequestParts, Query},
    http::{HeaderName, request::Parts},
    response::{IntoResponse, Response},
};
use herdlet_api_types::{JobKey, parse_duration};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use super::{Shared, error::ApiError};

/// How long a blocking query waits where it doesn't say, as in Nomad.
const WAIT_DEFAULT: Duration = Duration::from_secs(300);
/// The longest it may wait.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The index at which an answer was read.
const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
/// Whether it came from a leader's state; ours always does.
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
/// How old it may be, in milliseconds.
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");

/// Parameters of reads.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Read {
    #[serde(default, deserialize_with = "from_text")]
    index: u64,
    wait: Option<String>,
    namespace: Option<String>,
    /// Only ids that begin with this.
    #[serde(default)]
    pub(super) prefix: String,
}

impl Read {
    /// The job of that id in the namespace asked for.
    pub(super) fn job(&self, id: String) -> JobKey {
        JobKey { namespace: self.namespace().into(), id: id.into() }
    }

    /// Whether something in `namespace` is asked for. `*` means all.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.namespace() == "*" || self.namespace() == namespace
    }

    pub(super) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

impl Shared {
    /// Waits as a blocking query asks for. Read the model only after this.
    pub(super) async fn await_index(&self, read: &Read) -> Result<(), ApiError> {
        let wait = match read.wait.as_deref() {
            None | Some("") => WAIT_DEFAULT,
            Some(text) => {
                let nanos = parse_duration(text).map_err(|error| ApiError::bad(format!("wait: {error}")))?;
                Duration::from_nanos(nanos.max(0).unsigned_abs()).min(WAIT_MAX)
            }
        };
        if read.index > 0 {
            tokio::select! {
                _ = self.model.wait_beyond(read.index, wait) => {}
                () = self.closing.cancelled() => {}
            }
        }
        Ok(())
    }

    /// An answer with the index it was read at. `look` runs after the index was taken, so it shows no less.
    pub(super) async fn answer<T: Serialize>(
        self: &Arc<Self>,
        read: &Read,
        look: impl FnOnce(&Self) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        self.await_index(read).await?;
        // Never 0: a query with index 0 would not block.
        let index = self.model.index().max(1);
        let body = look(self)?;
        let headers =
            [(INDEX, index.to_string()), (KNOWN_LEADER, "true".to_owned()), (LAST_CONTACT, "0".to_owned())];
        Ok((headers, Json(body)).into_response())
    }
}

/// Query parameters whose errors are our plain text.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(ApiError::bad(format!("query parameters: {error}"))),
        }
    }
}

/// A number or flag that may be left empty, as Nomad's clients send them.
pub(super) fn from_text<'de, D: Deserializer<'de>, T: FromStr + Default>(source: D) -> Result<T, D::Error> {
    let text = String::deserialize(source)?;
    if text.is_empty() {
        return Ok(T::default());
    }
    text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is not a value for this parameter")))
}

/// A flag: `true`, `1`, or the bare name.
pub(super) fn flag<'de, D: Deserializer<'de>>(source: D) -> Result<bool, D::Error> {
    match String::deserialize(source)?.as_str() {
        "" | "true" | "1" | "t" | "True" | "TRUE" => Ok(true),
        "false" | "0" | "f" | "False" | "FALSE" => Ok(false),
        other => Err(serde::de::Error::custom(format!("{other:?} is neither true nor false"))),
    }
}
