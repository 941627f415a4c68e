//! Queries of templates for data, and their answers.

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use crate::text::Text;

/// What a template asks for. Equal queries have equal answers, so that one watch serves all templates.
///
/// An empty `namespace` is the job's, an empty `region` the node's. Its text is the short name for people. It has the names
/// of the data that a query of Vault writes, but not their values, which are secrets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Query {
    /// A variable of the task's environment.
    Env { name: String },
    /// The content of a file. With a sandbox, the path is relative to it and stays within by its text; the source must not
    /// follow links out of it.
    File { path: String },
    /// The addresses of the node.
    Addresses,
    /// The variable at a path of Nomad.
    NomadVariable { path: String, namespace: String, region: String },
    /// The variables below a prefix.
    NomadVariables { prefix: String, namespace: String, region: String },
    /// The instances of a service in Nomad's catalogue.
    NomadService { name: String, tag: String, region: String, choice: Option<Choice> },
    /// The services of Nomad's catalogue.
    NomadServices { region: String },
    /// A query for Consul.
    Consul { function: &'static str, arguments: Vec<String> },
    /// A query for Vault.
    Vault { function: &'static str, arguments: Vec<String> },
}

/// Chooses `count` instances by rendezvous hashing with a key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice {
    pub count: usize,
    pub key: String,
}

impl Query {
    /// The bytes of its texts.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Env { name } => name.len(),
            Self::File { path } => path.len(),
            Self::Addresses => 0,
            Self::NomadVariable { path, namespace, region } => path.len() + namespace.len() + region.len(),
            Self::NomadVariables { prefix, namespace, region } => {
                prefix.len() + namespace.len() + region.len()
            }
            Self::NomadService { name, tag, region, choice } => {
                name.len() + tag.len() + region.len() + choice.as_ref().map_or(0, |choice| choice.key.len())
            }
            Self::NomadServices { region } => region.len(),
            Self::Consul { arguments, .. } | Self::Vault { arguments, .. } => {
                arguments.iter().map(String::len).sum()
            }
        }
    }
}

impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env { name } => write!(f, "env {name}"),
            Self::File { path } => write!(f, "file {path}"),
            Self::Addresses => f.write_str("addresses of the node"),
            Self::NomadVariable { path, namespace, region } => {
                f.write_str(path)?;
                scope(f, namespace, region)
            }
            Self::NomadVariables { prefix, namespace, region } => {
                write!(f, "{prefix}*")?;
                scope(f, namespace, region)
            }
            Self::NomadService { name, tag, region, choice } => {
                f.write_str("service ")?;
                if !tag.is_empty() {
                    write!(f, "{tag}.")?;
                }
                f.write_str(name)?;
                scope(f, "", region)?;
                match choice {
                    Some(Choice { count, key }) => write!(f, " ({count} by {key})"),
                    None => Ok(()),
                }
            }
            Self::NomadServices { region } => {
                f.write_str("services")?;
                scope(f, "", region)
            }
            Self::Consul { function, arguments } => {
                f.write_str(function)?;
                arguments.iter().try_for_each(|argument| write!(f, " {argument}"))
            }
            Self::Vault { function, arguments } => {
                f.write_str(function)?;
                for (index, argument) in arguments.iter().enumerate() {
                    match argument.split_once('=') {
                        Some((name, _)) if index > 0 => write!(f, " {name}=…")?,
                        Some(_) | None => write!(f, " {argument}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Query({self})")
    }
}

fn scope(f: &mut fmt::Formatter<'_>, namespace: &str, region: &str) -> fmt::Result {
    match (namespace, region) {
        ("", "") => Ok(()),
        (namespace, "") => write!(f, "@{namespace}"),
        ("", region) => write!(f, "@.{region}"),
        (namespace, region) => write!(f, "@{namespace}.{region}"),
    }
}

/// The answer to a query. Cheap to clone. Has no `Debug`, because answers are secrets.
#[derive(Clone)]
pub enum Answer {
    /// Not known yet.
    Pending,
    /// Known not to exist.
    Absent,
    /// Cannot be answered; the text is the reason.
    Failed(String),
    /// For environment variables, files and Consul's keys.
    Text(Text),
    Addresses(Arc<[NodeAddress]>),
    Variable(Arc<Variable>),
    Variables(Arc<[VariableMeta]>),
    Services(Arc<[ServiceInstance]>),
    ServiceNames(Arc<[ServiceName]>),
    /// Objects of Consul and Vault, with their field names in Go.
    Json(Arc<serde_json::Value>),
}

impl Answer {
    /// Whether there is no data, now or at all.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(self, Self::Pending | Self::Absent)
    }
}

/// An address of an interface of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    pub interface: String,
    pub address: IpAddr,
    /// Length of its network's prefix.
    pub prefix: u8,
    pub is_up: bool,
    /// Whether the default route leaves by this interface.
    pub is_default: bool,
}

/// A variable with its items.
#[derive(Clone, Default)]
pub struct Variable {
    pub meta: VariableMeta,
    pub items: BTreeMap<String, String>,
}

/// Items are secrets.
impl fmt::Debug for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Variable({:?}, {} items)", self.meta.path, self.items.len())
    }
}

/// A variable without its items. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct VariableMeta {
    pub namespace: String,
    pub path: String,
    pub create_index: u64,
    pub modify_index: u64,
    pub create_time: i64,
    pub modify_time: i64,
}

/// An instance of a service in Nomad's catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServiceInstance {
    pub id: String,
    pub name: String,
    pub node: String,
    pub address: String,
    pub port: u16,
    pub datacenter: String,
    pub tags: Vec<String>,
    pub job_id: String,
    pub alloc_id: String,
}

/// A service of Nomad's catalogue, with all tags of its instances.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ServiceName {
    pub name: String,
    pub tags: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A login of Vault takes a secret as an argument. `{:?}` has printed it.
    #[test]
    fn texts_of_queries_have_no_secrets() {
        let arguments =
            ["auth/approle/login", "role_id=web", "secret_id=hunter2"].map(str::to_owned).to_vec();
        let query = Query::Vault { function: "secret", arguments };
        assert_eq!(query.to_string(), "secret auth/approle/login role_id=… secret_id=…");
        assert_eq!(format!("{query:?}"), format!("Query({query})"));
    }
}
