//! Templates with data of a real Consul: changes, outages, wrong answers, refusals. Whatever happens to Consul, a running task
//! keeps its files and runs on.

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    proxy::{Manner, Proxy},
    wait,
};

use super::{path_of, recorded, recorder, template, until_explained, until_file, until_recorded};
use crate::{common::job, secrets::planted::look_everywhere};

/// Changes are read at once, and outages are short.
const QUICK: &str = "template: {wait: {min: 0s, max: 0s}, consul_retry: {backoff: 100ms, max_backoff: 1s}}\n";

/// The same, and questions that wait for changes end soon, so that the next ones meet a fault.
const RESTLESS: &str = "template: {block_query_wait: 1s, wait: {min: 0s, max: 0s}, consul_retry: {backoff: 100ms, max_backoff: 1s}}\n";

fn agent_of(address: impl Into<String>, config: &str) -> Agent {
    Agent::start_with(Setup::default().config(config).env("CONSUL_HTTP_ADDR", address))
}

fn put(consul: &Consul, key: &str, value: &str) {
    consul.put(&format!("/v1/kv/{key}"), value);
}

#[test]
fn data_of_a_real_consul_is_rendered_and_followed() {
    let Some(consul) = Consul::start(Access::Open) else { return };
    put(&consul, "app/greeting", "hello");
    put(&consul, "app/limits/cpu", "2");
    let service = |id: &str, port: u16| {
        format!(
            r#"{{"ID": "{id}", "Name": "api", "Port": {port}, "Address": "10.0.0.9", "Tags": ["v1", "blue"], "Meta": {{"zone": "a"}}}}"#
        )
    };
    consul.put("/v1/agent/service/register", &service("api-1", 8001));
    let mut agent = agent_of(consul.address(), QUICK);
    let each = [
        template(
            r#"{{ key "app/greeting" }} {{ keyOrDefault "app/none" "none" }} {{ keyExists "app/none" }} {{ with keyExistsGet "app/greeting" }}{{ .Exists }} {{ .Key }} {{ .Value }}{{ end }}"#,
            "local/keys",
            "change_mode: signal",
        ),
        template(
            r#"{{ range tree "app" }}{{ .Key }}={{ .Value }} {{ end }}{{ range ls "app" }}{{ .Key }} {{ end }}{{ range safeTree "app/limits" }}{{ .Path }}{{ end }}"#,
            "local/pairs",
            "change_mode: noop",
        ),
        template(
            r#"{{ range service "api" }}{{ .ID }} {{ .Address }}:{{ .Port }} {{ .Tags | join "," }} {{ .Status }} {{ .ServiceMeta.zone }};{{ end }}{{ range service "blue.api" }}{{ .Port }};{{ end }}{{ range service "api@dc1~_agent|any" }}{{ .Name }};{{ end }}{{ range service "red.api" }}none{{ end }}"#,
            "local/services",
            "change_mode: noop",
        ),
        template(
            r#"{{ range services }}{{ .Name }} {{ end }}{{ range datacenters }}{{ . }} {{ end }}{{ range nodes }}{{ .Address }} {{ end }}{{ with node }}{{ .Node.Address }} {{ range .Services }}{{ .Service }} {{ end }}{{ end }}{{ range connect "api" }}none{{ end }}"#,
            "local/catalogue",
            "change_mode: noop",
        ),
        template(
            r#"{{ range caRoots }}{{ .RootCertPEM }}{{ end }}{{ with caLeaf "api" }}{{ .CertPEM }}{{ .PrivateKeyPEM }}{{ end }}"#,
            "secrets/certificates",
            "change_mode: noop",
        ),
    ];
    agent.apply_and_wait(&job("app", "service", "", &[recorder("t", &each)]));
    let file =
        |name: &str, content: &str| until_file(&agent, "app.g[0]", (&format!("t/local/{name}"), content));
    file("keys", "hello none false true app/greeting hello");
    file("pairs", "greeting=hello limits/cpu=2 greeting app/limits/cpu");
    file("services", "api-1 10.0.0.9:8001 blue,v1 passing a;8001;api;");
    file("catalogue", "api consul dc1 127.0.0.1 127.0.0.1 api consul ");
    let certificates =
        std::fs::read_to_string(path_of(&agent, "app.g[0]", "t/secrets/certificates")).unwrap();
    assert_eq!(certificates.matches("BEGIN CERTIFICATE").count(), 2, "{certificates}");
    assert_eq!(certificates.matches("PRIVATE KEY").count(), 2, "{certificates}");

    put(&consul, "app/greeting", "bye");
    file("keys", "bye none false true app/greeting bye");
    until_recorded(&agent, ("app.g[0]", "t"), &["start", "hup"]);
    file("pairs", "greeting=bye limits/cpu=2 greeting app/limits/cpu");
    consul.put("/v1/agent/service/register", &service("api-2", 8002));
    file(
        "services",
        "api-1 10.0.0.9:8001 blue,v1 passing a;api-2 10.0.0.9:8002 blue,v1 passing a;8001;8002;api;api;",
    );
    // Another agent renders the same and restarts nothing.
    let member = agent.single("app.g[0]", "t");
    agent.crash();
    agent.cli(&["wait", "app"]).success();
    assert_eq!(agent.single("app.g[0]", "t"), member);
    assert_eq!(
        std::fs::read_to_string(path_of(&agent, "app.g[0]", "t/secrets/certificates")).unwrap(),
        certificates
    );
    assert_eq!(recorded(&agent, "app.g[0]", "t"), ["start", "hup"]);
}

#[test]
fn losing_consul_takes_nothing_from_a_running_task() {
    let Some(mut consul) = Consul::start(Access::Open) else { return };
    let proxy = Proxy::before(consul.port());
    // A Consul that has lost its data is recognized by its older index.
    (0..50).for_each(|number| put(&consul, "other", &number.to_string()));
    put(&consul, "app/greeting", "hello");
    consul.put("/v1/agent/service/register", r#"{"ID": "api-1", "Name": "api", "Port": 8001}"#);
    let mut agent = agent_of(proxy.address(), RESTLESS);
    // All of these have an output without data too: each change of it restarts the task.
    let each = [
        template(r#"{{ keyOrDefault "app/greeting" "none" }}"#, "local/key", ""),
        template(r#"{{ range service "api" }}{{ .Port }}{{ else }}none{{ end }}"#, "local/service", ""),
        template(r#"{{ range tree "app" }}{{ .Key }}{{ else }}none{{ end }}"#, "local/tree", ""),
    ];
    agent.apply_and_wait(&job("app", "service", "", &[recorder("t", &each)]));
    let is_kept = |agent: &Agent| {
        for (file, content) in [("key", "hello"), ("service", "8001"), ("tree", "greeting")] {
            until_file(agent, "app.g[0]", (&format!("t/local/{file}"), content));
        }
        assert_eq!(recorded(agent, "app.g[0]", "t"), ["start"]);
    };
    is_kept(&agent);
    for manner in [Manner::Failed, Manner::WrongTypes, Manner::Half, Manner::Hung] {
        proxy.set(manner);
        wait::until_true("wrong answers", || proxy.answer_count() >= 3);
        is_kept(&agent);
    }
    until_explained(&agent, "app", "outdated, the last output is kept");
    let explained = until_explained(&agent, "app", "Consul");
    assert!(
        explained.contains("cannot be reached since") || explained.contains("does not answer"),
        "{explained}"
    );
    is_kept(&agent);
    // Started again it has lost everything.
    consul.stop();
    proxy.set(Manner::Passed);
    consul.launch();
    until_explained(&agent, "app", "may have lost its data");
    is_kept(&agent);
    put(&consul, "app/greeting", "hello");
    consul.put("/v1/agent/service/register", r#"{"ID": "api-1", "Name": "api", "Port": 8001}"#);
    agent.until_printed(&["explain", "app"], |printed| !printed.contains("outdated"));
    is_kept(&agent);
    put(&consul, "app/greeting", "bye");
    until_file(&agent, "app.g[0]", ("t/local/key", "bye"));
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
