//! Periodic jobs: launched by the clock, across a crash of the agent, and on request.

use std::{
    collections::BTreeSet,
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{agent::Agent, http, program::example, wait};
use serde_json::{Value, json};

use crate::common::{is_root, job, shell};

fn read(agent: &Agent, path: &str) -> Value {
    http::get(&agent.peer(), path).unwrap().json()
}

fn delete_all(agent: &Agent) {
    for job in agent.cli(&["get", "jobs", "-o", "name"]).success().stdout.lines() {
        agent.cli(&["delete", job, "--wait"]).success();
    }
}

#[test]
fn periodic_job_shows_next_launch_and_launches_on_request() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let manifest = example("periodic");
    agent.cli(&["apply", "-f", manifest.to_str().unwrap(), "--wait"]).success();
    for command in ["explain", "describe"] {
        let known = agent.cli(&[command, "backup"]).success().stdout;
        assert!(known.contains("(30 3 * * *, Europe/Berlin)"), "{known}");
        assert!(known.contains("children: 0 pending, 0 running, 0 dead"), "{known}");
    }
    let screen = agent.cli(&["status"]).success().stdout;
    assert!(screen.contains("next launch:"), "{screen}");

    let forced = agent.cli(&["job", "periodic", "force", "backup", "-o", "json"]).success().stdout;
    let forced: Value = serde_json::from_str(&forced).unwrap();
    let child = forced["job"]["id"].as_str().unwrap().to_owned();
    assert!(child.starts_with("backup/periodic-"), "{child}");
    agent.cli(&["wait", "--for=complete", &child]).success();
    agent.until_printed(&["logs", &child], |output| output.contains(&format!("backup as {child}")));
    // The parent runs no tasks itself: the output names its child and the command for its logs.
    for command in ["status", "explain"] {
        let stdout = agent.cli(&[command, "backup"]).success().stdout;
        assert!(
            stdout.contains(&format!("newest: {child} (dead); its output: herdlet logs {child}")),
            "{stdout}"
        );
    }
    let stderr = agent.cli(&["logs", "backup"]).ended(1).stderr;
    assert!(
        stderr.contains(&format!(
            "only its children have allocations\n  {child} (dead); the newest: herdlet logs {child}"
        )),
        "{stderr}"
    );
    let stderr = agent.cli(&["wait", "--for=complete", "backup"]).ended(2).stderr;
    assert!(stderr.contains(&format!("herdlet wait --for=complete {child}")), "{stderr}");
    let stderr = agent.cli(&["logs", "backup/periodic-1"]).ended(1).stderr;
    assert!(stderr.contains("ended children are collected after job_gc_threshold"), "{stderr}");
    let refused = agent.cli(&["job", "periodic", "force", &child]);
    assert!(refused.code == 1 && refused.stderr.contains("is not a periodic job"), "{}", refused.stderr);

    // Nomad's API.
    let known = read(&agent, "/v1/job/backup");
    let periodic = json!({
        "Enabled": true, "Spec": "30 3 * * *", "Specs": null, "SpecType": "cron", "ProhibitOverlap": true,
        "TimeZone": "Europe/Berlin",
    });
    assert_eq!((&known["Periodic"], &known["Status"]), (&periodic, &json!("running")));
    assert_eq!(read(&agent, &format!("/v1/job/{child}"))["ParentID"], "backup");
    let listed = read(&agent, "/v1/jobs?prefix=backup");
    assert_eq!((&listed[0]["Periodic"], &listed[1]["Periodic"]), (&json!(true), &json!(false)));
    let body = json!({ "Job": known, "Diff": true }).to_string();
    let planned = http::request(&agent.peer(), "PUT", "/v1/job/backup/plan", &[], &body).unwrap().json();
    assert!(planned["NextPeriodicLaunch"].as_str().is_some_and(|at| at.ends_with('Z')), "{planned}");

    delete_all(&agent);
    agent.finish();
}

#[test]
fn each_moment_is_launched_once_over_a_crash() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let ran = agent.home.path().join("ran");
    let script = format!("echo $NOMAD_JOB_ID >> {}", ran.display());
    let manifest = job("tick", "batch", "", &[shell("note", &script, "")]);
    let periodic = "  type: batch\n  periodic: {cron: \"*/2 * * * * * *\"}\n";
    let path = agent.home.write("tick.yaml", &manifest.replace("  type: batch\n", periodic));
    agent.cli(&["apply", "-f", path.to_str().unwrap(), "--wait"]).success();
    let launches = || -> Vec<String> {
        fs::read_to_string(&ran).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    wait::until_true("two launches", || launches().len() >= 2);
    agent.kill();
    let before = launches().len();
    let killed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    wait::pause(Duration::from_secs(5));
    agent.launch();
    wait::until_true("launches after the crash", || launches().len() >= before + 4);

    let all = launches();
    let moments: BTreeSet<u64> =
        all.iter().map(|job| job.strip_prefix("tick/periodic-").unwrap().parse().unwrap()).collect();
    assert_eq!(moments.len(), all.len(), "no moment is launched twice: {all:?}");
    let missed = moments.iter().filter(|moment| **moment > killed + 1 && **moment < killed + 5);
    assert!(missed.count() == 0, "killed at {killed}: missed moments are launched once, late: {all:?}");

    let off = manifest.replace("  type: batch\n", &periodic.replace("}\n", ", enabled: false}\n"));
    let path = agent.home.write("tick.yaml", &off);
    agent.cli(&["apply", "-f", path.to_str().unwrap(), "--wait"]).success();
    let known = agent.cli(&["explain", "tick"]).success().stdout;
    assert!(known.contains("disabled: it launches no children"), "{known}");
    let refused = agent.cli(&["job", "periodic", "force", "tick"]);
    assert!(refused.code == 1 && refused.stderr.contains("is not enabled"), "{}", refused.stderr);
    delete_all(&agent);
    agent.finish();
}
