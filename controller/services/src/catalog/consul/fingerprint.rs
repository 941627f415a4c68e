//! Attributes that a Consul agent gives to the node, for constraints.
//!
//! In: JSON of `/v1/agent/self`. Out: attributes under Nomad's names. Missing values are left out.

use std::collections::BTreeMap;

use herdlet_api_types::job::ConsulAccess;
use serde_json::Value;

use super::ConsulReader;

/// Information about a Consul agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsulFingerprint {
    /// `consul.…` and `unique.consul.…`.
    pub attributes: BTreeMap<String, String>,
    /// The node's name in Consul: `DATACENTER.NAME`.
    pub link: Option<String>,
}

impl ConsulFingerprint {
    /// Queries an agent; `None` if it does not answer.
    pub async fn query(consul: &ConsulReader) -> Option<Self> {
        consul.read("/v1/agent/self").await.ok().map(|answer| known(&answer))
    }

    /// With the names of attributes that another Consul than `default` has: `consul.NAME.…`, `unique.consul.NAME.…`.
    #[must_use]
    pub fn of_cluster(self, name: &str) -> Self {
        if name == ConsulAccess::DEFAULT_CLUSTER {
            return self;
        }
        let renamed =
            |(key, value): (String, String)| (key.replacen("consul.", &format!("consul.{name}."), 1), value);
        Self { attributes: self.attributes.into_iter().map(renamed).collect(), link: None }
    }
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
        let of_eu = found.of_cluster("eu");
        assert_eq!(
            (&*of_eu.attributes["consul.eu.version"], &*of_eu.attributes["unique.consul.eu.name"]),
            ("1.16.2", "n1")
        );
        assert_eq!((of_eu.link, of_eu.attributes.get("consul.version")), (None, None));
        assert_eq!(known(&json!([])).link, None);
    }
}
