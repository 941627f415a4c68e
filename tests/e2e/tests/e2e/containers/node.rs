//! Containers of a node of a cluster, with stand-in servers: attributes, Nomad's names and labels, and what servers decide.

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, IMAGE, Kind},
    wait,
};
use herdlet_nomad::wire::ClientStatus;
use serde_json::{Value, json};

use super::{containers_of, on_both_engines, running_of};
use crate::node::{NodeTest, service};

on_both_engines!(
    a_job_of_the_servers_runs_in_a_container_with_nomads_name,
    a_job_of_the_servers_has_a_network_of_its_own,
    a_container_of_a_stranger_with_the_tasks_name_is_not_touched,
    two_clients_on_one_engine_are_reported,
);

/// Returns a service whose only task is a container.
fn in_container(id: &str, command: &[&str]) -> Value {
    let mut job = service(id, 1);
    let task = &mut job["TaskGroups"][0]["Tasks"][0];
    // The stand-in servers of all tests count allocations from one.
    task["Name"] = id.into();
    task["Driver"] = "docker".into();
    task["Config"] = json!({
        "image": IMAGE, "command": command[0], "args": command[1..], "ports": ["http"],
    });
    task["KillTimeout"] = 1_000_000_000.into();
    job["TaskGroups"][0]["RestartPolicy"] =
        json!({ "Attempts": 100, "Interval": 3_600_000_000_000_i64, "Delay": 100_000_000, "Mode": "delay" });
    job
}

fn node(engine: &Engine<'_>) -> NodeTest {
    NodeTest::start_with(&engine.config(""))
}

fn single(engine: &Engine<'_>, agent: &Agent) -> Value {
    wait::until("one container", || {
        let found = containers_of(engine, agent);
        (found.len() == 1 && found[0]["State"] == "running").then(|| found[0].clone())
    })
}

/// Stops a job on the servers, and waits for the end of its containers.
fn stop(engine: &Engine<'_>, node: &NodeTest, key: &herdlet_nomad_server::state::Key) {
    node.stop(key);
    wait::until_true("its containers have ended", || {
        containers_of(engine, &node.agent).iter().all(|found| found["State"] != "running")
    });
}

fn finish(engine: &Engine<'_>, node: NodeTest) {
    let instance = node.agent.home.instance().unwrap();
    node.finish();
    assert!(engine.containers(&instance).is_empty());
}

fn a_job_of_the_servers_runs_in_a_container_with_nomads_name(engine: Engine<'_>) {
    let mut node = node(&engine);
    // A node registers before a slow engine has answered.
    wait::until_true("the driver is known to the servers", || {
        node.known().drivers.get("docker").is_some_and(|driver| driver.healthy && driver.detected)
    });
    let known = node.known();
    assert_eq!(known.attributes.get("driver.docker").map(|value| &**value), Some("1"));
    for attribute in ["driver.docker.version", "driver.docker.volumes.enabled"] {
        // Nomad has no attribute for an option that is off.
        let is_expected = attribute != "driver.docker.volumes.enabled";
        assert_eq!(
            known.attributes.contains_key(attribute),
            is_expected,
            "{attribute}: {:?}",
            known.attributes
        );
    }
    let key = node.submit(&in_container("web", &["sleep", "100000"]));
    let alloc = node.alloc(&key);
    node.reaches(&alloc.id, &ClientStatus::Running);
    let container = single(&engine, &node.agent);
    assert_eq!(container["Names"][0], format!("/web-{}", alloc.id));
    assert_eq!(container["Labels"]["com.hashicorp.nomad.alloc_id"], alloc.id.to_string());
    // The same container after a crash; another one with the same name after a restart.
    node.agent.crash();
    node.reaches(&alloc.id, &ClientStatus::Running);
    assert_eq!(single(&engine, &node.agent)["Id"], container["Id"]);
    engine.remove(container["Id"].as_str().unwrap());
    wait::until_true("another container has the name", || {
        let found = containers_of(&engine, &node.agent);
        found.iter().any(|found| found["Id"] != container["Id"] && found["Names"] == container["Names"])
    });
    wait::until_true("the servers know of the second start", || {
        let state = node.stored(&alloc.id).task_states["web"].clone();
        state.events.iter().filter(|event| event.kind == "Started").count() == 2
    });
    stop(&engine, &node, &key);
    finish(&engine, node);
}

/// No other test has a pause container with Nomad's name: the stand-in servers of all tests count allocations from one.
fn a_job_of_the_servers_has_a_network_of_its_own(engine: Engine<'_>) {
    let mut node = node(&engine);
    let mut job = in_container("bridged", &["sleep", "100000"]);
    let ports = json!([{ "Label": "http", "To": 8080 }]);
    job["TaskGroups"][0]["Networks"] = json!([{ "Mode": "bridge", "DynamicPorts": ports }]);
    let key = node.submit(&job);
    let alloc = node.alloc(&key);
    node.reaches(&alloc.id, &ClientStatus::Running);
    let arguments = ["exec", "bridged.g[0]", "--task", "bridged", "--", "sh", "-c"];
    let script = "ls /sys/class/net; echo $NOMAD_PORT_http";
    let shown = |node: &NodeTest| node.agent.cli(&[&arguments[..], &[script]].concat()).success().stdout;
    assert_eq!(shown(&node), "eth0\nlo\n8080\n");
    let pause = engine.inspect(&format!("nomad_init_{}", alloc.id));
    let label = pause.map(|found| found["Config"]["Labels"]["com.hashicorp.nomad.alloc_id"].clone());
    let expected = (engine.kind == Kind::Docker).then(|| Value::from(alloc.id.to_string()));
    assert_eq!(label, expected);
    let before = running_of(&engine, &node.agent);
    node.agent.crash();
    node.reaches(&alloc.id, &ClientStatus::Running);
    assert_eq!((shown(&node), running_of(&engine, &node.agent)), ("eth0\nlo\n8080\n".to_owned(), before));
    stop(&engine, &node, &key);
    finish(&engine, node);
}

fn a_container_of_a_stranger_with_the_tasks_name_is_not_touched(engine: Engine<'_>) {
    let node = node(&engine);
    let key = node.submit(&in_container("taken", &["sleep", "100000"]));
    let alloc = node.alloc(&key);
    node.reaches(&alloc.id, &ClientStatus::Running);
    let container = single(&engine, &node.agent);
    // A stranger takes the name before the next attempt.
    let ours = container["Id"].as_str().unwrap();
    let name = format!("taken-{}", alloc.id);
    engine.request("POST", &format!("/containers/{ours}/rename?name=other-{name}"), &Value::Null);
    let stranger = engine.stranger(&name, &json!({}));
    engine.remove(ours);
    wait::until_true("the reason is an event", || {
        let state = node.stored(&alloc.id).task_states.get("taken").cloned();
        state.is_some_and(|state| state.events.iter().any(|event| event.display_message.contains(&name)))
    });
    assert_eq!(engine.inspect(&stranger).unwrap()["State"]["Running"], true);
    engine.remove(&stranger);
    wait::until_true("it runs once the name is free", || {
        containers_of(&engine, &node.agent).iter().any(|found| found["State"] == "running")
    });
    stop(&engine, &node, &key);
    finish(&engine, node);
}

fn two_clients_on_one_engine_are_reported(engine: Engine<'_>) {
    let node = node(&engine);
    let doctor = || {
        let home = &node.agent.home;
        let (config, state) = (home.path().join("config.yaml"), home.state());
        let paths = [config.display().to_string(), state.display().to_string()];
        let output = node.agent.cli(&["doctor", "--config", &paths[0], "--state-dir", &paths[1]]);
        format!("{}{}", output.stdout, output.stderr)
    };
    // As another client makes it.
    let unknown = "11111111-2222-4333-8444-555555555555";
    let label = json!({ "com.hashicorp.nomad.alloc_id": unknown });
    let stranger = engine.stranger(&format!("web-{unknown}-{}", std::process::id()), &label);
    let reported = doctor();
    assert!(reported.contains("another client") || reported.contains("another Nomad client"), "{reported}");
    assert!(engine.inspect(&stranger).is_some());
    engine.remove(&stranger);
    finish(&engine, node);
}
