//! Tokens of tasks and services at a real Consul that allows nothing without one: log-in, restarts of the agent, outages, log-out.

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    host::Member,
    ports,
    program::example,
    wait,
};

use crate::{
    common::{TOKEN, is_root, job, sleeper},
    secrets::planted::look_everywhere,
    templates::{QUICK, template, templates, until_explained, until_file},
};

/// The agent itself may list and register nothing of others; tokens of log-ins do.
const OF_AGENT: &str = r#"agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" } service_prefix "" { policy = "read" }"#;

/// Starts an agent that shows its keys on the returned address, and whose tasks and services log in at this Consul.
fn agent_of(consul: &Consul) -> (Agent, String) {
    let [port] = ports::free();
    let api = format!("127.0.0.1:{port}");
    let mut agent = Agent::prepare(Setup::default().config("{}\n").argument("--listen").argument(&api));
    let secret = |agent: &Agent, name: &str, text: &str| {
        let path = agent.home.write(name, &format!("{text}\n"));
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        path
    };
    let (_, own) = consul.token("agent", OF_AGENT);
    let (token, own) = (secret(&agent, "token", TOKEN), secret(&agent, "consul-token", &own));
    let config = format!(
        "token_file: {}\nconsul:\n  address: {}\n  token_file: {}\n  task_identity: {{}}\n  service_identity: {{ttl: 10m}}\n{QUICK}{}",
        token.display(),
        consul.address(),
        own.display(),
        ports::for_tasks()
    );
    agent.home.write("config.yaml", &config);
    agent.launch();
    (agent, api)
}

fn secrets(agent: &Agent, member: &Member) -> PathBuf {
    agent.home.state().join("alloc").join(&member.alloc).join(&member.task).join("secrets")
}

fn token(agent: &Agent, member: &Member) -> String {
    fs::read_to_string(secrets(agent, member).join("consul_token")).unwrap()
}

fn variable(member: &Member, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{}/environ", member.pid)).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    environment.split('\0').find_map(|variable| variable.strip_prefix(&format!("{name}="))).map(str::to_owned)
}

fn logins(agent: &Agent, result: &str) -> f64 {
    agent.metric("herdlet_consul_logins_total", &format!("result=\"{result}\""))
}

/// A job with a service of the group and one of the task, and a template that only the task's token may read.
fn planted() -> String {
    let read = template("{{ key \"app/greeting\" }}", "local/greeting", "change_mode: noop");
    let task = format!(
        "consul: {{}}\nservices: [{{name: side, provider: consul, port: p}}]\n{}",
        templates(&[read])
    );
    let group = "network: {ports: {p: {}}}\nservices: [{name: web, provider: consul, port: p}]";
    job("planted", "service", group, &[sleeper("t", &task)])
}

#[test]
fn tokens_outlive_agents_and_end_after_the_deregistration() {
    let Some(consul) = is_root().then(|| Consul::start(Access::Denied)).flatten() else { return };
    consul.put("/v1/kv/app/greeting", "hello");
    let (mut agent, api) = agent_of(&consul);
    consul.trust(&api);
    agent.apply_and_wait(&planted());
    let member = agent.single("planted.g[0]", "t");
    until_file(&agent, "planted.g[0]", ("t/local/greeting", "hello"));
    wait::until_true("both services are known", || consul.known("web") == 1 && consul.known("side") == 1);
    let first = token(&agent, &member);
    assert_eq!(fs::metadata(secrets(&agent, &member).join("consul_token")).unwrap().mode() & 0o777, 0o640);
    for name in ["CONSUL_HTTP_TOKEN", "CONSUL_TOKEN"] {
        assert_eq!(variable(&member, name).as_deref(), Some(&*first), "{name}");
    }
    let issued = consul.logins();
    let names: Vec<&str> = issued.iter().map(|token| token["Description"].as_str().unwrap()).collect();
    assert_eq!(issued.len(), 3, "{names:?}");
    for requester in ["nomad_task_t", "nomad_service_web", "nomad_service_side"] {
        assert!(names.iter().any(|name| name.contains(requester)), "{requester}: {names:?}");
    }

    // A new agent issues nothing, restarts nothing, and registers nothing else.
    agent.crash();
    agent.cli(&["wait", "planted"]).success();
    assert_eq!(agent.single("planted.g[0]", "t"), member);
    assert_eq!(token(&agent, &member), first);
    assert_eq!(logins(&agent, "done") + logins(&agent, "failed"), 0.0);
    assert_eq!(consul.logins(), issued);

    let log = agent.log();
    let accessor = consul.accessor(&first).unwrap();
    let line = log.lines().find(|line| line.contains(&accessor)).unwrap();
    assert!(line.contains("log in") && line.contains("herdlet::audit"), "{line}");
    let accessors = issued.iter().map(|token| token["AccessorID"].as_str().unwrap());
    let issued: Vec<String> = accessors.map(|accessor| consul.secret(accessor)).collect();
    assert!(issued.contains(&first), "the token of the task is one of the three");
    look_everywhere(&agent, &issued.iter().map(String::as_str).collect::<Vec<_>>());

    // While Consul hangs, the job ends nevertheless; the tokens are kept for the deregistration, and for their log-out.
    consul.freeze();
    agent.cli(&["delete", "planted"]).success();
    wait::until_true("the task has ended", || agent.members().is_empty());
    consul.thaw();
    wait::until_true("the services are deregistered", || {
        consul.known("web") == 0 && consul.known("side") == 0 && consul.services().is_empty()
    });
    wait::until_true("all tokens are deleted", || consul.logins().is_empty());
    wait::until_true("their log-outs are in the audit", || {
        agent.log().lines().any(|line| line.contains(&accessor) && line.contains("revoke"))
    });
    agent.finish();
}

#[test]
fn the_example_has_its_tokens() {
    let Some(consul) = is_root().then(|| Consul::start(Access::Denied)).flatten() else { return };
    consul.put("/v1/kv/app/greeting", "hello");
    let (mut agent, api) = agent_of(&consul);
    consul.trust(&api);
    agent.apply_and_wait(&fs::read_to_string(example("consul-token")).unwrap());
    let member = agent.single("consul-token.app[0]", "reader");
    agent.until_logged(&member.alloc, "reader", "stdout", |text| text.contains("a token, and hello"));
    wait::until_true("the service is known", || consul.known("app") == 1);
    agent.finish();
}

#[test]
fn a_task_without_a_token_waits_and_the_others_run() {
    let Some(consul) = is_root().then(|| Consul::start(Access::Denied)).flatten() else { return };
    consul.put("/v1/kv/app/greeting", "hello");
    let (mut agent, api) = agent_of(&consul);
    agent.apply(&job("first", "service", "", &[sleeper("t", "consul: {}")]));
    agent.apply_and_wait(&job("plain", "service", "", &[sleeper("t", "")]));
    let explained =
        until_explained(&agent, "first", "it has no such auth method (auth method `nomad-workloads`)");
    assert!(explained.contains("Consul token: getting it failed"), "{explained}");
    assert!(logins(&agent, "failed") > 0.0);
    consul.trust(&api);
    agent.cli(&["wait", "first"]).success();
    let member = agent.single("first.g[0]", "t");
    let first = token(&agent, &member);
    assert!(consul.accessor(&first).is_some());
    // The next agent restores its file, with the same token.
    fs::remove_file(secrets(&agent, &member).join("consul_token")).unwrap();
    agent.crash();
    wait::until_true("the file is back", || {
        fs::read_to_string(secrets(&agent, &member).join("consul_token")).is_ok_and(|text| text == first)
    });
    assert_eq!((agent.single("first.g[0]", "t"), consul.logins().len()), (member, 1));
    agent.finish();
}

/// A service was deregistered while its log-in failed. One that no longer logged in kept its token.
#[test]
fn a_service_stays_registered_while_its_log_ins_begin_and_end() {
    const LOG_INS: &str = "  service_identity: {ttl: 10m}\n";
    let Some(consul) = is_root().then(|| Consul::start(Access::Denied)).flatten() else { return };
    let (mut agent, api) = agent_of(&consul);
    let restart = |agent: &mut Agent, config: &str| {
        agent.home.write("config.yaml", config);
        agent.crash();
    };
    let (_, writer) = consul.token(
        "writer",
        &OF_AGENT
            .replace(r#"service_prefix "" { policy = "read" }"#, r#"service_prefix "" { policy = "write" }"#),
    );
    let file = agent.home.write("consul-token", &format!("{writer}\n"));
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let with_log_ins = fs::read_to_string(file.with_file_name("config.yaml")).unwrap();
    let without = with_log_ins.replace(LOG_INS, "");
    assert_ne!(without, with_log_ins);
    restart(&mut agent, &without);
    let group = "network: {ports: {p: {}}}\nservices: [{name: web, provider: consul, port: p}]";
    agent.apply_and_wait(&job("web", "service", group, &[sleeper("t", "")]));
    wait::until_true("the service is known", || consul.known("web") == 1);

    restart(&mut agent, &with_log_ins);
    until_explained(&agent, "web", "it has no such auth method (auth method `nomad-workloads`)");
    assert_eq!((consul.known("web"), consul.ids("web").len()), (1, 1));
    consul.trust(&api);
    wait::until_true("the service has logged in", || consul.logins().len() == 1);
    agent.cli(&["wait", "web"]).success();

    restart(&mut agent, &without);
    wait::until_true("the token is deleted", || consul.logins().is_empty());
    assert_eq!((consul.known("web"), consul.ids("web").len()), (1, 1));
    agent.finish();
}
