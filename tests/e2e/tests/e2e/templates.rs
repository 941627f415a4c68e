//! Templates of tasks on a real agent: first renders, changes and what they cause, crashes, replicas, and the files.

mod changes;
mod consul;
pub(crate) mod crashes;
mod files;
mod forms;
mod quiet;
mod replicas;
mod scripts;
pub(crate) mod secret_blocks;
mod services;
mod shown;
mod start;

use std::{fs, path::PathBuf};

use herdlet_e2e::{
    agent::{Agent, Setup},
    wait,
};
use serde_json::json;

use crate::common::{job, shell, sleeper};

/// Data does not have to be quiet: a test that makes one change waits for nothing.
pub(crate) const QUICK: &str = "template: {wait: {min: 0s, max: 0s}}\n";

/// A task that writes its starts and signals to `local/log`.
pub(crate) const RECORDER: &str = "trap 'echo hup >> local/log' HUP; trap 'echo usr1 >> local/log' USR1; trap 'exit 0' INT TERM; echo start >> local/log; while :; do sleep 0.05; done";

/// The greeting of the variable of a job.
pub(crate) fn greeting(job: &str) -> String {
    format!("{{{{ with nomadVar \"nomad/jobs/{job}\" }}}}{{{{ .greeting }}}}{{{{ end }}}}")
}

/// Starts an agent that renders as soon as data has changed.
pub(crate) fn quick() -> Agent {
    Agent::start_with(Setup::default().config(QUICK))
}

/// Returns a template without a random delay; `more` are additional fields of a YAML mapping.
pub(crate) fn template(data: &str, destination: &str, more: &str) -> String {
    format!("  - {{data: {}, destination: {}, splay: 0s, {more}}}\n", json!(data), json!(destination))
}

/// Returns the fields of a task with these templates.
pub(crate) fn templates(each: &[String]) -> String {
    format!("templates:\n{}", each.concat())
}

/// Returns a task that records its starts and signals, and ends at once on the stop signal.
pub(crate) fn recorder(name: &str, each: &[String]) -> String {
    shell(name, RECORDER, &format!("kill_timeout: 5s\n{}", templates(each)))
}

pub(crate) fn put(agent: &Agent, path: &str, items: &[&str]) {
    agent.cli(&[&["var", "put", "-force", path], items].concat()).success();
}

/// Returns a file of a task.
pub(crate) fn path_of(agent: &Agent, alloc: &str, file: &str) -> PathBuf {
    let id = agent.alloc(alloc).unwrap().id();
    agent.home.state().join("alloc").join(id).join(file)
}

/// Waits until a file of a task has this content.
#[track_caller]
pub(crate) fn until_file(agent: &Agent, alloc: &str, (file, content): (&str, &str)) {
    let path = path_of(agent, alloc, file);
    let mut found = None;
    let deadline = std::time::Instant::now() + wait::PATIENCE;
    while found.as_deref() != Some(content) {
        assert!(
            std::time::Instant::now() < deadline,
            "{} is {found:?}, not {content:?}\n{}",
            path.display(),
            agent.log_tail()
        );
        wait::pause(std::time::Duration::from_millis(20));
        found = fs::read_to_string(&path).ok();
    }
}

/// What the recorder of an allocation has written, one word per line.
pub(crate) fn recorded(agent: &Agent, alloc: &str, task: &str) -> Vec<String> {
    let log = fs::read_to_string(path_of(agent, alloc, &format!("{task}/local/log"))).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Waits until the recorder of an allocation has written these lines.
#[track_caller]
pub(crate) fn until_recorded(agent: &Agent, (alloc, task): (&str, &str), lines: &[&str]) {
    let content: String = lines.iter().map(|line| format!("{line}\n")).collect();
    until_file(agent, alloc, (&format!("{task}/local/log"), &content));
}

/// Waits until `explain` of a job contains a text.
#[track_caller]
pub(crate) fn until_explained(agent: &Agent, job: &str, text: &str) -> String {
    agent.until_printed(&["explain", job], |printed| printed.contains(text))
}

/// The job `web`, whose templates use the password of its variable in every way, and `wrong`, whose template fails with it.
pub(crate) fn users_of_a_secret() -> String {
    let read =
        |job: &str, text: &str| format!("{{{{ with nomadVar \"nomad/jobs/{job}\" }}}}{text}{{{{ end }}}}");
    let right = [
        template(
            &read("web", "{{ .password }} {{ .password.Value | sha256Hex }}"),
            "secrets/conf",
            "change_mode: signal",
        ),
        template(&read("web", "A={{ .password }}"), "secrets/env", "env: true, perms: \"0600\""),
        template(
            &read("web", "{{ .password | toUpper }}"),
            "secrets/script",
            "change_mode: script, change_script: {command: /bin/cat, args: [secrets/conf], timeout: 2m, run_on_first_render: true}",
        ),
    ];
    // Its event names the arguments, and this one has the secret as a value.
    let failing = template(
        &read("web", "{{ .password | toLower }}"),
        "secrets/failing",
        "change_mode: script, change_script: {command: /bin/ls, args: [\"/no/${A}\"], timeout: 2m, run_on_first_render: true}",
    );
    let right = [right.as_slice(), &[failing]].concat();
    let once = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    let web = job("web", "service", "", &[sleeper("t", &templates(&right))]);
    let wrong = [template(&read("wrong", "{{ .password | parseInt }}"), "secrets/number", "")];
    format!("{web}---\n{}", job("wrong", "service", once, &[sleeper("t", &templates(&wrong))]))
}
