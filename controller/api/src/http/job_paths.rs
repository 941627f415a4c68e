//! Ids of jobs may contain slashes, which Nomad's clients don't encode in paths: `/v1/job/team/web/allocations`, and
//! those of children always do: `/v1/job/import/dispatch-1-0a1b2c3d/allocations`.
//!
//! In: a request. Out: the request with the id encoded as one path segment, as the routes expect it. As in Nomad, what follows
//! the id is recognized by the end of the path. An id that ends like that must be encoded by the client. Everything after
//! `/v1/var/` is the path of a variable.

use axum::{
    extract::Request,
    http::uri::{PathAndQuery, Uri},
};

use super::routes;

/// Our own paths of a job.
const OURS: [&str; 4] = ["versions", "start", "hold", ""];

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
    if let Some(variable) = path.strip_prefix("/v1/var/").filter(|variable| variable.contains('/')) {
        return Some(format!("/v1/var/{}", variable.replace('/', "%2F")));
    }
    let (place, tails) = match path.strip_prefix("/v1/herdlet/job/") {
        Some(_) => ("/v1/herdlet/job/", OURS.to_vec()),
        None => ("/v1/job/", routes::tails_of_jobs().collect()),
    };
    let parts: Vec<&str> = path.strip_prefix(place)?.split('/').collect();
    let fits = |tail: &[&str]| {
        let before = parts.len().checked_sub(tail.len()).filter(|before| *before > 0)?;
        let is_it = |(part, wanted): (&&str, &&str)| wanted.starts_with('{') || part == wanted;
        parts.get(before..)?.iter().zip(tail).all(is_it).then_some(before)
    };
    let tails = tails.iter().map(|tail| tail.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>());
    // The longest end leaves the shortest id.
    let end = tails.filter_map(|tail| fits(&tail)).min().unwrap_or(parts.len());
    let (id, rest) = parts.split_at_checked(end)?;
    if id.len() < 2 || id.contains(&"") {
        return None;
    }
    let mut joined = format!("{place}{}", id.join("%2F"));
    for part in rest {
        joined.push('/');
        joined.push_str(part);
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_with_slashes_is_one_part_of_the_path() {
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
            ("/v1/job/Team_A/web.1", Some("/v1/job/Team_A%2Fweb.1")),
            ("/v1/job/a/b/c/allocations", Some("/v1/job/a%2Fb%2Fc/allocations")),
            ("/v1/job/a/b/periodic/force", Some("/v1/job/a%2Fb/periodic/force")),
            ("/v1/job/a/b/versions/one/tag", Some("/v1/job/a%2Fb/versions/one/tag")),
            ("/v1/job/a/allocations/summary", Some("/v1/job/a%2Fallocations/summary")),
            ("/v1/job/a%2Fallocations", None),
            ("/v1/job/allocations", None),
            ("/v1/job/allocations/allocations", None),
            ("/v1/job/a//allocations", None),
            ("/v1/job/", None),
            ("/v1/herdlet/job/a/b/start", Some("/v1/herdlet/job/a%2Fb/start")),
            ("/v1/herdlet/job/a/b/hold", Some("/v1/herdlet/job/a%2Fb/hold")),
            ("/v1/jobs", None),
            ("/v1/var/nomad/jobs/web", Some("/v1/var/nomad%2Fjobs%2Fweb")),
            ("/v1/var/a//b/", Some("/v1/var/a%2F%2Fb%2F")),
            ("/v1/var/a", None),
            ("/v1/vars", None),
        ] {
            assert_eq!(joined(path).as_deref(), expected, "{path}");
        }
    }
}
