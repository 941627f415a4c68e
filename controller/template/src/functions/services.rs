//! Functions on the data of Consul and Vault.

use super::{ANY, arguments, data::WhenEmpty, refused, row};
use crate::{
    context::{Context, QueryId},
    error::{Fault, Outcome},
    function::{
        Function,
        Group::{Consul, Vault},
    },
    json::{self, Numbers},
    query::{Answer, Query},
    value::{Element, Key, Value},
};

pub(super) static TABLE: &[Function] = &[
    row(Consul, "caLeaf", (0, ANY), |context, values| object(context, Call { function: "caLeaf", values })),
    row(Consul, "caRoots", (0, ANY), |context, _| list(context, Call { function: "caRoots", values: &[] })),
    row(Consul, "connect", (0, ANY), |context, values| {
        named_list(context, Call { function: "connect", values })
    }),
    row(Consul, "datacenters", (0, 1), |context, _| {
        list(context, Call { function: "datacenters", values: &[] })
    }),
    refused(Consul, "exportedServices", OF_PEERS),
    refused(Consul, "importedServices", OF_PEERS),
    row(Consul, "key", (1, 1), |context, values| key(context, &values[0], None)),
    row(Consul, "keyExists", (1, 1), key_exists),
    row(Consul, "keyExistsGet", (1, 1), key_pair),
    row(Consul, "keyOrDefault", (2, 2), |context, values| key(context, &values[0], Some(&values[1]))),
    row(Consul, "ls", (1, 1), |context, values| pairs(context, &values[0], (Depth::Top, WhenEmpty::Renders))),
    row(Consul, "node", (0, ANY), |context, values| object(context, Call { function: "node", values })),
    row(Consul, "nodes", (0, ANY), |context, values| list(context, Call { function: "nodes", values })),
    row(Consul, "partitions", (0, 0), |context, values| {
        list(context, Call { function: "partitions", values })
    }),
    row(Consul, "peerings", (0, ANY), |context, values| list(context, Call { function: "peerings", values })),
    row(Vault, "pkiCert", (0, ANY), |context, values| vault(context, Call { function: "pkiCert", values })),
    row(Consul, "safeLs", (1, 1), |context, values| {
        pairs(context, &values[0], (Depth::Top, WhenEmpty::Waits))
    }),
    row(Consul, "safeTree", (1, 1), |context, values| {
        pairs(context, &values[0], (Depth::All, WhenEmpty::Waits))
    }),
    row(Vault, "secret", (0, ANY), |context, values| vault(context, Call { function: "secret", values })),
    row(Vault, "secrets", (1, 1), secrets),
    row(Consul, "service", (0, ANY), |context, values| {
        named_list(context, Call { function: "service", values })
    }),
    row(Consul, "services", (0, ANY), |context, values| list(context, Call { function: "services", values })),
    row(Consul, "tree", (1, 1), |context, values| {
        pairs(context, &values[0], (Depth::All, WhenEmpty::Renders))
    }),
];

const OF_PEERS: &str = "herdlet does not read the services of peers from Consul";

struct Call<'v> {
    function: &'static str,
    values: &'v [Value],
}

impl Call<'_> {
    fn arguments(&self, context: &mut Context<'_>) -> Outcome<Vec<String>> {
        let argument = |value| {
            context.charge(arguments::text(value)?.len())?;
            arguments::string(value).map(|text| text.into_owned())
        };
        self.values.iter().map(argument).collect()
    }

    fn consul(&self, context: &mut Context<'_>) -> Outcome<Query> {
        Ok(Query::Consul { function: self.function, arguments: self.arguments(context)? })
    }
}

/// Returns the data of an answer; none if it is pending or absent.
fn answered(context: &mut Context<'_>, query: Query) -> Outcome<(QueryId, Option<Value>)> {
    let (asked, answer) = context.ask(query)?;
    let found = match answer {
        Answer::Pending | Answer::Absent => None,
        Answer::Text(text) => Some(context.text(text)?),
        Answer::Json(tree) => Some(json::value(context, &tree, Numbers::Ints)?),
        Answer::Failed(_)
        | Answer::Addresses(_)
        | Answer::Variable(_)
        | Answer::Variables(_)
        | Answer::Services(_)
        | Answer::ServiceNames(_) => return Err(context.unfitting(asked)),
    };
    Ok((asked, found))
}

fn object(context: &mut Context<'_>, call: Call<'_>) -> Outcome<Value> {
    let query = call.consul(context)?;
    Ok(answered(context, query)?.1.unwrap_or_default())
}

fn list(context: &mut Context<'_>, call: Call<'_>) -> Outcome<Value> {
    let query = call.consul(context)?;
    match answered(context, query)?.1 {
        Some(list) => Ok(list),
        None => context.list(Vec::new(), Element::Any),
    }
}

/// A list of something with a name; without a name it is empty.
fn named_list(context: &mut Context<'_>, call: Call<'_>) -> Outcome<Value> {
    if call.arguments(context)?.first().is_none_or(String::is_empty) {
        return context.list(Vec::new(), Element::Any);
    }
    list(context, call)
}

fn key_query(value: &Value) -> Outcome<Option<Query>> {
    let path = path_of(value)?;
    Ok((!path.is_empty()).then(|| Query::Consul { function: "key", arguments: vec![path] }))
}

/// The path of a key or a prefix.
fn path_of(value: &Value) -> Outcome<String> {
    let path = arguments::string(value)?;
    let path = path.trim();
    Ok(path.strip_prefix('/').unwrap_or(path).to_owned())
}

/// The key with its metadata; if it does not exist, an object that has nothing but that.
fn key_pair(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let path = path_of(&values[0])?;
    if !path.is_empty() {
        let query = Query::Consul { function: "keyExistsGet", arguments: vec![path.clone()] };
        if let (_, Some(found)) = answered(context, query)? {
            return Ok(found);
        }
    }
    let none = serde_json::json!({ "Path": path, "Key": path, "Value": "", "Exists": false });
    json::value(context, &none, Numbers::Ints)
}

/// The value of a key. Without a default, a template waits until the key exists.
fn key(context: &mut Context<'_>, path: &Value, default: Option<&Value>) -> Outcome<Value> {
    let empty = default.cloned().unwrap_or_else(|| Value::from(""));
    let Some(query) = key_query(path)? else { return Ok(empty) };
    match answered(context, query)? {
        (_, Some(value)) if value.is_true() || default.is_none() => Ok(value),
        (_, Some(_)) => Ok(empty),
        (asked, None) => {
            if default.is_none() {
                context.miss(asked);
            }
            Ok(empty)
        }
    }
}

fn key_exists(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let Some(query) = key_query(&values[0])? else { return Ok(Value::Bool(false)) };
    Ok(Value::Bool(answered(context, query)?.1.is_some()))
}

/// Which keys below a prefix are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    Top,
    All,
}

fn pairs(
    context: &mut Context<'_>,
    prefix: &Value,
    (depth, when_empty): (Depth, WhenEmpty),
) -> Outcome<Value> {
    let prefix = path_of(prefix)?;
    if prefix.is_empty() {
        return context.list(Vec::new(), Element::Struct);
    }
    let query = Query::Consul { function: "tree", arguments: vec![prefix] };
    let (asked, all) = answered(context, query)?;
    let all = all.unwrap_or_default();
    let is_listed = |pair: &&Value| {
        let Value::Map(pair) = pair else { return false };
        let key = pair.get(&Key::Str("Key".into()));
        let key =
            key.as_ref().and_then(Value::as_text).map(|text| text.lossy().into_owned()).unwrap_or_default();
        match depth {
            Depth::Top => !key.is_empty() && !key.contains('/'),
            Depth::All => !key.is_empty() && !key.ends_with('/'),
        }
    };
    let found: Vec<Value> = arguments::items(&all)?.iter().filter(is_listed).cloned().collect();
    if found.is_empty() && when_empty == WhenEmpty::Waits {
        context.miss(asked);
    }
    context.list(found, Element::Struct)
}

/// A secret: a path, and data `key=value` that makes it a write.
fn vault(context: &mut Context<'_>, call: Call<'_>) -> Outcome<Value> {
    let mut arguments = call.arguments(context)?;
    if arguments.is_empty() {
        return Ok(Value::Nil);
    }
    for pair in arguments.iter_mut().skip(1).filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Fault::new("the data of a secret are pairs KEY=VALUE"));
        };
        *pair = format!("{}={}", key.trim(), value.trim());
    }
    arguments.retain(|argument| !argument.is_empty());
    let query = Query::Vault { function: call.function, arguments };
    Ok(answered(context, query)?.1.unwrap_or_default())
}

fn secrets(context: &mut Context<'_>, values: &[Value]) -> Outcome<Value> {
    let path = arguments::string(&values[0])?.into_owned();
    if path.is_empty() {
        return context.list(Vec::new(), Element::Str);
    }
    let query = Query::Vault { function: "secrets", arguments: vec![path] };
    match answered(context, query)?.1 {
        Some(list) => Ok(list),
        None => context.list(Vec::new(), Element::Str),
    }
}
