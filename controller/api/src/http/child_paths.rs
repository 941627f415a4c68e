//! Ids of children hold a slash, and Nomad's clients write it into paths as it is: `/v1/job/import/dispatch-1-0a1b2c3d/allocations`.
//!
//! In: a request. Out: the same with the id as one part of the path, as the routes know it.

use axum::{
    extract::Request,
    http::uri::{PathAndQuery, Uri},
};

/// Where ids of jobs stand.
const PLACES: [&str; 2] = ["/v1/job/", "/v1/herdlet/job/"];

/// How the last part of a child's id begins.
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

/// The path with the slashes in the id encoded; none where there are none.
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
