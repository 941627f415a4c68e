//! Query parameters that many endpoints share, and blocking queries: a read with `index` waits for a later change, at most for
//! `wait`; the answer has the index of its data.

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

/// How long a blocking query waits by default, as in Nomad.
const WAIT_DEFAULT: Duration = Duration::from_secs(300);
/// The longest wait that a query can request.
const WAIT_MAX: Duration = Duration::from_secs(600);
/// Random addition of up to this fraction of the wait, as in Nomad, so that queries that began together don't end together.
const WAIT_JITTER: u32 = 16;
/// Shortest interval between two comparisons of what a waiting reader of services would get: one comparison covers many changes.
const READS_APART: Duration = Duration::from_millis(20);

/// The index of the data.
pub(super) const INDEX: HeaderName = HeaderName::from_static("x-nomad-index");
/// Whether the data came from a leader; always true here.
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-nomad-knownleader");
/// The age of the data in milliseconds.
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-nomad-lastcontact");
/// Token of the next page of a list.
pub(super) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-nomad-nexttoken");

/// Parameters of reads; [`super::list`] implements those of lists.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Read {
    #[serde(deserialize_with = "from_text")]
    pub(super) index: u64,
    pub(super) wait: Option<String>,
    pub(super) namespace: Option<String>,
    /// Prefix of the ids to list.
    pub(super) prefix: String,
    /// Expression that listed objects must match.
    pub(super) filter: String,
    /// Newest first.
    #[serde(deserialize_with = "flag")]
    pub(super) reverse: bool,
    /// Size of a page; 0 means no limit.
    #[serde(deserialize_with = "from_text")]
    pub(super) per_page: u32,
    /// First object of the page: the token from the previous answer.
    pub(super) next_token: String,
    /// Indent the JSON.
    #[serde(deserialize_with = "flag")]
    pub(super) pretty: bool,
}

impl Read {
    /// The key of the job with this id in the requested namespace.
    pub(super) fn job(&self, id: String) -> JobKey {
        JobKey { namespace: self.namespace().into(), id: id.into() }
    }

    /// Whether the request includes `namespace`. `*` includes all.
    pub(super) fn covers(&self, namespace: &str) -> bool {
        self.namespace() == "*" || self.namespace() == namespace
    }

    pub(super) fn namespace(&self) -> &str {
        self.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or("default")
    }
}

/// The data of a read, whose changes wake it while it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The read model.
    Model,
    /// The read model and the catalogue of services, which changes without a commit.
    Services,
    /// Variables, which have an index of their own.
    Variables,
}

impl Shared {
    /// The present index of the source; grows with every change. Never 0, because a query with index 0 would not block.
    pub(super) fn index(&self, source: Source) -> u64 {
        let index = match source {
            Source::Model => self.model.version(),
            Source::Services => self.model.version() + self.catalog.version(),
            Source::Variables => self.variables.store().index(),
        };
        index.max(1)
    }

    async fn changed(&self, source: Source, index: u64) {
        match source {
            Source::Model => self.model.changed(index).await,
            Source::Variables => self.variables.store().changed(index).await,
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

    /// Waits as a blocking query requests. Read the model only after this.
    async fn await_change<T: Serialize>(
        &self,
        read: &Read,
        source: Source,
        load: &mut impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<(), ApiError> {
        // An index that was not reached yet is from before a restart: the query returns at once with the present index.
        if (1..=self.index(source)).contains(&read.index) {
            self.wait(read, self.answer_changed(read.index, source, load)).await?;
        }
        Ok(())
    }

    /// Waits for `change`, at most as long as the query permits.
    pub(super) async fn wait(&self, read: &Read, change: impl Future<Output = ()>) -> Result<(), ApiError> {
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
        tokio::select! {
            () = change => {}
            () = tokio::time::sleep(wait) => {}
            () = self.closing.cancelled() => {}
        }
        Ok(())
    }

    /// Waits for a change after `index`. Any change of the model counts. Changes of services and variables count only if they
    /// change this answer: clients wait for single ones, while every other one changes the index too.
    async fn answer_changed<T: Serialize>(
        &self,
        index: u64,
        source: Source,
        load: &mut impl FnMut(&Self) -> Result<T, ApiError>,
    ) {
        let mut shown = |shared: &Self| Some(serde_json::to_vec(&load(shared).ok()?).ok());
        let known = match source {
            Source::Model => None,
            Source::Services | Source::Variables => shown(self),
        };
        let mut index = index;
        // A change up to now, perhaps after the reader's last read, counts in any case.
        let is_known = source != Source::Model && self.index(source) == index;
        loop {
            self.changed(source, index).await;
            index = self.index(source);
            if !is_known || shown(self) != known {
                return;
            }
            tokio::time::sleep(READS_APART).await;
        }
    }

    /// Answers with data and its index. `load` runs after the index was determined, so the data is at least as new.
    pub async fn answer<T: Serialize>(
        self: &Arc<Self>,
        read: &Read,
        load: impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        self.answer_from(Source::Model, read, load).await
    }

    /// The same for data from `source`.
    pub(super) async fn answer_from<T: Serialize>(
        self: &Arc<Self>,
        source: Source,
        read: &Read,
        mut load: impl FnMut(&Self) -> Result<T, ApiError>,
    ) -> Result<Response, ApiError> {
        self.await_change(read, source, &mut load).await?;
        let index = self.index(source);
        answered(read, index, load(self)?)
    }
}

/// An answer with the index of its data.
pub(super) fn answered<T: Serialize>(read: &Read, index: u64, body: T) -> Result<Response, ApiError> {
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

/// Query parameters with plain-text errors.
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

/// A number or flag that may be empty, as Nomad's clients send them.
pub(super) fn from_text<'de, D: Deserializer<'de>, T: FromStr + Default>(source: D) -> Result<T, D::Error> {
    let text = String::deserialize(source)?;
    if text.is_empty() {
        return Ok(T::default());
    }
    text.parse().map_err(|_| serde::de::Error::custom(format!("{text:?} is not valid here")))
}

/// A flag: `true`, `1`, or the bare name.
pub(super) fn flag<'de, D: Deserializer<'de>>(source: D) -> Result<bool, D::Error> {
    match String::deserialize(source)?.as_str() {
        "" | "true" | "1" | "t" | "True" | "TRUE" => Ok(true),
        "false" | "0" | "f" | "False" | "FALSE" => Ok(false),
        other => Err(serde::de::Error::custom(format!("{other:?} is neither true nor false"))),
    }
}
