//! Tokens of Vault, with a real OpenBao: log-in, restarts of the agent, outages, lost and revoked tokens.

mod secrets_of_tasks;

use std::{fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host::Member,
    openbao::OpenBao,
    ports,
    program::example,
    wait,
};
use serde_json::{Value, json};

use crate::{
    common::{TOKEN, is_root, job, sleeper},
    templates::{QUICK, until_explained},
};

/// Starts an agent that uses this server and shows its keys on the returned address. `ttl` is the lifetime of tokens.
fn agent_of(bao: &OpenBao) -> (Agent, String) {
    agent_with(bao, Setup::default())
}

fn agent_with(bao: &OpenBao, setup: Setup) -> (Agent, String) {
    let [port] = ports::free();
    let api = format!("127.0.0.1:{port}");
    let mut agent = Agent::prepare(setup.config("{}\n").argument("--listen").argument(&api));
    let token = agent.home.write("token", &format!("{TOKEN}\n"));
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = format!("token_file: {}\n{}{}{QUICK}", token.display(), bao.config(), ports::for_tasks());
    agent.home.write("config.yaml", &config);
    agent.launch();
    (agent, api)
}

/// Both, with tokens of this lifetime; `None` if this machine lacks something.
fn ground(ttl: &str) -> Option<(Agent, OpenBao)> {
    let mut bao = is_root().then(OpenBao::prepare).flatten()?;
    bao.launch();
    let (agent, api) = agent_of(&bao);
    bao.trust(&api, ttl);
    Some((agent, bao))
}

fn secrets(agent: &Agent, member: &Member) -> PathBuf {
    agent.home.state().join("alloc").join(&member.alloc).join(&member.task).join("secrets")
}

fn token(agent: &Agent, member: &Member) -> String {
    fs::read_to_string(secrets(agent, member).join("vault_token")).unwrap()
}

fn variable(member: &Member, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{}/environ", member.pid)).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    environment.split('\0').find_map(|variable| variable.strip_prefix(&format!("{name}="))).map(str::to_owned)
}

fn logins(agent: &Agent, result: &str) -> f64 {
    agent.metric("herdlet_vault_logins_total", &format!("result=\"{result}\""))
}

#[test]
fn a_token_outlives_agents_and_is_revoked_at_the_end() {
    let Some((mut agent, bao)) = ground("1h") else { return };
    agent.apply_and_wait(&fs::read_to_string(example("vault")).unwrap());
    let member = agent.single("vault.vault[0]", "reader");
    let first = token(&agent, &member);
    agent.until_logged(&member.alloc, "reader", "stdout", |text| {
        text.contains(&format!("a token for {}", bao.address()))
    });
    assert_eq!(fs::metadata(secrets(&agent, &member).join("vault_token")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(variable(&member, "VAULT_TOKEN").as_deref(), Some(&*first));
    assert_eq!(variable(&member, "VAULT_NAMESPACE"), None);
    let known = bao.look_up(&first).unwrap();
    assert_eq!(
        (&known["meta"]["role"], &known["meta"]["task"]),
        (&json!("web"), &json!("reader")),
        "{known}"
    );
    let path = "secret/data/reader";
    let written = bao.with_token(&first, "POST", path, &json!({ "data": { "a": "b" } })).unwrap();
    assert_eq!(written.status, 200, "{}", written.body);

    // A new agent issues nothing and restarts nothing.
    agent.crash();
    agent.cli(&["wait", "vault"]).success();
    assert_eq!(
        (agent.single("vault.vault[0]", "reader"), token(&agent, &member)),
        (member.clone(), first.clone())
    );
    assert_eq!(logins(&agent, "done") + logins(&agent, "failed"), 0.0);

    let log = agent.log();
    assert!(!log.contains(&first), "the token is in the log");
    let accessor = known["accessor"].as_str().unwrap();
    let line = log.lines().find(|line| line.contains(accessor)).unwrap();
    assert!(line.contains("log in") && line.contains("herdlet::audit"), "{line}");

    agent.cli(&["delete", "vault", "--wait"]).success();
    assert_eq!(bao.look_up(&first), None, "it is revoked");
    agent.finish();
}

#[test]
fn losing_vault_neither_stops_nor_restarts_a_task() {
    let Some((mut agent, mut bao)) = ground("4s") else { return };
    let task = sleeper("t", "vault: {change_mode: restart}");
    agent.apply_and_wait(&job("kept", "service", "", &[task]));
    let member = agent.single("kept.g[0]", "t");
    let first = token(&agent, &member);
    // Renewed far beyond its lifetime, it is still the same.
    wait::until_true("it is renewed", || {
        let known = bao.look_up(&first).unwrap_or_default();
        let [created, renewed] = ["creation_time", "last_renewal_time"].map(|time| known[time].as_u64());
        renewed > created.map(|at| at + 4)
    });
    assert_eq!((agent.single("kept.g[0]", "t"), token(&agent, &member)), (member.clone(), first.clone()));

    bao.seal();
    until_explained(&agent, "kept", "the last token is kept: waits for Vault, which has not renewed it");
    bao.stop();
    until_explained(&agent, "kept", "no answer from");
    until_explained(&agent, "kept", "and its lease has ended");
    assert_eq!(agent.metric("herdlet_vault_tokens_outdated ", ""), 1.0);
    assert!(agent.metric("herdlet_vault_tokens_outdated_seconds ", "") > 0.0);
    // A new agent does not find Vault either.
    agent.crash();
    assert_eq!((agent.single("kept.g[0]", "t"), token(&agent, &member)), (member.clone(), first.clone()));

    // Vault is back, but the lease has ended: only now is there another token.
    bao.launch();
    let second =
        wait::until("another token", || Some(token(&agent, &member)).filter(|token| *token != first));
    wait::until_true("the task has restarted with it", || {
        agent
            .members()
            .iter()
            .any(|now| now.pid != member.pid && variable(now, "VAULT_TOKEN").as_deref() == Some(&second))
    });
    let alloc = agent.alloc("kept.g[0]").unwrap();
    assert!(alloc.0["TaskStates"]["t"]["Events"].to_string().contains("Vault: new Vault token acquired"));
    agent.finish();
}

#[test]
fn a_task_without_a_token_waits_and_says_so() {
    let Some(mut bao) = is_root().then(OpenBao::prepare).flatten() else { return };
    let (mut agent, api) = agent_of(&bao);
    let noop = sleeper("t", "vault: {change_mode: noop, env: false}");
    let other = sleeper("u", "vault: {cluster: eu}");
    agent.apply(&job("first", "service", "", &[noop]));
    agent.apply(&job("other", "service", "", &[other]));
    until_explained(&agent, "first", "no answer from");
    assert_eq!(
        agent.until_alloc("first.g[0]", "waits", |alloc| alloc.status() == "pending").state("t"),
        "pending"
    );
    until_explained(&agent, "other", "waits for Vault: set vault.eu.address in the agent's config");
    assert!(logins(&agent, "failed") > 0.0);

    // An auth method that is missing is a reason too.
    bao.launch();
    agent.until_printed(&["explain", "first"], |printed| {
        printed.contains("log in at auth/jwt-nomad") && !printed.contains("no answer")
    });
    bao.trust(&api, "4s");
    agent.cli(&["wait", "first"]).success();
    let member = agent.single("first.g[0]", "t");
    let first = token(&agent, &member);
    assert_eq!(variable(&member, "VAULT_TOKEN"), None);

    // A token that Vault has revoked is replaced; the job wants no restart.
    bao.revoke(&first);
    let second =
        wait::until("another token", || Some(token(&agent, &member)).filter(|token| *token != first));
    assert!(bao.look_up(&second).is_some_and(|known| known["type"] != Value::Null));
    assert_eq!(agent.single("first.g[0]", "t"), member);
    agent.finish();
}
