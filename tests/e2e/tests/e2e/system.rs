//! System and sysbatch jobs in a real agent: one allocation of each group; system tasks keep running,
//! sysbatch tasks complete.

use herdlet_e2e::{agent::Agent, http, wait::until_true};
use serde_json::Value;

use crate::common::{is_root, job, shell};

fn allocs(agent: &Agent, name: &str) -> Vec<Value> {
    let path = format!("/v1/job/{name}/allocations");
    http::get(&agent.peer(), &path).unwrap().json().as_array().unwrap().clone()
}

#[test]
fn a_system_job_runs_on_and_a_sysbatch_job_ends() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let eager = "restart: {attempts: 100, interval: 1h, delay: 1ms}";
    agent.apply_and_wait(&job("sweep", "sysbatch", "", &[shell("t", "exit 0", eager)]));
    let swept = allocs(&agent, "sweep");
    assert_eq!((swept.len(), &swept[0]["ClientStatus"]), (1, &"complete".into()));
    assert_eq!((&swept[0]["Name"], &swept[0]["JobType"]), (&"sweep.g[0]".into(), &"sysbatch".into()));

    agent.apply(&job("watch", "system", "", &[shell("t", "sleep 0.2; exit 0", eager)]));
    until_true("it was started again", || {
        allocs(&agent, "watch").iter().any(|alloc| alloc["TaskStates"]["t"]["Restarts"].as_u64() > Some(1))
    });
    agent.apply_and_wait(&job("watch", "system", "", &[shell("t", "exec sleep 100000", "")]));
    let mut running = allocs(&agent, "watch");
    running.retain(|alloc| alloc["ClientStatus"] == "running");
    assert_eq!((running.len(), &running[0]["JobVersion"]), (1, &1.into()));
    assert!(http::get(&agent.peer(), "/v1/job/watch/deployment").unwrap().json().is_null());

    let listed = agent.cli(&["get", "jobs"]).success().stdout;
    assert!(listed.contains("system") && listed.contains("sysbatch"), "{listed}");
    let two = job("watch", "system", "count: 2", &[shell("t", "exec sleep 100000", "")]);
    let two = agent.manifest(&two).display().to_string();
    let refused = agent.cli(&["apply", "-f", &two]);
    let why = "spec.groups[0].count: a system job has one allocation of a group on each machine";
    assert!(refused.code == 2 && refused.stderr.contains(why), "{}: {}", refused.code, refused.stderr);
    agent.cli(&["delete", "sweep", "watch", "--wait"]).success();
    agent.finish();
}
