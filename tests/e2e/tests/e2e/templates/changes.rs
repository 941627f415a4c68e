//! Changes of data: the four modes, outputs that are equal, data that disappears, `once` and `render_templates`.

use std::time::{SystemTime, UNIX_EPOCH};

use herdlet_e2e::{agent::Agent, wait};
use serde_json::Value;

use super::{
    greeting, path_of, put, quick, recorded, recorder, template, templates, until_explained, until_file,
    until_recorded,
};
use crate::common::{is_root, job, shell};

#[test]
fn each_mode_has_its_effect() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/modes", &["greeting=one"]);
    let task = |name: &str, more: &str| recorder(name, &[template(&greeting("modes"), "local/conf", more)]);
    let tasks = [
        task("restart", ""),
        task("signal", "change_mode: signal, change_signal: SIGUSR1"),
        task("hup", "change_mode: signal"),
        task("noop", "change_mode: noop"),
        task(
            "script",
            "change_mode: script, change_script: {command: /bin/sh, args: [-c, \"echo script $(cat local/conf) in ${NOMAD_TASK_NAME} >> local/log\"], timeout: 2m}",
        ),
    ];
    // A restart because of a template is no failure, so this policy does not count it.
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    agent.apply_and_wait(&job("modes", "service", group, &tasks));
    let alloc = "modes.g[0]";
    for name in ["restart", "signal", "hup", "noop", "script"] {
        until_recorded(&agent, (alloc, name), &["start"]);
    }
    put(&agent, "nomad/jobs/modes", &["greeting=two"]);
    until_recorded(&agent, (alloc, "restart"), &["start", "start"]);
    until_recorded(&agent, (alloc, "signal"), &["start", "usr1"]);
    until_recorded(&agent, (alloc, "hup"), &["start", "hup"]);
    until_recorded(&agent, (alloc, "script"), &["start", "script two in script"]);
    until_file(&agent, alloc, ("noop/local/conf", "two"));
    assert_eq!(recorded(&agent, alloc, "noop"), ["start"]);
    let shown = agent.until_alloc(alloc, "runs", |alloc| alloc.state("restart") == "running");
    assert!(!shown.failed("restart") && shown.status() == "running", "{:#}", shown.0);
    let events = shown.0["TaskStates"].to_string();
    for text in ["Template with change_mode restart re-rendered", "Template successfully ran script /bin/sh"]
    {
        assert!(events.contains(text), "{text}: {events}");
    }
    agent.finish();
}

#[test]
fn an_equal_output_has_no_effect() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/equal", &["greeting=one"]);
    agent.apply_and_wait(&job(
        "equal",
        "service",
        "",
        &[
            recorder("t", &[template(&greeting("equal"), "local/conf", "")]),
            recorder(
                "other",
                &[template(
                    "{{ with nomadVar \"nomad/jobs/equal\" }}{{ .unused }}{{ end }}",
                    "local/conf",
                    "",
                )],
            ),
        ],
    ));
    let inode = inode(&path_of(&agent, "equal.g[0]", "t/local/conf"));
    put(&agent, "nomad/jobs/equal", &["greeting=one", "unused=x"]);
    // The other task shows that the change was noticed.
    until_file(&agent, "equal.g[0]", ("other/local/conf", "x"));
    put(&agent, "nomad/jobs/equal", &["greeting=one", "unused=y"]);
    until_file(&agent, "equal.g[0]", ("other/local/conf", "y"));
    until_recorded(&agent, ("equal.g[0]", "t"), &["start"]);
    assert_eq!(
        self::inode(&path_of(&agent, "equal.g[0]", "t/local/conf")),
        inode,
        "it was not written again"
    );
    agent.finish();
}

fn inode(path: &std::path::Path) -> u64 {
    std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap())
}

/// Returns since when a job's template is outdated, in nanoseconds since 1970.
fn outdated_since(agent: &Agent, job: &str) -> u128 {
    fn found(value: &Value) -> Option<u128> {
        let is_outdated = value["message"].as_str().is_some_and(|message| message.starts_with("outdated"));
        let within = || match value {
            Value::Array(each) => each.iter().find_map(found),
            Value::Object(each) => each.values().find_map(found),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        };
        if is_outdated { value["since"].as_u64().map(u128::from) } else { within() }
    }
    let printed = agent.cli(&["explain", job, "-o", "json"]).success().stdout;
    found(&serde_json::from_str(&printed).unwrap()).unwrap_or_else(|| panic!("not outdated: {printed}"))
}

#[test]
fn a_deleted_variable_keeps_the_file_and_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/gone", &["greeting=one"]);
    let task = recorder("t", &[template(&greeting("gone"), "secrets/conf", "")]);
    agent.apply_and_wait(&job("gone", "service", "", &[task]));
    until_recorded(&agent, ("gone.g[0]", "t"), &["start"]);
    agent.cli(&["var", "purge", "nomad/jobs/gone"]).success();
    let text = "outdated, the last output is kept: waits for nomad/jobs/gone";
    until_explained(&agent, "gone", text);
    agent.cli(&["status", "gone"]).success();
    // A restart uses the last output, and so does the next agent.
    agent.cli(&["restart", "gone"]).success();
    until_recorded(&agent, ("gone.g[0]", "t"), &["start", "start"]);
    until_explained(&agent, "gone", text);
    let crashed_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    agent.crash();
    until_explained(&agent, "gone", text);
    let since = outdated_since(&agent, "gone");
    assert!(since < crashed_at, "outdated since {since}, the agent crashed at {crashed_at}");
    agent.cli(&["restart", "gone"]).success();
    until_recorded(&agent, ("gone.g[0]", "t"), &["start", "start", "start"]);
    until_file(&agent, "gone.g[0]", ("t/secrets/conf", "one"));
    // With the same value back, nothing happens; another one restarts.
    put(&agent, "nomad/jobs/gone", &["greeting=one"]);
    agent.until_printed(&["explain", "gone"], |printed| !printed.contains("outdated"));
    put(&agent, "nomad/jobs/gone", &["greeting=two"]);
    until_recorded(&agent, ("gone.g[0]", "t"), &["start", "start", "start", "start"]);
    until_file(&agent, "gone.g[0]", ("t/secrets/conf", "two"));
    agent.finish();
}

#[test]
fn render_templates_waits_for_data_at_each_start() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/fresh", &["greeting=one"]);
    let more = format!(
        "kill_timeout: 5s\nrestart: {{render_templates: true, delay: 10ms}}\n{}",
        templates(&[
            template(&greeting("fresh"), "local/conf", "change_mode: noop"),
            // Nothing reports a change of this file.
            template("{{ file \"alloc/data/input\" }}", "local/copy", "change_mode: noop"),
        ])
    );
    let before = shell("before", "echo 1 > $NOMAD_ALLOC_DIR/data/input", "lifecycle: {hook: prestart}");
    agent.apply(&job("fresh", "service", "", &[before, shell("t", super::RECORDER, &more)]));
    agent.cli(&["wait", "fresh"]).success();
    let alloc = "fresh.g[0]";
    until_file(&agent, alloc, ("t/local/copy", "1\n"));
    std::fs::write(path_of(&agent, alloc, "alloc/data/input"), "2\n").unwrap();
    agent.cli(&["restart", "fresh", "--task", "t"]).success();
    until_recorded(&agent, (alloc, "t"), &["start", "start"]);
    until_file(&agent, alloc, ("t/local/copy", "2\n"));
    agent.cli(&["var", "purge", "nomad/jobs/fresh"]).success();
    until_explained(&agent, "fresh", "outdated");
    agent.cli(&["restart", "fresh", "--task", "t"]).success();
    until_explained(&agent, "fresh", "waits for nomad/jobs/fresh");
    wait::until_true("the old process has ended", || agent.members().is_empty());
    put(&agent, "nomad/jobs/fresh", &["greeting=two"]);
    until_recorded(&agent, (alloc, "t"), &["start", "start", "start"]);
    until_file(&agent, alloc, ("t/local/conf", "two"));
    agent.finish();
}

#[test]
fn once_renders_once() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/once", &["greeting=one"]);
    let tasks = [
        recorder("t", &[template(&greeting("once"), "local/conf", "once: true")]),
        recorder("other", &[template(&greeting("once"), "local/conf", "change_mode: noop")]),
    ];
    agent.apply_and_wait(&job("once", "service", "", &tasks));
    until_recorded(&agent, ("once.g[0]", "t"), &["start"]);
    for (value, crash) in [("two", false), ("three", true)] {
        put(&agent, "nomad/jobs/once", &[&format!("greeting={value}")]);
        if crash {
            agent.crash();
        }
        until_file(&agent, "once.g[0]", ("other/local/conf", value));
        agent.cli(&["restart", "once", "--task", "t"]).success();
        let starts = if crash { &["start", "start", "start"][..] } else { &["start", "start"] };
        until_recorded(&agent, ("once.g[0]", "t"), starts);
        until_file(&agent, "once.g[0]", ("t/local/conf", "one"));
    }
    agent.finish();
}

/// A running task continues with its last files if the new data can't be rendered.
#[test]
fn wrong_data_ends_no_running_task() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/wrong", &["greeting=[1]"]);
    let data = "{{ with nomadVar \"nomad/jobs/wrong\" }}{{ index (parseJSON .greeting.Value) 0 }}{{ end }}";
    agent.apply_and_wait(&job("wrong", "service", "", &[recorder("t", &[template(data, "local/conf", "")])]));
    until_recorded(&agent, ("wrong.g[0]", "t"), &["start"]);
    put(&agent, "nomad/jobs/wrong", &["greeting=planted-secret"]);
    agent.until_printed(&["describe", "wrong"], |text| text.contains("the task keeps the last output"));
    let explained = agent.cli(&["explain", "wrong"]).success().stdout;
    assert!(explained.contains("local/conf") && !explained.contains("planted-secret"), "{explained}");
    until_file(&agent, "wrong.g[0]", ("t/local/conf", "1"));
    assert_eq!(recorded(&agent, "wrong.g[0]", "t"), ["start"]);
    put(&agent, "nomad/jobs/wrong", &["greeting=[2]"]);
    until_recorded(&agent, ("wrong.g[0]", "t"), &["start", "start"]);
    until_file(&agent, "wrong.g[0]", ("t/local/conf", "2"));
    assert!(!agent.log().contains("planted-secret"));
    agent.finish();
}
