//! Query parameters that many endpoints share, and blocking queries: a read with `index` waits until something has changed
//! after it, at most for `wait`; the answer names the index it was read at.

use std::{str::FromStr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequestParts, Query},
    http::{HeaderName, header, request::Parts},
    response::{IntoResponse, Response},
};
use herdlet_api_types::{JobKey, parse_duration};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use super::{Shared, error::ApiError};

/// How long a blocking query waits where it doesn't say, as in Nomad.
const WAIT_DEFAULT: Duration = Duration::from_secs(300);
/// The longest it may wait.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Up to this part of the wait is added by chance, as in Nomad: queries that began together don't end together.
const WAIT_JITTER: u32 = 16;
/// What services a waiting reader is shown is looked at no more often: where much changes, one look serves many changes.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// The index at which an answer was read.
pub(super) const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
/// Whether it came from a leader's state; ours always does.
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
/// How old it may be, in milliseconds.
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");
/// Where the next page of a list begins.
pub(super) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");

/// Parameters of reads; those of lists say what they mean in [`super::list`].
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Read {
    #[serde(deserialize_with = "from_text")]
    pub(super) index: u64,
    pub(super) wait: Option<String>,
    pub(super) namespace: Option<String>,
    /// Only ids that begin with this.
    pub(super) prefix: String,
    /// Only objects of which this is so.
    pub(super) filter: String,
    /// The newest first.
    #[serde(deserialize_with = "flag")]
    pub(super) reverse: bool,
    /// So many at a time; all where it is 0.
    #[serde(deserialize_with = "from_text")]
    pub(super) per_page: u32,
    /// Where the page begins, as the last page's answer said.
    pub(super) next_token: String,
    /// Indented, for people.
    #[serde(deserialize_with = "flag")]
    pub(super) pretty: bool,
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
        self.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or("default")
    }
}

/// Where a read looks, and what wakes it while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The read model.
    Model,
    /// The catalogue of services too, which changes without a commit.
    Services,
}

impl Shared {
    /// The index of what is read now; grows with every change. Never 0: a query with index 0 would not block.
    pub(super) fn index(&self, source: Source) -> u64 {
        let index = match source {
            Source::Model => self.model.version(),
            Source::Services => self.model.version() + self.catalog.version(),
        };
        index.max(1)
    }

    async fn changed(&self, source: Source, index: u64) {
        match source {
            Source::Model => self.model.changed(index).await,
            Source::Services => {
                while self.index(source) <= index {
                    let (model, catalog) = (self.model.version(), self.catalog.version());
                    if model + catalog > index {
                        return;
                    }
                    tokio::select! {
                        () = self.model.changed(model) => {}
                        () = self.catalog.changed(catalog) => {}
                    }
                }
            }
        }
    }

    /// Waits as a blocking query asks for. Read the model only after this.
    async fn await_news<T: Serialize>(
        &self,
        read: &Read,
        source: Source,
        look: &mut impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<(), ApiError> {
        let wait = match read.wait.as_deref() {
            None | Some("") => WAIT_DEFAULT,
            Some(text) => {
                let nanos = parse_duration(text).map_err(|error| ApiError::bad(format!("wait: {error}")))?;
                let wait = Duration::from_nanos(nanos.max(0).unsigned_abs()).min(WAIT_MAX);
                if wait.is_zero() { WAIT_DEFAULT } else { wait }
            }
        };
        let chance = uuid::Uuid::new_v4().as_fields().0;
        let wait = wait + (wait / WAIT_JITTER).mul_f64(f64::from(chance) / f64::from(u32::MAX));
        // An index that was not reached yet is from before a restart: the answer tells the present one.
        if (1..=self.index(source)).contains(&read.index) {
            tokio::select! {
                () = self.news(read.index, source, look) => {}
                () = tokio::time::sleep(wait) => {}
                () = self.closing.cancelled() => {}
            }
        }
        Ok(())
    }

    /// Until there is something that a reader who has read at `index` doesn't know. Of the model that is any change; of services
    /// one of what is shown, since proxies read them again and again and each other service changes too.
    async fn news<T: Serialize>(
        &self,
        index: u64,
        source: Source,
        look: &mut impl FnMut(&Self) -> Result<T, ApiError>,
    ) {
        let mut shown = |shared: &Self| Some(serde_json::to_vec(&look(shared).ok()?).ok());
        let known = match source {
            Source::Model => None,
            Source::Services => shown(self),
        };
        let mut index = index;
        // What has come by now, perhaps after the reader has read, is news.
        let is_known = source == Source::Services && self.index(source) == index;
        loop {
            self.changed(source, index).await;
            index = self.index(source);
            if !is_known || shown(self) != known {
                return;
            }
            tokio::time::sleep(LOOKS_APART).await;
        }
    }

    /// An answer with the index it was read at. The `look` that is shown runs after the index was taken, so it shows no less.
    pub async fn answer<T: Serialize>(
        self: &Arc<Self>,
        read: &Read,
        look: impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        self.answer_from(Source::Model, read, look).await
    }

    /// The same of what `source` says.
    pub(super) async fn answer_from<T: Serialize>(
        self: &Arc<Self>,
        source: Source,
        read: &Read,
        mut look: impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        self.await_news(read, source, &mut look).await?;
        let index = self.index(source);
        let body = look(self)?;
        let headers =
            [(INDEX, index.to_string()), (KNOWN_LEADER, "true".to_owned()), (LAST_CONTACT, "0".to_owned())];
        if read.pretty {
            let text = serde_json::to_string_pretty(&body);
            let text = text.map_err(|error| ApiError::Failed(format!("write the answer: {error}")))?;
            let kind = [(header::CONTENT_TYPE, "application/json")];
            return Ok((headers, kind, text + "\n").into_response());
        }
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
