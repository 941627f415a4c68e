//! Jobs that are stopped and kept, from the command line and through Nomad's API.

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, wait,
};
use serde_json::Value;

use crate::common::{is_root, job, shell, sleeper};

fn web() -> String {
    job("web", "service", "", &[shell("t", "echo hello; exec sleep 100000", "")])
}

fn nomad(agent: &Agent) -> Value {
    http::get(&agent.peer(), "/v1/job/web").unwrap().json()
}

fn row(agent: &Agent) -> Vec<String> {
    let table = agent.cli(&["get", "jobs", "web"]).success().stdout;
    table.lines().nth(1).unwrap_or_default().split_whitespace().take(5).map(str::to_owned).collect()
}

#[test]
fn stopped_job_is_kept_and_starts_again() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&web());
    agent.until_printed(&["logs", "web"], |output| output == "hello\n");
    let file = agent.manifest(&web()).display().to_string();
    let first = agent.alloc("web.g[0]").unwrap().id();
    let stdout = agent.cli(&["stop", "web", "--wait"]).success().stdout;
    assert_eq!(stdout, "job/web stopped (version 1)\n");
    assert!(agent.members().is_empty(), "no process of the job runs");
    assert_eq!(row(&agent), ["web", "service", "1", "0/0", "stopped"]);
    assert_eq!((&nomad(&agent)["Stop"], &nomad(&agent)["Status"]), (&true.into(), &"dead".into()));
    assert_eq!(agent.cli(&["logs", "web"]).success().stdout, "hello\n");
    agent.cli(&["status", "web", "--check"]).success();
    agent.crash();
    wait::until_true("it is known again", || row(&agent) == ["web", "service", "1", "0/0", "stopped"]);
    assert_eq!(agent.cli(&["stop", "web"]).success().stdout, "job/web unchanged: it is stopped already\n");
    assert_eq!(nomad(&agent)["Version"], 1);

    let differs = agent.cli(&["diff", "-f", &file]).ended(1).stdout;
    assert_eq!(differs, "~ job/web\n  - spec.stop: true\n  group g: create 1\n");
    agent.cli(&["apply", "-f", &file, "--wait"]).success();
    let second = agent.alloc("web.g[0]").unwrap();
    assert!(second.id() != first, "a new allocation starts");
    assert_eq!((&nomad(&agent)["Stop"], &nomad(&agent)["Status"]), (&false.into(), &"running".into()));

    agent.cli(&["job", "stop", "-detach=false", "web"]).success();
    assert_eq!(
        agent.cli(&["rollback", "web", "--wait"]).success().stdout,
        "job/web rolled back to version 2 (version 4)\n"
    );
    assert_eq!(agent.cli(&["start", "web"]).success().stdout, "job/web unchanged: it is started already\n");
    let stopped = http::request(&agent.peer(), "DELETE", "/v1/job/web", &[], "").unwrap();
    assert!(stopped.json()["EvalID"].is_string(), "{:?}", stopped.json());
    wait::until_true("it is stopped", || row(&agent) == ["web", "service", "5", "0/0", "stopped"]);
    assert_eq!(
        agent.cli(&["job", "start", "-detach=false", "web"]).success().stdout,
        "job/web started (version 6)\n"
    );
    agent.until_running("web.g[0]", "t");
    let sixth = agent.alloc("web.g[0]").unwrap().id();
    agent.cli(&["stop", "web.g[0]", "--wait"]).success();
    assert!(
        agent.alloc("web.g[0]").is_some_and(|alloc| alloc.id() != sixth),
        "another allocation replaces it"
    );

    http::request(&agent.peer(), "DELETE", "/v1/job/web?purge=true", &[], "").unwrap();
    agent.cli(&["wait", "web", "--for=deleted"]).success();
    let unknown = agent.cli(&["start", "web"]).ended(1).stderr;
    assert!(unknown.contains("there is no job or allocation \"web\""), "{unknown}");
    agent.finish();
}

#[test]
fn a_job_that_a_folder_owns_is_stopped_by_its_file() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    agent.set_arguments(vec!["--manifests".into(), agent.home.manifests().display().to_string()]);
    agent.launch();
    let file = agent.home.manifests().join("web.yaml");
    std::fs::write(&file, web()).unwrap();
    agent.until_running("web.g[0]", "t");
    let refused = agent.cli(&["stop", "web"]).ended(1).stderr;
    assert!(refused.contains(&file.display().to_string()), "{refused}");
    std::fs::write(&file, web().replacen("type: service", "type: service\n  stop: true", 1)).unwrap();
    wait::until_true("it is stopped", || row(&agent) == ["web", "service", "1", "0/0", "stopped"]);
    let refused = agent.cli(&["start", "web"]).ended(1).stderr;
    assert!(refused.contains(&file.display().to_string()), "{refused}");
    std::fs::write(&file, web()).unwrap();
    agent.until_running("web.g[0]", "t");
    std::fs::remove_file(&file).unwrap();
    agent.cli(&["wait", "web", "--for=deleted"]).success();
    agent.finish();
}

/// Nothing limits a poststop task: a job with one that hangs could not be deleted, and no output named the reason.
#[test]
fn hanging_poststop_task_is_ended_by_force() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let tidy =
        shell("tidy", "echo tidies; exec sleep 100000", "lifecycle: {hook: poststop}\nkill_timeout: 1s");
    for (name, last) in [
        ("again", &["delete", "again", "--wait"][..]),
        ("forced", &["delete", "forced", "--force", "--wait"][..]),
    ] {
        agent.apply_and_wait(&job(name, "service", "", &[sleeper("t", ""), tidy.clone()]));
        agent.cli(&["delete", name]).success();
        let how = format!("runs last and has no time limit; to end it: herdlet stop --force '{name}.g[0]'");
        agent.until_printed(&["explain", name], |explanation| explanation.contains(&how));
        assert!(agent.cli(&["status"]).success().stdout.contains("has no time limit"));
        agent.cli(last).success();
        assert!(agent.members().is_empty(), "{name}");
    }
    // Before it has begun, force keeps it from that.
    agent.apply_and_wait(&job("never", "service", "", &[sleeper("t", ""), tidy]));
    agent.cli(&["stop", "never", "--force", "--wait"]).success();
    assert!(agent.members().is_empty());
    let tasks = agent.cli(&["get", "tasks", "never"]).success().stdout;
    assert!(tasks.contains("not started"), "{tasks}");
    agent.finish();
}
