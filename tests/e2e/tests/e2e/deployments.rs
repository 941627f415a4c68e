//! Deployments in a real agent: a failed version reverts its job, a canary waits for its promotion.

use herdlet_e2e::{agent::Agent, http, wait::until_true};
use serde_json::Value;

use crate::common::{is_root, job, shell};

/// Returns a service whose version is identified by its task's script. Its deadlines suit a busy machine.
fn version(script: &str, update: &str) -> String {
    version_within("healthy_deadline: 5m, progress_deadline: 10m", script, update)
}

/// Like [`version`], with these deadlines.
fn version_within(deadlines: &str, script: &str, update: &str) -> String {
    let update = format!("update: {{min_healthy_time: 100ms, {deadlines}, {update}}}\n");
    job("web", "service", &update, &[shell("t", script, "restart: {attempts: 0}")])
}

const GOOD: &str = "exec sleep 100000";

fn get(agent: &Agent, path: &str) -> Value {
    http::get(&agent.peer(), path).unwrap().json()
}

/// Returns the job's newest deployment, in Nomad's JSON.
fn newest(agent: &Agent) -> Value {
    get(agent, "/v1/job/web/deployment")
}

#[test]
fn failing_version_is_reverted_and_reported() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&version(GOOD, "auto_revert: true"));
    let first = newest(&agent);
    assert_eq!(
        (&first["Status"], &first["StatusDescription"]),
        (&"successful".into(), &"Deployment completed successfully".into())
    );
    let versions = agent.cli(&["get", "versions", "web"]).success().stdout;
    assert!(versions.contains("STABLE") && versions.contains("yes"), "{versions}");
    let soon = "healthy_deadline: 2s, progress_deadline: 3s";
    let file = agent.manifest(&version_within(soon, "echo FATAL >&2; exit 7", "auto_revert: true"));
    let failed = agent.cli(&["apply", "-f", &file.display().to_string(), "--wait"]);
    let expected = "Failed due to progress deadline - rolling back to job version 0";
    assert!(failed.code == 4 && failed.stderr.contains(expected), "{}: {}", failed.code, failed.stderr);
    assert!(failed.stderr.contains("task t: Exit Code: 7"), "{}", failed.stderr);
    assert!(failed.stderr.contains("t/stderr | FATAL"), "{}", failed.stderr);
    agent.cli(&["wait", "web"]).success();
    // The state is converged, so only this line says that the new version does not run.
    let status = agent.cli(&["status", "web"]).success().stdout;
    let reverted = "version 1 failed and was reverted to version 0";
    assert!(status.contains(reverted) && status.contains("task t: Exit Code: 7"), "{status}");
    for arguments in [["status"].as_slice(), &["get", "jobs"]] {
        let shown = agent.cli(arguments).success().stdout;
        assert!(shown.contains(reverted), "{arguments:?}: {shown}");
    }
    let explained = agent.cli(&["explain", "web"]).success().stdout;
    assert!(explained.contains("Exit Code: 7") && explained.contains("FATAL"), "{explained}");
    let listed = agent.cli(&["get", "deployments", "web"]).success().stdout;
    assert!(listed.contains(expected) && listed.matches("completed successfully").count() == 2, "{listed}");
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

/// A failed canary was removed with its log, and nothing said why the roll-out had failed.
#[test]
fn a_failed_canary_is_kept_and_its_last_lines_are_printed() {
    if !is_root() {
        return;
    }
    for revert in [false, true] {
        let mut agent = Agent::start();
        let update = format!("canary: 1, auto_revert: {revert}");
        agent.apply_and_wait(&version(GOOD, &update));
        let soon = "healthy_deadline: 2s, progress_deadline: 3s";
        let bad = "echo 'FATAL: no such table'; exit 1";
        let file = agent.manifest(&version_within(soon, bad, &update));
        let failed = agent.cli(&["apply", "-f", &file.display().to_string(), "--wait"]);
        assert_ne!(failed.code, 0);
        let expected = "web.g[0] (canary) ";
        assert!(
            failed.stderr.contains(expected)
                && failed.stderr.contains("failed: task t: Exit Code: 1")
                && failed.stderr.contains("t/stdout | FATAL: no such table"),
            "{}",
            failed.stderr
        );
        let shown = |agent: &Agent, verb: &str| agent.cli(&[verb, "web"]).success().stdout;
        assert!(shown(&agent, "logs").contains("FATAL"), "{}", shown(&agent, "logs"));
        for verb in ["explain", "describe"] {
            let shown = shown(&agent, verb);
            assert!(shown.contains("(canary)") && shown.contains("FATAL"), "{verb}: {shown}");
        }
        if !revert {
            agent.cli(&["rollback", "web", "--wait"]).success();
            assert!(!shown(&agent, "logs").contains("FATAL"), "another version is the current one");
        }
        let listed = agent.cli(&["get", "allocs", "-o", "json"]).success().stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let canary = listed.as_array().unwrap().iter().find(|one| one["ClientStatus"] == "failed").unwrap();
        let id = canary["ID"].as_str().unwrap();
        assert!(agent.cli(&["logs", id]).success().stdout.contains("FATAL"));
        let explained = agent.cli(&["explain", id]).success().stdout;
        assert!(explained.contains("failed: task t: Exit Code: 1"), "{explained}");
        agent.cli(&["delete", "web", "--wait"]).success();
        agent.finish();
    }
}

#[test]
fn a_canary_waits_to_be_promoted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&version(GOOD, "canary: 1"));
    agent.apply(&version("sleep 0; exec sleep 100000", "canary: 1"));
    until_true("the canary is healthy", || newest(&agent)["TaskGroups"]["g"]["HealthyAllocs"] == 1);
    let status = agent.cli(&["status", "web"]).success().stdout;
    for expected in
        ["herdlet promote web", "Deployment is running but requires manual promotion", "1 of 1 canaries"]
    {
        assert!(status.contains(expected), "{expected}: {status}");
    }
    let status = agent.cli(&["deployment", "status", "web"]).success().stdout;
    let groups: Vec<Vec<&str>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(groups[1][..5], ["GROUP", "PROMOTED", "DESIRED", "CANARIES", "PLACED"], "{status}");
    assert_eq!(groups[2][..7], ["g", "no", "1", "1/1", "1", "1", "0"], "{status}");
    let listed = agent.cli(&["get", "allocs", "web"]).success().stdout;
    assert!(listed.contains("web.g[0] (canary)") && listed.matches("web.g[0]").count() == 2, "{listed}");
    let id = newest(&agent)["ID"].as_str().unwrap().to_owned();
    let canary = get(&agent, &format!("/v1/deployment/allocations/{id}"));
    assert_eq!(canary[0]["DeploymentStatus"]["Canary"], true, "{canary}");
    agent.cli(&["promote", "web"]).success();
    agent.cli(&["wait", "web"]).success();
    assert_eq!(newest(&agent)["Status"], "successful");
    let again = agent.cli(&["promote", "web"]);
    assert!(
        again.code == 1
            && again.stderr.contains("can't promote terminal deployment")
            && again.stderr.contains("the deployment of web has ended: successful"),
        "{}",
        again.stderr
    );
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

/// Sets the health of allocations, and returns the API's answer.
fn judge(agent: &Agent, deployment: &str, body: &Value) -> http::Answer {
    let path = format!("/v1/deployment/allocation-health/{deployment}");
    http::request(&agent.peer(), "POST", &path, &[], &body.to_string()).unwrap()
}

#[test]
fn manual_health_is_set_by_the_api() {
    if !is_root() {
        return;
    }
    let update = "health_check: manual, auto_revert: true, progress_deadline: 1h";
    let manual = |script: &str| version_within("healthy_deadline: 5m", script, update);
    let mut agent = Agent::start();
    agent.apply(&manual(GOOD));
    until_true("explain shows what it waits for", || {
        let status = agent.cli(&["status", "web"]).success().stdout;
        status.contains("/v1/deployment/allocation-health/")
            && newest(&agent)["TaskGroups"]["g"]["HealthyAllocs"] == 0
    });
    let (id, alloc) = (newest(&agent)["ID"].as_str().unwrap().to_owned(), agent.allocs()[0].id());
    let nothing = judge(&agent, &id, &serde_json::json!({}));
    assert!(nothing.status == 400 && nothing.body.contains("HealthyAllocationIDs"), "{}", nothing.body);
    let answer =
        judge(&agent, &id, &serde_json::json!({"DeploymentID": id, "HealthyAllocationIDs": [alloc]}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    agent.cli(&["wait", "web"]).success();
    assert_eq!(newest(&agent)["Status"], "successful");

    agent.apply(&manual("sleep 0; exec sleep 100000"));
    until_true("the next version runs", || {
        agent.allocs().iter().any(|alloc| alloc.status() == "running" && alloc.desired() == "run")
            && newest(&agent)["Status"] == "running"
            && newest(&agent)["TaskGroups"]["g"]["PlacedAllocs"] == 1
    });
    let id = newest(&agent)["ID"].as_str().unwrap().to_owned();
    let allocs = get(&agent, &format!("/v1/deployment/allocations/{id}"));
    let answer = judge(&agent, &id, &serde_json::json!({"UnhealthyAllocationIDs": [allocs[0]["ID"]]}));
    assert_eq!(answer.json()["RevertedJobVersion"], 0, "{}", answer.body);
    let failed = get(&agent, &format!("/v1/deployment/{id}"));
    let expected = "Failed due to unhealthy allocations - rolling back to job version 0";
    assert_eq!((&failed["Status"], &failed["StatusDescription"]), (&"failed".into(), &expected.into()));
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}
