//! The addresses of Nomad's servers, from a Consul agent.
//!
//! In: JSON of `/v1/catalog/…`. Out: addresses. Services without address or port are left out.

use herdlet_rpc::address::Address;
use herdlet_services::catalog::ConsulReader;
use serde_json::Value;

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
