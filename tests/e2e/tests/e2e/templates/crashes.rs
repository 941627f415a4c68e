//! Agents that are killed: nothing is notified twice or forgotten, and nothing that is equal is written again.

use std::{fs, os::unix::fs::MetadataExt as _};

use herdlet_e2e::agent::Agent;

use super::{
    greeting, path_of, put, quick, recorded, recorder, template, until_explained, until_file, until_recorded,
};
use crate::common::{is_root, job};

/// What a write or a replacement changes of the files of a task.
pub(crate) fn marks(agent: &Agent, alloc: &str, files: &[&str]) -> Vec<(u64, i64, i64)> {
    let about = |file: &&str| {
        let found = fs::metadata(path_of(agent, alloc, file)).unwrap();
        (found.ino(), found.mtime(), found.mtime_nsec())
    };
    files.iter().map(about).collect()
}

#[test]
fn a_new_agent_writes_no_file_and_restarts_nothing() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/same", &["greeting=one"]);
    put(&agent, "nomad/jobs/same/g", &["greeting=one"]);
    let each = [
        template(&greeting("same"), "local/conf", ""),
        template(&greeting("same"), "secrets/conf", ""),
        template(&format!("A={}\n", greeting("same")), "secrets/env", "env: true"),
        template(&greeting("same"), "${NOMAD_ALLOC_DIR}/data/conf", "change_mode: signal"),
        template("{{ timestamp }} {{ env \"NOMAD_ALLOC_ID\" }}", "local/time", ""),
    ];
    let files = ["t/local/conf", "t/secrets/conf", "t/secrets/env", "alloc/data/conf", "t/local/time"];
    let probe = recorder("probe", &[template(&greeting("same/g"), "local/conf", "change_mode: noop")]);
    agent.apply_and_wait(&job("same", "service", "", &[recorder("t", &each), probe]));
    let alloc = "same.g[0]";
    until_recorded(&agent, (alloc, "t"), &["start"]);
    let before = marks(&agent, alloc, &files);
    for round in 0..4 {
        if round % 2 == 0 {
            agent.crash();
        } else {
            agent.terminate();
            agent.launch();
        }
        agent.cli(&["wait", "same"]).success();
        // The templates of the other task are rendered after those of the first.
        put(&agent, "nomad/jobs/same/g", &[&format!("greeting={round}")]);
        until_file(&agent, alloc, ("probe/local/conf", &round.to_string()));
        assert_eq!(marks(&agent, alloc, &files), before, "round {round}");
        assert_eq!(recorded(&agent, alloc, "t"), ["start"]);
    }
    agent.finish();
}

/// Commands in a task that the next agent has adopted had the variables of today, not those of the task.
#[test]
fn commands_have_the_variables_that_their_attempt_started_with() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/old", &["greeting=one"]);
    let text =
        template(&format!("GREETING={}\n", greeting("old")), "local/env", "env: true, change_mode: noop");
    agent.apply_and_wait(&job("old", "service", "", &[recorder("t", &[text])]));
    put(&agent, "nomad/jobs/old", &["greeting=two"]);
    until_file(&agent, "old.g[0]", ("t/local/env", "GREETING=two\n"));
    for _ in 0..2 {
        let printed = agent.cli(&["exec", "old", "--", "/bin/sh", "-c", "echo $GREETING"]).success();
        assert_eq!(printed.stdout, "one\n");
        agent.crash();
        agent.cli(&["wait", "old"]).success();
    }
    agent.cli(&["restart", "old", "--wait"]).success();
    let printed = agent.cli(&["exec", "old", "--", "/bin/sh", "-c", "echo $GREETING"]).success();
    assert_eq!(printed.stdout, "two\n");
    agent.finish();
}

#[test]
fn a_change_that_no_agent_has_noticed_is_one_restart() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/late", &["greeting=0"]);
    // No agent of this test notices the change in time: the data has to be quiet for an hour.
    let task = recorder("t", &[template(&greeting("late"), "local/conf", "wait: {min: 1h, max: 2h}")]);
    agent.apply_and_wait(&job("late", "service", "", &[task]));
    let place = ("late.g[0]", "t");
    until_recorded(&agent, place, &["start"]);
    let mut starts = vec!["start"];
    for value in ["1", "2"] {
        put(&agent, "nomad/jobs/late", &[&format!("greeting={value}")]);
        assert_eq!(recorded(&agent, place.0, place.1).len(), starts.len());
        agent.crash();
        starts.push("start");
        until_recorded(&agent, place, &starts);
        until_file(&agent, place.0, ("t/local/conf", value));
        agent.crash();
        agent.cli(&["wait", "late"]).success();
        assert_eq!(recorded(&agent, place.0, place.1), starts, "the next agent has nothing to do");
    }
    agent.finish();
}

#[test]
fn agents_killed_after_a_change_restart_once_and_lose_no_signal() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/killed", &["greeting=0"]);
    let task = |name: &str, more: &str| {
        let text = template(&greeting("killed"), "local/conf", more).replace("splay: 0s", "splay: 2s");
        recorder(name, &[text])
    };
    let tasks = [task("restart", ""), task("signal", "change_mode: signal")];
    agent.apply_and_wait(&job("killed", "service", "", &tasks));
    let alloc = "killed.g[0]";
    for name in ["restart", "signal"] {
        until_recorded(&agent, (alloc, name), &["start"]);
    }
    for round in 1..=6_usize {
        put(&agent, "nomad/jobs/killed", &[&format!("greeting={round}")]);
        if round % 2 == 0 {
            // It is rendered, and the action may be due, under way, or done.
            until_file(&agent, alloc, ("signal/local/conf", &round.to_string()));
        }
        agent.crash();
        until_recorded(&agent, (alloc, "restart"), &vec!["start"; round + 1]);
        // A signal is repeated if its agent is killed before it has recorded it.
        herdlet_e2e::wait::until_true("the task has its signal", || {
            recorded(&agent, alloc, "signal").iter().filter(|line| *line == "hup").count() >= round
        });
        until_file(&agent, alloc, ("restart/local/conf", &round.to_string()));
    }
    assert_eq!(recorded(&agent, alloc, "signal").iter().filter(|line| *line == "start").count(), 1);
    agent.finish();
}

#[test]
fn a_script_of_a_killed_agent_runs_again() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    put(&agent, "nomad/jobs/script", &["greeting=0"]);
    let go = agent.home.path().join("go");
    let script = format!(
        "echo begin >> local/log; while [ ! -e {} ]; do sleep 0.02; done; echo end $(cat local/conf) >> local/log",
        go.display()
    );
    let args = serde_json::json!(["-c", script]);
    let fields = format!(
        "change_mode: script, change_script: {{command: /bin/sh, args: {args}, timeout: 5m, fail_on_error: true}}"
    );
    agent.apply_and_wait(&job(
        "script",
        "service",
        "",
        &[recorder("t", &[template(&greeting("script"), "local/conf", &fields)])],
    ));
    let alloc = "script.g[0]";
    until_recorded(&agent, (alloc, "t"), &["start"]);
    put(&agent, "nomad/jobs/script", &["greeting=1"]);
    until_recorded(&agent, (alloc, "t"), &["start", "begin"]);
    agent.crash();
    herdlet_e2e::wait::until_true("the next agent runs it again", || {
        recorded(&agent, alloc, "t").iter().filter(|line| *line == "begin").count() == 2
    });
    fs::write(&go, "").unwrap();
    agent.until_printed(&["describe", "script"], |text| text.contains("Template successfully ran script"));
    agent.crash();
    agent.cli(&["wait", "script"]).success();
    let lines = recorded(&agent, alloc, "t");
    let count = |wanted: &str| lines.iter().filter(|line| *line == wanted).count();
    assert_eq!((count("start"), count("begin")), (1, 2), "{lines:?}");
    assert!(count("end 1") >= 1, "{lines:?}");
    put(&agent, "nomad/jobs/script", &["greeting=2"]);
    herdlet_e2e::wait::until_true("the next change runs it once more", || {
        recorded(&agent, alloc, "t").contains(&"end 2".to_owned())
    });
    agent.finish();
}

#[test]
fn killed_before_its_first_render_an_agent_leaves_it_to_the_next() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    for round in 0..5 {
        let name = format!("first-{round}");
        let text = template(&greeting(&name), "local/conf", "");
        agent.apply(&job(&name, "service", "", &[recorder("t", &[text])]));
        if round % 2 == 0 {
            until_explained(&agent, &name, &format!("waits for nomad/jobs/{name}"));
        }
        put(&agent, &format!("nomad/jobs/{name}"), &["greeting=hello"]);
        agent.crash();
        agent.cli(&["wait", &name]).success();
        let alloc = format!("{name}.g[0]");
        until_file(&agent, &alloc, ("t/local/conf", "hello"));
        until_recorded(&agent, (&alloc, "t"), &["start"]);
    }
    agent.finish();
}
