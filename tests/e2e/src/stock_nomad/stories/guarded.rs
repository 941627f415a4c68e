//! Three servers that require certificates and tokens, and an agent with a Nomad agent file.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::{
    command::{Output, Running},
    program::project,
    stock_nomad::{
        cluster::{ApiSide, NAME, StockCluster, assert_has, text},
        jobs::{sleeper, states},
        program::Program,
    },
};

/// Both APIs.
const DOORS: [ApiSide; 2] = [ApiSide::Server, ApiSide::Node];

/// Returns the lines about tokens and certificates, which are in the same directory.
fn certificates(home: &Path, name: &str) -> String {
    let file = |name: &str| home.join(name).display().to_string();
    format!(
        "acl {{\n  enabled = true\n}}\ntls {{\n  http = true\n  rpc = true\n  ca_file = \"{}\"\n  cert_file = \"{}\"\n  key_file = \"{}\"\n  \
         verify_server_hostname = true\n  verify_https_client = true\n}}\n",
        file("authority.pem"),
        file(&format!("{name}.pem")),
        file(&format!("{name}-key.pem")),
    )
}

pub(super) fn start_cluster(program: &Program) -> StockCluster {
    let mut ground = StockCluster::servers(program, 3, |home| {
        keep_certificates(home);
        certificates(home, "server")
    });
    ground.guarded = true;
    ground.token = Some(ground.until_seen("the first token is made", |seen| {
        let output = ground.at(ApiSide::Server, &["acl", "bootstrap"]);
        *seen = format!("{output:?}");
        secret(&output)
    }));
    let servers = ground.rpc.iter().map(|server| format!("\"{server}\"")).collect::<Vec<_>>().join(", ");
    let config = format!(
        "name = \"{NAME}\"\ndata_dir = \"{}\"\nbind_addr = \"127.0.0.1\"\nports {{\n  http = {}\n}}\n\
         client {{\n  enabled = true\n  servers = [{servers}]\n  network_interface = \"lo\"\n  node_class = \"edge\"\n}}\n\
         plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n{}",
        ground.home().path().join("data").display(),
        ground.node_port,
        certificates(ground.home().path(), "client"),
    );
    ground.join("client.hcl", &config);
    ground
}

/// Copies the certificates of the tests' CA to a private directory.
fn keep_certificates(home: &Path) {
    for name in ["authority.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem"] {
        let copy = home.join(name);
        fs::copy(project().join("controller/rpc/src/tls").join(name), &copy).expect("a certificate");
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).expect("its mode");
    }
}

/// Parses the token in the output of `nomad acl bootstrap` or `nomad acl token create`.
fn secret(output: &Output) -> Option<String> {
    let line = output.stdout.lines().find(|line| line.starts_with("Secret ID"))?;
    line.split('=').nth(1).map(|secret| secret.trim().to_owned())
}

/// Creates a token with one policy, and waits until every server knows it: nodes ask any of them, and cache
/// for a while that a token is unknown.
fn token(ground: &mut StockCluster, name: &str, policy: &str) -> String {
    let file = ground.write("policy.hcl", policy);
    ground.ok(&["acl", "policy", "apply", name, &file]);
    let output = ground.at(ApiSide::Server, &["acl", "token", "create", "-type", "client", "-policy", name]);
    let token = secret(&output).unwrap_or_default();
    for port in ground.server_ports.clone() {
        ground.until_true("each server knows the token", || {
            let mut command = ground.command(ApiSide::Server, Some(&token), &["acl", "token", "self"]);
            command.env("NOMAD_ADDR", format!("https://localhost:{port}"));
            Running::start(command).finish().code == 0
        });
    }
    token
}

/// The expected answer of servers and nodes to a token.
#[derive(Debug, Clone, Copy)]
enum Verdict {
    Allowed,
    Denied,
}

/// Runs a command against both APIs with a token, or none.
fn judge(ground: &StockCluster, token: Option<&str>, arguments: &[&str], wanted: Verdict) {
    for door in DOORS {
        let output = ground.with(door, token, arguments);
        let text = format!("{}{}", output.stdout, output.stderr).to_lowercase();
        let is_so = match wanted {
            Verdict::Allowed => output.code == 0,
            Verdict::Denied => output.code != 0 && text.contains("permission denied"),
        };
        assert!(is_so, "expected {wanted:?} for {arguments:?} at {door:?}, found {output:?}");
    }
}

fn running(ground: &mut StockCluster) -> String {
    ground.run("guarded", &sleeper("guarded", 1));
    ground.single("guarded", "g")
}

/// Returns the arguments to run a command in an allocation.
fn exec(id: &str) -> [&str; 6] {
    ["alloc", "exec", "-i=false", "-t=false", id, "true"]
}

pub(super) fn works(ground: &mut StockCluster) {
    let id = running(ground);
    ground.deployment("guarded", 0, "successful");
    for door in DOORS {
        for arguments in [
            &["alloc", "logs", &id][..],
            &exec(&id),
            &["alloc", "fs", &id, "alloc"],
            &["node", "status", &ground.node],
        ] {
            let output = ground.at(door, arguments);
            assert!(output.code == 0, "{arguments:?} at {door:?}: {output:?}");
        }
    }
    assert_has(&ground.at(ApiSide::Node, &["node", "status", "-self"]).stdout, &[&ground.node]);
    assert!(
        text(&ground.json(&["node", "status", "-json", &ground.node]), "NodeClass") == "edge",
        "expected a node of the class edge"
    );
}

pub(super) fn no_certificate(ground: &mut StockCluster) {
    for door in DOORS {
        let mut command = ground.command(door, ground.token.as_deref(), &["node", "status"]);
        command.env_remove("NOMAD_CLIENT_CERT").env_remove("NOMAD_CLIENT_KEY");
        let output = Running::start(command).finish();
        assert!(
            output.code != 0 && output.stderr.contains("certificate"),
            "expected that {door:?} requires a certificate, found {output:?}"
        );
    }
}

pub(super) fn no_token(ground: &mut StockCluster) {
    let id = running(ground);
    for arguments in [
        &["job", "status"][..],
        &["node", "status"],
        &["alloc", "logs", &id],
        &exec(&id),
        &["job", "stop", "guarded"],
    ] {
        judge(ground, None, arguments, Verdict::Denied);
    }
}

pub(super) fn reads(ground: &mut StockCluster) {
    let id = running(ground);
    let policy = "namespace \"default\" {\n  policy = \"read\"\n}\nnode {\n  policy = \"read\"\n}\n";
    let token = token(ground, "reads", policy);
    for arguments in
        [&["job", "status", "guarded"][..], &["alloc", "status", &id], &["node", "status", &ground.node]]
    {
        judge(ground, Some(&token), arguments, Verdict::Allowed);
    }
    for arguments in [
        &["alloc", "logs", &id][..],
        &["alloc", "fs", &id],
        &exec(&id),
        &["alloc", "restart", &id],
        &["alloc", "stop", &id],
        &["alloc", "signal", &id],
    ] {
        judge(ground, Some(&token), arguments, Verdict::Denied);
    }
}

pub(super) fn executes(ground: &mut StockCluster) {
    let id = running(ground);
    let policy = "namespace \"default\" {\n  policy = \"read\"\n  capabilities = [\"alloc-exec\", \"alloc-lifecycle\", \"read-logs\", \"read-fs\"]\n}\n";
    let token = token(ground, "executes", policy);
    judge(ground, Some(&token), &exec(&id), Verdict::Denied);
    for arguments in [&["alloc", "logs", &id][..], &["alloc", "fs", &id, "alloc"], &["alloc", "restart", &id]]
    {
        judge(ground, Some(&token), arguments, Verdict::Allowed);
    }
}

pub(super) fn executes_on_nodes(ground: &mut StockCluster) {
    let id = running(ground);
    let policy = "namespace \"default\" {\n  policy = \"write\"\n  capabilities = [\"alloc-node-exec\"]\n}\n";
    let token = token(ground, "nodes", policy);
    judge(ground, Some(&token), &exec(&id), Verdict::Allowed);
    judge(ground, Some(&token), &["node", "status", &ground.node], Verdict::Denied);
}

pub(super) fn leader(ground: &mut StockCluster) {
    let id = running(ground);
    ground.deployment("guarded", 0, "successful");
    let before = ground.pid(&id, "t");
    let led = leading(ground);
    let index = ground.rpc.iter().position(|server| *server == led).unwrap_or_default();
    ground.servers[index].kill();
    ground.until_true("another server leads", || {
        let now = leading(ground);
        !now.is_empty() && now != led
    });
    ground.run("next", &sleeper("next", 2));
    ground.running("next", "g", 2);
    ground.deployment("next", 0, "successful");
    assert!(ground.node_is(&ground.node) == "ready", "expected a ready node");
    assert!(ground.single("guarded", "g") == id, "{}", states(&ground.allocs("guarded")));
    assert!(ground.pid(&id, "t") == before, "expected the same process");
    ground.servers[index].start_again(&ground.agent.home);
}

/// Returns the RPC address of the leader; empty if there is none.
fn leading(ground: &StockCluster) -> String {
    let shown = ground.at(ApiSide::Server, &["operator", "raft", "list-peers"]).stdout;
    let line = shown.lines().find(|line| line.contains(" leader ")).unwrap_or_default();
    line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap_or_default().to_owned()
}
