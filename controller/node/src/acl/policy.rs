//! Parses one policy: rules in HCL 1 or in JSON, as operators write them.
//!
//! In: the text that servers store. Out: its rules on namespaces, the node, the agent and the operator API; other rules do not concern a
//! node. An unreadable policy grants nothing and is an error: it might have denied something.

use std::collections::BTreeSet;

use herdlet_manifest::{
    hcl1,
    yaml::{Entry, Node, Problem, Value},
};
use serde_json::{Map, Value as Json};

use super::Access;

/// The capabilities of `policy = "read"` in a namespace that a node checks.
const READ: [&str; 2] = ["read-job", "parse-job"];

/// The additional ones of `policy = "write"`.
const WRITE: [&str; 5] = ["submit-job", "read-logs", "read-fs", "alloc-exec", "alloc-lifecycle"];

/// Maximum size of a policy.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// A policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    pub(super) rules: Vec<Rule>,
}

/// One rule of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) subject: Subject,
    /// Unused for namespaces, which have capabilities instead.
    pub(super) access: Access,
    /// The capabilities in a namespace, by name, including those that `policy` implies.
    pub(super) capabilities: BTreeSet<String>,
}

/// The subject of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// A namespace, or a pattern with `*`.
    Namespace(String),
    Node,
    Agent,
    Operator,
}

/// A policy cannot be parsed. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("read the ACL policy {name:?}: {why}")]
pub struct PolicyError {
    name: String,
    why: String,
}

/// A rule as written.
struct RuleBlock {
    kind: String,
    label: Option<String>,
    policy: Option<String>,
    capabilities: Vec<String>,
}

impl Policy {
    /// Parses the policy with this name.
    ///
    /// # Errors
    /// If it is neither HCL nor JSON, or a relevant rule is invalid.
    pub fn read(name: &str, text: &str) -> Result<Self, PolicyError> {
        let failed = |why| PolicyError { name: name.to_owned(), why };
        if text.len() > TEXT_BYTES_MAX {
            return Err(failed(format!("it has more than {TEXT_BYTES_MAX} bytes")));
        }
        let written = if text.trim_start().starts_with('{') { json(text) } else { hcl(text) };
        let rules = written.map_err(failed)?.into_iter().filter_map(|written| rule(written).transpose());
        Ok(Self { rules: rules.collect::<Result<_, _>>().map_err(failed)? })
    }
}

/// The meaning of a rule; `None` if it does not concern a node.
fn rule(RuleBlock { kind, label, policy, capabilities }: RuleBlock) -> Result<Option<Rule>, String> {
    let subject = match (kind.as_str(), label) {
        ("namespace", Some(name)) => Subject::Namespace(name),
        ("namespace", None) => return Err("a namespace has no name".to_owned()),
        ("node", _) => Subject::Node,
        ("agent", _) => Subject::Agent,
        ("operator", _) => Subject::Operator,
        _ => return Ok(None),
    };
    let mut rule = Rule { subject, access: Access::Unsaid, capabilities: capabilities.into_iter().collect() };
    let policy = policy.as_deref().unwrap_or_default();
    let add =
        |names: &[&str], to: &mut BTreeSet<String>| to.extend(names.iter().map(|name| (*name).to_owned()));
    match (&rule.subject, policy) {
        (Subject::Namespace(_), "" | "list" | "scale") => {}
        (Subject::Namespace(_), "read") => add(&READ, &mut rule.capabilities),
        (Subject::Namespace(_), "write") => {
            add(&READ, &mut rule.capabilities);
            add(&WRITE, &mut rule.capabilities);
        }
        (Subject::Namespace(_), "deny") => add(&[super::DENY], &mut rule.capabilities),
        (_, "") => {}
        (_, "list") => rule.access = Access::List,
        (_, "read") => rule.access = Access::Read,
        (_, "write") => rule.access = Access::Write,
        (_, "deny") => rule.access = Access::Deny,
        (_, other) => return Err(format!("{kind} has the unknown policy {other:?}")),
    }
    Ok(Some(rule))
}

fn hcl(text: &str) -> Result<Vec<RuleBlock>, String> {
    let place = |Problem { line, message, .. }| format!("line {line}: {message}");
    let root = hcl1::parse("", text.as_bytes()).map_err(place)?;
    let mut written = Vec::new();
    for Entry { key, value, .. } in root.entries().unwrap_or_default() {
        written.extend(of_json(key, &as_json(value))?);
    }
    Ok(written)
}

/// Converts to JSON. Repeated keys become a list.
fn as_json(node: &Node) -> Json {
    match &node.value {
        Value::Null | Value::Refused => Json::Null,
        Value::Bool(value) => (*value).into(),
        // Large numbers may become null: a node reads no numbers.
        Value::Int(value) => i64::try_from(*value).map_or(Json::Null, Json::from),
        Value::Float(value) => (*value).into(),
        Value::Str => (*node.text).into(),
        Value::Seq(items) => items.iter().map(|item| as_json(item)).collect(),
        Value::Map(entries) => {
            let mut object = Map::new();
            for Entry { key, value, .. } in entries {
                let value = as_json(value);
                let value = match object.remove(&**key) {
                    None => value,
                    Some(Json::Array(mut list)) if value.is_object() => {
                        list.push(value);
                        list.into()
                    }
                    Some(before) => vec![before, value].into(),
                };
                object.insert(key.to_string(), value);
            }
            object.into()
        }
    }
}

fn json(text: &str) -> Result<Vec<RuleBlock>, String> {
    let read: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Json::Object(subjects) = read else { return Err("it is not an object".to_owned()) };
    let mut written = Vec::new();
    for (kind, of_kind) in &subjects {
        written.extend(of_json(kind, of_kind)?);
    }
    Ok(written)
}

/// `{"policy": "read"}`, below a name for namespaces; or a list of these.
fn of_json(kind: &str, value: &Json) -> Result<Vec<RuleBlock>, String> {
    let is_named = match kind {
        "namespace" => true,
        "node" | "agent" | "operator" => false,
        _ => return Ok(Vec::new()),
    };
    if is_named && value.get("policy").is_some_and(Json::is_string) {
        return Err("a namespace has no name".to_owned());
    }
    match value {
        Json::Array(list) => {
            let each = list.iter().map(|one| of_json(kind, one));
            Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        Json::Object(named) if is_named => {
            let mut written = Vec::new();
            for (label, rules) in named {
                let rules = if let Json::Array(list) = rules { list.iter().collect() } else { vec![rules] };
                for rule in rules {
                    written.push(of_object(kind, Some(label.clone()), rule)?);
                }
            }
            Ok(written)
        }
        rule @ (Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_)) => {
            Ok(vec![of_object(kind, None, rule)?])
        }
    }
}

fn of_object(kind: &str, label: Option<String>, value: &Json) -> Result<RuleBlock, String> {
    let Json::Object(fields) = value else { return Err(format!("{kind} is not an object")) };
    let policy = fields.get("policy").map(|policy| text_of(kind, "policy", policy)).transpose()?;
    let capabilities = fields.get("capabilities").map(|list| texts_of(kind, list)).transpose()?;
    Ok(RuleBlock { kind: kind.to_owned(), label, policy, capabilities: capabilities.unwrap_or_default() })
}

fn text_of(kind: &str, field: &str, value: &Json) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("{kind}: {field} is not a string"))
}

fn texts_of(kind: &str, value: &Json) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or_else(|| format!("{kind}: capabilities is not a list"))?;
    list.iter().map(|one| text_of(kind, "capabilities", one)).collect()
}
