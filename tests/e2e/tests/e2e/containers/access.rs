//! Commands in containers, signals, statistics and what people are shown.

use std::os::unix::fs::MetadataExt as _;

use herdlet_e2e::{
    engine::{Engine, Kind},
    http, wait,
};
use serde_json::Value;

use super::{container, containers_of, finish, on_every_engine, sleeping};
use crate::{
    common::{job, shell},
    task_api,
};

on_every_engine!(
    commands_run_in_the_container,
    signals_reach_the_main_process,
    usage_is_that_of_the_container,
    images_and_digests_are_shown,
    values_of_env_are_visible_in_the_engine_and_nowhere_else,
    directories_of_a_container_are_closed_to_the_users_of_other_tasks,
    a_container_reaches_the_task_api_among_its_secrets,
);

fn commands_run_in_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job(
        "exec",
        "service",
        "",
        &[container("t", "sleep 100000", "hostname: inside", "")],
    ));
    let run = |command: &[&str]| agent.cli(&[&["exec", "exec", "--"][..], command].concat());
    assert_eq!(run(&["hostname"]).success().stdout, "inside\n");
    assert_eq!(run(&["sh", "-c", "echo out; echo err >&2; exit 7"]).ended(7).stderr.trim_end(), "err");
    assert_eq!(run(&["sh", "-c", "echo $NOMAD_TASK_NAME"]).success().stdout, "t\n");
    let missing = run(&["/no/such/program"]);
    assert!([126, 127].contains(&missing.code), "{missing:?}");
    // A session that is open while the agent dies ends, and its process does not hold the container.
    let session = agent.spawn(&["exec", "exec", "--", "sleep", "1000"]);
    wait::until_true("the session's process runs", || {
        agent.cli(&["exec", "exec", "--", "ps"]).stdout.contains("sleep 1000")
    });
    drop(session);
    agent.crash();
    agent.cli(&["wait", "exec"]).success();
    finish(&engine, agent);
}

fn signals_reach_the_main_process(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script =
        "trap 'echo hangup' HUP; trap 'echo stopped; exit 3' USR2; echo up; while :; do sleep 0.1; done";
    let task = container("t", script, "", "kill_signal: SIGUSR2\nkill_timeout: 60s");
    agent.apply_and_wait(&job("signals", "service", "", &[task]));
    let alloc = agent.until_alloc("signals.g[0]", "runs", |alloc| alloc.state("t") == "running");
    agent.until_logged(&alloc.id(), "t", "stdout", |log| log == "up\n");
    agent.cli(&["signal", "-s", "SIGHUP", "signals"]).success();
    agent.until_logged(&alloc.id(), "t", "stdout", |log| log == "up\nhangup\n");
    agent.cli(&["stop", "signals", "--wait"]).success();
    agent.until_logged(&alloc.id(), "t", "stdout", |log| log == "up\nhangup\nstopped\n");
    let ended = agent.until_alloc("signals.g[0]", "is complete", |alloc| alloc.status() == "complete");
    assert_eq!(ended.exit_codes("t"), [3]);
    finish(&engine, agent);
}

fn usage_is_that_of_the_container(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script = "while :; do :; done";
    agent.apply_and_wait(&job(
        "busy",
        "service",
        "",
        &[container("t", script, "", "resources: {cpu: 100, memory: 32}")],
    ));
    let alloc = agent.until_alloc("busy.g[0]", "runs", |alloc| alloc.state("t") == "running");
    wait::until_true("it uses the processor and memory", || {
        let path = format!("/v1/client/allocation/{}/stats", alloc.id());
        let Some(answer) = http::get(&agent.peer(), &path).filter(|answer| answer.status == 200) else {
            return false;
        };
        let usage = answer.json()["ResourceUsage"].clone();
        usage["CpuStats"]["TotalTicks"].as_f64().is_some_and(|ticks| ticks > 0.0)
            && usage["MemoryStats"]["RSS"]
                .as_u64()
                .max(usage["MemoryStats"]["Usage"].as_u64())
                .is_some_and(|bytes| bytes > 0)
    });
    let top = agent.spawn(&["top"]);
    top.until_stdout("busy");
    top.signal(rustix::process::Signal::KILL);
    top.finish();
    finish(&engine, agent);
}

fn images_and_digests_are_shown(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    agent.apply_and_wait(&job("shown", "service", "", &[sleeping("t", "")]));
    let images = agent.cli(&["images"]).success().stdout;
    assert!(images.contains("herdlet-test/busybox:1") && images.contains("shown"), "{images}");
    let json: Value = serde_json::from_str(&agent.cli(&["images", "-o", "json"]).success().stdout).unwrap();
    let names: Vec<&Value> = json["images"].as_array().unwrap().iter().map(|image| &image["name"]).collect();
    assert!(names.iter().any(|name| name.as_str().unwrap().contains("herdlet-test/busybox:1")), "{json}");
    assert!(agent.cli(&["images", "-o", "yaml"]).success().stdout.contains("herdlet-test/busybox:1"));
    let id = match engine.kind {
        Kind::Docker | Kind::Podman => {
            let listed = engine.request("GET", "/images/herdlet-test/busybox:1/json", &Value::Null).json();
            listed["Id"].as_str().unwrap().to_owned()
        }
        Kind::Builtin => json["images"][0]["digest"].as_str().unwrap().to_owned(),
    };
    let id = id.trim_start_matches("sha256:");
    let described = agent.cli(&["describe", "shown"]).success().stdout;
    assert!(described.contains(&id[..12]), "the digest {id} in {described}");
    finish(&engine, agent);
}

fn values_of_env_are_visible_in_the_engine_and_nowhere_else(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let task = sleeping("t", "env: {TOKEN: hidden-value}");
    agent.apply_and_wait(&job("env", "service", "", &[task]));
    let alloc = agent.until_alloc("env.g[0]", "runs", |alloc| alloc.state("t") == "running");
    match engine.kind {
        Kind::Docker | Kind::Podman => {
            let container = engine.container(&alloc.id(), "t");
            assert!(container["Config"]["Env"].to_string().contains("TOKEN=hidden-value"));
            assert!(!container["Config"]["Labels"].to_string().contains("hidden-value"));
        }
        Kind::Builtin => {
            let [container] = containers_of(&engine, &agent).try_into().unwrap();
            let files = agent.home.state().join("containers/docker/builtin");
            let files = files.join(container["Id"].as_str().unwrap());
            for entry in std::fs::read_dir(files).unwrap().flatten().filter(|entry| entry.path().is_file()) {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                assert!(!text.contains("hidden-value"), "{entry:?}");
            }
        }
    }
    assert!(!agent.log().contains("hidden-value"));
    finish(&engine, agent);
}

/// A container's user may have any number, so its directories are open to all who reach them: the user of another task of the
/// allocation read its secrets.
fn directories_of_a_container_are_closed_to_the_users_of_other_tasks(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let own = "echo mine > /secrets/own && echo mine > /local/own && echo mine > /alloc/data/own && echo ready; sleep 100000";
    let attempts = "until [ -e ../alloc/data/own ]; do sleep 0.1; done; \
        cat ../alloc/data/own; for name in secrets local; do cat ../inside/$name/own && echo read; \
        echo x > ../inside/$name/x && echo wrote; done; echo over; exec sleep 100000";
    let tasks = [container("inside", own, "", "user: \"4242\""), shell("web", attempts, "user: nobody")];
    agent.apply_and_wait(&job("closed", "service", "", &tasks));
    let alloc = agent.until_alloc("closed.g[0]", "runs", |alloc| alloc.state("web") == "running");
    agent.until_logged(&alloc.id(), "inside", "stdout", |log| log == "ready\n");
    agent.until_logged(&alloc.id(), "web", "stdout", |log| log == "mine\nover\n");
    finish(&engine, agent);
}

fn a_container_reaches_the_task_api_among_its_secrets(engine: Engine<'_>) {
    let mut agent = engine.agent("volumes: {enabled: true}");
    // The image has no client of unix sockets, so the container uses the machine's, with its libraries.
    let script = "test -S /secrets/api.sock && echo $NOMAD_UNIX_ADDR; \
        set -- /machine/lib/*-linux-gnu/ld-linux-*.so.*; $1 --library-path $${1%/*} /machine/bin/curl -s -o /dev/null \
        -w '%{http_code}\\n' --unix-socket /secrets/api.sock -H \"X-Nomad-Token: $NOMAD_TOKEN\" http://x/v1/vars; sleep 100000";
    let mounts = "volumes: [\"/usr:/machine:ro\"]";
    let task = container("t", script, mounts, task_api::IDENTITY);
    agent.apply_and_wait(&job("inside", "service", "", &[task]));
    let alloc = agent.until_alloc("inside.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    agent.until_logged(&alloc, "t", "stdout", |log| log == "unix:///secrets/api.sock\n200\n");
    let dir = task_api::secrets(&agent, &alloc, "t");
    assert_eq!(http::socket_mode(&dir.join("api.sock")), Some(0o666));
    assert_eq!(task_api::status(&dir, "/v1/vars", &task_api::token(&dir)), Some(200));
    // The number of a user is the same on this machine, so only this user may connect.
    let task = container("t", script, mounts, &format!("user: \"4242:4243\"\n{}", task_api::IDENTITY));
    agent.apply_and_wait(&job("numbered", "service", "", &[task]));
    let alloc = agent.until_alloc("numbered.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    agent.until_logged(&alloc, "t", "stdout", |log| log == "unix:///secrets/api.sock\n200\n");
    let socket = task_api::secrets(&agent, &alloc, "t").join("api.sock");
    let about = std::fs::symlink_metadata(&socket).unwrap();
    assert_eq!((http::socket_mode(&socket), about.uid(), about.gid()), (Some(0o600), 4_242, 4_243));
    finish(&engine, agent);
}
