//! Secrets of every kind are in the task that may have them, and nowhere else.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    host, http,
};

use crate::{
    common::{is_root, job, shell},
    templates::{QUICK, path_of, put, secret_blocks::plugin, template, templates, until_file},
};

/// One for each kind: an item of a variable in a file and in the environment by templates, and by a `secret` block; a value
/// of a plugin.
const PLANTED: [&str; 4] =
    ["planted-in-a-file", "planted-in-env", "planted-in-a-block", "planted-by-a-plugin"];

const SECRETS: &str = "secrets:\n\
    - {name: block, provider: nomad, path: nomad/jobs/planted}\n\
    - {name: plugged, provider: planting, path: p, env: {OF_VARIABLE: \"${secret.block.block}\"}}\n";

fn planted_job() -> String {
    let read = |text: &str| format!("{{{{ with nomadVar \"nomad/jobs/planted\" }}}}{text}{{{{ end }}}}");
    let each = [
        template(&read("{{ .file }}"), "secrets/conf", "change_mode: signal"),
        template(
            &read("FROM_ENV={{ .env }}"),
            "secrets/env",
            "env: true, change_mode: script, change_script: {command: /bin/true, timeout: 2m, run_on_first_render: true}",
        ),
    ];
    // Values are in the environment of the process, not in its arguments.
    let script = "{ cat secrets/conf; echo; echo $FROM_ENV; echo $BLOCK; echo $PLUGGED; } > secrets/seen.new; mv secrets/seen.new secrets/seen; while :; do sleep 1; done";
    let more = format!(
        "kill_timeout: 5s\nenv: {{BLOCK: \"${{secret.block.block}}\", PLUGGED: \"${{secret.plugged.key}}\"}}\n\
         identities: [{{env: true, file: true}}, {{name: api, aud: [x.test], ttl: 1h, file: true, env: true}}]\n{SECRETS}{}",
        templates(&each)
    );
    job("planted", "service", "", &[shell("t", script, &more)])
}

#[test]
fn planted_secrets_are_only_in_their_task() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().config(QUICK).argument("--log-level").argument("trace");
    let mut agent = Agent::start_with(setup);
    plugin(
        &agent,
        "planting",
        "echo planted-by-a-plugin >&2; echo '{\"result\": {\"key\": \"planted-by-a-plugin\"}}'",
    );
    let [file, env, block, _] = PLANTED;
    let items = [format!("file={file}"), format!("env={env}"), format!("block={block}")];
    agent.apply(&planted_job());
    agent.until_printed(&["explain", "planted"], |text| text.contains("waits for nomad/jobs/planted"));
    put(&agent, "nomad/jobs/planted", &items.each_ref().map(String::as_str));
    let seen = PLANTED.map(|value| format!("{value}\n")).concat();
    until_file(&agent, "planted.g[0]", ("t/secrets/seen", &seen));
    let tokens = ["nomad_token", "nomad_api.jwt"].map(|name| {
        let path = path_of(&agent, "planted.g[0]", &format!("t/secrets/{name}"));
        fs::read_to_string(path).unwrap().trim().to_owned()
    });
    let secrets: Vec<&str> = PLANTED.into_iter().chain(tokens.iter().map(String::as_str)).collect();
    look_everywhere(&agent, &secrets);
    // Changes, restarts and a crash bring all of them into use once more.
    put(&agent, "nomad/jobs/planted", &[&items[0], &items[1], &items[2], "more=x"]);
    agent.cli(&["restart", "planted"]).success();
    agent.cli(&["wait", "planted"]).success();
    agent.crash();
    agent.cli(&["wait", "planted"]).success();
    look_everywhere(&agent, &secrets);
    agent.cli(&["stop", "--wait", "planted"]).success();
    look_everywhere(&agent, &secrets);
    agent.finish();
}

/// Looks for secrets outside the task of the job `planted`.
#[track_caller]
pub(crate) fn look_everywhere(agent: &Agent, secrets: &[&str]) {
    let absent = |place: &str, text: &str| {
        for secret in secrets {
            assert!(!text.contains(secret), "{place} has {secret}");
        }
    };
    absent("the log", &agent.log());
    for (pid, arguments) in host::processes_naming(agent.home.path()) {
        absent(&format!("the arguments of {pid}"), &arguments);
    }
    let mut files = Vec::new();
    kept(&agent.home.state(), &mut files);
    assert!(files.iter().any(|path| path.ends_with("state.db")), "{files:?}");
    for path in files {
        absent(&path.display().to_string(), &String::from_utf8_lossy(&fs::read(&path).unwrap_or_default()));
    }
    let id = agent.alloc("planted.g[0]").unwrap().id();
    for arguments in [
        ["job", "inspect", "planted"].as_slice(),
        &["alloc", "status", &id],
        &["get", "jobs", "planted", "-o", "yaml"],
        &["describe", "planted"],
        &["explain", "planted"],
        &["explain", "var", "nomad/jobs/planted"],
        &["status", "planted", "-o", "json"],
        &["get", "events", "planted"],
        &["config", "view"],
    ] {
        let output = agent.cli(arguments);
        absent(&arguments.join(" "), &format!("{}{}", output.stdout, output.stderr));
    }
    for path in [
        "/v1/jobs?meta=true",
        "/v1/job/planted",
        "/v1/allocations?task_states=true",
        &format!("/v1/allocation/{id}"),
        "/v1/agent/self",
        "/v1/metrics",
        "/v1/herdlet/status",
        "/v1/vars",
    ] {
        absent(path, &http::get(&agent.peer(), path).unwrap().body);
    }
}

/// The files that outlive the memory of the machine: all but the tasks' own `secrets` and `private`, and plugins.
pub(crate) fn kept(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let is_of_task = path.ends_with("t/secrets") || path.ends_with("t/private");
        if kind.is_dir() && !is_of_task && !path.ends_with("common_plugins") {
            kept(&path, files);
        } else if kind.is_file() {
            files.push(path);
        }
    }
}
