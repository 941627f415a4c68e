//! No secret is visible to other users, whatever the umask.

pub(crate) mod planted;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, wait,
};

use crate::common::{is_root, job, sleeper};

const SECRET: &str = "correct-horse-battery-staple";

#[test]
fn secrets_appear_in_no_log_argument_or_answer() {
    if !is_root() {
        return;
    }
    let setup = Setup::default()
        .argument("--log-level")
        .argument("trace")
        .env("CONSUL_HTTP_TOKEN", "consul-secret-0815");
    let mut agent = Agent::prepare(setup);
    agent.set_shell("umask 000");
    agent.launch();
    let more = format!(
        "env: {{PASSWORD: {SECRET}}}\nidentities: [{{name: api, aud: [x.test], ttl: 1h, file: true, env: true}}]"
    );
    agent.apply_and_wait(&job("discreet", "service", "", &[sleeper("t", &more)]));
    let member = agent.single("discreet.g[0]", "t");
    let dir = agent.home.state().join("alloc").join(&member.alloc);
    let token = fs::read_to_string(dir.join("t/secrets/nomad_api.jwt")).unwrap();
    let output = agent.cli(&["exec", "discreet", "--", "sh", "-c", "echo $PASSWORD"]).success();
    assert_eq!(output.stdout.trim(), SECRET, "the task has the secret");
    agent.cli(&["restart", "discreet"]).success();
    wait::until_true("it was restarted", || agent.members().iter().any(|other| other.pid != member.pid));
    agent.crash();
    let token_after = fs::read_to_string(dir.join("t/secrets/nomad_api.jwt")).unwrap();

    // The arguments of every process of the agent, including supervisors.
    for (pid, arguments) in herdlet_e2e::host::processes_naming(agent.home.path()) {
        for secret in [SECRET, token.trim(), token_after.trim(), "consul-secret-0815"] {
            assert!(!arguments.contains(secret), "arguments of {pid}");
        }
    }
    let log = agent.log();
    assert!(log.len() > 500, "the log is not empty");
    for secret in [SECRET, token.trim(), token_after.trim(), "consul-secret-0815"] {
        assert!(!log.contains(secret), "the agent's log contains {secret}");
    }
    let shown = |path: &str| http::get(&agent.peer(), path).unwrap().body;
    for path in [
        "/v1/allocations",
        &format!("/v1/allocation/{}", member.alloc),
        "/v1/agent/self",
        "/v1/metrics",
        "/v1/herdlet/status",
    ] {
        for secret in [token.trim(), token_after.trim(), "consul-secret-0815"] {
            assert!(!shown(path).contains(secret), "{path} contains a token");
        }
    }
    assert!(!shown("/v1/metrics").contains(SECRET) && !shown("/v1/herdlet/status").contains(SECRET));

    assert_eq!(http::socket_mode(&agent.home.socket()), Some(0o600));
    let mut open = Vec::new();
    find_readable(&agent.home.state(), &mut open);
    assert!(open.is_empty(), "other users can enter: {open:?}");
    agent.finish();
}

/// Finds directories and files below `dir` that other users could read if the parent directories let them in.
fn find_readable(dir: &Path, open: &mut Vec<String>) {
    let mode = fs::metadata(dir).unwrap().mode() & 0o777;
    // Closed directories protect their contents. Tasks of other users must be able to enter allocation
    // directories.
    if mode & 0o007 == 0 {
        for file in ["state.db", "keys/identity.p8", "keys/identity.json", "keys/variables", "instance"] {
            if let Ok(found) = fs::metadata(dir.join(file))
                && found.mode() & 0o077 != 0
            {
                open.push(format!("{file} {:o}", found.mode() & 0o777));
            }
        }
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, found) = (entry.path(), entry.metadata().unwrap());
        let name = entry.file_name().to_string_lossy().into_owned();
        let closed = ["keys", "accepted", "variables", "state.db", "lock", "format"];
        if closed.contains(&name.as_str()) && found.mode() & 0o007 != 0 {
            open.push(format!("{} {:o}", path.display(), found.mode() & 0o777));
        }
        if found.is_dir() {
            find_readable(&path, open);
        } else if found.mode() & 0o002 != 0 && !found.is_symlink() {
            open.push(format!("{} {:o}", path.display(), found.mode() & 0o777));
        }
    }
}
