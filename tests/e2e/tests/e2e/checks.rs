//! Checks: restarts, their effect on health and listing, and results that outlive the agent.

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    http, wait,
};
use serde_json::Value;

use crate::common::{is_root, job, sleeper};

/// Returns a script check that fails with exit code 2 while `local/bad` exists, and warns while `local/odd`
/// does.
fn check(name: &str, more: &str) -> String {
    let script = "if test -e local/bad; then exit 2; fi; if test -e local/odd; then exit 1; fi";
    check_by(name, script, more)
}

/// Returns a script check. The long timeout ensures that only the script's result makes it fail, not a busy
/// machine.
fn check_by(name: &str, script: &str, more: &str) -> String {
    format!(
        "{{name: {name}, type: script, command: /bin/sh, args: [-c, \"{script}\"], interval: 1s, timeout: 2m{more}}}"
    )
}

fn touch(agent: &Agent, job: &str, task: &str, file: &str) {
    agent.cli(&["exec", job, "--task", task, "--", "touch", &format!("local/{file}")]).success();
}

/// Returns how often the task was restarted, and whether its events name a check as the reason.
fn restarts(agent: &Agent, alloc: &str, task: &str) -> (u64, bool) {
    let alloc: Value = http::get(&agent.peer(), &format!("/v1/allocation/{alloc}")).unwrap().json();
    let state = &alloc["TaskStates"][task];
    let events = state["Events"].as_array().unwrap();
    let by_check = |event: &Value| event["DisplayMessage"].as_str().unwrap().contains("healthcheck");
    (state["Restarts"].as_u64().unwrap(), events.iter().any(by_check))
}

/// The check restarts the task each time, and no other task.
#[test]
fn failing_task_check_restarts_without_limit() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    // Fails as long as the process in the file lives, so that each failure restarts one process.
    let condemned = "if kill -0 $(cat local/condemned); then exit 2; fi; exit 0";
    let checks = check_by("moves", condemned, ", check_restart: {limit: 2, grace: 0s}");
    let services = format!(
        "services: [{{name: one, checks: [{checks}]}}, {{name: two, checks: [{}]}}]",
        check("idle", "")
    );
    let restart = "restart: {attempts: 10, interval: 1m, delay: 0s}";
    agent.apply_and_wait(&job(
        "restarted",
        "service",
        restart,
        &[sleeper("t", &services), sleeper("other", "")],
    ));
    let (alloc, other) =
        (agent.alloc("restarted.g[0]").unwrap().id(), agent.single("restarted.g[0]", "other"));
    for round in 1..=3 {
        let condemn = format!("echo {} > local/condemned", agent.single("restarted.g[0]", "t").pid);
        agent.cli(&["exec", "restarted", "--task", "t", "--", "sh", "-c", &condemn]).success();
        wait::until_true("it is restarted", || restarts(&agent, &alloc, "t").0 >= round);
        agent.cli(&["wait", "restarted"]).success();
    }
    assert_eq!(restarts(&agent, &alloc, "t"), (3, true));
    assert_eq!(agent.single("restarted.g[0]", "other"), other);
    agent.finish();
}

/// The restarts count as failures, so the restart policy ends them.
#[test]
fn failing_group_check_restarts_all_tasks_until_the_limit() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let check = check("moves", ", task: a, check_restart: {limit: 1, grace: 0s}");
    let group = format!(
        "services: [{{name: all, checks: [{check}]}}]\nrestart: {{attempts: 1, interval: 5m, delay: 0s, mode: fail}}\nreschedule: {{attempts: 0, unlimited: false}}"
    );
    agent.apply_and_wait(&job("whole", "service", &group, &[sleeper("a", ""), sleeper("b", "")]));
    let alloc = agent.alloc("whole.g[0]").unwrap().id();
    touch(&agent, "whole", "a", "bad");
    // The file remains, so the check fails again after the restart.
    wait::until_true("it has failed", || {
        let alloc: Value = http::get(&agent.peer(), &format!("/v1/allocation/{alloc}")).unwrap().json();
        alloc["ClientStatus"] == "failed"
    });
    for task in ["a", "b"] {
        assert_eq!(restarts(&agent, &alloc, task), (1, true), "{task}");
    }
    agent.finish();
}

/// Readiness is separate from liveness: a failing readiness check stops requests, but the allocation stays
/// healthy and is not restarted.
#[test]
fn readiness_check_restarts_nothing() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let ready = check("ready", ", on_update: ignore");
    let lenient = check("live", ", on_update: ignore_warnings");
    let services =
        format!("services: [{{name: front, checks: [{ready}]}}, {{name: back, checks: [{lenient}]}}]");
    agent.apply_and_wait(&job("apart", "service", "", &[sleeper("t", &services)]));
    let member = agent.single("apart.g[0]", "t");
    let listed = |name: &str| {
        let answer = http::get(&agent.peer(), &format!("/v1/service/{name}")).unwrap().json();
        answer.as_array().map_or(0, Vec::len)
    };
    wait::until_true("both are listed", || listed("front") + listed("back") == 2);
    touch(&agent, "apart", "t", "odd");
    let services = || agent.cli(&["get", "services"]).success().stdout;
    wait::until_true("both warn", || services().matches("warning").count() == 2);
    assert_eq!(listed("front") + listed("back"), 2, "a warning is not a failure");
    assert_eq!(agent.cli(&["status", "--check"]).code, 0);
    touch(&agent, "apart", "t", "bad");
    wait::until_true("neither is listed", || listed("front") + listed("back") == 0);
    assert_ne!(agent.cli(&["status", "--check"]).code, 0, "one of the failing checks affects the status");
    agent.cli(&["exec", "apart", "--", "rm", "local/bad", "local/odd"]).success();
    wait::until_true("both are listed", || listed("front") + listed("back") == 2);
    assert_eq!(agent.single("apart.g[0]", "t"), member);
    agent.finish();
}

/// Routers that use the list keep routing while the agent restarts.
#[test]
fn check_results_survive_the_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    // Runs once an hour, so the result can only come from the stored one.
    let check = check("slow", "").replace("interval: 1s", "interval: 1h");
    let services = format!("services: [{{name: slow, checks: [{check}]}}]");
    agent.apply_and_wait(&job("heard", "service", "", &[sleeper("t", &services)]));
    let results = |agent: &Agent| {
        let views = http::get(&agent.peer(), "/v1/herdlet/services").unwrap().json();
        let result = views[0]["results"][0].clone();
        (views[0]["health"].clone(), result["stale"].clone())
    };
    assert_eq!(results(&agent), ("passing".into(), Value::Null));
    agent.kill();
    agent.launch();
    let first = wait::until("it is registered again", || {
        let (health, stale) = results(&agent);
        (!health.is_null()).then_some((health, stale))
    });
    assert_eq!(first.0, "passing");
    wait::until_true("the check was created again", || results(&agent) == ("passing".into(), Value::Null));
    agent.finish();
}

#[test]
fn script_check_result_is_reported_to_consul() {
    if !is_root() {
        return;
    }
    let Some(mut consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(Setup::default().env("CONSUL_HTTP_ADDR", consul.address()));
    let checks = check("moves", ", notes: looks at itself");
    let services =
        format!("services: [{{name: told, provider: consul, weights: {{passing: 5}}, checks: [{checks}]}}]");
    agent.apply_and_wait(&job("told", "service", "", &[sleeper("t", &services)]));
    let member = agent.single("told.g[0]", "t");
    let status = |consul: &Consul| {
        let checks = consul.checks("told");
        checks.first().and_then(|check| check["Status"].as_str().map(str::to_owned)).unwrap_or_default()
    };
    wait::until_true("it passes", || status(&consul) == "passing");
    assert_eq!(consul.checks("told")[0]["Notes"], "looks at itself");
    let id = consul.ids("told").pop().unwrap();
    assert_eq!(consul.services()[&id]["Weights"]["Passing"], 5);
    touch(&agent, "told", "t", "odd");
    wait::until_true("it warns", || status(&consul) == "warning");
    touch(&agent, "told", "t", "bad");
    wait::until_true("it fails", || status(&consul) == "critical");
    assert_ne!(agent.cli(&["status", "--check"]).code, 0);
    // While Consul is down, the agent still knows the results of its own checks.
    consul.stop();
    agent.cli(&["exec", "told", "--", "rm", "local/bad", "local/odd"]).success();
    let healthy = || {
        let alloc = http::get(&agent.peer(), &format!("/v1/client/allocation/{}/checks", member.alloc));
        alloc.is_some_and(|answer| answer.body.contains("\"success\""))
    };
    wait::until_true("the agent knows that it passes", healthy);
    consul.launch();
    wait::until_true("it passes again", || status(&consul) == "passing");
    assert_eq!(agent.single("told.g[0]", "t"), member);
    agent.finish();
}

/// A group's check in Consul counts as much as one that the agent runs.
#[test]
fn failing_consul_group_check_restarts_without_limit() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(Setup::default().env("CONSUL_HTTP_ADDR", consul.address()));
    let [dead] = herdlet_e2e::ports::free();
    let check = format!(
        "{{name: dead, type: tcp, port: {dead}, interval: 1s, timeout: 2m, check_restart: {{limit: 1, grace: 0s}}}}"
    );
    let group = format!(
        "services: [{{name: dead, provider: consul, checks: [{check}]}}]\nrestart: {{attempts: 100, interval: 10m, delay: 0s}}"
    );
    agent.apply(&job("dead", "service", &group, &[sleeper("t", "")]));
    let alloc = wait::until("the allocation", || agent.alloc("dead.g[0]")).id();
    wait::until_true("it is restarted again and again", || restarts(&agent, &alloc, "t").0 >= 3);
    agent.finish();
}

/// Unchanged checks keep their results. A service whose check changes stays listed according to the previous
/// result.
#[test]
fn services_stay_listed_while_their_checks_change() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let text = |note: &str, more: &str| {
        let (one, two) = (check("one", note), check("two", ""));
        let services =
            format!("services: [{{name: edited, checks: [{one}]}}, {{name: same, checks: [{two}]}}{more}]");
        job("steady", "service", "", &[sleeper("t", &services)])
    };
    agent.apply_and_wait(&text("", ""));
    let listed = |name: &str| {
        let answer = http::get(&agent.peer(), &format!("/v1/service/{name}")).unwrap().json();
        answer.as_array().map_or(0, Vec::len)
    };
    assert_eq!((listed("edited"), listed("same")), (1, 1));
    let added = ", {name: added}";
    for (note, more) in
        [(", notes: x", ""), (", check_restart: {limit: 3}", ""), ("", added), (", notes: y", "")]
    {
        let file = agent.home.write("next.yaml", &text(note, more));
        agent.cli(&["apply", "-f", file.to_str().unwrap()]).success();
        for _ in 0..100 {
            assert_eq!((listed("edited"), listed("same")), (1, 1), "{note} {more}");
            wait::pause(std::time::Duration::from_millis(15));
        }
    }
    agent.cli(&["wait", "steady"]).success();
    agent.finish();
}
