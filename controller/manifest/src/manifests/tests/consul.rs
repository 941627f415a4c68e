//! `consul` blocks: what is refused, and the same block in three languages.

use herdlet_api_types::{job::ConsulAccess, nomad};

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
    for (group, task, expected) in [
        ("count: 1", "consul: {cluster: \"a b\"}", "consul.cluster: must be 1 to 64 letters"),
        ("count: 1", "consul: {namespace: a/b}", "consul.namespace: must be 1 to 64 letters"),
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
            "services: [{name: a, provider: consul, cluster: a/b}]",
            "leader: false",
            "services[0].cluster: must be 1 to 64 letters",
        ),
    ] {
        let problems = read(&job(group, task)).unwrap_err().to_string();
        assert!(problems.contains(expected), "{group} {task}: {problems}");
    }
}

#[test]
fn a_consul_that_the_agent_does_not_have_is_refused_with_the_known_ones() {
    let agent = Drivers::built_in().with_consuls(&["default", "eu"].map(str::to_owned));
    let read = |text: &str| parse("a.yaml", text.as_bytes(), &agent);
    let in_us = "consul: {cluster: us}";
    let service = |cluster: &str| format!("services: [{{name: a, provider: consul, cluster: {cluster}}}]");
    for (group, task, at) in [
        (in_us, "leader: false", "spec.groups[0].consul.cluster"),
        ("count: 1", in_us, "spec.groups[0].tasks[0].consul.cluster"),
        (&service("us"), "leader: false", "spec.groups[0].services[0].cluster"),
        ("count: 1", &service("us"), "spec.groups[0].tasks[0].services[0].cluster"),
    ] {
        let problems = read(&job(group, task)).unwrap_err().to_string();
        let expected =
            format!("{at}: the agent's config has no Consul `us`; use one of `default`, `eu`, or add it to");
        assert!(problems.contains(&expected), "{problems}");
    }
    assert!(read(&job("consul: {cluster: eu}", &service("default"))).is_ok());
}

/// The block of the task, else that of the group; a service can name another Consul.
#[test]
fn services_are_in_the_consul_of_their_block() {
    let of = |group: &str, task: &str| {
        let set = parse("a.yaml", job(group, task).as_bytes(), &Drivers::built_in());
        let set = set.unwrap_or_else(|all| panic!("{all}"));
        let group = &set.jobs[0].object.groups[0];
        let services: Vec<_> =
            group.all_services().map(|(_, service)| (service.name.clone(), service.consul.clone())).collect();
        // What is written is read as the same.
        let written = serde_json::json!({ "Job": nomad::job(&set.jobs[0].object, 0) }).to_string();
        let again = parse("b.json", written.as_bytes(), &Drivers::built_in());
        let again = again.unwrap_or_else(|all| panic!("{all}"));
        let again = &again.jobs[0].object.groups[0];
        let same: Vec<_> =
            again.all_services().map(|(_, service)| (service.name.clone(), service.consul.clone())).collect();
        assert_eq!(same, services);
        services
    };
    let service = |more: &str| format!("services: [{{name: a, provider: consul{more}}}]");
    let access = |cluster: &str, namespace: Option<&str>| {
        let namespace = namespace.map(str::to_owned);
        Some(ConsulAccess { namespace, ..ConsulAccess::of_cluster(cluster) })
    };
    let one = |access| vec![("a".to_owned(), access)];
    assert_eq!(of("count: 1", &service("")), one(None));
    assert_eq!(of("consul: {cluster: eu}", &service("")), one(access("eu", None)));
    assert_eq!(of("consul: {cluster: eu}", &service(", cluster: default")), one(None));
    let both = format!("{}\n          consul: {{namespace: team}}", service(", cluster: us"));
    assert_eq!(of("consul: {cluster: eu}", &both), one(access("us", Some("team"))));
    let group = format!("{}\n      consul: {{cluster: eu, namespace: team}}", service(""));
    assert_eq!(of(&group, "leader: false"), one(access("eu", Some("team"))));
    assert_eq!(of(&service("").replace("consul", "nomad"), "leader: false"), one(None));
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
