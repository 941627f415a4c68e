//! Scaling groups, from the command line and through Nomad's API.

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, wait,
};
use serde_json::{Value, json};

use crate::common::{is_root, job, sleeper};

fn manifest(count: u32) -> String {
    job("scaled", "service", &format!("count: {count}\nscaling: {{min: 1, max: 4}}"), &[sleeper("t", "")])
}

fn status(agent: &Agent) -> Value {
    http::get(&agent.peer(), "/v1/job/scaled/scale").unwrap().json()["TaskGroups"]["g"].clone()
}

#[test]
fn a_scaled_count_stays_until_a_manifest_says_otherwise() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&manifest(1));
    let first = agent.single("scaled.g[0]", "t");
    let output = agent.cli(&["scale", "scaled", "3", "--message", "noon", "--wait"]).success().stdout;
    assert!(output.contains("job/scaled scaled: group g from 1 to 3 (version 1)"), "{output}");
    for name in ["scaled.g[1]", "scaled.g[2]"] {
        agent.until_running(name, "t");
    }
    assert_eq!(agent.single("scaled.g[0]", "t"), first, "running allocations are unchanged");

    agent.crash();
    wait::until_true("three allocations run", || status(&agent)["Running"] == 3);
    let shown = status(&agent);
    assert_eq!((&shown["Desired"], &shown["Placed"]), (&json!(3), &json!(3)));
    let event = &shown["Events"][0];
    assert_eq!(
        (&event["Count"], &event["PreviousCount"], &event["Message"]),
        (&json!(3), &json!(1), &json!("noon")),
        "{shown}"
    );
    assert_eq!(agent.cli(&["scale", "scaled.g", "3"]).success().stdout.matches("unchanged").count(), 1);
    for (arguments, expected) in [
        (&["scale", "scaled", "5"][..], "count 5 is greater than scaling.max, which is 4"),
        (&["scale", "scaled", "0"], "count 0 is less than scaling.min, which is 1"),
        (&["scale", "scaled.x", "2"], "there is no job or group \"scaled.x\""),
    ] {
        let refused = agent.cli(arguments);
        assert!(refused.code == 1 && refused.stderr.contains(expected), "{arguments:?}: {}", refused.stderr);
    }
    agent.apply_and_wait(&manifest(1));
    wait::until_true("one allocation runs", || status(&agent)["Placed"] == 1);
    assert_eq!(agent.single("scaled.g[0]", "t"), first);
    agent.cli(&["delete", "scaled", "--wait"]).success();
    agent.finish();
}

#[test]
fn a_job_that_a_folder_owns_is_not_scaled() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    agent.set_arguments(vec!["--manifests".into(), agent.home.manifests().display().to_string()]);
    agent.launch();
    let file = agent.home.manifests().join("scaled.yaml");
    std::fs::write(&file, manifest(1)).unwrap();
    agent.until_running("scaled.g[0]", "t");
    let refused = agent.cli(&["scale", "scaled", "2"]);
    assert!(refused.code == 1 && refused.stderr.contains(&file.display().to_string()), "{}", refused.stderr);
    assert_eq!(status(&agent)["Desired"], 1);
    std::fs::remove_file(&file).unwrap();
    wait::until_true("the job is gone", || agent.allocs().is_empty());
    agent.finish();
}
