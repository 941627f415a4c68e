//! Allocations that fail permanently are rescheduled, even if the agent was killed meanwhile.

use herdlet_e2e::{agent::Agent, http, wait};
use serde_json::Value;

use crate::common::{is_root, job, shell};

/// Returns the job's allocations as in the API, newest first.
fn allocs(agent: &Agent) -> Vec<Value> {
    let path = "/v1/job/flaky/allocations?reverse=true";
    http::get(&agent.peer(), path).unwrap().json().as_array().cloned().unwrap_or_default()
}

#[test]
fn a_failed_allocation_is_followed_by_another_one() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let marker = agent.home.path().join("heal");
    let script = format!("test -e {} && exec sleep 100000; exit 7", marker.display());
    let group = "reschedule: {attempts: 3, interval: 1h, delay: 30s, delay_function: constant}\n";
    let file =
        agent.manifest(&job("flaky", "service", group, &[shell("t", &script, "restart: {attempts: 0}")]));
    agent.cli(&["apply", "-f", &file.display().to_string()]).success();
    let failed = wait::until("it has failed", || {
        allocs(&agent).into_iter().find(|alloc| alloc["ClientStatus"] == "failed")
    });
    let explanation = agent.cli(&["explain", "flaky"]).stdout;
    assert!(explanation.contains("a replacement starts 30s later"), "{explanation}");
    let path = format!("/v1/allocation/{}", failed["ID"].as_str().unwrap());
    let failed_now = http::get(&agent.peer(), &path).unwrap().json();
    let path = format!("/v1/evaluation/{}", failed_now["FollowupEvalID"].as_str().unwrap());
    let eval = http::get(&agent.peer(), &path).unwrap().json();
    assert_eq!((&eval["TriggeredBy"], &eval["JobID"]), (&"alloc-failure".into(), &"flaky".into()), "{eval}");

    agent.crash();
    std::fs::write(&marker, "").unwrap();
    agent.cli(&["wait", "flaky"]).success();
    let newest = allocs(&agent).remove(0);
    let path = format!("/v1/allocation/{}", newest["ID"].as_str().unwrap());
    let newest = http::get(&agent.peer(), &path).unwrap().json();
    assert_eq!((&newest["ClientStatus"], &newest["Name"]), (&"running".into(), &"flaky.g[0]".into()));
    let events = newest["RescheduleTracker"]["Events"].as_array().unwrap();
    let first = &events[0];
    assert_eq!(first["Delay"], 30_000_000_000_u64);
    assert_eq!(events.last().unwrap()["PrevAllocID"], newest["PreviousAllocation"], "{newest}");
    let path = format!("/v1/allocation/{}", newest["PreviousAllocation"].as_str().unwrap());
    let previous = http::get(&agent.peer(), &path).unwrap().json();
    assert_eq!(
        (&previous["NextAllocation"], &previous["DesiredDescription"]),
        (&newest["ID"], &"alloc was rescheduled because it failed".into())
    );
    assert_eq!(events.len() == 1, failed["ID"] == newest["PreviousAllocation"]);
    agent.cli(&["delete", "flaky", "--wait"]).success();
    agent.finish();
}
