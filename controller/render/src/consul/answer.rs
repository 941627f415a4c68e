//! Answers of Consul as templates see them.
//!
//! In: the body of an answer. Out: a value with the fields of consul-template's structs: `KeyPair`, `CatalogSnippet`,
//! `HealthService`, `Node`, `CatalogNode` (`dependency/*.go`), and of Consul's own for certificates. Lists have one order,
//! so that the same data renders the same output.

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use herdlet_template::Answer;
use serde_json::{Map, Value, json};

use super::query::{ConsulQuery, Health, Kind};

/// The answer to a query; otherwise what is wrong with the body. Anything unexpected is refused: a proxy may have answered.
pub(super) fn read(query: &ConsulQuery, body: &[u8]) -> Result<Answer, String> {
    let value: Value = serde_json::from_slice(body).map_err(|error| format!("no JSON: {error}"))?;
    let found = match query.kind {
        Kind::Key | Kind::KeyPair => {
            let all = objects(&value, "Key")?;
            let Some(own) = all.iter().find(|pair| text(pair, "Key") == query.name) else {
                return Err("another key".to_owned());
            };
            if query.kind == Kind::Key {
                return Ok(Answer::Text(decoded(own)?.into()));
            }
            pair(own, "")?
        }
        Kind::Tree => {
            let pairs = objects(&value, "Key")?.iter().map(|one| pair(one, &query.name));
            Value::Array(pairs.collect::<Result<_, _>>()?)
        }
        Kind::Datacenters => sorted(list(&value)?).into(),
        Kind::Services => services(&value)?,
        Kind::Service | Kind::Connect => instances(query, objects(&value, "Service")?),
        Kind::Nodes => nodes(query, objects(&value, "Node")?),
        Kind::Node if value.is_null() => return Ok(Answer::Absent),
        Kind::Node => node_with_services(&value).ok_or("no node")?,
        Kind::Roots => objects(value.get("Roots").ok_or("no roots")?, "ID")?.iter().map(root).collect(),
        Kind::Leaf if value.get("CertPEM").is_some_and(Value::is_string) => value,
        Kind::Leaf => return Err("no certificate".to_owned()),
        Kind::Partitions | Kind::Peerings => by_name(objects(&value, "Name")?),
    };
    Ok(Answer::Json(Arc::new(found)))
}

/// The name of the node in an agent's description of itself.
pub(super) fn node_name(body: &[u8]) -> Option<String> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let name = value.pointer("/Config/NodeName")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// A list. Go's lists may be null.
fn list(value: &Value) -> Result<&[Value], String> {
    match value {
        Value::Array(items) => Ok(items),
        Value::Null => Ok(&[]),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Err("no list".to_owned()),
    }
}

/// A list of objects that have this field.
fn objects<'v>(value: &'v Value, field: &str) -> Result<&'v [Value], String> {
    let items = list(value)?;
    let has_field =
        |item: &Value| item.get(field).is_some_and(|field| field.is_string() || field.is_object());
    if items.iter().all(has_field) { Ok(items) } else { Err(format!("an object without {field}")) }
}

/// A list that may be missing, such as tags.
fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Texts in order, such as tags.
fn sorted(values: &[Value]) -> Vec<Value> {
    let mut texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
    texts.sort_unstable();
    texts.into_iter().map(Value::from).collect()
}

/// An object of a map that may be absent.
fn object(value: &Value) -> Value {
    if value.is_object() { value.clone() } else { Value::Object(Map::new()) }
}

fn decoded(found: &Value) -> Result<Vec<u8>, String> {
    STANDARD.decode(text(found, "Value")).map_err(|_| "a value that is not base64".to_owned())
}

fn pair(found: &Value, prefix: &str) -> Result<Value, String> {
    let path = text(found, "Key");
    let value = decoded(found)?;
    Ok(json!({
        "Path": path,
        "Key": path.strip_prefix(prefix).unwrap_or(path).trim_start_matches('/'),
        "Value": String::from_utf8_lossy(&value),
        "Exists": true,
        "CreateIndex": found["CreateIndex"],
        "ModifyIndex": found["ModifyIndex"],
        "LockIndex": found["LockIndex"],
        "Flags": found["Flags"],
        "Session": text(found, "Session"),
    }))
}

fn services(found: &Value) -> Result<Value, String> {
    // The map is ordered by name.
    let named = found.as_object().ok_or("no object")?.iter();
    Ok(named.map(|(name, tags)| json!({ "Name": name, "Tags": sorted(items(tags)) })).collect())
}

fn instances(query: &ConsulQuery, found: &[Value]) -> Value {
    let mut all: Vec<Value> = found.iter().filter_map(|entry| instance(query, entry)).collect();
    if query.near.is_empty() {
        all.sort_by(|one, other| {
            (text(one, "Node"), text(one, "ID")).cmp(&(text(other, "Node"), text(other, "ID")))
        });
    }
    all.into()
}

fn instance(query: &ConsulQuery, entry: &Value) -> Option<Value> {
    let (node, service, checks) = (&entry["Node"], &entry["Service"], &entry["Checks"]);
    let status = status(items(checks));
    let is_selected = match &query.health {
        Health::Passing | Health::Any => true,
        Health::States(states) => states.iter().any(|state| state == status),
    };
    let address = Some(text(service, "Address")).filter(|own| !own.is_empty());
    is_selected.then(|| {
        json!({
            "Node": text(node, "Node"),
            "NodeID": text(node, "ID"),
            "NodeAddress": text(node, "Address"),
            "NodeDatacenter": text(node, "Datacenter"),
            "NodeTaggedAddresses": object(&node["TaggedAddresses"]),
            "NodeMeta": object(&node["Meta"]),
            "ServiceMeta": object(&service["Meta"]),
            "ServiceTaggedAddresses": object(&service["TaggedAddresses"]),
            "Address": address.unwrap_or_else(|| text(node, "Address")),
            "ID": text(service, "ID"),
            "Name": text(service, "Service"),
            "Tags": sorted(items(&service["Tags"])),
            "Checks": items(checks),
            "Status": status,
            "Port": service["Port"].as_i64().unwrap_or_default(),
            "Weights": object(&service["Weights"]),
            "Namespace": text(service, "Namespace"),
        })
    })
}

/// The state of an instance with these checks: the worst one.
fn status(checks: &[Value]) -> &'static str {
    let is_maintenance = |check: &Value| {
        let id = text(check, "CheckID");
        id == "_node_maintenance" || id.starts_with("_service_maintenance:")
    };
    let has = |state: &str| checks.iter().any(|check| text(check, "Status") == state);
    if checks.iter().any(is_maintenance) {
        "maintenance"
    } else if has("critical") {
        "critical"
    } else if has("warning") {
        "warning"
    } else {
        "passing"
    }
}

fn node(found: &Value) -> Value {
    json!({
        "ID": text(found, "ID"),
        "Node": text(found, "Node"),
        "Address": text(found, "Address"),
        "Datacenter": text(found, "Datacenter"),
        "TaggedAddresses": object(&found["TaggedAddresses"]),
        "Meta": object(&found["Meta"]),
    })
}

fn nodes(query: &ConsulQuery, found: &[Value]) -> Value {
    let mut all: Vec<Value> = found.iter().map(node).collect();
    if query.near.is_empty() {
        all.sort_by(|one, other| {
            (text(one, "Node"), text(one, "Address")).cmp(&(text(other, "Node"), text(other, "Address")))
        });
    }
    all.into()
}

fn node_with_services(found: &Value) -> Option<Value> {
    let own = found.get("Node").filter(|own| own.is_object())?;
    let named = found["Services"].as_object();
    let mut services: Vec<Value> = named.into_iter().flatten().map(|(_, service)| of_node(service)).collect();
    services.sort_by(|one, other| {
        (text(one, "Service"), text(one, "ID")).cmp(&(text(other, "Service"), text(other, "ID")))
    });
    Some(json!({ "Node": node(own), "Services": services }))
}

fn of_node(service: &Value) -> Value {
    json!({
        "ID": text(service, "ID"),
        "Service": text(service, "Service"),
        "Tags": sorted(items(&service["Tags"])),
        "Meta": object(&service["Meta"]),
        "Port": service["Port"].as_i64().unwrap_or_default(),
        "Address": text(service, "Address"),
        "EnableTagOverride": service["EnableTagOverride"].as_bool().unwrap_or_default(),
    })
}

/// Go's field of the certificate has another name than its JSON.
fn root(found: &Value) -> Value {
    let mut root = object(found);
    root["RootCertPEM"] = text(found, "RootCert").into();
    root
}

/// Objects, ordered by their names.
fn by_name(found: &[Value]) -> Value {
    let mut all: Vec<Value> = found.iter().map(object).collect();
    all.sort_by(|one, other| text(one, "Name").cmp(text(other, "Name")));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(function: &str, argument: &str, body: &Value) -> Value {
        let query = ConsulQuery::parse(function, &[argument.to_owned()]).unwrap();
        let found = read(&query, body.to_string().as_bytes()).unwrap();
        if let Answer::Json(value) = found { Value::clone(&value) } else { Value::Null }
    }

    #[test]
    fn keys_below_a_prefix_are_pairs_with_decoded_values() {
        let body = json!([
            { "Key": "conf/a/b", "Value": "MQ==", "Flags": 7, "ModifyIndex": 9, "CreateIndex": 8, "LockIndex": 0 },
            { "Key": "conf/d/", "Value": null },
        ]);
        let found = answer("tree", "conf", &body);
        assert_eq!(found[0]["Key"], "a/b");
        assert_eq!((&found[0]["Path"], &found[0]["Value"]), (&json!("conf/a/b"), &json!("1")));
        assert_eq!((&found[0]["Flags"], &found[0]["ModifyIndex"]), (&json!(7), &json!(9)));
        assert_eq!((&found[1]["Key"], &found[1]["Value"]), (&json!("d/"), &json!("")));
        let one = json!([body[0]]);
        let found = answer("keyExistsGet", "conf/a/b", &one);
        assert_eq!((&found["Key"], &found["Value"]), (&json!("conf/a/b"), &json!("1")));
    }

    #[test]
    fn instances_are_selected_by_state_and_have_one_order() {
        let entry = |node: &str, id: &str, states: &[&str]| {
            let checks: Vec<Value> =
                states.iter().map(|state| json!({ "CheckID": id, "Status": state })).collect();
            json!({
                "Node": { "Node": node, "Address": "10.0.0.1", "ID": "x", "Datacenter": "dc1", "Meta": null },
                "Service": { "ID": id, "Service": "web", "Address": "", "Port": 80, "Tags": ["b", "a"], "Meta": { "v": "1" } },
                "Checks": checks,
            })
        };
        let body = json!([
            entry("n2", "w1", &["passing", "critical"]),
            entry("n1", "w3", &["warning", "passing"]),
            entry("n1", "w2", &[]),
        ]);
        let ids = |argument: &str| -> Vec<String> {
            let found = answer("service", argument, &body);
            items(&found).iter().map(|one| text(one, "ID").to_owned()).collect()
        };
        assert_eq!(ids("web|any"), ["w2", "w3", "w1"]);
        assert_eq!(ids("web|critical"), ["w1"]);
        assert_eq!(ids("web|passing,warning"), ["w2", "w3"]);
        assert_eq!(ids("web~_agent|any"), ["w1", "w3", "w2"], "Consul's order");
        let first = &answer("service", "web|any", &body)[0];
        assert_eq!((&first["Address"], &first["Tags"]), (&json!("10.0.0.1"), &json!(["a", "b"])));
        assert_eq!((&first["Port"], &first["ServiceMeta"]["v"]), (&json!(80), &json!("1")));
    }

    #[test]
    fn other_answers_have_the_fields_of_consul_template() {
        let found = answer("services", "", &json!({ "web": ["b", "a"], "api": [] }));
        assert_eq!(found, json!([{ "Name": "api", "Tags": [] }, { "Name": "web", "Tags": ["a", "b"] }]));
        let found =
            answer("caRoots", "", &json!({ "Roots": [{ "ID": "r", "RootCert": "PEM", "Active": true }] }));
        assert_eq!((&found[0]["RootCertPEM"], &found[0]["Active"]), (&json!("PEM"), &json!(true)));
        let own = json!({ "Node": { "Node": "n1" }, "Services": { "w": { "ID": "w", "Service": "web", "Port": 1 } } });
        let found = answer("node", "n1", &own);
        assert_eq!((&found["Node"]["Node"], &found["Services"][0]["Service"]), (&json!("n1"), &json!("web")));
        assert_eq!(answer("node", "n1", &Value::Null), Value::Null);
        assert_eq!(answer("datacenters", "", &json!(["b", "a"])), json!(["a", "b"]));
    }

    /// A proxy before Consul answered with a page: it became the value of a key, and tasks restarted with it.
    #[test]
    fn answers_of_other_programs_are_refused() {
        for (function, argument) in [
            ("key", "a"),
            ("keyExistsGet", "a"),
            ("tree", "a"),
            ("datacenters", ""),
            ("services", ""),
            ("service", "a"),
            ("nodes", ""),
            ("node", "a"),
            ("caRoots", ""),
            ("caLeaf", "a"),
            ("peerings", ""),
        ] {
            let query = ConsulQuery::parse(function, &[argument.to_owned()]).unwrap();
            for body in [
                "<html>it works</html>",
                "7",
                "{\"Roots\": [7], \"Node\": []}",
                "[[]]",
                "[{\"ID\": 5}, null, true]",
            ] {
                let is_refused = read(&query, body.as_bytes()).is_err();
                // These are lists of anything, and an object of anything.
                let is_fitting = matches!((function, &body[..1]), ("datacenters", "[") | ("services", "{"));
                assert!(is_refused || is_fitting, "{function} {body}");
            }
        }
        let other = ConsulQuery::parse("key", &["a".to_owned()]).unwrap();
        assert!(read(&other, br#"[{"Key": "b", "Value": "MQ=="}]"#).is_err());
        assert!(read(&other, br#"[{"Key": "a", "Value": "?"}]"#).is_err());
        let Ok(Answer::Text(text)) = read(&other, br#"[{"Key": "a", "Value": "/w=="}]"#) else { panic!() };
        assert_eq!(&*text, [0xff], "bytes stay as they are");
    }
}
