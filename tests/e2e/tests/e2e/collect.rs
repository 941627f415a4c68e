//! Garbage collection in a real agent, by rules and on request. Ended jobs and allocations are removed,
//! wanted ones stay.

use std::path::PathBuf;

use herdlet_e2e::{
    agent::{Agent, Setup},
    http,
    wait::until_true,
};
use serde_json::Value;

use crate::common::{is_root, job, shell, sleeper};

fn ends(id: &str, code: i32) -> String {
    job(
        id,
        "batch",
        "",
        &[shell("t", &format!("echo said; exit {code}"), "restart: {attempts: 0, mode: fail}")],
    )
}

fn dir(agent: &Agent, id: &str) -> PathBuf {
    agent.home.state().join("alloc").join(id)
}

/// Returns the report of `gc` by name: the reason, or until when an object is kept.
fn collected(agent: &Agent, arguments: &[&str]) -> Vec<(String, String)> {
    let printed = agent.cli(&[&["gc", "-o", "json"], arguments].concat()).success().stdout;
    let report: Value = serde_json::from_str(&printed).unwrap();
    let items = report["items"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    items.iter().map(|item| (text(&item["name"]), text(&item["due"]))).collect()
}

#[test]
fn only_ended_jobs_are_collected_on_request() {
    if !is_root() {
        return;
    }
    // Independent of other files on this machine's disk.
    let mut agent = Agent::start_with(
        Setup::default().config("gc_disk_usage_threshold: 100\ngc_inode_usage_threshold: 100\n"),
    );
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "")]));
    agent.apply(&ends("good", 0));
    agent.apply(&ends("bad", 3));
    agent.until_alloc("good.g[0]", "complete", |alloc| alloc.status() == "complete");
    // As in Compose: running allocations, and with -a ended ones too, of one job or of all.
    for (arguments, names) in [
        (&["ps"][..], vec!["web.g[0]"]),
        (&["ps", "good"], vec![]),
        (&["ps", "-a", "good"], vec!["good.g[0]"]),
        (&["ps", "web"], vec!["web.g[0]"]),
    ] {
        let listed = agent.cli(arguments).success().stdout;
        let found: Vec<&str> =
            ["web.g[0]", "good.g[0]"].into_iter().filter(|name| listed.contains(name)).collect();
        assert_eq!(found, names, "{arguments:?}: {listed}");
    }
    let stderr = agent.cli(&["ps", "good"]).success().stderr;
    assert_eq!(stderr, "nothing runs; ended allocations not listed: 1 (herdlet ps --all)\n");
    let bad = agent.until_alloc("bad.g[0]", "failed", |alloc| alloc.status() == "failed");
    let pids = agent.members();
    let names = |rows: &[(String, String)]| rows.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let dry = collected(&agent, &["--dry-run"]);
    assert_eq!(names(&dry), ["good", "bad", "good.g[0]", "bad.g[0]"], "the failed one comes last");
    assert!(
        dry.iter().all(|(_, due)| due.is_empty()),
        "below the limits of age and number none is due: {dry:?}"
    );

    // Removes only one directory, like Nomad's clients.
    let path = format!("/v1/client/allocation/{}/gc", bad.id());
    assert_eq!(http::get(&agent.peer(), &path).unwrap().status, 200);
    until_true("its directory is gone", || !dir(&agent, &bad.id()).exists());
    let known = http::get(&agent.peer(), &format!("/v1/allocation/{}", bad.id())).unwrap().json();
    assert_eq!(known["ClientStatus"], "failed", "the allocation is still known");
    let logs = agent.cli(&["logs", "bad"]);
    assert!(logs.code == 1 && logs.stderr.contains("was collected"), "{}", logs.stderr);
    agent.crash();
    assert!(!dir(&agent, &bad.id()).exists(), "the directory is not created again");

    assert_eq!(names(&collected(&agent, &[])), ["good", "bad"], "their allocations are collected too");
    agent.cli(&["wait", "--for=deleted", "good"]).success();
    agent.cli(&["wait", "--for=deleted", "bad"]).success();
    assert_eq!(collected(&agent, &[]), []);
    for arguments in
        [&["status", "good"][..], &["logs", "bad.g[0]"], &["get", "jobs", "good"], &["drift", "good/t"]]
    {
        let stderr = agent.cli(arguments).ended(1).stderr;
        assert!(stderr.contains(" had ended") && stderr.contains("was collected"), "{arguments:?}: {stderr}");
    }
    let stderr = agent.cli(&["drift", "wbe"]).ended(1).stderr;
    assert!(
        stderr.contains("there is no job or allocation \"wbe\"") && stderr.contains("\"web\""),
        "{stderr}"
    );
    agent.cli(&["drift", "web"]).success();
    assert_eq!(agent.members(), pids, "web keeps running");
    assert_eq!(agent.metric("herdlet_collected_total", "kind=\"job\",reason=\"request\""), 2.0);
    agent.cli(&["delete", "web", "--wait"]).success();
    agent.finish();
}

/// `nomad system gc` removed the logs of the failure that `explain` was about.
#[test]
fn a_failed_allocation_that_explains_its_job_is_collected_only_by_gc() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(
        Setup::default().config("gc_disk_usage_threshold: 100\ngc_inode_usage_threshold: 100\n"),
    );
    let policy = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    agent.apply(&job("broken", "service", policy, &[shell("t", "echo FATAL >&2; exit 3", "")]));
    agent.apply(&ends("once", 3));
    let broken = agent.until_alloc("broken.g[0]", "failed", |alloc| alloc.status() == "failed");
    agent.until_alloc("once.g[0]", "failed", |alloc| alloc.status() == "failed");
    let collect = || http::request(&agent.peer(), "PUT", "/v1/system/gc", &[], "").unwrap().status;
    assert_eq!(collect(), 200);
    agent.cli(&["wait", "--for=deleted", "once"]).success();
    let explained = agent.cli(&["explain", &broken.id()]).success().stdout;
    assert!(explained.contains("FATAL") && !explained.contains("are gone"), "{explained}");
    assert!(dir(&agent, &broken.id()).exists());
    assert!(collected(&agent, &[]).iter().any(|(name, _)| name == "broken.g[0]"));
    until_true("its directory is gone", || !dir(&agent, &broken.id()).exists());
    agent.finish();
}

#[test]
fn collection_rules_keep_jobs_of_a_folder() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().config("job_gc_threshold: 1s\ngc_max_allocs: 0\n");
    let mut agent = Agent::prepare(setup);
    let folder = agent.home.path().join("jobs.d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("owned.yaml"), ends("owned", 0)).unwrap();
    agent.set_arguments(vec!["--manifests".to_owned(), folder.display().to_string()]);
    agent.launch();
    agent.apply(&ends("once", 0));
    agent.cli(&["wait", "--for=deleted", "once"]).success();
    let owned = agent.until_alloc("owned.g[0]", "complete", |alloc| alloc.status() == "complete");
    until_true("its directory is gone", || !dir(&agent, &owned.id()).exists());
    assert!(agent.metric("herdlet_collected_total", "kind=\"alloc\",reason=\"count\"") >= 1.0);
    for _ in 0..2 {
        agent.crash();
        let again = agent.until_alloc("owned.g[0]", "complete", |alloc| alloc.status() == "complete");
        assert_eq!(again.id(), owned.id(), "the job does not run again");
    }
    std::fs::remove_file(folder.join("owned.yaml")).unwrap();
    agent.cli(&["wait", "--for=deleted", "owned"]).success();
    agent.finish();
}
