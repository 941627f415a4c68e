//! `secret` blocks: values of variables and plugins in the environment, the config, templates and services of a task.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, ports, wait,
};

use super::{QUICK, path_of, put, template, templates, until_explained, until_file, until_recorded};
use crate::common::{is_root, job, shell};

/// Installs a plugin of the agent that runs this script.
pub(crate) fn plugin(agent: &Agent, name: &str, script: &str) -> PathBuf {
    let dir = agent.home.state().join("common_plugins/secrets");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// A script that counts its fetches, and answers with what it was asked for.
fn counting(agent: &Agent) -> (String, PathBuf) {
    let count = agent.home.path().join("fetches");
    let script = format!(
        "echo \"$CPI_OPERATION $1 $2 $NOMAD_JOB_ID $NOMAD_NAMESPACE $USER_OF\" >> {}\n\
         echo '{{\"result\": {{\"key\": \"of-plugin\"}}}}'",
        count.display()
    );
    (script, count)
}

const SECRETS: &str = "secrets:\n\
    - {name: db, provider: nomad, path: nomad/jobs/blocks}\n\
    - {name: other, provider: counting, path: some/path, env: {USER_OF: \"${secret.db.user}\"}}\n";

const ONCE: &str = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";

#[test]
fn values_are_fetched_once_and_used_everywhere() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(
        Setup::default().config(format!("{QUICK}host_ip: 127.0.0.1\n{}", ports::for_tasks())),
    );
    let (script, fetches) = counting(&agent);
    plugin(&agent, "counting", &script);
    let conf = template("{{ env \"BOTH\" }}", "local/conf", "");
    let named = template("NAME=from-template", "secrets/env", "env: true");
    let script = "echo \"start $BOTH ${secret.other.key}\" >> local/log; exec sleep 100000";
    let more = format!(
        "kill_timeout: 5s\nenv: {{BOTH: \"${{secret.db.user}} ${{secret.other.key}} ${{secret.db.none}}\"}}\n{SECRETS}{}\
         services: [{{name: \"blocks-${{NAME}}\", provider: nomad, port: http, tags: [\"${{secret.db.user}}\"]}}]",
        templates(&[conf, named])
    );
    let group = "network: {ports: {http: {}}}";
    agent.apply(&job("blocks", "service", group, &[shell("t", script, &more)]));
    until_explained(&agent, "blocks", "secrets: waits for nomad/jobs/blocks");
    let waiting = agent.until_alloc("blocks.g[0]", "has an event", |alloc| {
        alloc.0["TaskStates"]["t"]["Events"].to_string().contains("Missing: nomad/jobs/blocks")
    });
    assert_eq!(waiting.status(), "pending");
    assert!(!fetches.exists(), "a plugin is asked once variables are there");
    put(&agent, "nomad/jobs/blocks", &["user=me"]);
    agent.cli(&["wait", "blocks"]).success();
    // An unknown key stays as written, as in Nomad.
    let line = "start me of-plugin ${secret.db.none} of-plugin";
    until_recorded(&agent, ("blocks.g[0]", "t"), &[line]);
    until_file(&agent, "blocks.g[0]", ("t/local/conf", "me of-plugin ${secret.db.none}"));
    let is_registered = |agent: &Agent| {
        let service = http::get(&agent.peer(), "/v1/service/blocks-from-template").unwrap();
        service.body.contains("\"Tags\":[\"me\"]")
    };
    wait::until_true("the service is registered with the secret as its tag", || is_registered(&agent));
    let asked = "fetch fetch some/path blocks default me\n";
    assert_eq!(fs::read_to_string(&fetches).unwrap(), asked);
    // Neither a change of a variable nor a restart, nor another agent fetches again.
    put(&agent, "nomad/jobs/blocks", &["user=you"]);
    agent.cli(&["restart", "blocks"]).success();
    until_recorded(&agent, ("blocks.g[0]", "t"), &[line, line]);
    agent.crash();
    agent.cli(&["wait", "blocks"]).success();
    agent.cli(&["restart", "blocks"]).success();
    until_recorded(&agent, ("blocks.g[0]", "t"), &[line, line, line]);
    assert_eq!(fs::read_to_string(&fetches).unwrap(), asked);
    wait::until_true("the service is registered with the tag it had", || is_registered(&agent));
    // Only root reads what is kept, and nothing is left of a job that is deleted.
    let kept = path_of(&agent, "blocks.g[0]", "t/private/secrets.json");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o600);
    agent.cli(&["delete", "--wait", "blocks"]).success();
    assert!(!kept.exists());
    agent.finish();
}

#[test]
fn a_plugin_that_fails_fails_its_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(QUICK));
    let failing = plugin(&agent, "counting", "echo planted-secret; exit 7");
    put(&agent, "nomad/jobs/blocks", &["user=me"]);
    let started = agent.home.path().join("started");
    let script = format!("touch {}", started.display());
    let failed = |agent: &mut Agent, name: &str, text: &str| {
        agent.apply(&job(
            name,
            "service",
            ONCE,
            &[shell("t", &script, &SECRETS.replace("jobs/blocks", "jobs"))],
        ));
        put(agent, "nomad/jobs", &["user=me"]);
        let alloc = agent.until_alloc(&format!("{name}.g[0]"), "failed", |alloc| alloc.status() == "failed");
        let events = alloc.0["TaskStates"]["t"]["Events"].to_string();
        assert!(events.contains(text) && !events.contains("planted-secret"), "{name}: {events}");
    };
    failed(&mut agent, "ended", "run the secrets plugin counting: it ended with exit status: 7");
    fs::set_permissions(&failing, fs::Permissions::from_mode(0o777)).unwrap();
    failed(&mut agent, "open", "start the secrets plugin counting: trust ");
    fs::remove_file(&failing).unwrap();
    failed(&mut agent, "missing", "start the secrets plugin counting: there is no file");
    assert!(!started.exists());
    agent.finish();
}
