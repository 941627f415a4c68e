//! Draining this machine, and the other verbs of Nomad's that have a name of their own here.

use herdlet_e2e::{agent::Agent, http, wait};
use serde_json::json;

use crate::common::{is_root, job, shell, sleeper};

#[test]
fn a_machine_is_drained_and_stays_so_over_a_restart() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("web", "service", "count: 2", &[sleeper("t", "")]));
    agent.apply_and_wait(&job("log", "system", "", &[sleeper("t", "")]));
    let drained =
        agent.cli(&["node", "drain", "-enable", "-self", "-ignore-system", "-m", "a new disk"]).success();
    assert!(drained.stdout.contains("the drain has ended: complete"), "{}", drained.stdout);
    assert_eq!(agent.members().len(), 1, "only the system job's task runs");
    let node = |agent: &Agent| {
        let id = http::get(&agent.peer(), "/v1/nodes").unwrap().json()[0]["ID"].as_str().unwrap().to_owned();
        http::get(&agent.peer(), &format!("/v1/node/{id}")).unwrap().json()
    };
    assert_eq!(node(&agent)["LastDrain"]["Meta"], json!({ "message": "a new disk" }));
    agent.crash();
    assert_eq!(node(&agent)["SchedulingEligibility"], "ineligible");
    agent.apply(&job("new", "service", "", &[sleeper("t", "")]));
    let waits = agent.cli(&["status"]).stdout;
    assert!(waits.contains("this node takes no new allocations"), "{waits}");
    assert_eq!(agent.members().len(), 1);
    agent.cli(&["drain", "--disable"]).success();
    agent.cli(&["wait", "web", "new", "--timeout", "3m"]).success();
    assert_eq!(agent.members().len(), 4);
    let output = agent.cli(&["eligibility", "--disable"]).success().stdout;
    assert!(output.ends_with("is ineligible\n"), "{output}");
    assert!(agent.cli(&["eligibility", "--enable"]).success().stdout.ends_with("is eligible\n"));
    agent.finish();
}

#[test]
fn nomad_commands_read_evaluations_checks_files_and_log() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "echo hello > local/greeting; exec sleep 100000";
    agent.apply_and_wait(&job("web", "service", "", &[shell("t", script, "kill_timeout: 5s")]));
    let id = agent.alloc("web.g[0]").unwrap().id();
    let printed = || agent.cli(&["alloc", "fs", &id, "t/local/greeting"]).stdout;
    wait::until_true("the file", || printed() == "hello\n");
    assert!(agent.cli(&["alloc", "fs", &id]).success().stdout.contains("alloc/"));
    assert_eq!(agent.cli(&["alloc", "checks", &id]).success().stdout, "there are no results of checks\n");
    let listed = agent.cli(&["eval", "list"]).success().stdout;
    assert!(listed.contains("web") && listed.contains("job-register"), "{listed}");
    let whole = http::get(&agent.peer(), "/v1/evaluations").unwrap().json();
    let eval = whole[0]["ID"].as_str().unwrap();
    assert!(agent.cli(&["eval", "status", eval]).success().stdout.contains(eval));
    assert!(agent.cli(&["eval", &eval[..8]]).success().stdout.contains("triggered by:"));
    assert_eq!(agent.cli(&["eval", "none"]).code, 1);
    agent.finish();
}
