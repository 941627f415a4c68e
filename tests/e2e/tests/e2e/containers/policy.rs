//! What tasks may do is decided by the options of the driver, off as in Nomad; and what an engine cannot do is refused.

use herdlet_e2e::{
    command::User,
    engine::{Engine, Kind},
    home::Home,
    program::program,
};

use super::{PERMISSIVE, container, containers_of, finish, on_both_engines, on_own_engine, sleeping};
use crate::common::job;

on_both_engines!(
    tasks_may_do_what_the_options_allow,
    what_options_allow_is_done,
    unknown_keys_are_refused_before_the_start,
    networks_of_strangers_need_a_permission,
);
on_own_engine!(
    tasks_may_do_what_the_options_allow,
    what_options_allow_is_done,
    unknown_keys_are_refused_before_the_start,
);

/// What a task asks for, and what the refusal names.
const REFUSED: [(&str, &str); 13] = [
    ("privileged: true", "privileged"),
    ("volumes: [\"/etc:/etc-host\"]", "volumes"),
    // A task with these may put a link in place of `local`, which the engine follows at the next start.
    ("volumes: [\"..:/top\"]", "volumes"),
    ("volumes: [\".:/top\"]", "volumes"),
    ("mount: [{type: bind, source: /etc, target: /etc-host}]", "mount"),
    ("mount: [{type: volume, source: named, target: /data}]", "mount"),
    ("cap_add: [SYS_ADMIN]", "cap_add"),
    ("pid_mode: host", "pid_mode"),
    ("ipc_mode: host", "ipc_mode"),
    ("pid_mode: \"container:other\"", "pid_mode"),
    ("security_opt: [\"seccomp=/etc/passwd\"]", "security_opt"),
    ("runtime: other", "runtime"),
    ("pids_limit: 1000", "pids_limit"),
];

/// Those of [`REFUSED`] that are known at the start only.
const NOT_WARNED: [&str; 4] = [
    "volumes: [\"..:/top\"]",
    "volumes: [\".:/top\"]",
    "security_opt: [\"seccomp=/etc/passwd\"]",
    "pids_limit: 1000",
];

fn tasks_may_do_what_the_options_allow(engine: Engine<'_>) {
    let mut agent = engine.agent("pids_limit: 100");
    for (at, (config, key)) in REFUSED.iter().enumerate() {
        let name = format!("refused-{at}");
        let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
        let path = agent.manifest(&job(&name, "batch", group, &[container("t", "true", config, "")]));
        let applied = agent.cli(&["apply", "-f", &path.display().to_string()]);
        let reason = if applied.code == 0 {
            let warning = format!("job {name}, task t: its start will fail: use config.{key}");
            // The engine in the agent reads no profile, so it refuses each.
            let is_known_later =
                NOT_WARNED.contains(config) && !(engine.kind == Kind::Builtin && *key == "security_opt");
            assert_ne!(applied.stderr.contains(&warning), is_known_later, "{applied:?}");
            let alloc =
                agent.until_alloc(&format!("{name}.g[0]"), "has failed", |alloc| alloc.status() == "failed");
            alloc.0["TaskStates"]["t"].to_string()
        } else {
            applied.stderr
        };
        assert!(reason.contains(key), "{config}: {reason}");
        assert!(containers_of(&engine, &agent).is_empty(), "{config}");
    }
    finish(&engine, agent);
}

fn what_options_allow_is_done(engine: Engine<'_>) {
    let options =
        "allow_caps: [net_admin, chown], volumes: {enabled: true}, allowed_modes: {pid: [host], ipc: [host]}";
    let mut agent = engine.agent(options);
    for (at, config) in
        ["cap_add: [NET_ADMIN]", "pid_mode: host", "ipc_mode: host", "volumes: [\"/tmp:/tmp-host:ro\"]"]
            .iter()
            .enumerate()
    {
        let name = format!("allowed-{at}");
        agent.apply(&job(&name, "batch", "", &[container("t", "true", config, "")]));
        agent.until_alloc(&format!("{name}.g[0]"), "is complete", |alloc| alloc.status() == "complete");
    }
    // Without the option, a task that adds nothing has the default capabilities only.
    agent.apply_and_wait(&job(
        "plain",
        "service",
        "",
        &[container("t", "grep CapBnd /proc/self/status; sleep 100000", "", "")],
    ));
    let alloc = agent.until_alloc("plain.g[0]", "runs", |alloc| alloc.state("t") == "running");
    let log = agent.until_logged(&alloc.id(), "t", "stdout", |log| log.ends_with('\n'));
    let set = u64::from_str_radix(log.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    // Of the defaults, `allow_caps` leaves CHOWN (0).
    assert_eq!(set & 1, 1, "{log}");
    assert_eq!(set & (1 << 21), 0, "no SYS_ADMIN: {log}");
    finish(&engine, agent);
}

/// A task could join the network of any container of the engine, also of others.
fn networks_of_strangers_need_a_permission(engine: Engine<'_>) {
    let stranger = format!("stranger-{}", std::process::id());
    let id = engine.stranger(&stranger, &serde_json::json!({}));
    let config = format!("network_mode: \"container:{stranger}\"");
    let once = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    let joins = job("joins", "batch", once, &[container("t", "true", &config, "")]);
    let mut agent = engine.agent("");
    agent.apply(&joins);
    let alloc = agent.until_alloc("joins.g[0]", "has failed", |alloc| alloc.status() == "failed");
    let reason = alloc.0["TaskStates"]["t"].to_string();
    assert!(reason.contains("config.network_mode") && reason.contains("allowed_modes.network"), "{reason}");
    // A container of the same allocation needs none, by the name that Nomad gives it.
    let script = "readlink /proc/self/ns/net; exec sleep 100000";
    let sidecar = container("side", script, "", "lifecycle: {hook: prestart, sidecar: true}");
    let beside = container("t", script, "network_mode: \"container:side-${NOMAD_ALLOC_ID}\"", "");
    agent.apply_and_wait(&job("beside", "service", "", &[sidecar, beside]));
    let alloc = agent.alloc("beside.g[0]").unwrap().id();
    let namespace = |task| agent.until_logged(&alloc, task, "stdout", |log| log.ends_with('\n'));
    assert_eq!(namespace("side"), namespace("t"));
    finish(&engine, agent);

    let mut agent = engine.agent("allowed_modes: {network: [container]}");
    agent.apply(&joins);
    agent.until_alloc("joins.g[0]", "is complete", |alloc| alloc.status() == "complete");
    finish(&engine, agent);
    engine.remove(&id);
}

fn unknown_keys_are_refused_before_the_start(engine: Engine<'_>) {
    let mut agent = engine.agent(PERMISSIVE);
    for (config, named) in [
        ("imagine: x", "imagine"),
        ("volumes: [1, {a: b}]", "volumes"),
        ("mount: [{type: npipe, target: /x}]", "npipe"),
        ("cpu_cfs_period: 2000000", "cpu_cfs_period"),
        ("isolation: hyperv", "isolation"),
        // Rules that the schema cannot express; these were found by the start.
        ("network_mode: \"ns:/x\"", "config.network_mode"),
        ("network_mode: \"task:a\"", "config.network_mode"),
        ("ports: [nope]", "config.ports[0]"),
        ("port_map: {nope: 80}", "config.port_map.nope"),
        ("ulimit: {nofile: x}", "config.ulimit.nofile"),
        ("volumes: [a]", "config.volumes[0]"),
        ("volumes: [\"a:b\"]", "config.volumes[0]"),
        ("volumes: [\"a:/b:x\"]", "config.volumes[0]"),
        ("mount: [{type: tmpfs, target: x}]", "config.mount[0].target"),
        ("cgroupns: x", "config.cgroupns"),
        ("security_opt: [x]", "config.security_opt[0]"),
        ("ipv4_address: 10.0.0.2", "config.ipv4_address"),
        ("cpu_hard_limit: true", "config.cpu_hard_limit"),
        ("network_mode: \"container:x\"\nhostname: h", "config.hostname"),
        ("network_mode: host\nmac_address: \"02:00:00:00:00:01\"", "config.mac_address"),
    ] {
        let path = agent.manifest(&job("wrong", "batch", "", &[container("t", "true", config, "")]));
        let refused = agent.cli(&["validate", &path.display().to_string()]);
        assert_ne!(refused.code, 0, "{config} is accepted");
        assert!(refused.stderr.contains(named) || refused.stdout.contains(named), "{config}: {refused:?}");
    }
    agent.apply_and_wait(&job("right", "service", "", &[sleeping("t", "")]));
    finish(&engine, agent);
}

#[test]
fn an_agent_with_a_remote_engine_is_refused() {
    let home = Home::new(User::Same);
    for (options, key) in [
        ("endpoint: \"tcp://127.0.0.1:2375\"", "endpoint"),
        ("tls: {cert: /x, key: /x, ca: /x}", "tls"),
        ("engine: containerd", "engine"),
        ("allow_priviledged: true", "allow_priviledged"),
    ] {
        let config = home.write("config.yaml", &format!("drivers: {{docker: {{{options}}}}}\n"));
        let arguments = ["config", "view", "--config", &config.display().to_string()];
        let command = herdlet_e2e::command::prepare(&home, User::Same, program(), &arguments);
        let output = herdlet_e2e::command::Running::start(command).finish();
        assert!(output.code != 0 && output.stderr.contains(key), "{options}: {output:?}");
    }
}
