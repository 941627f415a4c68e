//! Continuous lists: `get --watch`, and the stored events.

use herdlet_e2e::{agent::Agent, command::Running, wait};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{is_root, job, shell, sleeper};

fn documents(watching: &Running) -> Vec<Value> {
    watching.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn watch_continues_after_an_agent_crash() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("first", "service", "", &[sleeper("t", "")]));
    let jobs = Running::start(agent.command(&["get", "jobs", "--watch"]));
    let allocs = Running::start(agent.command(&["get", "allocs", "-w", "-o", "json"]));
    jobs.until_stdout("first");
    allocs.until_stdout("first.g[0]");
    agent.apply_and_wait(&job("second", "service", "", &[sleeper("t", "")]));
    allocs.until_stdout("second.g[0]");
    wait::until_true("converged", || {
        jobs.stdout().lines().any(|line| line.starts_with("second") && line.contains("converged"))
    });
    agent.crash();
    agent.cli(&["delete", "first", "--wait"]).success();
    jobs.until_stdout("(removed)");
    wait::until_true("a document for the removed object", || {
        documents(&allocs).iter().any(|one| one["change"] == "removed" && one["object"].is_null())
    });
    assert_eq!(documents(&allocs)[0]["change"], "added");
    assert_eq!(documents(&allocs)[0]["object"]["Name"], "first.g[0]");
    assert_eq!(jobs.stdout().matches("JOB ").count(), 1, "one heading: {}", jobs.stdout());
    for watching in [jobs, allocs] {
        watching.signal(Signal::INT);
        watching.finish().ended(0);
    }
    for (arguments, code, expected) in [
        (&["get", "jobs", "nothing", "--watch"][..], 1, "there is no job \"nothing\""),
        (&["get", "node", "--watch"], 2, "node can't be watched"),
    ] {
        let refused = agent.cli(arguments);
        assert!(
            refused.code == code && refused.stderr.contains(expected),
            "{arguments:?}: {}",
            refused.stderr
        );
    }
    agent.cli(&["delete", "second", "--wait"]).success();
    agent.finish();
}

#[test]
fn events_are_kept_with_their_cause() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let broken =
        job("broken", "service", "restart: {attempts: 0, mode: fail}\n", &[shell("t", "exit 3", "")]);
    agent.apply(&broken);
    agent.apply_and_wait(&job("calm", "service", "", &[sleeper("t", "")]));
    wait::until_true("failed", || {
        agent.cli(&["get", "events", "broken"]).success().stdout.contains("failed")
    });
    let events = agent.cli(&["get", "events", "broken", "-o", "json"]).success().stdout;
    let events: Vec<Value> = serde_json::from_str(&events).unwrap();
    assert_eq!((&events[0]["state"], &events[0]["name"]), (&"failed".into(), &"broken.g[0]".into()));
    assert!(
        events[0]["cause"].as_str().unwrap().contains("Exit Code: 3")
            || events[0]["cause"].as_str().unwrap().contains("exit code 3"),
        "{events:?}"
    );
    assert!(events.iter().all(|one| one["job"]["id"] == "broken"));
    agent.cli(&["delete", "broken", "--wait"]).success();
    let after = agent.cli(&["get", "events", "broken.g[0]"]).success().stdout;
    assert!(
        after.contains("broken.g[0]") && !after.contains("calm"),
        "events of removed allocations are listed: {after}"
    );
    agent.cli(&["delete", "calm", "--wait"]).success();
    agent.finish();
}

/// Events name who created, stopped, restarted, followed up and removed an object, newest first.
#[test]
fn events_name_their_causes_over_two_agents() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let with = |count: u32, seconds: u32| {
        job("life", "service", &format!("count: {count}\n"), &[shell("t", &format!("sleep {seconds}"), "")])
    };
    let causes = |agent: &Agent, target: &str| -> Vec<String> {
        let events = agent.cli(&["get", "events", target, "-o", "json"]).success().stdout;
        let events: Vec<Value> = serde_json::from_str(&events).unwrap();
        let line =
            |one: &Value| format!("{} {}", one["state"].as_str().unwrap(), one["cause"].as_str().unwrap());
        events.iter().map(line).collect()
    };
    let has = |agent: &Agent, target: &str, wanted: &str| {
        let lines = causes(agent, target);
        assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted}: {lines:#?}");
    };
    agent.apply_and_wait(&with(1, 1_001));
    has(&agent, "life.g[0]", "version 0 was applied");
    agent.cli(&["scale", "life", "2", "--wait"]).success();
    has(&agent, "life.g[1]", "scaled from 1 to 2, as version 1");
    agent.cli(&["scale", "life", "1", "--wait"]).success();
    has(&agent, "life.g[1]", "group count was lowered: scaled from 2 to 1, as version 2");
    agent.apply_and_wait(&with(1, 1_002));
    has(&agent, "life.g[0]", "replaced by a newer version of the job: version 3 was applied");
    agent.cli(&["rollback", "life", "--to", "2", "--wait"]).success();
    has(&agent, "life.g[0]", "back to version 2, as version 4");
    agent.cli(&["restart", "life"]).success();
    wait::until_true("the restart is printed", || {
        causes(&agent, "life").iter().any(|line| line.contains("User requested"))
    });
    agent.cli(&["wait", "life"]).success();
    agent.cli(&["stop", "life.g[0]"]).success();
    wait::until_true("the next event names the cause", || {
        causes(&agent, "life").iter().any(|line| line.contains(": stopped by request"))
    });
    agent.cli(&["wait", "life"]).success();
    agent.terminate();
    agent.launch();
    agent.cli(&["wait", "life"]).success();
    let lines = causes(&agent, "life");
    assert!(lines.last().is_some_and(|line| line.ends_with("adopted by a new agent")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("applied")), "{lines:#?}");
    agent.cli(&["delete", "life", "--wait"]).success();
    let lines = causes(&agent, "life");
    assert_eq!(lines.first().map(String::as_str), Some("gone job deleted"), "{lines:#?}");
    agent.finish();
}
