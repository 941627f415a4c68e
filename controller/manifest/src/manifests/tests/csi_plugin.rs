//! `csi_plugin` blocks: what is refused, and the same block in three languages.

use herdlet_api_types::{
    Duration,
    job::{CsiPlugin, CsiPluginType},
};

use super::{Drivers, parse, read};

fn plugin(name: &str, text: &str) -> Option<CsiPlugin> {
    let set = parse(name, text.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
    set.jobs[0].object.groups[0].tasks[0].csi_plugin.clone()
}

fn task(name: &str, driver: &str, block: &str) -> String {
    let config = if driver == "docker" { "image: a" } else { "command: /bin/true" };
    let config = if driver == "mock" { String::new() } else { format!("config: {{{config}}}, ") };
    format!("        - {{name: {name}, driver: {driver}, {config}{block}}}\n")
}

fn job(tasks: &[String]) -> String {
    let tasks = tasks.concat();
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: disks}}\nspec:\n  groups:\n    - name: disks\n      volumes: {{d: {{type: host, source: d}}}}\n      tasks:\n{tasks}"
    )
}

#[test]
fn invalid_blocks_are_refused() {
    let mounted = "volume_mounts: [{volume: d, destination: /csi/}], csi_plugin: {id: a, type: node}";
    for (driver, block, expected) in [
        ("raw_exec", "csi_plugin: {}", "tasks[0].csi_plugin: `id` is missing"),
        ("raw_exec", "csi_plugin: {id: a}", "tasks[0].csi_plugin: `type` is missing"),
        (
            "raw_exec",
            "csi_plugin: {id: a, type: disk}",
            "csi_plugin.type: expected `node`, `controller` or `monolith`",
        ),
        ("raw_exec", "csi_plugin: {id: 'a b', type: node}", "csi_plugin.id: must be 1 to 128 characters"),
        (
            "mock",
            "csi_plugin: {id: a, type: node}",
            "csi_plugin: the driver mock can't run a CSI plugin; use docker",
        ),
        (
            "docker",
            "csi_plugin: {id: a, type: node, mount_dir: csi}",
            "csi_plugin.mount_dir: must be an absolute path",
        ),
        (
            "docker",
            "csi_plugin: {id: a, type: node, mount_dir: /}",
            "csi_plugin.mount_dir: must be an absolute path",
        ),
        (
            "exec",
            "csi_plugin: {id: a, type: node, stage_publish_base_dir: /a/../b}",
            "csi_plugin.stage_publish_base_dir: must be an absolute path",
        ),
        (
            "docker",
            "csi_plugin: {id: a, type: node, mount_dir: /p, stage_publish_base_dir: /p/}",
            "csi_plugin.stage_publish_base_dir: must not be the same as `mount_dir`",
        ),
        ("docker", mounted, "csi_plugin.mount_dir: the volume `d` is already mounted there"),
    ] {
        let problems = read(&job(&[task("a", driver, block)])).unwrap_err().to_string();
        assert!(problems.contains(expected), "{driver} {block}: {problems}");
    }
}

/// The controller and the node of one storage system have the same id.
#[test]
fn tasks_of_a_group_may_have_the_same_id() {
    let of = |kind: &str| format!("csi_plugin: {{id: x, type: {kind}}}");
    let tasks = [task("a", "raw_exec", &of("controller")), task("b", "raw_exec", &of("node"))];
    assert!(read(&job(&tasks)).is_ok());
}

#[test]
fn paths_have_no_effect_without_a_root() {
    let text = job(&[task("a", "raw_exec", "csi_plugin: {id: a, type: node, mount_dir: /csi}")]);
    let warnings = read(&text).unwrap().warnings;
    let [warning] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(warning.message.starts_with("has no effect with raw_exec"), "{}", warning.message);
}

#[test]
fn the_endpoint_is_a_variable_of_plugins() {
    let text = |block: &str| {
        job(&[task("a", "raw_exec", block)])
            .replace("/bin/true", "/bin/true, args: [\"--endpoint=${CSI_ENDPOINT}\"]")
    };
    assert!(read(&text("csi_plugin: {id: a, type: node}")).is_ok_and(|set| set.warnings.is_empty()));
}

#[test]
fn a_block_means_the_same_in_three_languages() {
    let block = "csi_plugin: {id: disks, type: monolith, mount_dir: /run/csi, stage_publish_base_dir: /data, health_timeout: 1m}";
    let yaml = job(&[task("a", "docker", block)]);
    let hcl = "job \"disks\" {\n  group \"disks\" {\n    task \"a\" {\n      driver = \"docker\"\n      config { image = \"a\" }\n      csi_plugin {\n        id = \"disks\"\n        type = \"monolith\"\n        mount_dir = \"/run/csi\"\n        stage_publish_base_dir = \"/data\"\n        health_timeout = \"1m\"\n      }\n    }\n  }\n}\n";
    let json = r#"{"Job": {"ID": "disks", "TaskGroups": [{"Name": "disks", "Tasks": [{"Name": "a", "Driver": "docker",
        "Config": {"image": "a"}, "CSIPluginConfig": {"ID": "disks", "Type": "monolith", "MountDir": "/run/csi",
        "StagePublishBaseDir": "/data", "HealthTimeout": 60000000000}}]}]}}"#;
    let expected = CsiPlugin {
        id: "disks".to_owned(),
        kind: CsiPluginType::Monolith,
        mount_dir: "/run/csi".to_owned(),
        stage_publish_base_dir: "/data".to_owned(),
        health_timeout: Duration::from_secs(60),
    };
    for (name, text) in [("a.yaml", yaml.as_str()), ("a.hcl", hcl), ("a.json", json)] {
        assert_eq!(plugin(name, text), Some(expected.clone()), "{name}");
    }
}

#[test]
fn what_is_absent_is_as_in_nomad() {
    let expected = CsiPlugin {
        id: "a".to_owned(),
        kind: CsiPluginType::Node,
        mount_dir: "/csi".to_owned(),
        stage_publish_base_dir: "/local/csi".to_owned(),
        health_timeout: Duration::from_secs(30),
    };
    for block in ["csi_plugin: {id: a, type: node}", "csi_plugin: {id: a, type: node, health_timeout: 0s}"] {
        assert_eq!(plugin("a.yaml", &job(&[task("a", "docker", block)])), Some(expected.clone()), "{block}");
    }
}
