//! Invariants for arbitrary responses of a Consul agent; for tests and fuzzing only.
//!
//! In: a list of services, a list of checks, the agent's self-description, and an index header. Out: nothing, or a
//! panic.

use herdlet_api_types::{
    AllocId, InstanceId, JobKey,
    job::{ConsulAccess, Provider},
    service::Registration,
};
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::json;

use super::{
    client::index_of,
    entry::{CheckEntry, Entry, Mark},
    listing::{Items, Listing},
    path_part,
    watching::node_of,
};

/// Parses the responses and asserts the invariants.
pub fn feed(services: &[u8], checks: &[u8], about: &[u8], index: &[u8]) {
    if let Ok(name) = node_of(about) {
        let part = path_part(&name);
        assert!(!part.contains(['/', '?', '#']), "{name:?} leads to another path: {part}");
    }
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(index) {
        headers.insert("x-consul-index", value);
        assert_ne!(index_of(&headers), Some(0));
    }
    let services = Items::<Entry>::read(services);
    let checks = Items::<CheckEntry>::read(checks);
    let (Ok(services), checks) = (services, checks.unwrap_or_default()) else { return };
    let listing = Listing::of(services, checks);
    let place = ConsulAccess::of_cluster(ConsulAccess::DEFAULT_CLUSTER);
    let mark = Mark::new(InstanceId("0123456789abcdef".to_owned()), &place);
    for (id, entry) in listing.all() {
        assert!(listing.has(id));
        for check in listing.checks(id).values() {
            let _ = check.status();
            assert!(check.output().len() <= 3 * 1024);
        }
        let wanted = registration(id, entry.service());
        let _ = entry.equals(&wanted, &mark, listing.checks(id));
        // Registering an entry again must preserve it.
        let mut body = entry.as_body();
        body["Service"] = body["Name"].clone();
        let again = json!({ id: body }).to_string();
        let again = Items::<Entry>::read(again.as_bytes()).map(|items| Listing::of(items, Items::default()));
        let again = again.ok().and_then(|listing| {
            listing.all().next().map(|(_, again)| (again.owner(), again.tags().to_vec()))
        });
        assert_eq!(again, Some((entry.owner(), entry.tags().to_vec())), "{id}");
    }
}

fn registration(id: &str, name: &str) -> Registration {
    Registration {
        id: id.to_owned(),
        provider: Provider::Consul,
        name: name.to_owned(),
        address: String::new(),
        port: 0,
        tags: Vec::new(),
        meta: [].into(),
        enable_tag_override: false,
        tagged_addresses: [].into(),
        weights: Default::default(),
        checks: Vec::new(),
        alloc: AllocId::from_hash([0; 16]),
        consul: None,
        publish: None,
        task: None,
        job: JobKey { namespace: "default".into(), id: "web".into() },
    }
}
