//! `-o json` and `-o yaml`, for scripts: one document of a documented shape on stdout; messages only on
//! stderr.

use herdlet_e2e::{agent::Agent, command::Output};
use serde_json::Value;

use crate::common::{is_root, job, shell, sleeper, volume};

/// Parses the output, which must be one document and nothing else.
#[track_caller]
fn document(output: &Output) -> Value {
    let document: Value = serde_json::from_str(&output.stdout)
        .unwrap_or_else(|error| panic!("not JSON ({error}): {}{}", output.stdout, output.stderr));
    if document.is_object() {
        assert_eq!(document["apiVersion"], "herdlet/v1");
    }
    document
}

#[test]
fn every_command_has_json_output() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let text = format!("{}{}", volume("kept"), job("shaped", "service", "", &[sleeper("t", "")]));
    let path = agent.manifest(&text).display().to_string();
    let asked = |agent: &Agent, arguments: &[&str], code: i32| {
        let output = agent.cli(&[arguments, &["-o", "json"]].concat());
        assert_eq!(output.code, code, "{arguments:?}: {}{}", output.stdout, output.stderr);
        document(&output)
    };

    let checked = asked(&agent, &["validate", &path], 0);
    assert_eq!((&checked["good"], &checked["jobs"][0]), (&Value::Bool(true), &Value::from("shaped")));
    // Without an agent each region may be another one.
    let elsewhere = text.replace("spec:\n  type", "spec:\n  region: eu\n  type");
    let elsewhere = agent.manifest(&elsewhere).display().to_string();
    let warned = asked(&agent, &["validate", &elsewhere], 0)["warnings"][0].clone();
    let message = warned["message"].as_str().unwrap_or_default();
    assert!(
        warned["path"] == "spec.region" && message.starts_with("region \"eu\" has no effect"),
        "{warned}"
    );
    asked(&agent, &["validate", "--strict", &elsewhere], 1);
    let wanted = asked(&agent, &["diff", "-f", &path], 1);
    assert_eq!(wanted["changes"][1]["object"], "job/shaped");
    assert_eq!(wanted["changes"][1]["change"], "create");
    let applied = asked(&agent, &["apply", "-f", &path, "--wait"], 0);
    assert_eq!(applied["jobs"][0]["change"], "created");
    assert_eq!(applied["volumes"][0], "kept");
    assert_eq!(applied["waited"]["result"], "reached");
    assert_eq!(asked(&agent, &["diff", "-f", &path], 0)["changes"], Value::Array(Vec::new()));

    let status = asked(&agent, &["status", "--check"], 0);
    assert_eq!(status["verdict"], "converged");
    assert_eq!(status["agent"]["jobs"]["converged"], 1);
    assert_eq!(status["jobs"][0]["key"]["id"], "shaped");
    assert_eq!(status["allocs"][0]["tasks"][0]["state"], "running");
    let explained = asked(&agent, &["explain", "shaped"], 0);
    assert_eq!(explained["job"]["convergence"]["state"], "converged");
    assert_eq!(explained["allocs"][0]["explanation"]["goal"], "run");
    let described = asked(&agent, &["describe", "shaped"], 0);
    assert_eq!(described["allocs"][0]["view"]["tasks"][0]["name"], "t");
    for kind in ["jobs", "allocs", "tasks", "volumes"] {
        let listed = asked(&agent, &["get", kind], 0);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{kind}: {listed}");
    }
    assert_eq!(asked(&agent, &["get", "services"], 0), Value::Array(Vec::new()));
    let restarted = asked(&agent, &["restart", "shaped"], 0);
    assert_eq!(restarted["allocs"][0]["name"], "shaped.g[0]");
    assert_eq!(asked(&agent, &["wait", "shaped"], 0)["waited"]["goal"], "converged");
    let signalled = asked(&agent, &["signal", "-s", "CONT", "shaped/t"], 0);
    assert_eq!(signalled["allocs"][0]["task"], "t");
    assert!(asked(&agent, &["version"], 0)["version"].is_string());
    let yaml = agent.cli(&["status", "-o", "yaml"]).success().stdout;
    assert!(yaml.starts_with("apiVersion: herdlet/v1\n"), "{yaml}");

    let deleted = asked(&agent, &["delete", "shaped", "--wait"], 0);
    assert_eq!(
        (&deleted["jobs"][0]["id"], &deleted["waited"]["result"]),
        (&"shaped".into(), &"reached".into())
    );
    let removed = asked(&agent, &["delete", "volume", "kept", "--purge"], 0);
    assert_eq!(removed["volumes"][0]["data"], "removed");
    agent.finish();
}

#[test]
fn errors_set_exit_code_and_stderr() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    for arguments in [
        &["status", "nothing"][..],
        &["explain", "nothing"],
        &["delete", "nothing"],
        &["restart", "nothing"],
        &["get", "jobs", "nothing"],
    ] {
        let output = agent.cli(&[arguments, &["-o", "json"]].concat());
        assert_eq!((output.code, output.stdout.as_str()), (1, ""), "{arguments:?}: {}", output.stderr);
        assert!(output.stderr.contains("nothing"), "{}", output.stderr);
    }
    let broken =
        agent.manifest("apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec: {typ: batch}\n");
    let broken = broken.display().to_string();
    let output = agent.cli(&["validate", &broken, "-o", "json"]);
    assert_eq!(output.code, 1);
    let result = document(&output);
    assert_eq!((&result["good"], &result["problems"][0]["line"]), (&Value::Bool(false), &Value::from(4)));
    let output = agent.cli(&["apply", "-f", &broken, "-o", "json"]);
    assert_eq!((output.code, output.stdout.as_str()), (2, ""));
    assert!(output.stderr.contains(":4:"), "{}", output.stderr);

    // A failed wait still prints the accepted changes.
    let failing = job(
        "failing",
        "batch",
        "restart: {attempts: 0, mode: fail}",
        &[shell("t", "echo lost >&2; exit 3", "")],
    );
    let path = agent.manifest(&failing).display().to_string();
    let output = agent.cli(&["apply", "-f", &path, "--wait", "-o", "json"]);
    assert_eq!(output.code, 1, "{}", output.stderr);
    let result = document(&output);
    assert_eq!(
        (&result["jobs"][0]["change"], &result["waited"]["result"]),
        (&"created".into(), &"failed".into())
    );
    let logged = agent.until_printed(&["logs", "failing", "-o", "json"], |printed| printed.contains("lost"));
    let line: Value = serde_json::from_str(logged.trim_end()).unwrap();
    assert_eq!(
        (&line["name"], &line["stream"], &line["line"]),
        (&"failing.g[0]/t".into(), &"stderr".into(), &"lost".into())
    );
    assert_eq!(agent.cli(&["status", "--check", "-o", "json"]).code, 2);
    agent.finish();
}
