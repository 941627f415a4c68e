//! The rows: which row a path matches, and that no row hides another.

use super::{
    Verb::{Any, Delete, Get, Put},
    *,
};
use crate::http::{self, Limits, Listener, fixture::ApiFixture};

fn find_on_node(verb: Verb, path: &str) -> Result<(&'static Route, PathParams), Missing> {
    let method = match verb {
        Get => Method::GET,
        Put => Method::PUT,
        Delete => Method::DELETE,
        Any => Method::PATCH,
    };
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let given = query.split_once('=');
    let query = |name: &str| given.filter(|(known, _)| *known == name).map(|(_, value)| value);
    find(&method, Target { path, query: &query })
}

/// The path of a row with `x` for each parameter.
fn example(route: &Route) -> String {
    let parts = route.path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

fn method_of(route: &Route) -> Option<&'static str> {
    match route.node {
        OnNode::Servers(call) | OnNode::Either(_, call) => Some(call.method),
        OnNode::Itself(_) | OnNode::Stream(_) | OnNode::ServersOnly | OnNode::Nobody => None,
    }
}

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
        (Get, "volumes", "CSIVolume.List", vec![]),
        (Get, "volumes?type=csi", "CSIVolume.List", vec![]),
        (Get, "volumes?type=host", "HostVolume.List", vec![]),
        (Get, "acl/token/self", "ACL.WhoAmI", vec![]),
        (Get, "acl/token/t1", "ACL.GetToken", vec![one("AccessorID", "t1")]),
        (Delete, "acl/policy/ops", "ACL.DeletePolicies", vec![listed("Names", "ops")]),
        (Delete, "namespace/dev", "Namespace.DeleteNamespaces", vec![listed("Namespaces", "dev")]),
    ] {
        let (route, mut params) = find_on_node(verb, path).unwrap();
        params.sort_by_key(|(name, _)| expected.iter().position(|(known, _)| known == name));
        assert_eq!((method_of(route), params), (Some(call), expected), "{path}");
    }
    for (verb, path, why) in [
        (Get, "nope", Missing::Path),
        (Get, "job/", Missing::Path),
        (Get, "jobs/", Missing::Path),
        (Get, "job/web/plan", Missing::Verb),
        (Put, "allocations", Missing::Verb),
        (Put, "volumes?type=host", Missing::Verb),
        (Get, "allocation/a/b/c", Missing::Path),
        (Put, "agent/self", Missing::Path),
        (Get, "agent/join", Missing::Verb),
        (Delete, "node/pools", Missing::Verb),
    ] {
        assert_eq!(find_on_node(verb, path).unwrap_err(), why, "{path}");
    }
}

#[test]
fn server_only_routes_are_refused() {
    for (verb, path) in [
        (Put, "agent/join"),
        (Put, "agent/force-leave/x"),
        (Get, "agent/keyring/list"),
        (Put, "agent/keyring/use"),
        (Any, "agent/keyring"),
    ] {
        let (route, _) = find_on_node(verb, path).unwrap();
        assert!(matches!(route.node, OnNode::ServersOnly), "{path}");
    }
}

#[test]
fn each_route_is_reachable() {
    for route in all() {
        let found = find_on_node(route.verb, &example(route)).map(|(found, _)| found.path);
        match route.node {
            // It refuses a family of paths.
            OnNode::Nobody => assert_ne!(found, Ok(route.path), "{}", route.path),
            OnNode::Itself(_)
            | OnNode::Stream(_)
            | OnNode::Servers(_)
            | OnNode::Either(..)
            | OnNode::ServersOnly => {
                assert_eq!(found, Ok(route.path), "{}", route.path);
            }
        }
    }
}

#[test]
fn each_path_verb_has_one_route() {
    let rows: Vec<_> = all().collect();
    for (at, one) in rows.iter().enumerate() {
        for other in rows.iter().skip(at + 1) {
            let is_same = one.verb == other.verb && pattern::has_shape(one.path, other.path);
            assert!(!is_same, "{} and {}", one.path, other.path);
        }
    }
}

#[test]
fn unsupported_feature_is_found_by_whole_path_parts() {
    for (path, expected) in [
        ("/v1/acl/token/self", Some("access control lists")),
        ("/v1/job/web/stable", Some("marking versions as stable")),
        ("/v1/job/web", None),
        ("/v1/vars", None),
        ("/v1/variety", None),
        ("/v1/agent/monitor/export", Some("export of the journal")),
        ("/", None),
        ("/v2/acl", None),
    ] {
        assert_eq!(missing_feature(path), expected, "{path}");
    }
}

/// Sends a request for each row to the local API.
#[tokio::test]
async fn the_local_api_answers_as_its_column_says() {
    let api = ApiFixture::new();
    let listener = Listener::unix(&api.socket()).await.unwrap();
    api.serve(listener, http::router(Arc::clone(&api.shared)), None, Limits::default());
    let client = reqwest::Client::builder().unix_socket(api.socket()).build().unwrap();
    for route in all() {
        let root = if route.path.starts_with(".well-known/") { "" } else { "/v1" };
        let (method, path) = match route.verb {
            Get => (Method::GET, format!("{root}/{}", example(route))),
            Put => (Method::PUT, format!("{root}/{}", example(route))),
            Delete => (Method::DELETE, format!("{root}/{}", example(route))),
            Any => (Method::GET, format!("{root}/{}/x", example(route))),
        };
        let request = client.request(method.clone(), format!("http://localhost{path}"));
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        match route.local {
            Local::Served(_) => {
                // Streams answer with 200 and don't end.
                let text = if status == 200 { String::new() } else { answer.text().await.unwrap() };
                let is_refused =
                    status == 405 || text == "resource not found" || text.starts_with("not supported: ");
                assert!(!is_refused, "{method} {path} is served: {status} {text}");
            }
            Local::NotBuilt(feature) => {
                let text = answer.text().await.unwrap();
                let expected = (501, format!("not supported: {feature}"));
                assert_eq!((status, text), expected, "{method} {path}");
            }
        }
    }
}

/// The page for users. `UPDATE_GOLDEN=1` writes it.
#[test]
fn refused_routes_are_documented() {
    let verb = |route: &Route| match route.verb {
        Get => "GET",
        Put => "PUT",
        Delete => "DELETE",
        Any => "any",
    };
    let refused = all().filter_map(|route| match route.local {
        Local::NotBuilt(feature) => Some(format!("| {} | `{}` | {feature} |\n", verb(route), route.path)),
        Local::Served(_) => None,
    });
    let page = format!(
        "# Routes that are not supported\n\n\
         <!-- Generated by: UPDATE_GOLDEN=1 cargo test -p herdlet-api refused_routes -->\n\n\
         An agent without servers answers requests for these routes of Nomad with 501 and `not supported: FEATURE`.\n\
         A node forwards those that concern the cluster to its servers. Paths are below `/v1`.\n\n\
         | method | path | feature |\n| --- | --- | --- |\n{}",
        refused.collect::<String>()
    );
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nomad/routes.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), page, "UPDATE_GOLDEN=1 writes {path}");
}

/// The paths of Nomad 2.0.5 (`command/agent/http.go`); those that end with `/` have further parts.
const PATHS_OF_NOMAD: &str = "acl/auth-method acl/auth-method/ acl/auth-methods acl/binding-rule acl/binding-rule/ acl/binding-rules \
    acl/bootstrap acl/identity/client-introduction-token acl/login acl/oidc/auth-url acl/oidc/complete-auth acl/policies acl/policy/ \
    acl/role acl/role/ acl/roles acl/token acl/token/ acl/token/onetime acl/token/onetime/exchange acl/tokens agent/force-leave \
    agent/health agent/host agent/join agent/keyring/ agent/members agent/monitor/export agent/pprof/ agent/reload \
    agent/schedulers agent/schedulers/config agent/self agent/servers allocation/ allocations client/allocation/x/stats client/fs/ls/x client/gc \
    client/identity client/identity/renew client/metadata client/stats deployment/ deployments evaluation/ evaluations \
    evaluations/count job/ jobs jobs/parse jobs/statuses metrics namespace namespace/ namespaces node/ node/pool/ \
    node/pools nodes operator/autopilot/configuration operator/autopilot/health operator/keyring/ operator/license operator/raft/ \
    operator/scheduler/configuration operator/snapshot operator/upgrade-check/ operator/utilization plugin/csi/ plugins quota quota/ \
    quotas quota-usages recommendation recommendations recommendations/apply recommendation/ regions scaling/policies \
    scaling/policy/ search search/fuzzy sentinel/policies sentinel/policy/ service/ services status/leader status/peers system/gc \
    system/reconcile/summaries validate/job var/ vars volume/csi/ volume/host/ volumes volumes/claim/ volumes/claims volumes/external \
    volumes/snapshot";

/// No path of Nomad's is unknown: it is served, or refused with the name of its feature.
#[tokio::test]
async fn every_nomad_path_is_known() {
    let api = ApiFixture::new();
    let listener = Listener::unix(&api.socket()).await.unwrap();
    api.serve(listener, http::router(Arc::clone(&api.shared)), None, Limits::default());
    let client = reqwest::Client::builder().unix_socket(api.socket()).build().unwrap();
    for path in PATHS_OF_NOMAD.split_whitespace() {
        let path = if path.ends_with('/') { format!("{path}x") } else { path.to_owned() };
        let answer = client.get(format!("http://localhost/v1/{path}")).send().await.unwrap();
        let (status, text) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert!(text != "resource not found", "{path}: {status} {text}");
        assert!(text.lines().count() <= 1 || status == 200, "{path}: {status} {text}");
    }
}
