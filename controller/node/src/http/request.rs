//! The token and the query parameters of an API request.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use herdlet_api::http::routes::percent_decoded;
use herdlet_api_types::parse_duration;
use herdlet_nomad::wire::Secret;

use super::HttpError;
use crate::cluster_client::Question;

/// The longest blocking time.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The token of a request and the parameters of its query.
#[derive(Clone)]
pub(super) struct RequestParams {
    pub(super) token: Secret,
    parameters: Vec<(String, String)>,
    /// Secrets for storage, as `key=value,…`.
    pub(super) secrets: Option<Secret>,
}

impl RequestParams {
    /// Reads the query and the token.
    pub(super) fn read(query: &str, headers: &HeaderMap) -> Result<Self, HttpError> {
        let decoded = |text: &str| {
            let read = percent_decoded(&text.replace('+', " "));
            read.ok_or_else(|| HttpError(400, "query parameters: not valid UTF-8".to_owned()))
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let parameters = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        let parameters: Vec<(String, String)> = parameters.collect::<Result<_, HttpError>>()?;
        let secrets = headers.get("x-nomad-csi-secrets").and_then(|secrets| secrets.to_str().ok());
        Ok(Self { token: token(headers), parameters, secrets: secrets.map(Secret::from) })
    }

    /// The first parameter with this name.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All parameters with this name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.parameters.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A non-empty parameter.
    pub(super) fn non_empty(&self, name: &str) -> Option<&str> {
        self.parameter(name).filter(|value| !value.is_empty())
    }

    /// The requested node; `None` for this one.
    pub(super) fn node(&self) -> Option<&str> {
        self.non_empty("node_id")
    }

    /// Whether to indent the JSON.
    pub(super) fn is_pretty(&self) -> bool {
        self.parameter("pretty").is_some_and(|pretty| pretty != "0")
    }

    /// A boolean parameter; `None` if it is missing or empty.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.non_empty(name) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(Some(false)),
            Some(other) => Err(format!("Failed to parse value of {name:?} ({other}) as a bool")),
        }
    }

    /// A numeric parameter.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let parsed = self.non_empty(name).map(|text| {
            text.parse().map_err(|_| format!("Failed to parse value of {name:?} ({text}) as a int"))
        });
        parsed.transpose()
    }

    /// A question without fields: the token and the query options.
    pub(super) fn plain(&self, call: &str, is_write: bool) -> Result<Question, String> {
        let wait = match self.non_empty("wait") {
            Some(wait) => {
                let nanos = parse_duration(wait).map_err(|_| "Invalid wait time".to_owned())?;
                Duration::from_nanos(nanos.max(0).unsigned_abs()).min(WAIT_MAX)
            }
            None => Duration::ZERO,
        };
        let index =
            self.non_empty("index").map_or(Ok(0), str::parse).map_err(|_| "Invalid index".to_owned())?;
        let stale = match (self.parameter("stale"), self.flag("stale")) {
            (Some(""), _) => true,
            (_, Ok(stale)) => stale.unwrap_or_default(),
            (_, Err(_)) => {
                return Err("Expect `true` or `false` for `stale` query string parameter".to_owned());
            }
        };
        Ok(Question {
            token: self.token.clone(),
            region: self.non_empty("region").map(str::to_owned),
            namespace: self.non_empty("namespace").unwrap_or("default").to_owned(),
            index: if is_write { 0 } else { index },
            wait,
            stale,
            is_write,
            ..Question::new(call)
        })
    }
}

/// The token of a request; empty if there is none.
pub(super) fn token(headers: &HeaderMap) -> Secret {
    let own = headers.get("x-nomad-token").and_then(|token| token.to_str().ok());
    let own = own.filter(|token| !token.is_empty());
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        let token = token.trim().split(' ').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    own.or(bearer).unwrap_or_default().trim().into()
}
