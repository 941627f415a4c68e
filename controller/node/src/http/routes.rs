//! Which call to the servers answers which path of Nomad's HTTP API.
//!
//! Facts: `hashicorp/nomad:command/agent/http.go` (`registerHandlers`) and its endpoints.

mod table;

use self::table::ROUTES;

/// A path, and the call that answers it.
#[derive(Debug)]
pub(super) struct Route {
    /// What is done with it.
    pub(super) verb: Verb,
    /// Its parts; what is in braces stands for any, and is the field of that name. With `*` it stands for several parts, with `[]` it is a
    /// list of one.
    pub(super) path: &'static str,
    /// The call to a server.
    pub(super) call: &'static str,
    /// The call to this very node, where it is meant or has the allocation.
    pub(super) own: Option<&'static str>,
    /// Fields from parameters of the query, each with the parameter's name; a dot leads into a field.
    pub(super) query: &'static [(&'static str, Take)],
    /// Fields from the body.
    pub(super) body: Body,
    /// What of the answer is the answer.
    pub(super) answer: Part,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Something is read.
    Get,
    /// Something is changed: POST, or PUT.
    Put,
    /// Something is removed.
    Delete,
}

/// How a field is taken from a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// As a text.
    Text(&'static str),
    /// As true or false.
    Flag(&'static str),
    /// True where it is there at all.
    Given(&'static str),
    /// As a number.
    Number(&'static str),
    /// Not at all: it is always this.
    Always(i64),
}

/// What becomes of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    /// It isn't read.
    Ignored,
    /// Those of its fields.
    Fields(&'static [&'static str]),
    /// All of its fields.
    All,
    /// It is the value of a field.
    In(&'static str),
    /// It is the one value of a field that is a list.
    OneOf(&'static str),
    /// It has a job, and these fields.
    Job(&'static [&'static str]),
    /// It is bytes, the value of a field.
    Raw(&'static str),
}

/// What of the answer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// One field.
    Field(&'static str),
    /// One field, a list; nil is an empty one.
    List(&'static str),
    /// The first of the list that one field is; nothing where it is empty.
    First(&'static str),
    /// One field; where it is nil, there is no such thing, which is said so.
    Found(&'static str, &'static str),
    /// Nothing.
    Nothing,
}

/// The parameters of a path, by the names of their fields.
pub(super) type PathParams = Vec<(&'static str, PathParam)>;

/// The value of a parameter of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PathParam {
    /// A text.
    One(String),
    /// A list of one.
    Listed(String),
}

/// The route of a path below `/v1/`, and the fields that stand in it. The first pattern that fits counts.
pub(super) fn find(verb: Verb, path: &str) -> Result<(&'static Route, PathParams), Missing> {
    let first = ROUTES.iter().find(|route| fields(route.path, path).is_some()).ok_or(Missing::Path)?;
    let is_fitting = |route: &&Route| route.verb == verb && has_shape(first.path, route.path);
    let route = ROUTES.iter().find(is_fitting).ok_or(Missing::Verb)?;
    Ok((route, fields(route.path, path).ok_or(Missing::Path)?))
}

/// Whether two patterns differ in names only.
fn has_shape(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('/'), other.split('/'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) => {
                let is_any =
                    a.starts_with('{') && b.starts_with('{') && a.ends_with("*}") == b.ends_with("*}");
                if a != b && !is_any {
                    return false;
                }
            }
            (Some(_), None) | (None, Some(_)) => return false,
        }
    }
}

/// Why there is no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is one for another method.
    Verb,
    /// There is none at all.
    Path,
}

/// What stands in a path for the names in its pattern.
fn fields(pattern: &'static str, path: &str) -> Option<PathParams> {
    let (mut patterns, mut parts) =
        (pattern.split('/').collect::<Vec<_>>(), path.split('/').collect::<Vec<_>>());
    let mut found = Vec::new();
    // What stands for several parts takes what is left between those before and after it.
    let several = patterns.iter().position(|part| part.ends_with("*}"));
    if let Some(at) = several {
        let after = patterns.len() - at - 1;
        let end = parts.len().checked_sub(after).filter(|end| *end > at)?;
        let value = percent_decoded(&parts.get(at..end)?.join("/")).filter(|value| !value.is_empty())?;
        found.push((patterns.remove(at).trim_matches(['{', '*', '}']), PathParam::One(value)));
        parts.drain(at..end);
    }
    if patterns.len() != parts.len() {
        return None;
    }
    for (pattern, part) in patterns.into_iter().zip(parts) {
        match pattern.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => {
                let value = percent_decoded(part).filter(|value| !value.is_empty())?;
                found.push(match name.strip_suffix("[]") {
                    Some(name) => (name, PathParam::Listed(value)),
                    None => (name, PathParam::One(value)),
                });
            }
            None if pattern == part => {}
            None => return None,
        }
    }
    Some(found)
}

/// A part of a path, without its `%XX`.
pub(super) fn percent_decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut left = part.as_bytes();
    while let [byte, rest @ ..] = left {
        left = rest;
        match (byte, left) {
            (b'%', [high, low, rest @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                left = rest;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// What is done with which path.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = (Verb, &'static str)> {
    ROUTES.iter().map(|route| (route.verb, route.path))
}

/// Paths that are answered by the same call whether they are read or changed, with the call.
#[cfg(test)]
pub(super) fn calls_of_both() -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_changed = |read: &&Route| {
        ROUTES
            .iter()
            .any(|route| route.verb == Verb::Put && (route.path, route.call) == (read.path, read.call))
    };
    ROUTES
        .iter()
        .filter(|route| route.verb == Verb::Get)
        .filter(is_changed)
        .map(|route| (route.path, route.call))
}

#[cfg(test)]
mod tests {
    use super::{
        Verb::{Delete, Get, Put},
        *,
    };

    #[test]
    fn paths_have_the_calls_that_answer_them() {
        let one = |name, value: &str| (name, PathParam::One(value.to_owned()));
        let listed = |name, value: &str| (name, PathParam::Listed(value.to_owned()));
        for (verb, path, call, expected) in [
            (Get, "jobs", "Job.List", vec![]),
            (Get, "job/web", "Job.GetJob", vec![one("JobID", "web")]),
            (Get, "job/web%2Fone", "Job.GetJob", vec![one("JobID", "web/one")]),
            (Get, "job/web/periodic-1", "Job.GetJob", vec![one("JobID", "web/periodic-1")]),
            (Put, "job/web", "Job.Register", vec![one("JobID", "web")]),
            (Put, "job/web/one/plan", "Job.Plan", vec![one("JobID", "web/one")]),
            (Delete, "job/web", "Job.Deregister", vec![one("JobID", "web")]),
            (Put, "job/a/versions/b/tag", "Job.TagVersion", vec![one("JobID", "a"), one("Name", "b")]),
            (Get, "node/pools", "NodePool.List", vec![]),
            (Get, "node/n1/allocations", "Node.GetAllocs", vec![one("NodeID", "n1")]),
            (Get, "deployment/d1", "Deployment.GetDeployment", vec![one("DeploymentID", "d1")]),
            (Get, "deployment/allocations/d1", "Deployment.Allocations", vec![one("DeploymentID", "d1")]),
            (Put, "client/allocation/a1/restart", "ClientAllocations.Restart", vec![one("AllocID", "a1")]),
            (
                Delete,
                "service/web/s1",
                "ServiceRegistration.DeleteByID",
                vec![one("ServiceName", "web"), one("ID", "s1")],
            ),
            (Get, "var/nomad/jobs/web", "Variables.Read", vec![one("Path", "nomad/jobs/web")]),
            (Get, "acl/token/self", "ACL.WhoAmI", vec![]),
            (Get, "acl/token/t1", "ACL.GetToken", vec![one("AccessorID", "t1")]),
            (Delete, "acl/policy/ops", "ACL.DeletePolicies", vec![listed("Names", "ops")]),
            (Delete, "namespace/dev", "Namespace.DeleteNamespaces", vec![listed("Namespaces", "dev")]),
        ] {
            let (route, mut fields) = find(verb, path).unwrap();
            fields.sort_by_key(|(name, _)| expected.iter().position(|(known, _)| known == name));
            assert_eq!((route.call, fields), (call, expected), "{path}");
        }
        for (verb, path, why) in [
            (Get, "nope", Missing::Path),
            (Get, "job/", Missing::Path),
            (Get, "jobs/", Missing::Path),
            (Get, "job/web/plan", Missing::Verb),
            (Put, "allocations", Missing::Verb),
            (Get, "allocation/a/b/c", Missing::Path),
        ] {
            assert_eq!(find(verb, path).unwrap_err(), why, "{path}");
        }
    }

    #[test]
    fn each_route_can_be_reached() {
        for route in ROUTES {
            let path: Vec<_> =
                route.path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
            let (found, _) = find(route.verb, &path.join("/")).unwrap();
            assert_eq!(found.call, route.call, "{}", route.path);
        }
    }
}
