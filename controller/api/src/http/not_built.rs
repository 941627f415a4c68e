//! What Nomad's API has and this one has not: routes by their beginnings, with the feature that is missing. The answer is 501 and
//! names it; a route that Nomad doesn't know is 404.

use axum::http::Uri;

use super::error::ApiError;

/// Beginnings of paths, and what they are for. The longest that fits counts; `*` is one part of a path.
const FEATURES: &[(&str, &str)] = &[
    ("/v1/acl", "access control lists"),
    ("/v1/agent/force-leave", "a cluster of agents"),
    ("/v1/agent/host", "facts of the host for support"),
    ("/v1/agent/join", "a cluster of agents"),
    ("/v1/agent/keyring", "a cluster of agents"),
    ("/v1/agent/monitor/export", "export of the journal"),
    ("/v1/agent/pprof", "profiles of the agent"),
    ("/v1/agent/reload", "reloading the configuration by request"),
    ("/v1/agent/schedulers", "schedulers of a cluster"),
    ("/v1/agent/servers", "a cluster of agents"),
    ("/v1/client/allocation/*/pause", "pausing tasks"),
    ("/v1/client/allocation/*/snapshot", "migration of ephemeral disks"),
    ("/v1/client/identity", "identities of nodes"),
    ("/v1/client/metadata", "metadata of the node by request"),
    ("/v1/client/stats", "statistics of the host"),
    ("/v1/evaluations/count", "counting evaluations"),
    ("/v1/job/*/action", "actions of jobs"),
    ("/v1/job/*/actions", "actions of jobs"),
    ("/v1/job/*/stable", "marking versions as stable"),
    ("/v1/job/*/submission", "the source text of jobs"),
    ("/v1/job/*/versions/*/tag", "tags of versions"),
    ("/v1/jobs/statuses", "statuses of many jobs at once"),
    ("/v1/node/*/drain", "draining the node"),
    ("/v1/node/*/eligibility", "eligibility of the node"),
    ("/v1/node/*/evaluate", "evaluating all jobs of a node"),
    ("/v1/node/*/purge", "removing nodes"),
    ("/v1/node/pool", "node pools"),
    ("/v1/node/pools", "node pools"),
    ("/v1/operator", "operation of a cluster"),
    ("/v1/plugin", "CSI plugins"),
    ("/v1/plugins", "CSI plugins"),
    ("/v1/quota", "quotas"),
    ("/v1/quotas", "quotas"),
    ("/v1/recommendation", "recommendations"),
    ("/v1/recommendations", "recommendations"),
    ("/v1/scaling", "scaling policies"),
    ("/v1/search/fuzzy", "fuzzy search"),
    ("/v1/sentinel", "Sentinel policies"),
    ("/v1/system/reconcile", "repair of summaries"),
    ("/v1/validate", "validating jobs without registering them"),
    ("/v1/var", "variables"),
    ("/v1/vars", "variables"),
    ("/v1/volume", "CSI volumes; host volumes are at /v1/herdlet/volumes"),
    ("/v1/volumes", "CSI volumes; host volumes are at /v1/herdlet/volumes"),
];

/// The answer for a path that has no route.
pub(super) async fn answer(uri: Uri) -> ApiError {
    match feature(uri.path()) {
        Some(feature) => ApiError::NotBuilt(format!("{feature}: this part of Nomad's API is not built")),
        None => ApiError::NotFound("resource not found".to_owned()),
    }
}

fn feature(path: &str) -> Option<&'static str> {
    let found = FEATURES.iter().filter(|(begin, _)| begins_with(path, begin));
    found.max_by_key(|(begin, _)| begin.len()).map(|(_, feature)| *feature)
}

fn begins_with(path: &str, begin: &str) -> bool {
    let mut parts = path.split('/');
    begin.split('/').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_nomad_are_known_by_whole_parts() {
        for (path, expected) in [
            ("/v1/acl/token/self", Some("access control lists")),
            ("/v1/job/web/action", Some("actions of jobs")),
            ("/v1/job/web", None),
            ("/v1/vars", Some("variables")),
            ("/v1/variety", None),
            ("/v1/agent/monitor/export", Some("export of the journal")),
            ("/", None),
            ("/v2/acl", None),
        ] {
            assert_eq!(feature(path), expected, "{path}");
        }
    }
}
