//! Information from a Consul agent: attributes for constraints, and the servers' addresses.
//!
//! In: JSON of `/v1/agent/self` and `/v1/catalog/…`. Out: attributes under Nomad's names, addresses. Missing values are left out.

use herdlet_fingerprint::Attributes;
use herdlet_rpc::address::Address;
use herdlet_services::catalog::ConsulReader;
use serde_json::Value;

/// Information about a Consul agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsulFingerprint {
    /// `consul.…` and `unique.consul.…`.
    pub attributes: Attributes,
    /// The node's name in Consul: `DATACENTER.NAME`.
    pub link: Option<String>,
}

/// Queries an agent; `None` if it does not answer.
pub async fn ask(consul: &ConsulReader) -> Option<ConsulFingerprint> {
    consul.read("/v1/agent/self").await.ok().map(|answer| known(&answer))
}

fn known(answer: &Value) -> ConsulFingerprint {
    let at = |pointer: &str| answer.pointer(pointer).and_then(text);
    let mut known = ConsulFingerprint::default();
    let version = at("/Config/Version");
    let sku =
        version.as_deref().map(|version| if version.contains("+ent") { "ent" } else { "oss" }.to_owned());
    let grpc = |pointer: &str| at(pointer).filter(|port| port != "0");
    let (datacenter, name) = (at("/Config/Datacenter"), at("/Config/NodeName"));
    for (attribute, value) in [
        ("consul.server", at("/Config/Server")),
        ("consul.version", version),
        ("consul.sku", sku),
        ("consul.revision", at("/Config/Revision")),
        ("unique.consul.name", name.clone()),
        ("consul.datacenter", datacenter.clone()),
        ("consul.segment", at("/Member/Tags/segment")),
        ("consul.connect", at("/DebugConfig/ConnectEnabled")),
        ("consul.grpc", grpc("/DebugConfig/GRPCPort").or_else(|| grpc("/DebugConfig/GRPCTLSPort"))),
        ("consul.ft.namespaces", Some("false".to_owned())),
        ("consul.partition", at("/Config/Partition").or_else(|| at("/Member/Tags/ap"))),
        ("consul.dns.port", at("/DebugConfig/DNSPort")),
    ] {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            known.attributes.insert(attribute.to_owned(), value);
        }
    }
    known.link = datacenter.zip(name).map(|(datacenter, name)| format!("{datacenter}.{name}"));
    known
}

/// A scalar as text.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Maximum number of datacenters to search for servers, nearest first.
const DATACENTERS_MAX: usize = 9;

/// Nomad's servers registered in Consul, from the nearest datacenter that has any.
///
/// # Errors
/// Why Consul does not answer.
pub async fn servers(consul: &ConsulReader) -> Result<Vec<Address>, String> {
    let read = async |path: &str| consul.read(path).await.map_err(|failure| failure.why);
    let found = addresses(&read("/v1/catalog/service/nomad?tag=rpc&near=_agent").await?);
    if !found.is_empty() {
        return Ok(found);
    }
    let datacenters = read("/v1/catalog/datacenters").await?;
    let names = datacenters.as_array().into_iter().flatten().filter_map(Value::as_str);
    // The first one is the agent's own.
    for name in names.filter(|name| is_plain(name)).take(DATACENTERS_MAX).skip(1) {
        let path = format!("/v1/catalog/service/nomad?tag=rpc&near=_agent&dc={name}");
        let found = addresses(&read(&path).await?);
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '-' || char == '_')
}

fn addresses(answer: &Value) -> Vec<Address> {
    let address = |service: &Value| {
        let at = |name: &str| service.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let host = at("ServiceAddress").or_else(|| at("Address"))?;
        let port = service.get("ServicePort").and_then(Value::as_u64)?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        format!("{host}:{port}").parse().ok()
    };
    answer.as_array().into_iter().flatten().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn consul_agent_sets_nomad_attributes() {
        let answer = json!({
            "Config": {"Datacenter": "dc1", "NodeName": "n1", "Server": false, "Version": "1.16.2", "Revision": "abc"},
            "DebugConfig": {"GRPCPort": 8502, "ConnectEnabled": true, "DNSPort": 8600},
            "Member": {"Tags": {"segment": ""}},
        });
        let found = known(&answer);
        for (name, expected) in [
            ("consul.server", Some("false")),
            ("consul.version", Some("1.16.2")),
            ("consul.sku", Some("oss")),
            ("unique.consul.name", Some("n1")),
            ("consul.grpc", Some("8502")),
            ("consul.connect", Some("true")),
            ("consul.segment", None),
        ] {
            assert_eq!(found.attributes.get(name).map(String::as_str), expected, "{name}");
        }
        assert_eq!(found.link.as_deref(), Some("dc1.n1"));
        assert_eq!(known(&json!([])).link, None);
    }

    #[test]
    fn servers_are_where_their_service_says_or_else_their_node() {
        let answer = json!([
            {"Address": "10.0.0.1", "ServiceAddress": "10.1.0.1", "ServicePort": 4647},
            {"Address": "2001:db8::1", "ServiceAddress": "", "ServicePort": 4747},
            {"Address": "10.0.0.3"},
            "nonsense",
        ]);
        let shown: Vec<String> = addresses(&answer).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["10.1.0.1:4647", "[2001:db8::1]:4747"]);
        assert!(is_plain("dc-1") && !is_plain("dc?1") && !is_plain(""));
    }
}
