//! Templates with data of a real Consul: outages and refusals.

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    proxy::{Manner, Proxy},
};

use super::{recorder, template, until_explained, until_file};
use crate::{common::job, secrets::planted::look_everywhere};

/// Changes are read at once, and outages are short.
const QUICK: &str = "template: {wait: {min: 0s, max: 0s}, consul_retry: {backoff: 100ms, max_backoff: 1s}}\n";

fn put(consul: &Consul, key: &str, value: &str) {
    consul.put(&format!("/v1/kv/{key}"), value);
}

#[test]
fn a_task_waits_for_a_consul_and_for_its_rights_and_names_them() {
    let Some(consul) = Consul::start(Access::Denied) else { return };
    put(&consul, "app/greeting", "hello");
    put(&consul, "app/secret", "hidden");
    let (_, token) = consul.token("reader", r#"key "app/greeting" { policy = "read" }"#);
    let proxy = Proxy::before(consul.port());
    proxy.set(Manner::Hung);
    let setup = Setup::default().config(QUICK).env("CONSUL_HTTP_ADDR", proxy.address());
    let mut agent = Agent::start_with(setup.env("CONSUL_HTTP_TOKEN", &token));
    let text = |key: &str| template(&format!("{{{{ key \"{key}\" }}}}"), "local/key", "");
    agent.apply(&job("planted", "service", "", &[recorder("t", &[text("app/greeting")])]));
    agent.apply(&job("other", "service", "", &[recorder("t", &[text("app/secret")])]));
    let explained = until_explained(&agent, "planted", "Consul cannot be reached since");
    assert!(explained.contains("key app/greeting"), "{explained}");
    proxy.set(Manner::Passed);
    until_file(&agent, "planted.g[0]", ("t/local/key", "hello"));
    let explained = until_explained(&agent, "other", "Consul refuses key app/secret to task \"t\"");
    assert!(explained.contains("Permission denied (with the token of CONSUL_HTTP_TOKEN)"), "{explained}");
    look_everywhere(&agent, &[&token]);
}
