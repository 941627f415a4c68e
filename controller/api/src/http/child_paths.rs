//! Ids of child jobs contain a slash, which Nomad's clients don't encode in paths:
//! `/v1/job/import/dispatch-1-0a1b2c3d/allocations`.
//!
//! In: a request. Out: the request with the id encoded as one path segment, as the routes expect it.

use axum::{
    extract::Request,
    http::uri::{PathAndQuery, Uri},
};

/// Path prefixes before a job id.
const PLACES: [&str; 2] = ["/v1/job/", "/v1/herdlet/job/"];

/// Prefixes of the last segment of a child's id.
const CHILDREN: [&str; 2] = ["dispatch-", "periodic-"];

pub(super) async fn join(mut request: Request) -> Request {
    if let Some(path) = joined(request.uri().path()) {
        let path = match request.uri().query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = PathAndQuery::try_from(path).ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// The path with the slashes of the id encoded; none if there are none.
fn joined(path: &str) -> Option<String> {
    let place = PLACES.into_iter().find(|place| path.starts_with(place))?;
    let rest = path.strip_prefix(place)?;
    let mut joined = format!("{place}{}", rest.split('/').next()?);
    let mut found = false;
    let mut parts = rest.split('/').skip(1).peekable();
    while let Some(part) = parts.next_if(|part| CHILDREN.iter().any(|child| part.starts_with(child))) {
        found = true;
        joined.push_str("%2F");
        joined.push_str(part);
    }
    for part in parts {
        joined.push('/');
        joined.push_str(part);
    }
    found.then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_child_is_one_part_of_the_path() {
        for (path, expected) in [
            ("/v1/job/a/dispatch-1-0f", Some("/v1/job/a%2Fdispatch-1-0f")),
            ("/v1/job/a/periodic-1/allocations", Some("/v1/job/a%2Fperiodic-1/allocations")),
            (
                "/v1/job/a/dispatch-1-0f/periodic-2/summary",
                Some("/v1/job/a%2Fdispatch-1-0f%2Fperiodic-2/summary"),
            ),
            ("/v1/herdlet/job/a/dispatch-1-0f/versions", Some("/v1/herdlet/job/a%2Fdispatch-1-0f/versions")),
            ("/v1/job/a%2Fdispatch-1-0f", None),
            ("/v1/job/a/dispatch", None),
            ("/v1/job/a/periodic/force", None),
            ("/v1/jobs", None),
        ] {
            assert_eq!(joined(path).as_deref(), expected, "{path}");
        }
    }
}
