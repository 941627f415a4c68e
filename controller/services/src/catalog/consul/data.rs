//! Reads of data for templates: keys, services, nodes, certificates.
//!
//! In: a path of Consul's API, its arguments, a token. Out: the body with the index of a blocking query, or why there is
//! none. This module does not know the content of bodies, and limits neither rate nor concurrency: its caller does.

use std::{fmt, time::Duration};

use herdlet_base::error::in_full;
use reqwest::{StatusCode, header::HeaderMap};

use super::{ConsulReader, client::body_text, config::header, path_part};

/// The body of an answer for one query; templates can't use more.
const DATA_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Answers of a Consul or a proxy that can't serve any request now.
const OVERLOADED: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// Texts of an agent whose servers are away (`agent/structs/errors.go`, `agent/consul/client.go`).
const NO_SERVERS: [&str; 3] = ["No cluster leader", "No known Consul servers", "rpc error getting client"];

/// One read.
#[derive(Debug, Clone, Copy)]
pub struct DataRequest<'r> {
    pub path: &'r str,
    pub arguments: &'r [(&'static str, String)],
    /// A token of Consul; the agent's own if empty.
    pub token: &'r str,
    /// Time limit for the whole answer.
    pub within: Duration,
}

/// An answer. Has no `Debug`: its body may be secret.
pub struct DataResponse {
    pub body: Vec<u8>,
    /// The index for the next blocking query; none if the path has none.
    pub index: Option<u64>,
    /// How long ago the server had contact with its leader.
    pub last_contact: Duration,
    /// Whether the servers had a leader.
    pub has_leader: bool,
}

/// Why there is no data.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// No Consul answers, or it has no leader.
    #[error("{0}")]
    Unreachable(String),
    /// There is no such object.
    #[error("it does not exist")]
    Absent { index: Option<u64> },
    /// The token does not allow it.
    #[error("{0}")]
    Denied(String),
    /// Consul can't answer this request.
    #[error("{0}")]
    Failed(String),
}

/// Requests that Consul's agent answers by itself.
const OF_AGENT: &str = "/v1/agent/";

/// Where a token comes from; reads on after a description of a request.
struct TokenSource<'r>(&'r ConsulReader, &'r str);

impl fmt::Display for TokenSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reader, token) = self;
        if token.is_empty() { reader.tokens.agent().fmt(f) } else { f.write_str("with the task's token") }
    }
}

impl ConsulReader {
    /// Reads once.
    ///
    /// # Errors
    /// Why there is no data.
    pub async fn data(&self, request: DataRequest<'_>) -> Result<DataResponse, DataError> {
        let DataRequest { path, arguments, token, within } = request;
        let own = if token.is_empty() { self.tokens.agent().header().cloned() } else { header(token) };
        let mut call = self.api.client.get(self.api.url(path)).query(arguments).timeout(within);
        if let Some(token) = own {
            call = call.header("x-consul-token", token);
        }
        let sent = call.send().await;
        let response = sent.map_err(|error| self.unreachable(&in_full(&error.without_url())))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if status.is_success() {
            self.api.mark_reachable();
            return Ok(DataResponse {
                body: self.body(response).await?,
                index: index(&headers),
                last_contact: last_contact(&headers),
                // Consul's agent answers some requests from its own cache, and then names no leader.
                has_leader: path.starts_with(OF_AGENT)
                    || headers.get("x-consul-knownleader").is_none_or(|known| known == "true"),
            });
        }
        let text = body_text(response).await;
        // Unknown paths of the API have no index.
        if status == StatusCode::NOT_FOUND && headers.contains_key("x-consul-index") {
            return Err(DataError::Absent { index: index(&headers) });
        }
        Err(self.refused(status, &text, token))
    }

    fn refused(&self, status: StatusCode, text: &str, token: &str) -> DataError {
        let is_denied = ["ACL not found", "Permission denied"].iter().any(|sign| text.contains(sign));
        if status == StatusCode::FORBIDDEN || is_denied {
            return DataError::Denied(format!("{text} ({})", TokenSource(self, token)));
        }
        let why = format!("it answers {status}: {text}");
        // Other errors of the server may concern only this request: an unknown datacenter, Connect that is off.
        if self.is_without_servers(status, text) {
            return self.unreachable(&why);
        }
        DataError::Failed(why)
    }

    /// Whether an answer means that Consul can't serve any request now.
    pub(super) fn is_without_servers(&self, status: StatusCode, text: &str) -> bool {
        OVERLOADED.contains(&status) || NO_SERVERS.iter().any(|sign| text.contains(sign))
    }

    fn unreachable(&self, why: &str) -> DataError {
        self.api.unanswered(why);
        DataError::Unreachable(format!("{}: {why}", self.api.address))
    }

    async fn body(&self, mut response: reqwest::Response) -> Result<Vec<u8>, DataError> {
        let mut body = Vec::new();
        loop {
            let chunk = response.chunk().await;
            let Some(chunk) = chunk.map_err(|error| self.unreachable(&in_full(&error.without_url())))? else {
                return Ok(body);
            };
            if body.len() + chunk.len() > DATA_BYTES_MAX {
                return Err(DataError::Failed(format!(
                    "its answer is longer than {DATA_BYTES_MAX} bytes; read a smaller part"
                )));
            }
            body.extend_from_slice(&chunk);
        }
    }
}

/// A path below `base` with these segments. `None` if one of them would lead to another path.
pub fn path_of<'s>(base: &str, segments: impl Iterator<Item = &'s str>) -> Option<String> {
    let mut path = base.trim_end_matches('/').to_owned();
    for segment in segments {
        if matches!(segment, "." | "..") {
            return None;
        }
        path.push('/');
        path.push_str(&path_part(segment));
    }
    Some(path)
}

/// An index of 0 would not block (Consul's rules for blocking queries).
fn index(headers: &HeaderMap) -> Option<u64> {
    let index: u64 = headers.get("x-consul-index")?.to_str().ok()?.parse().ok()?;
    Some(index.max(1))
}

fn last_contact(headers: &HeaderMap) -> Duration {
    let millis = headers.get("x-consul-lastcontact").and_then(|text| text.to_str().ok()?.parse().ok());
    Duration::from_millis(millis.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_block_or_are_none() {
        for (text, expected) in [("0", Some(1)), ("7", Some(7)), ("soon", None), ("-1", None), ("", None)] {
            let headers = [("x-consul-index", text)];
            let headers =
                headers.into_iter().map(|(name, text)| (name.parse().unwrap(), text.parse().unwrap()));
            assert_eq!(index(&headers.collect()), expected, "{text}");
        }
        assert_eq!(index(&HeaderMap::new()), None);
    }

    #[test]
    fn segments_never_lead_to_another_path() {
        let path = |key: &str| path_of("/v1/kv/", key.split('/'));
        assert_eq!(path("a/b c").as_deref(), Some("/v1/kv/a/b%20c"));
        assert_eq!(path("a//b/").as_deref(), Some("/v1/kv/a//b/"));
        assert_eq!(path("a?recurse#x%2e").as_deref(), Some("/v1/kv/a%3Frecurse%23x%252e"));
        for key in ["..", "a/../b", "./a"] {
            assert_eq!(path(key), None, "{key}");
        }
    }
}
