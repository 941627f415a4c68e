//! The queries of template functions to Consul.
//!
//! In: a function with its arguments, in the forms of consul-template (`dependency/dependency.go` and its neighbours).
//! Out: a path of Consul's API, and its arguments.

use herdlet_services::catalog::path_of;

/// Stands for the name of the agent's own node until it is known.
pub(super) const NODE_NAME: &str = "_agent";

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Key,
    KeyPair,
    Tree,
    Datacenters,
    Services,
    Service,
    Connect,
    Nodes,
    Node,
    Roots,
    Leaf,
    Partitions,
    Peerings,
}

impl Kind {
    fn by_function(function: &str) -> Option<Self> {
        Some(match function {
            "key" => Self::Key,
            "keyExistsGet" => Self::KeyPair,
            "tree" => Self::Tree,
            "datacenters" => Self::Datacenters,
            "services" => Self::Services,
            "service" => Self::Service,
            "connect" => Self::Connect,
            "nodes" => Self::Nodes,
            "node" => Self::Node,
            "caRoots" => Self::Roots,
            "caLeaf" => Self::Leaf,
            "partitions" => Self::Partitions,
            "peerings" => Self::Peerings,
            _ => return None,
        })
    }

    /// Whether something that does not exist is an answer.
    pub(super) fn may_be_absent(self) -> bool {
        matches!(self, Self::Key | Self::KeyPair | Self::Tree | Self::Node)
    }
}

/// Which instances of a service a query selects by their checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Health {
    /// Consul itself selects those that pass.
    Passing,
    Any,
    /// Those with one of these states.
    States(Vec<String>),
}

/// A query of Consul.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConsulQuery {
    pub(super) kind: Kind,
    /// The key, prefix, service or node; empty if the query has none.
    pub(super) name: String,
    pub(super) health: Health,
    pub(super) near: String,
    tag: String,
    datacenter: String,
    /// `ns`, `partition`, `peer` and `sameness-group`.
    scope: Vec<(&'static str, String)>,
}

/// The arguments that a query may have after `?`.
const SCOPES: [&str; 4] = ["ns", "partition", "peer", "sameness-group"];

/// States of checks that a query may name.
const STATES: [&str; 4] = ["passing", "warning", "critical", "maintenance"];

impl ConsulQuery {
    /// Parses `[TAG.]NAME[?SCOPES][@DATACENTER][~NEAR][|STATES]`. Each function accepts a subset of these parts.
    pub(super) fn parse(function: &str, arguments: &[String]) -> Result<Self, String> {
        let kind =
            Kind::by_function(function).ok_or_else(|| format!("{function} is not read from Consul"))?;
        let separator = if matches!(kind, Kind::Service | Kind::Connect) { "|" } else { "" };
        let text = arguments.join(separator);
        let wrong = |why: &str| format!("{function} {text}: {why}");
        let mut query = Self {
            kind,
            name: String::new(),
            health: Health::Passing,
            near: String::new(),
            tag: String::new(),
            datacenter: String::new(),
            scope: Vec::new(),
        };
        let mut rest = text.as_str();
        if matches!(kind, Kind::Service | Kind::Connect)
            && let Some((before, states)) = rest.split_once('|')
        {
            query.health = health(states).map_err(|why| wrong(&why))?;
            rest = before;
        }
        if matches!(kind, Kind::Service | Kind::Connect | Kind::Nodes)
            && let Some((before, near)) = rest.split_once('~')
        {
            query.near = word(near, "._-").ok_or_else(|| wrong("the name after ~ is invalid"))?;
            rest = before;
        }
        if let Some((before, datacenter)) = rest.rsplit_once('@') {
            query.datacenter =
                word(datacenter, "._-").ok_or_else(|| wrong("the datacenter after @ is invalid"))?;
            rest = before;
        }
        if let Some((before, scope)) = rest.split_once('?') {
            query.scope = scopes(scope).ok_or_else(|| {
                wrong("only ns, partition, peer and sameness-group with their values may follow ?")
            })?;
            rest = before;
        }
        match kind {
            Kind::Key | Kind::KeyPair | Kind::Tree => {
                query.name = rest.strip_prefix('/').unwrap_or(rest).to_owned();
                if query.name.is_empty() {
                    return Err(wrong("the path is missing"));
                }
            }
            Kind::Service | Kind::Connect => {
                let (tag, name) = rest.rsplit_once('.').unwrap_or(("", rest));
                query.name = word(name, "_-").ok_or_else(|| wrong("the name of the service is invalid"))?;
                if !tag.is_empty() {
                    query.tag = word(tag, "=:._-").ok_or_else(|| wrong("the tag is invalid"))?;
                }
            }
            Kind::Leaf => {
                query.name = word(rest, "._-").ok_or_else(|| wrong("the name of the service is missing"))?;
            }
            Kind::Node if !rest.is_empty() => {
                query.name = word(rest, "._-").ok_or_else(|| wrong("the name of the node is invalid"))?;
            }
            Kind::Node
            | Kind::Datacenters
            | Kind::Services
            | Kind::Nodes
            | Kind::Roots
            | Kind::Partitions
            | Kind::Peerings => {
                if !rest.is_empty() {
                    return Err(wrong("it takes only @DATACENTER"));
                }
            }
        }
        Ok(query)
    }

    /// Its path; `node` is the name of the agent's node. `None` if the name leads to another path.
    pub(super) fn path(&self, node: &str) -> Option<String> {
        let fixed = |path: &str| Some(path.to_owned());
        let one = |base| path_of(base, std::iter::once(self.name.as_str()));
        match self.kind {
            Kind::Key | Kind::KeyPair | Kind::Tree => path_of("/v1/kv/", self.name.split('/')),
            Kind::Datacenters => fixed("/v1/catalog/datacenters"),
            Kind::Services => fixed("/v1/catalog/services"),
            Kind::Service => one("/v1/health/service/"),
            Kind::Connect => one("/v1/health/connect/"),
            Kind::Nodes => fixed("/v1/catalog/nodes"),
            Kind::Node if self.name.is_empty() => path_of("/v1/catalog/node/", std::iter::once(node)),
            Kind::Node => one("/v1/catalog/node/"),
            Kind::Roots => fixed("/v1/agent/connect/ca/roots"),
            Kind::Leaf => one("/v1/agent/connect/ca/leaf/"),
            Kind::Partitions => fixed("/v1/partitions"),
            Kind::Peerings => fixed("/v1/peerings"),
        }
    }

    pub(super) fn needs_node_name(&self) -> bool {
        self.kind == Kind::Node && self.name.is_empty()
    }

    /// Whether its path has an index to wait for.
    pub(super) fn blocks(&self) -> bool {
        !matches!(self.kind, Kind::Datacenters | Kind::Partitions)
    }

    /// Whether any server may answer. The agent itself has leaf certificates.
    pub(super) fn may_be_stale(&self) -> bool {
        self.kind != Kind::Leaf
    }

    pub(super) fn arguments(&self) -> Vec<(&'static str, String)> {
        let mut all = self.scope.clone();
        let mut add = |name, value: &str| {
            if !value.is_empty() {
                all.push((name, value.to_owned()));
            }
        };
        add("dc", &self.datacenter);
        add("near", &self.near);
        add("tag", &self.tag);
        if matches!(self.kind, Kind::Service | Kind::Connect) && self.health == Health::Passing {
            add("passing", "1");
        }
        if self.kind == Kind::Tree {
            add("recurse", "1");
        }
        all
    }
}

fn health(states: &str) -> Result<Health, String> {
    let states: Vec<&str> = states.split(',').map(str::trim).filter(|state| !state.is_empty()).collect();
    match states.as_slice() {
        [] | ["passing"] => Ok(Health::Passing),
        ["any"] => Ok(Health::Any),
        named if named.iter().all(|state| STATES.contains(state)) => {
            Ok(Health::States(named.iter().map(|state| (*state).to_owned()).collect()))
        }
        _ => Err(format!("the states of a service are any, or some of {}", STATES.join(", "))),
    }
}

fn scopes(text: &str) -> Option<Vec<(&'static str, String)>> {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let name = SCOPES.into_iter().find(|known| *known == name)?;
        Some((name, word(value, "_-")?))
    };
    text.split('&').map(pair).collect()
}

/// The text, if it has only letters, digits and these characters.
fn word(text: &str, also: &str) -> Option<String> {
    let is_good = |char: char| char.is_ascii_alphanumeric() || also.contains(char);
    (!text.is_empty() && text.chars().all(is_good)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(function: &str, arguments: &[&str]) -> Result<String, String> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        let query = ConsulQuery::parse(function, &arguments)?;
        let given: Vec<String> =
            query.arguments().iter().map(|(name, value)| format!("{name}={value}")).collect();
        Ok(format!("{} {}", query.path("n1").unwrap_or_default(), given.join("&")))
    }

    #[test]
    fn forms_of_consul_template_have_their_paths() {
        for (function, arguments, expected) in [
            ("key", &["a/b"][..], "/v1/kv/a/b "),
            ("key", &["/a/b@dc2"], "/v1/kv/a/b dc=dc2"),
            ("key", &["a?ns=team@dc2"], "/v1/kv/a ns=team&dc=dc2"),
            ("keyExistsGet", &["a b"], "/v1/kv/a%20b "),
            ("tree", &["conf/"], "/v1/kv/conf/ recurse=1"),
            ("datacenters", &[], "/v1/catalog/datacenters "),
            ("services", &["@dc2"], "/v1/catalog/services dc=dc2"),
            ("service", &["web"], "/v1/health/service/web passing=1"),
            (
                "service",
                &["v1.2.web@dc2~_agent"],
                "/v1/health/service/web dc=dc2&near=_agent&tag=v1.2&passing=1",
            ),
            ("service", &["web|any"], "/v1/health/service/web "),
            ("service", &["web", "passing, warning"], "/v1/health/service/web "),
            ("connect", &["web", "passing"], "/v1/health/connect/web passing=1"),
            ("nodes", &["@dc2~_agent"], "/v1/catalog/nodes dc=dc2&near=_agent"),
            ("node", &[], "/v1/catalog/node/n1 "),
            ("node", &["n2", "@dc2"], "/v1/catalog/node/n2 dc=dc2"),
            ("caRoots", &[], "/v1/agent/connect/ca/roots "),
            ("caLeaf", &["web"], "/v1/agent/connect/ca/leaf/web "),
            ("partitions", &[], "/v1/partitions "),
            ("peerings", &["?partition=p"], "/v1/peerings partition=p"),
        ] {
            assert_eq!(shown(function, arguments).as_deref(), Ok(expected), "{function} {arguments:?}");
        }
    }

    #[test]
    fn other_forms_are_refused_with_their_text() {
        for (function, arguments) in [
            ("key", &[""][..]),
            ("key", &["a@"]),
            ("key", &["a?recurse"]),
            ("service", &["we b"]),
            ("service", &["web", "any,passing"]),
            ("service", &["web", "healthy"]),
            ("service", &["web~a/b"]),
            ("services", &["web"]),
            ("node", &["../agent/self"]),
            ("caLeaf", &[]),
            ("exportedServices", &[]),
        ] {
            let why = shown(function, arguments).unwrap_err();
            assert!(why.starts_with(function), "{why}");
        }
        assert_eq!(shown("key", &["a/../../agent/self"]).as_deref(), Ok(" "));
    }
}
