//! Secrets of a real OpenBao in templates and `secret` blocks: restarts of the agent, outages, lost leases.
//!
//! Leases that can be renewed are those of the engine for RabbitMQ, with a stand-in for its API.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
};

use super::*;
use crate::{
    common::shell,
    secrets::planted::look_everywhere,
    templates::{RECORDER, path_of, recorded, template, templates, until_file},
};

/// What the role of tasks may do.
const POLICY: &str = r#"path "secret/*" { capabilities = ["create", "update", "read", "list"] }
path "kv/*" { capabilities = ["read", "list"] }
path "pki/issue/*" { capabilities = ["create", "update"] }
path "rabbitmq/creds/*" { capabilities = ["read"] }"#;

const CREDS: &str =
    r#"{{ with secret "rabbitmq/creds/web" }}{{ .Data.username }} {{ .Data.password }}{{ end }}"#;
const KEY: &str =
    r#"{{ with secret "pki/issue/web" "common_name=web.test" }}{{ .Data.private_key }}{{ end }}"#;
const VALUE: &str = r#"{{ with secret "secret/data/web" }}{{ .Data.data.password }}{{ end }}"#;
const LEASES: &str = "sys/leases/lookup/rabbitmq/creds/web";

/// Accepts every user that OpenBao creates or removes. Returns its address; it ends with the test.
fn rabbitmq() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut bytes = [0; 4096];
            while !is_whole(&String::from_utf8_lossy(&request)) {
                match stream.read(&mut bytes) {
                    Ok(0) | Err(_) => break,
                    Ok(length) => request.extend(&bytes[..length]),
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
    address
}

fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// Sets up the engines. Leases of credentials have this lifetime.
fn engines(bao: &OpenBao, ttl: &str) {
    bao.set("sys/policy/web", &json!({ "policy": POLICY }));
    bao.set("sys/mounts/kv", &json!({ "type": "kv", "options": { "version": "1" } }));
    bao.set("sys/mounts/pki", &json!({ "type": "pki" }));
    bao.set("pki/root/generate/internal", &json!({ "common_name": "test", "ttl": "24h" }));
    let role = json!({ "allow_any_name": true, "ttl": "1h", "key_type": "ec", "key_bits": 256 });
    bao.set("pki/roles/web", &role);
    bao.set("sys/mounts/rabbitmq", &json!({ "type": "rabbitmq" }));
    let connection = json!({
        "connection_uri": rabbitmq(), "username": "u", "password": "p", "verify_connection": false,
    });
    bao.set("rabbitmq/config/connection", &connection);
    bao.set("rabbitmq/config/lease", &json!({ "ttl": ttl, "max_ttl": "24h" }));
    bao.set("rabbitmq/roles/web", &json!({ "vhosts": r#"{"/": {"write": ".*", "read": ".*"}}"# }));
}

fn put(bao: &OpenBao, password: &str) {
    bao.set("secret/data/web", &json!({ "data": { "password": password } }));
}

fn content(agent: &Agent, job: &str, file: &str) -> String {
    fs::read_to_string(path_of(agent, &format!("{job}.g[0]"), &format!("t/{file}"))).unwrap()
}

/// A task that keeps what it has been started with.
fn task(each: &[String], more: &str) -> String {
    shell(
        "t",
        RECORDER,
        &format!("kill_timeout: 5s\nvault: {{change_mode: noop}}\n{more}{}", templates(each)),
    )
}

#[test]
fn what_was_issued_outlives_agents_and_outages() {
    let Some((mut agent, mut bao)) = ground("1h") else { return };
    engines(&bao, "1h");
    put(&bao, "first");
    let each = [
        template(CREDS, "secrets/creds", ""),
        template(CREDS, "secrets/again", ""),
        template(KEY, "secrets/key", ""),
        template(&format!("{KEY}{VALUE}"), "secrets/both", ""),
    ];
    agent.apply_and_wait(&job("issued", "service", "", &[task(&each, "")]));
    let member = agent.single("issued.g[0]", "t");
    let files = ["secrets/creds", "secrets/again", "secrets/key", "secrets/both"];
    let all = |agent: &Agent| files.map(|file| content(agent, "issued", file));
    let first = all(&agent);
    assert_eq!(first[0], first[1], "one lease for all templates");
    assert!(
        first[2].contains("PRIVATE KEY") && first[3].starts_with(&first[2]) && first[3].ends_with("first")
    );
    let certificates = bao.list("pki/certs").len();
    assert_eq!((bao.list(LEASES).len(), certificates), (1, 2), "the root's and one more");

    for is_sealed in [false, true] {
        if is_sealed {
            bao.seal();
        }
        agent.crash();
        agent.cli(&["wait", "issued"]).success();
        assert_eq!(agent.single("issued.g[0]", "t"), member);
        assert_eq!(all(&agent), first);
    }
    bao.stop();
    agent.cli(&["restart", "issued"]).success();
    wait::until_true("it has restarted without Vault", || recorded(&agent, "issued.g[0]", "t").len() == 2);
    assert_eq!(all(&agent), first);
    bao.launch();
    assert_eq!((bao.list(LEASES).len(), bao.list("pki/certs").len()), (1, certificates));
    let log = agent.log();
    let line = log.lines().find(|line| line.contains("rabbitmq/creds/web")).unwrap();
    assert!(
        line.contains("herdlet::audit") && line.contains("secret of Vault") && line.contains("read"),
        "{line}"
    );

    agent.cli(&["delete", "issued", "--wait"]).success();
    wait::until_true("leases end with the token", || bao.list(LEASES).is_empty());
    agent.finish();
}

#[test]
fn a_task_waits_for_its_secret_and_keeps_it_when_vault_is_away() {
    let Some((mut agent, mut bao)) = ground("1h") else { return };
    engines(&bao, "4s");
    let each = [template(VALUE, "secrets/value", "change_mode: noop"), template(CREDS, "secrets/creds", "")];
    agent.apply(&job("kept", "service", "", &[task(&each, "")]));
    until_explained(&agent, "kept", "waits for secret secret/data/web");
    put(&bao, "first");
    agent.cli(&["wait", "kept"]).success();
    let member = agent.single("kept.g[0]", "t");
    let first = content(&agent, "kept", "secrets/creds");
    let lease = bao.list(LEASES);
    wait::until_true("the lease is renewed", || {
        let id = format!("rabbitmq/creds/web/{}", lease[0]);
        let known = bao.set("sys/leases/lookup", &json!({ "lease_id": id }));
        known["data"]["last_renewal"].is_string()
    });
    assert_eq!((bao.list(LEASES), content(&agent, "kept", "secrets/creds")), (lease.clone(), first.clone()));

    bao.stop();
    until_explained(&agent, "kept", "secret rabbitmq/creds/web of Vault, which has not renewed it since");
    until_explained(&agent, "kept", "and its time is over");
    assert_eq!(agent.metric("herdlet_templates_outdated ", ""), 1.0);
    assert!(agent.metric("herdlet_templates_outdated_seconds ", "") > 0.0);
    agent.crash();
    assert_eq!(agent.single("kept.g[0]", "t"), member);
    assert_eq!(content(&agent, "kept", "secrets/creds"), first);

    // The lease has ended meanwhile: only now are there other credentials, and the task restarts with them.
    bao.launch();
    wait::until_true("other credentials", || content(&agent, "kept", "secrets/creds") != first);
    wait::until_true("it has restarted", || recorded(&agent, "kept.g[0]", "t").len() == 2);
    wait::until_true("nothing is outdated", || agent.metric("herdlet_templates_outdated ", "") == 0.0);
    agent.finish();
}

#[test]
fn another_token_brings_other_leases() {
    let Some((mut agent, bao)) = ground("4s") else { return };
    engines(&bao, "1h");
    agent.apply_and_wait(&job("leased", "service", "", &[task(&[template(CREDS, "secrets/creds", "")], "")]));
    let member = agent.single("leased.g[0]", "t");
    let first = content(&agent, "leased", "secrets/creds");
    bao.revoke(&token(&agent, &member));
    wait::until_true("other credentials", || content(&agent, "leased", "secrets/creds") != first);
    wait::until_true("it has restarted", || recorded(&agent, "leased.g[0]", "t").len() == 2);
    agent.finish();
}

#[test]
fn all_tokens_can_be_revoked_at_once() {
    let Some((mut agent, mut bao)) = ground("1h") else { return };
    engines(&bao, "1h");
    agent.apply_and_wait(&job(
        "revoked",
        "service",
        "",
        &[task(&[template(CREDS, "secrets/creds", "")], "")],
    ));
    let member = agent.single("revoked.g[0]", "t");
    let (first, creds) = (token(&agent, &member), content(&agent, "revoked", "secrets/creds"));
    let output = agent.cli(&["vault", "revoke-all"]).success();
    assert!(output.stdout.contains("revoked.g[0]") && !output.stdout.contains(&first), "{}", output.stdout);
    assert_eq!(bao.look_up(&first), None);
    // Also the credentials that were issued with it.
    wait::until_true("another token", || token(&agent, &member) != first);
    wait::until_true("other credentials", || content(&agent, "revoked", "secrets/creds") != creds);
    wait::until_true("it has restarted", || recorded(&agent, "revoked.g[0]", "t").len() == 2);
    bao.stop();
    let output = agent.cli(&["vault", "revoke-all"]).ended(1);
    assert!(output.stdout.contains("failed to revoke a token: no answer"), "{}", output.stdout);
    agent.finish();
}

#[test]
fn the_example_has_its_secrets() {
    let Some((mut agent, bao)) = ground("1h") else { return };
    bao.set("secret/data/app", &json!({ "data": { "user": "admin", "password": "first" } }));
    agent.apply_and_wait(&fs::read_to_string(example("vault-secrets")).unwrap());
    let member = agent.single("vault-secrets.app[0]", "server");
    agent.until_logged(&member.alloc, "server", "stdout", |text| text.contains("a password for admin"));
    agent.finish();
}

#[test]
fn secret_blocks_have_values_of_both_versions() {
    let Some((mut agent, bao)) = ground("1h") else { return };
    engines(&bao, "1h");
    bao.set("kv/web", &json!({ "user": "admin", "port": 80 }));
    let blocks = "secrets:\n  - {name: old, provider: vault, path: kv/web, config: {engine: kv_v1}}\n  - {name: db, provider: vault, path: secret/data/web}\n  - {name: short, provider: vault, path: secret/web}\n";
    let env = "env: {ALL: \"${secret.old.user}:${secret.old.port} ${secret.db.password} ${secret.short.password}\"}\n";
    let script = "echo \"$ALL\" >> local/log; exec sleep 100000";
    let fields = format!("kill_timeout: 5s\nvault: {{}}\n{blocks}{env}");
    agent.apply(&job("blocks", "service", "", &[shell("t", script, &fields)]));
    until_explained(&agent, "blocks", "secrets: waits for secret secret/data/web");
    put(&bao, "first");
    until_file(&agent, "blocks.g[0]", ("t/local/log", "admin:80 first first\n"));
    // They are read once.
    put(&bao, "second");
    agent.cli(&["restart", "blocks"]).success();
    until_file(&agent, "blocks.g[0]", ("t/local/log", "admin:80 first first\nadmin:80 first first\n"));
    agent.finish();
}

#[test]
fn secrets_of_vault_are_only_in_their_task() {
    let Some(mut bao) = is_root().then(OpenBao::prepare).flatten() else { return };
    bao.launch();
    let (mut agent, api) = agent_with(&bao, Setup::default().argument("--log-level").argument("trace"));
    bao.trust(&api, "1h");
    engines(&bao, "4s");
    put(&bao, "planted-in-vault");
    // The value is an argument of a write, too.
    let write = r#"{{ with secret "secret/data/web" }}{{ with secret "secret/data/written" (printf "a=%s" .Data.data.password) }}{{ .Data.version }}{{ end }}{{ end }}"#;
    let each = [
        template(CREDS, "secrets/creds", "change_mode: noop"),
        template(KEY, "secrets/key", ""),
        template(VALUE, "secrets/value", ""),
        template(write, "secrets/written", ""),
    ];
    let blocks = "secrets: [{name: db, provider: vault, path: secret/data/web}]\n";
    agent.apply_and_wait(&job("planted", "service", "", &[task(&each, blocks)]));
    let member = agent.single("planted.g[0]", "t");
    let creds = content(&agent, "planted", "secrets/creds");
    let key = content(&agent, "planted", "secrets/key");
    let line = key.lines().nth(1).unwrap().to_owned();
    let token = token(&agent, &member);
    let password = creds.split(' ').nth(1).unwrap().to_owned();
    let secrets = ["planted-in-vault", &line, &token, &password];
    look_everywhere(&agent, &secrets);
    // Refusals and outages bring the server's texts into messages.
    bao.set("sys/policy/web", &json!({ "policy": "path \"none/*\" { capabilities = [\"read\"] }" }));
    bao.revoke(&token);
    until_explained(&agent, "planted", "of Vault, which has not renewed it since");
    look_everywhere(&agent, &secrets);
    agent.crash();
    bao.stop();
    until_explained(&agent, "planted", "of Vault, which has not renewed it since");
    look_everywhere(&agent, &secrets);
    agent.finish();
}
