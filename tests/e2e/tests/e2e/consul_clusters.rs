//! Two real Consuls. One allows nothing without a token. Jobs use the one that they name, and an outage of one affects no job of
//! the other.

use std::{fs, os::unix::fs::PermissionsExt as _};

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    ports,
    program::example,
    wait,
};

use crate::{
    common::{TOKEN, is_root, job, sleeper},
    templates::{QUICK, template, templates, until_explained, until_file},
};

const OF_AGENT: &str = r#"agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" } service_prefix "" { policy = "read" }"#;

/// Starts an agent whose Consul `default` is `open`, and whose Consul `eu` is `closed` and trusts the agent.
fn agent_of(open: &Consul, closed: &Consul) -> Agent {
    let (agent, api) = prepared(open, closed, "");
    closed.trust(&api);
    agent
}

/// Starts an agent with the Consuls `default`, with these other settings, and `eu`. Returns the address at which it shows its keys.
fn prepared(default: &Consul, eu: &Consul, settings: &str) -> (Agent, String) {
    let [port] = ports::free();
    let api = format!("127.0.0.1:{port}");
    let mut agent = Agent::prepare(Setup::default().config("{}\n").argument("--listen").argument(&api));
    let secret = |agent: &Agent, name: &str, text: &str| {
        let path = agent.home.write(name, &format!("{text}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    };
    let own = |consul: &Consul, name: &str| match consul.access() {
        Access::Open => String::new(),
        Access::Denied => {
            format!("token_file: {}", secret(&agent, name, &consul.token("agent", OF_AGENT).1))
        }
    };
    let (of_default, of_eu) = (own(default, "default-token"), own(eu, "eu-token"));
    let token = secret(&agent, "token", TOKEN);
    let config = format!(
        "token_file: {token}\nconsul:\n  address: {}\n  {of_default}\n{settings}  clusters:\n    eu:\n      address: {}\n      {of_eu}\n      task_identity: {{}}\n      service_identity: {{ttl: 10m}}\n{QUICK}{}",
        default.address(),
        eu.address(),
        ports::for_tasks()
    );
    agent.home.write("config.yaml", &config);
    agent.launch();
    (agent, api)
}

/// A job with a service of its name, a script check, and a template.
fn reader(name: &str, group: &str, task: &str) -> String {
    let read = template("{{ key \"app/greeting\" }}", "local/greeting", "change_mode: noop");
    let check = "{name: alive, type: script, command: /bin/true, interval: 1s, timeout: 60s}";
    let services = format!(
        "services: [{{name: {name}, provider: consul, port: p, checks: [{check}]}}]\n{task}\n{}",
        templates(&[read])
    );
    job(name, "service", &format!("network: {{ports: {{p: {{}}}}}}\n{group}"), &[sleeper("t", &services)])
}

/// The token in the file of the task `t`.
fn token_of(agent: &Agent, alloc: &str) -> String {
    let dir = agent.home.state().join("alloc").join(agent.single(alloc, "t").alloc);
    fs::read_to_string(dir.join("t/secrets/consul_token")).unwrap()
}

#[test]
fn jobs_use_the_consul_that_they_name() {
    let Some(open) = is_root().then(|| Consul::start(Access::Open)).flatten() else { return };
    let Some(closed) = Consul::start(Access::Denied) else { return };
    open.put("/v1/kv/app/greeting", "hello");
    closed.put("/v1/kv/app/greeting", "bonjour");
    let mut agent = agent_of(&open, &closed);
    agent.apply_and_wait(&reader("here", "", ""));
    agent.apply_and_wait(&reader("there", "consul: {cluster: eu}", ""));
    until_file(&agent, "here.g[0]", ("t/local/greeting", "hello"));
    until_file(&agent, "there.g[0]", ("t/local/greeting", "bonjour"));
    let passes = |consul: &Consul, name: &str| {
        let checks = consul.checks(name);
        checks.len() == 1 && checks.iter().all(|check| check["Status"] == "passing")
    };
    wait::until_true("each service is in its Consul, and its check passes there", || {
        (open.known("here"), open.known("there")) == (1, 0)
            && (closed.known("here"), closed.known("there")) == (0, 1)
            && passes(&open, "here")
            && passes(&closed, "there")
    });
    let (member, token) = (agent.single("there.g[0]", "t"), token_of(&agent, "there.g[0]"));
    assert!(closed.accessor(&token).is_some());
    assert_eq!(closed.logins().len(), 2, "one of the task, one of the service");
    let registered = |catalog: &str| {
        agent.metric("herdlet_services", &format!("catalog=\"{catalog}\",state=\"registered\""))
    };
    assert_eq!((registered("consul"), registered("consul.eu")), (1.0, 1.0));
    let logins =
        |agent: &Agent| agent.metric("herdlet_consul_logins_total", "cluster=\"eu\",result=\"done\"");
    assert_eq!(logins(&agent), 2.0);
    let path = agent.home.write("nowhere.yaml", &reader("nowhere", "consul: {cluster: us}", ""));
    let refused = agent.cli(&["apply", "-f", &path.display().to_string()]);
    let expected = "the agent's config has no Consul `us`; use one of `default`, `eu`";
    assert!(refused.code != 0 && refused.stderr.contains(expected), "{}", refused.stderr);

    // The next agent issues nothing.
    let issued = closed.logins();
    agent.crash();
    agent.cli(&["wait", "here", "there"]).success();
    assert_eq!((&agent.single("there.g[0]", "t"), closed.logins()), (&member, issued.clone()));
    assert_eq!(logins(&agent), 0.0);

    // One that hangs concerns no job of the other.
    closed.freeze();
    agent.apply(&reader("late", "consul: {cluster: eu}", ""));
    agent.apply_and_wait(&reader("second", "", ""));
    wait::until_true("the other Consul has the new service", || open.known("second") == 1);
    until_explained(&agent, "late", "Consul");
    agent.until_printed(&["status"], |status| {
        status.contains(&closed.address()) && !status.contains(&open.address())
    });
    agent.cli(&["delete", "there"]).success();
    wait::until_true("the task has ended", || agent.members().iter().all(|one| one.alloc != member.alloc));
    closed.thaw();
    agent.cli(&["wait", "late"]).success();
    // Consul may still issue tokens for log-ins that timed out while it hung: nobody knows them.
    let known: Vec<String> =
        issued.iter().map(|token| token["AccessorID"].as_str().unwrap().to_owned()).collect();
    let is_left = |accessors: &[String]| {
        closed.logins().iter().any(|token| accessors.iter().any(|one| token["AccessorID"] == **one))
    };
    wait::until_true("the service and the tokens of the job are gone", || {
        closed.known("there") == 0 && closed.known("late") == 1 && !is_left(&known)
    });
    let of_late = closed.accessor(&token_of(&agent, "late.g[0]")).unwrap();
    agent.cli(&["delete", "here", "late", "second", "--wait"]).success();
    wait::until_true("nothing is left", || {
        open.services().is_empty() && closed.services().is_empty() && !is_left(std::slice::from_ref(&of_late))
    });
    assert!(!agent.log().contains(&token));
    agent.finish();
}

#[test]
fn the_example_is_in_both() {
    let Some(open) = is_root().then(|| Consul::start(Access::Open)).flatten() else { return };
    let Some(closed) = Consul::start(Access::Denied) else { return };
    closed.put("/v1/kv/app/greeting", "bonjour");
    let mut agent = agent_of(&open, &closed);
    agent.apply_and_wait(&fs::read_to_string(example("consul-clusters")).unwrap());
    let member = agent.single("consul-clusters.app[0]", "reader");
    agent.until_logged(&member.alloc, "reader", "stdout", |text| text == "bonjour");
    wait::until_true("each service is in its Consul", || {
        (open.known("app"), open.known("app-old")) == (0, 1)
            && (closed.known("app"), closed.known("app-old")) == (1, 0)
    });
    agent.finish();
}

/// A service that moved lost its token before its deregistration, which Consul then refused; and each try to log in at the new Consul
/// logged the token of the old one out.
#[test]
fn a_service_that_moves_is_deregistered_with_its_token() {
    let Some(here) = is_root().then(|| Consul::start(Access::Denied)).flatten() else { return };
    let Some(there) = Consul::start(Access::Denied) else { return };
    let (mut agent, api) = prepared(&here, &there, "  service_identity: {ttl: 10m}\n");
    here.trust(&api);
    let web = |cluster: &str| {
        let service = format!("{{name: web, provider: consul, port: p, cluster: {cluster}}}");
        let group = format!("network: {{ports: {{p: {{}}}}}}\nservices: [{service}]");
        job("web", "service", &group, &[sleeper("t", "")])
    };
    agent.apply_and_wait(&web("default"));
    wait::until_true("the service is known", || here.known("web") == 1 && here.logins().len() == 1);
    let (member, issued) = (agent.single("web.g[0]", "t"), here.logins());

    // It gets no token in its new place, so it stays, also over a restart.
    agent.apply(&web("eu"));
    let explained =
        until_explained(&agent, "web", "it has no such auth method (auth method `nomad-workloads`)");
    assert!(explained.contains(&there.address()), "{explained}");
    agent.crash();
    until_explained(&agent, "web", "it has no such auth method (auth method `nomad-workloads`)");
    assert_eq!((here.known("web"), here.ids("web").len(), here.logins()), (1, 1, issued));
    assert!(!agent.log().contains("revoke"));

    there.trust(&api);
    wait::until_true("the service has moved, and so has its token", || {
        (here.known("web"), there.known("web")) == (0, 1)
            && here.services().is_empty()
            && (here.logins().len(), there.logins().len()) == (0, 1)
    });
    agent.cli(&["wait", "web"]).success();
    assert_eq!(agent.single("web.g[0]", "t"), member);
    agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("nothing is left", || there.services().is_empty() && there.logins().is_empty());
    agent.finish();
}

/// Two names of one Consul removed the services of each other.
#[test]
fn two_names_of_one_consul_share_it() {
    let Some(consul) = is_root().then(|| Consul::start(Access::Open)).flatten() else { return };
    let config = format!(
        "consul: {{address: \"{0}\", namespace: default, clusters: {{local: {{address: \"{0}\"}}}}}}\n{1}",
        consul.address(),
        ports::for_tasks()
    );
    let mut agent = Agent::start_with(Setup::default().config(&config));
    let group = "network: {ports: {p: {}}}\nservices: [{name: one, provider: consul, port: p}, {name: two, provider: consul, port: p, cluster: local}]";
    agent.apply_and_wait(&job("web", "service", group, &[sleeper("t", "")]));
    let services = consul.services();
    assert_eq!((consul.ids("one").len(), consul.ids("two").len()), (1, 1));
    // The next agent compares and sweeps both before it reports convergence.
    agent.crash();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(consul.services(), services);
    // A service in a namespace that this Consul lacks delays neither the others nor the end of the job.
    let wrong = "network: {ports: {p: {}}}\nconsul: {namespace: team}\nservices: [{name: three, provider: consul, port: p}]";
    agent.apply(&job("wrong", "service", wrong, &[sleeper("t", "")]));
    until_explained(&agent, "wrong", &format!("Consul at {} ns=team answers 400", consul.address()));
    agent.cli(&["delete", "wrong", "web", "--wait"]).success();
    wait::until_true("nothing is left", || consul.services().is_empty());
    agent.finish();
}
