//! Answers of a Consul agent, or of a process in its place: each item is parsed or rejected by itself.
//!
//! The bytes are four answers, separated by zero bytes: services, checks, the agent's own data, and an index header.

use herdlet_services::catalog::feed_consul;

pub(super) fn feed(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    feed_consul(next(), next(), next(), next());
}

/// Answers of Consul 1.8.7, and manipulated ones.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    const ALLOC: &str = "8d5e2f3a-0000-4000-8000-000000000000";
    let service = |id: &str, more: &str| {
        format!(
            r#""{id}":{{"ID":"{id}","Service":"web","Tags":["a"],"Meta":{{"herdlet-instance":"0123456789abcdef","herdlet-alloc":"{ALLOC}"}},"Port":8080,"Address":"127.0.0.1","Weights":{{"Passing":1,"Warning":1}},"EnableTagOverride":false{more}}}"#
        )
    };
    let check = |status: &str, output: &str| {
        format!(
            r#"{{"c":{{"Node":"n","CheckID":"c","Name":"alive","Status":"{status}","Notes":"","Output":"{output}","ServiceID":"a","ServiceName":"web","ServiceTags":["a"],"Type":"tcp","Definition":{{}},"CreateIndex":0,"ModifyIndex":0}}}}"#
        )
    };
    let about =
        r#"{"Config":{"Datacenter":"dc1","NodeName":"node one","Server":true},"Member":{"Name":"node one"}}"#;
    let tagged = r#","TaggedAddresses":{"lan_ipv4":{"Address":"127.0.0.1","Port":8080},"edge":{"Address":"203.0.113.7","Port":1}}"#;
    let one = format!("{{{}}}", service("a", ""));
    let two = format!(
        "{{{},{}}}",
        service("a", tagged),
        service("b", r#","Kind":"connect-proxy","Proxy":{"Mode":""}"#)
    );
    let nulls = one.replace(r#"["a"]"#, "null");
    let mut seeds = Vec::new();
    for services in [
        &*one,
        &two,
        &nulls,
        "{}",
        "null",
        "[]",
        "{\"a\":5}",
        &one.replace("8080", "70000"),
        &one.replace(ALLOC, "nobody"),
    ] {
        for checks in ["{}".to_owned(), check("critical", ""), check("passing", "TCP connect: Success")] {
            seeds.push([services, &checks, about, "17"].join("\0").into_bytes());
        }
    }
    seeds.push([&*one, "{}", r#"{"Config":{"NodeName":"../agent/leave?x#"}}"#, "0"].join("\0").into_bytes());
    seeds.push([&*one, "<html>", "{}", "-1"].join("\0").into_bytes());
    seeds
}
