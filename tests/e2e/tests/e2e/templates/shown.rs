//! What is shown about templates: the users of a variable, and metrics.

use herdlet_e2e::wait;
use serde_json::{Value, json};

use super::{RECORDER, greeting, put, quick, recorder, template, templates, until_explained, until_recorded};
use crate::common::{is_root, job, shell};

#[test]
fn the_users_of_a_variable_are_listed_with_the_effect_of_a_change() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs", &["greeting=one"]);
    let text = "{{ with nomadVar \"nomad/jobs\" }}{{ .greeting }}{{ end }}";
    let task = |name: &str, more: &str| recorder(name, &[template(text, "local/conf", more)]);
    let tasks = [
        task("noop", "change_mode: noop"),
        task("restart", ""),
        task("script", "change_mode: script, change_script: {command: /bin/true}"),
        task("signal", "change_mode: signal, change_signal: SIGUSR1"),
        recorder("other", &[template("constant", "local/conf", "")]),
    ];
    agent.apply_and_wait(&job("users", "service", "", &tasks));
    let waiting = recorder(
        "t",
        &[template(text, "local/conf", ""), template(&greeting("waits"), "${NOMAD_TASK_DIR}/missing", "")],
    );
    agent.apply(&job("waits", "service", "", &[waiting]));
    until_explained(&agent, "waits", "waits for nomad/jobs/waits");
    let users = |path: &str| -> Value {
        let printed = agent.cli(&["explain", "var", path, "-o", "json"]).success().stdout;
        serde_json::from_str(&printed).unwrap()
    };
    let found = users("nomad/jobs");
    assert_eq!((&found["apiVersion"], &found["path"]), (&json!("herdlet/v1"), &json!("nomad/jobs")));
    let effects: Vec<Value> = found["users"]
        .as_array()
        .unwrap()
        .iter()
        .map(|user| {
            json!([
                user["name"],
                user["task"],
                user["effect"],
                user["signals"],
                user["scripts"],
                user["files"]
            ])
        })
        .collect();
    let (alloc, files) = ("users.g[0]", json!(["local/conf"]));
    assert_eq!(
        effects,
        [
            json!([alloc, "noop", "render", [], [], files]),
            json!([alloc, "restart", "restart", [], [], files]),
            json!([alloc, "script", "notify", [], ["/bin/true"], files]),
            json!([alloc, "signal", "notify", ["SIGUSR1"], [], files]),
            json!(["waits.g[0]", "t", "start", [], [], files]),
        ]
    );
    // A variable that does not exist may have users; another has none.
    assert_eq!(users("nomad/jobs/waits")["users"][0]["files"], json!(["local/missing"]));
    assert_eq!(agent.cli(&["explain", "var", "none"]).success().stdout, "no template uses none\n");
    let text = agent.cli(&["explain", "var", "nomad/jobs"]).success().stdout;
    assert!(text.contains("users.g[0]/signal") && text.contains("gets SIGUSR1"), "{text}");
    // A job of that name is still found.
    agent.apply_and_wait(&job("var", "service", "", &[recorder("t", &[template("x", "local/conf", "")])]));
    assert!(agent.cli(&["explain", "--", "var"]).success().stdout.contains("var.g[0]"));
    agent.cli(&["explain", "var"]).ended(2);
    agent.finish();
}

#[test]
fn metrics_count_renders_and_show_data_that_is_gone() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/metrics", &["greeting=one"]);
    let task = recorder("t", &[template(&greeting("metrics"), "local/conf", "")]);
    agent.apply_and_wait(&job("metrics", "service", "", &[task]));
    until_recorded(&agent, ("metrics.g[0]", "t"), &["start"]);
    let is = |name: &str, labels: &str, value: f64| (agent.metric(name, labels) - value).abs() < 0.5;
    assert!(is("herdlet_template_queries", "", 1.0));
    assert!(agent.metric("herdlet_template_renders_total", "done") > 0.5);
    assert!(is("herdlet_templates_outdated ", "", 0.0) && is("herdlet_templates_outdated_seconds", "", 0.0));
    agent.cli(&["var", "purge", "nomad/jobs/metrics"]).success();
    wait::until_true("the loss is counted", || is("herdlet_templates_outdated ", "", 1.0));
    wait::until_true("its age grows", || agent.metric("herdlet_templates_outdated_seconds", "") > 0.0);
    assert!(agent.metric("herdlet_template_renders_total", "missing") > 0.5);
    put(&agent, "nomad/jobs/metrics", &["greeting=one"]);
    wait::until_true("the data is back", || is("herdlet_templates_outdated ", "", 0.0));
    agent.cli(&["delete", "--wait", "metrics"]).success();
    wait::until_true("nothing is watched", || is("herdlet_template_queries", "", 0.0));
    agent.finish();
}

#[test]
fn a_template_is_tried_with_the_data_of_an_agent() {
    if !is_root() {
        return;
    }
    let agent = quick();
    let file = agent.home.write("a.tpl", &format!("{} {{{{ env \"WHO\" }}}}", greeting("tried")));
    let render = || {
        let file = file.to_str().unwrap();
        agent.cli(&["template", "render", file, "--agent", "--env", "WHO=you"])
    };
    let missing = render();
    assert_eq!(missing.code, 1, "{missing:?}");
    assert!(missing.stderr.contains("nomad/jobs/tried"), "{}", missing.stderr);
    put(&agent, "nomad/jobs/tried", &["greeting=hello"]);
    assert_eq!(render().success().stdout, "hello you");
    agent.finish();
}

#[test]
fn a_template_is_tried_with_the_facts_of_a_task() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/facts", &["greeting=hidden"]);
    let hidden = template(&format!("HIDDEN={}\n", greeting("facts")), "secrets/env", "env: true");
    let task = |name: &str| {
        let more = "env: {NAME: \"${node.datacenter}\"}\nidentities: [{env: true}]\n";
        let each = [template("of the task", "local/conf", ""), hidden.clone()];
        shell(name, RECORDER, &format!("{more}{}", templates(&each)))
    };
    agent.apply_and_wait(&job("facts", "service", "", &[task("one"), task("two")]));
    let text = "{{ env \"NOMAD_TASK_NAME\" }} {{ env \"NAME\" }} {{ env \"attr.kernel.name\" }} {{ file \"local/conf\" }}";
    let file = agent.home.write("a.tpl", text);
    let render = |more: &[&str]| {
        agent.cli(&[&["template", "render", file.to_str().unwrap(), "--agent", "--alloc"], more].concat())
    };
    assert_eq!(render(&["facts/two"]).success().stdout, "two dc1 linux of the task");
    let id = agent.alloc("facts.g[0]").unwrap().id();
    assert_eq!(
        render(&[&format!("{id}/one"), "--env", "NAME=mine"]).success().stdout,
        "one mine linux of the task"
    );
    let several = render(&["facts"]);
    assert!(several.code == 2 && several.stderr.contains("facts.g[0]/one, facts.g[0]/two"), "{several:?}");
    // What a task keeps to itself.
    for text in ["{{ env \"HIDDEN\" }}", "{{ env \"NOMAD_TOKEN\" }}"] {
        agent.home.write("a.tpl", text);
        assert_eq!(render(&["facts/one"]).success().stdout, "");
    }
    agent.home.write("a.tpl", "{{ file \"secrets/env\" }}");
    let refused = render(&["facts/one"]);
    assert!(refused.code != 0 && !refused.stdout.contains("hidden"), "{refused:?}");
    agent.home.write("a.tpl", "{{ file \"local/none\" }}");
    let missing = render(&["facts/one"]);
    assert!(missing.code == 1 && missing.stderr.contains("local/none"), "{missing:?}");
    agent.finish();
}
