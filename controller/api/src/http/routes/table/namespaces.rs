//! Namespaces and quotas, variables, scaling policies, search.

use super::{
    Field, Fields, Found, In, List, NotBuilt, Nothing, OneNamed, OneOf, RequestRule, ResponseRule, Route,
    Servers, Text, below, delete, get, put, read, remove, write,
};
use crate::http::{fuzzy, namespaces, policies, search, variables};

const QUOTAS: &str = "quotas";
const NAMESPACES: &str = "changes of namespaces";

pub(super) const ROUTES: &[Route] = &[
    get(
        "namespaces",
        served!(namespaces::list),
        Servers(read("Namespace.ListNamespaces", List("Namespaces"))),
    ),
    put(
        "namespace",
        NotBuilt(NAMESPACES),
        Servers(write("Namespace.UpsertNamespaces", OneOf("Namespaces")).shows(Nothing)),
    ),
    get(
        "namespace/{Name}",
        served!(namespaces::read),
        Servers(read("Namespace.GetNamespace", Found("Namespace", "Namespace not found"))),
    ),
    put(
        "namespace/{Name}",
        NotBuilt(NAMESPACES),
        Servers(
            write("Namespace.UpsertNamespaces", OneNamed("Namespaces", "Name", "Namespace name"))
                .shows(Nothing),
        ),
    ),
    delete("namespace/{Namespaces[]}", NotBuilt(NAMESPACES), Servers(remove("Namespace.DeleteNamespaces"))),
    get("vars", served!(variables::list), Servers(read("Variables.List", List("Data")))),
    get(
        "var/{Path*}",
        served!(variables::read),
        Servers(read("Variables.Read", Found("Data", "variable not found"))),
    ),
    put(
        "var/{Path*}",
        served!(variables::write),
        Servers(
            write("Variables.Apply", In("Var"))
                .shows(Field("Output"))
                .with_request(RequestRule::Variable)
                .with_response(ResponseRule::Variable),
        ),
    ),
    delete(
        "var/{Path*}",
        served!(variables::remove),
        Servers(
            remove("Variables.Apply")
                .with_request(RequestRule::Variable)
                .with_response(ResponseRule::Variable),
        ),
    ),
    get(
        "scaling/policies",
        served!(policies::list),
        Servers(
            read("Scaling.ListPolicies", List("Policies"))
                .with(&[("Job", Text("job")), ("Type", Text("type"))]),
        ),
    ),
    get(
        "scaling/policy/{ID}",
        served!(policies::read),
        Servers(read("Scaling.GetPolicy", Found("Policy", "policy not found"))),
    ),
    put(
        "search",
        served!(search::prefix),
        Servers(write("Search.PrefixSearch", Fields(&["Prefix", "Context"]))),
    ),
    put(
        "search/fuzzy",
        served!(fuzzy::search),
        Servers(write("Search.FuzzySearch", Fields(&["Text", "Context"]))),
    ),
    below("quota", QUOTAS),
    below("quotas", QUOTAS),
    below("quota-usages", QUOTAS),
];
