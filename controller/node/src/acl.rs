//! The permissions of a token, by the cluster's access control lists (ACLs).
//!
//! In: a token's policies, as servers store them. Out: whether they cover an allocation's namespace, the node or the agent. [`policy`]
//! parses policies, [`resolver`] requests them from servers and caches them; this module only evaluates them.
//!
//! Facts: `hashicorp/nomad:acl/acl.go`, `acl/policy.go`.

mod policy;
mod resolver;

use std::collections::{BTreeMap, BTreeSet};

pub use policy::{Policy, PolicyError};
pub use resolver::{Denied, Mode, Resolver, Settings};

use policy::{Rule, Subject};

/// A permission on the allocations of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// See a job, its allocations and their resource usage.
    ReadJob,
    /// Register a job; garbage-collect its allocations.
    SubmitJob,
    /// Garbage-collect only (1.11 and later).
    GcAllocation,
    /// Have job files parsed.
    ParseJob,
    ReadLogs,
    /// Read files, including logs.
    ReadFs,
    /// Execute commands in tasks.
    AllocExec,
    /// Execute commands also in tasks that see the machine's file system.
    AllocNodeExec,
    /// Restart allocations and send them signals.
    AllocLifecycle,
}

impl Capability {
    /// Its name in policies.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadJob => "read-job",
            Self::SubmitJob => "submit-job",
            Self::GcAllocation => "gc-allocation",
            Self::ParseJob => "parse-job",
            Self::ReadLogs => "read-logs",
            Self::ReadFs => "read-fs",
            Self::AllocExec => "alloc-exec",
            Self::AllocNodeExec => "alloc-node-exec",
            Self::AllocLifecycle => "alloc-lifecycle",
        }
    }
}

/// A coarse permission on the node, the agent or the operator API; the greater of two wins, and `Deny` is the greatest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// No policy mentions it.
    #[default]
    Unsaid,
    List,
    Read,
    Write,
    /// No access, whatever other policies grant.
    Deny,
}

impl Access {
    /// Whether it permits reading.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether it permits changes.
    #[must_use]
    pub fn writes(self) -> bool {
        self == Self::Write
    }
}

/// The permissions of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acl {
    /// Everything is allowed: the cluster has no ACLs.
    Disabled,
    /// Everything is allowed: it is a management token.
    Management,
    /// The union of its policies.
    Policies(Grants),
}

/// The merged rules of several policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    namespaces: BTreeMap<String, Capabilities>,
    /// By namespace pattern with `*`.
    patterns: BTreeMap<String, Capabilities>,
    node: Access,
    agent: Access,
    operator: Access,
}

/// Capabilities by name; `deny` removes all others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Capabilities(BTreeSet<String>);

/// The capability that removes all others.
const DENY: &str = "deny";

impl Capabilities {
    fn add<'n>(&mut self, names: impl IntoIterator<Item = &'n String>) {
        self.0.extend(names.into_iter().cloned());
        if self.0.contains(DENY) {
            self.0 = BTreeSet::from([DENY.to_owned()]);
        }
    }
}

impl Acl {
    /// Merges policies.
    pub fn of<'p>(policies: impl IntoIterator<Item = &'p Policy>) -> Self {
        let mut grants = Grants::default();
        for Rule { subject, access, capabilities } in policies.into_iter().flat_map(|policy| &policy.rules) {
            match subject {
                Subject::Namespace(name) => {
                    let rules =
                        if name.contains('*') { &mut grants.patterns } else { &mut grants.namespaces };
                    rules.entry(name.clone()).or_default().add(capabilities);
                }
                Subject::Node => grants.node = grants.node.max(*access),
                Subject::Agent => grants.agent = grants.agent.max(*access),
                Subject::Operator => grants.operator = grants.operator.max(*access),
            }
        }
        Self::Policies(grants)
    }

    /// Whether the capability is granted in a namespace. A rule for the namespace itself wins over patterns; among patterns, the most
    /// specific one.
    #[must_use]
    pub fn allows(&self, namespace: &str, capability: Capability) -> bool {
        match self {
            Self::Disabled | Self::Management => true,
            Self::Policies(grants) => {
                let own = grants.namespaces.get(namespace);
                let rule = own.or_else(|| closest(&grants.patterns, namespace));
                rule.is_some_and(|rule| rule.0.contains(capability.as_str()))
            }
        }
    }

    /// Access to the node.
    #[must_use]
    pub fn node(&self) -> Access {
        self.access(|grants| grants.node)
    }

    /// Access to the agent.
    #[must_use]
    pub fn agent(&self) -> Access {
        self.access(|grants| grants.agent)
    }

    /// Access to the operator API.
    #[must_use]
    pub fn operator(&self) -> Access {
        self.access(|grants| grants.operator)
    }

    fn access(&self, of: fn(&Grants) -> Access) -> Access {
        match self {
            Self::Disabled | Self::Management => Access::Write,
            Self::Policies(grants) => of(grants),
        }
    }
}

/// The rule of the pattern whose `*`s match the fewest characters of the name; among equal ones, the last in order.
fn closest<'g>(patterns: &'g BTreeMap<String, Capabilities>, name: &str) -> Option<&'g Capabilities> {
    let matching = patterns.iter().filter(|(pattern, _)| matches(pattern, name));
    let left = |pattern: &str| {
        let stars = pattern.bytes().filter(|byte| *byte == b'*').count();
        name.len().saturating_sub(pattern.len() - stars)
    };
    matching.rev().min_by_key(|(pattern, _)| left(pattern)).map(|(_, rule)| rule)
}

/// Whether a name matches a pattern in which `*` matches any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').map_or((None, rest), |(middle, last)| (Some(middle), last));
    for part in middle.into_iter().flat_map(|middle| middle.split('*')) {
        let Some((_, after)) = left.split_once(part) else { return false };
        left = after;
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests;
