//! Parameterized jobs: dispatched with payload and meta, with the command line and Nomad's API, and across a
//! crash of the agent.

use std::fs;

use herdlet_e2e::{agent::Agent, http, program::example};
use serde_json::{Value, json};

use crate::common::{is_root, job, shell};

fn read(agent: &Agent, path: &str) -> Value {
    http::get(&agent.peer(), path).unwrap().json()
}

#[test]
fn dispatched_children_outlive_their_job() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let manifest = example("dispatch");
    agent.cli(&["apply", "-f", manifest.to_str().unwrap(), "--wait"]).success();
    let payload = agent.home.write("rows", "one,two");
    let dispatch = |more: &[&str]| {
        let mut arguments = vec!["dispatch", "import", payload.to_str().unwrap(), "-o", "json"];
        arguments.extend(more);
        agent.cli(&arguments)
    };
    let done = dispatch(&["--meta", "table=users", "--id-prefix-template", "night", "--wait"]).success();
    let done: Value = serde_json::from_str(&done.stdout).unwrap();
    let child = done["job"]["id"].as_str().unwrap().to_owned();
    assert!(child.starts_with("import/dispatch-night-"), "{child}");
    assert_eq!(done["waited"]["result"], "reached");
    agent.until_printed(&["logs", &child], |output| output.contains("users: one,two []"));
    let known = agent.cli(&["explain", "import"]).success().stdout;
    assert!(known.contains("children: 0 pending, 0 running, 1 dead"), "{known}");
    let screen = agent.cli(&["status"]).success().stdout;
    assert!(screen.contains("children: 0 running, 0 failed, 1 complete (not shown)"), "{screen}");
    assert!(screen.starts_with("2/2 converged") && !screen.contains(&child), "{screen}");

    for (arguments, expected) in [
        (&["dispatch", "import"][..], "a payload is required"),
        (&["dispatch", "import", "/etc/hostname"], "required meta is missing: table"),
        (&["dispatch", &child], "is not a parameterized job"),
    ] {
        let refused = agent.cli(arguments);
        assert!(refused.code == 1 && refused.stderr.contains(expected), "{arguments:?}: {}", refused.stderr);
    }

    // Nomad's API: ids of children with a plain and with an encoded slash.
    for id in [child.clone(), child.replace('/', "%2F")] {
        let known = read(&agent, &format!("/v1/job/{id}"));
        assert_eq!(
            (&known["ParentID"], &known["Dispatched"], &known["Status"]),
            (&json!("import"), &json!(true), &json!("dead"))
        );
        // As in Nomad: compressed with snappy.
        assert_eq!(known["Payload"], "B/QGAG9uZSx0d28=");
        assert_eq!(read(&agent, &format!("/v1/job/{id}/allocations")).as_array().unwrap().len(), 1);
    }
    let listed = read(&agent, "/v1/jobs?prefix=import");
    assert_eq!(listed[0]["ParameterizedJob"], true);
    assert_eq!(listed[0]["Status"], "running");
    assert_eq!(listed[0]["JobSummary"]["Children"], json!({"Pending": 0, "Running": 0, "Dead": 1}));

    // An acknowledged dispatch survives a crash, and the same token creates no second one.
    let token = ["--meta", "table=t", "--idempotency-token", "k"];
    let first: Value = serde_json::from_str(&dispatch(&token).success().stdout).unwrap();
    agent.crash();
    let mut again = vec!["dispatch", "import", payload.to_str().unwrap(), "-o", "json"];
    again.extend(token);
    let second: Value = serde_json::from_str(&agent.cli(&again).success().stdout).unwrap();
    assert_eq!(first["job"], second["job"]);
    let id = first["job"]["id"].as_str().unwrap();
    agent.cli(&["wait", "--for=complete", id]).success();

    agent.cli(&["delete", "import", "--wait"]).success();
    let left = agent.cli(&["get", "jobs", "-o", "name"]).success().stdout;
    assert_eq!(left.lines().count(), 2, "children continue without their parent: {left}");
    for child in left.lines() {
        agent.cli(&["delete", child, "--wait"]).success();
    }
    agent.finish();
}

/// The payload was written only before the start, for which the templates must have been rendered.
#[test]
fn templates_read_the_payload() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let more = "dispatch_payload: {file: in.tpl}\ntemplates:\n\
                \x20 - {data: '{{ file \"local/in.tpl\" }}', destination: local/copy}\n\
                \x20 - {source: local/in.tpl, destination: local/rendered}\n";
    let manifest =
        job("read", "batch", "", &[shell("t", "cat local/copy; echo; cat local/rendered; echo", more)]);
    let manifest = manifest.replace("  type: batch\n", "  type: batch\n  parameterized: {}\n");
    let path = agent.home.write("read.yaml", &manifest);
    agent.cli(&["apply", "-f", path.to_str().unwrap(), "--wait"]).success();
    let payload = agent.home.write("payload", "{{ env \"NOMAD_TASK_NAME\" }}");
    let done = agent.cli(&["dispatch", "read", payload.to_str().unwrap(), "-o", "json", "--wait"]).success();
    let done: Value = serde_json::from_str(&done.stdout).unwrap();
    let child = done["job"]["id"].as_str().unwrap();
    agent.until_printed(&["logs", child], |output| output == "{{ env \"NOMAD_TASK_NAME\" }}\nt\n");
    for job in agent.cli(&["get", "jobs", "-o", "name"]).success().stdout.lines() {
        agent.cli(&["delete", job, "--wait"]).success();
    }
    agent.finish();
}

#[test]
fn a_payload_stays_in_the_directory_of_its_task() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let manifest = job(
        "sly",
        "batch",
        "",
        &[
            shell(
                "link",
                "mkdir -p $NOMAD_ALLOC_DIR/../read/local; ln -s /tmp $NOMAD_ALLOC_DIR/../read/local/out",
                "lifecycle: {hook: prestart}",
            ),
            shell("read", "true", "dispatch_payload: {file: out/herdlet-payload}"),
        ],
    );
    let manifest = manifest.replace("  type: batch\n", "  type: batch\n  parameterized: {}\n");
    let path = agent.home.write("sly.yaml", &manifest);
    agent.cli(&["apply", "-f", path.to_str().unwrap(), "--wait"]).success();
    let payload = agent.home.write("payload", "x");
    let refused = agent.cli(&["dispatch", "sly", payload.to_str().unwrap(), "--wait"]);
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("write the payload"), "{}", refused.stderr);
    assert!(fs::metadata("/tmp/herdlet-payload").is_err());
    for job in agent.cli(&["get", "jobs", "-o", "name"]).success().stdout.lines() {
        agent.cli(&["delete", job, "--wait"]).success();
    }
    agent.finish();
}
