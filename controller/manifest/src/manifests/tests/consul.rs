//! `consul` blocks: what is refused, and the same block in three languages.

use herdlet_api_types::job::ConsulAccess;

use super::{Drivers, parse, read};

fn access(name: &str, text: &str) -> Vec<Option<ConsulAccess>> {
    let set = parse(name, text.as_bytes(), &Drivers::built_in()).unwrap_or_else(|all| panic!("{all}"));
    set.jobs[0].object.groups.iter().flat_map(|group| &group.tasks).map(|task| task.consul.clone()).collect()
}

fn job(group: &str, task: &str) -> String {
    format!(
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: web}}\nspec:\n  groups:\n    - name: web\n      {group}\n      tasks:\n        - name: web\n          driver: raw_exec\n          config: {{command: /bin/true}}\n          {task}\n"
    )
}

#[test]
fn a_block_that_cannot_be_meant_so_is_refused() {
    let in_consul = "services: [{name: a, provider: consul}]";
    for (group, task, expected) in [
        ("count: 1", "consul: {cluster: \"a b\"}", "consul.cluster: must be at most 64 letters"),
        ("count: 1", "consul: {namespace: a/b}", "consul.namespace: must be at most 64 letters"),
        (
            "count: 1",
            "consul: {}\n          identities: [{name: a, aud: [x], file: true, filepath: secrets/consul_token}]",
            "identities[0].filepath: its file conflicts with that of the token of Consul",
        ),
        (
            "consul: {cluster: eu}",
            "identities: [{name: a, aud: [x], file: true, filepath: secrets/consul_token}]",
            "identities[0].filepath: its file conflicts with that of the token of Consul",
        ),
        (
            "count: 1",
            "identities: [{name: consul_default, aud: [x], file: true, filepath: secrets/consul_token}]",
            "identities[0].filepath: its file conflicts with that of the token of Consul",
        ),
        (
            "consul: {cluster: eu}",
            in_consul,
            "groups[0].consul.cluster: services are registered in the Consul `default` only",
        ),
        (
            "services: [{name: a, provider: consul}]\n      consul: {namespace: team}",
            "leader: false",
            "groups[0].consul.namespace: services are registered in the Consul `default` only",
        ),
    ] {
        let problems = read(&job(group, task)).unwrap_err().to_string();
        assert!(problems.contains(expected), "{group} {task}: {problems}");
    }
    assert!(read(&job("consul: {cluster: eu}", &format!("{in_consul}\n          consul: {{}}"))).is_ok());
}

#[test]
fn variables_of_a_token_need_a_block() {
    let text = |task: &str| job("count: 1", task).replace("/bin/true", "\"/bin/${CONSUL_HTTP_TOKEN}\"");
    assert!(read(&text("consul: {}")).is_ok());
    let problems = read(&text("leader: false")).unwrap_err().to_string();
    assert!(problems.contains("the task will have no variable `CONSUL_HTTP_TOKEN`"), "{problems}");
}

#[test]
fn a_block_means_the_same_in_three_languages() {
    let yaml = job("consul: {cluster: us}", "consul: {cluster: eu, namespace: team, partition: east}");
    let hcl = "job \"web\" {\n  group \"web\" {\n    consul { cluster = \"us\" }\n    task \"web\" {\n      driver = \"raw_exec\"\n      config { command = \"/bin/true\" }\n      consul {\n        cluster = \"eu\"\n        namespace = \"team\"\n        partition = \"east\"\n      }\n    }\n  }\n}\n";
    let json = r#"{"Job": {"ID": "web", "TaskGroups": [{"Name": "web", "Consul": {"Cluster": "us"}, "Tasks": [{"Name": "web",
        "Driver": "raw_exec", "Config": {"command": "/bin/true"},
        "Consul": {"Cluster": "eu", "Namespace": "team", "Partition": "east"}}]}]}}"#;
    let [namespace, partition] = ["team", "east"].map(|name| Some(name.to_owned()));
    let expected = ConsulAccess { cluster: "eu".to_owned(), namespace, partition };
    assert_eq!(expected.identity_name(), "consul_eu");
    for (name, text) in [("a.yaml", yaml.as_str()), ("a.hcl", hcl), ("a.json", json)] {
        assert_eq!(access(name, text), [Some(expected.clone())], "{name}");
    }
}

/// The agent's config may have another namespace; servers write this one into each block.
#[test]
fn the_namespace_default_is_one_unless_servers_write_it() {
    let yaml = job("count: 1", "consul: {namespace: default, partition: default}");
    let hcl = "job \"web\" {\n  group \"web\" {\n    task \"web\" {\n      driver = \"raw_exec\"\n      config { command = \"/bin/true\" }\n      consul {\n        namespace = \"default\"\n        partition = \"default\"\n      }\n    }\n  }\n}\n";
    let json = r#"{"Job": {"ID": "web", "TaskGroups": [{"Name": "web", "Consul": {"Cluster": "default", "Namespace": "default"}, "Tasks": [
        {"Name": "web", "Driver": "raw_exec", "Config": {"command": "/bin/true"},
        "Consul": {"Cluster": "default", "Namespace": "default", "Partition": "default"}},
        {"Name": "two", "Driver": "raw_exec", "Config": {"command": "/bin/true"}}]}]}}"#;
    let written = Some("default".to_owned());
    let default = ConsulAccess::of_cluster("default");
    let explicit = ConsulAccess { namespace: written.clone(), partition: written, ..default.clone() };
    for (name, text) in [("a.yaml", yaml.as_str()), ("a.hcl", hcl)] {
        assert_eq!(access(name, text), [Some(explicit.clone())], "{name}");
    }
    assert_eq!(access("a.json", json), [Some(default), None]);
    let services = "services: [{name: a, provider: consul}]\n          consul: {namespace: default}";
    assert!(read(&job("count: 1", services)).is_ok());
}

/// Servers name the identity of tasks with templates, without a block.
#[test]
fn a_task_has_the_consul_of_its_group_or_of_its_identity() {
    let of_group = job("consul: {cluster: us}", "leader: false");
    assert_eq!(access("a.yaml", &of_group), [Some(ConsulAccess::of_cluster("us"))]);
    let of_identity = job("count: 1", "identities: [{name: consul_default, aud: [consul.io]}]");
    assert_eq!(access("a.yaml", &of_identity), [Some(ConsulAccess::of_cluster("default"))]);
    assert_eq!(access("a.yaml", &job("count: 1", "leader: false")), [None]);
    // The agent has no such Consul: the task would wait without end.
    let of_another = job("count: 1", "identities: [{name: consul_eu, aud: [consul.io], env: true}]");
    assert_eq!(access("a.yaml", &of_another), [None]);
}
