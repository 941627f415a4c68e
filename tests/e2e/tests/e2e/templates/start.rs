//! The first render: what a task waits for, and what it starts with.

use herdlet_e2e::{
    agent::{Agent, Setup},
    wait,
};

use super::{
    greeting, path_of, put, quick, recorded, recorder, template, templates, until_explained, until_file,
    until_recorded,
};
use crate::common::{is_root, job, shell};

#[test]
fn a_task_waits_for_its_variable_and_status_names_it() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    let text = template(&greeting("first"), "local/conf", "");
    agent.apply(&job("first", "service", "", &[recorder("t", &[text])]));
    until_explained(&agent, "first", "waits for nomad/jobs/first");
    let status = agent.cli(&["status", "first"]);
    assert!(format!("{}{}", status.stdout, status.stderr).contains("nomad/jobs/first"), "{status:?}");
    let alloc = agent.alloc("first.g[0]").unwrap();
    assert!(alloc.0["TaskStates"]["t"].to_string().contains("Missing: nomad/jobs/first"), "{:#}", alloc.0);
    // The next agent waits for the same.
    agent.crash();
    until_explained(&agent, "first", "waits for nomad/jobs/first");
    assert!(agent.members().is_empty());
    // Another variable does not start it.
    put(&agent, "nomad/jobs/other", &["greeting=hi"]);
    put(&agent, "nomad/jobs/first", &["greeting=hello"]);
    agent.cli(&["wait", "first"]).success();
    until_file(&agent, "first.g[0]", ("t/local/conf", "hello"));
    until_recorded(&agent, ("first.g[0]", "t"), &["start"]);
    agent.finish();
}

/// Facts of the node rendered as nothing.
#[test]
fn templates_read_facts_of_the_node() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config("name: n7\nmeta: {rack: r1}\n"));
    let names = ["node.unique.name", "node.datacenter", "attr.kernel.name", "meta.rack", "NOMAD_TASK_NAME"];
    let data = names.map(|name| format!("{{{{ env \"{name}\" }}}}")).join(" ");
    let text = template(&data, "local/facts", "");
    agent.apply_and_wait(&job("facts", "service", "", &[recorder("t", &[text])]));
    until_file(&agent, "facts.g[0]", ("t/local/facts", "n7 dc1 linux r1 t"));
    agent.finish();
}

#[test]
fn a_task_without_all_its_data_gets_no_file() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/two/g", &["greeting=there"]);
    let each = [
        template(&greeting("two/g"), "local/there", ""),
        template(&greeting("two/g/t"), "local/missing", ""),
        template("constant", "local/constant", ""),
    ];
    agent.apply(&job("two", "service", "", &[recorder("t", &each)]));
    until_explained(&agent, "two", "waits for nomad/jobs/two/g/t");
    for name in ["there", "constant"] {
        assert!(!path_of(&agent, "two.g[0]", &format!("t/local/{name}")).exists(), "{name}");
    }
    put(&agent, "nomad/jobs/two/g/t", &["greeting=missed"]);
    agent.cli(&["wait", "two"]).success();
    for (file, content) in
        [("t/local/there", "there"), ("t/local/missing", "missed"), ("t/local/constant", "constant")]
    {
        until_file(&agent, "two.g[0]", (file, content));
    }
    agent.finish();
}

#[test]
fn variables_of_templates_win_and_a_change_restarts() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/env", &["greeting=one two"]);
    let data = format!("# a comment\nA={}\nexport B=\"b\"\nPORT={{{{ env \"BASE\" }}}}1\n", greeting("env"));
    let more = format!(
        "env: {{A: of the job, BASE: \"808\", KEPT: kept}}\n{}",
        templates(&[template(&data, "secrets/env", "env: true, perms: \"0600\"")])
    );
    let script = "echo \"$A/$B/$PORT/$KEPT\" >> local/log; exec sleep 100000";
    agent.apply_and_wait(&job("env", "service", "", &[shell("t", script, &more)]));
    until_recorded(&agent, ("env.g[0]", "t"), &["one two/b/8081/kept"]);
    let printed = agent.cli(&["exec", "env", "--", "sh", "-c", "echo $A"]).success().stdout;
    assert_eq!(printed, "one two\n", "a command in the task has the same variables");
    put(&agent, "nomad/jobs/env", &["greeting=three"]);
    until_recorded(&agent, ("env.g[0]", "t"), &["one two/b/8081/kept", "three/b/8081/kept"]);
    // Also after a crash, and a restart by the next agent.
    agent.crash();
    agent.cli(&["restart", "env"]).success();
    let lines = ["one two/b/8081/kept", "three/b/8081/kept", "three/b/8081/kept"];
    until_recorded(&agent, ("env.g[0]", "t"), &lines);
    agent.finish();
}

#[test]
fn a_wrong_template_fails_a_task_that_has_not_started() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/bad", &["greeting=planted-secret"]);
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    for (name, text, said) in [
        ("bad-env", template(&greeting("bad"), "secrets/env", "env: true"), "line 1: expected NAME=value"),
        ("bad-call", template("a\n{{ index (parseJSON \"[]\") 3 }}", "local/x", ""), "index out of range: 3"),
        (
            "bad-right",
            template("{{ with nomadVar \"nomad/jobs/other\" }}{{ end }}", "local/x", ""),
            "the task may read only nomad/jobs",
        ),
        ("bad-place", template("x", "../../other/x", ""), "must be a path in the task's directory"),
    ] {
        let text = text.replace("nomad/jobs/bad\\", &format!("nomad/jobs/{name}\\"));
        put(&agent, &format!("nomad/jobs/{name}"), &["greeting=planted-secret"]);
        let path = agent.manifest(&job(name, "service", group, &[recorder("t", &[text])]));
        let applied = agent.cli(&["apply", "-f", &path.display().to_string()]);
        if applied.code != 0 {
            assert!(applied.stderr.contains(said), "{name}: {applied:?}");
            continue;
        }
        let alloc = agent.until_alloc(&format!("{name}.g[0]"), "failed", |alloc| alloc.status() == "failed");
        let events = alloc.0["TaskStates"]["t"]["Events"].to_string();
        assert!(events.contains(said) && !events.contains("planted-secret"), "{name}: {events}");
        assert!(recorded(&agent, &format!("{name}.g[0]"), "t").is_empty());
    }
    assert!(!agent.log().contains("planted-secret"));
    agent.finish();
}

#[test]
fn the_text_of_a_template_may_come_from_an_earlier_task() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/source", &["greeting=hello"]);
    let text = greeting("source").replace('"', "\\\"");
    let before = shell(
        "before",
        &format!("echo \"{text}\" > $NOMAD_ALLOC_DIR/data/conf.tpl"),
        "lifecycle: {hook: prestart}",
    );
    let more = "templates: [{source: alloc/data/conf.tpl, destination: local/conf}]";
    agent.apply(&job("source", "service", "", &[before, shell("t", "exec sleep 100000", more)]));
    agent.cli(&["wait", "source"]).success();
    until_file(&agent, "source.g[0]", ("t/local/conf", "hello\n"));
    wait::until_true("it runs", || !agent.members().is_empty());
    agent.finish();
}
