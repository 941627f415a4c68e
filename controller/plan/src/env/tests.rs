//! A task's environment, variable by variable.

extern crate std;

use std_alloc::{format, string::ToString, vec, vec::Vec};

use herdlet_api_types::{
    Duration,
    alloc::{AssignedCores, CoreSet},
};
use proptest::prelude::*;

use super::{fixture::*, *};

/// Checks variables of an environment, for the table tests.
fn check(env: &TaskEnv, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(env.variables().get(*name).map(String::as_str), Some(*value), "{name}");
    }
}

#[test]
fn the_whole_table() {
    let alloc = alloc_with(|job| {
        job.meta = variables(&[("owner.team", "job"), ("a", "job")]);
        job.groups[0].meta = variables(&[("owner.team", "group"), ("b", "${node.class}")]);
    });
    let mut task = task();
    task.meta = variables(&[("owner.team", "task")]);
    task.env = variables(&[("FOO", "2"), ("URL", "http://${NOMAD_ADDR_http}/${unknown.var}")]);
    let hour = Some(Duration::from_secs(3600));
    task.identities = vec![identity("default", &[], None), identity("api", &["example.test"], hour), {
        let mut silent = identity("silent", &["x"], None);
        silent.env = false;
        silent
    }];
    let dirs =
        TaskDirs { alloc: "/a/alloc".into(), task: "/a/t/local".into(), secrets: "/a/t/secrets".into() };
    let node = node();
    let network =
        AllocNetwork { interface: "eth0".into(), address: "172.26.64.9".into(), ..AllocNetwork::default() };
    let upstreams = [Upstream { destination: "count-api".into(), bind_port: 8080 }];
    let host_env =
        variables(&[("FOO", "1"), ("PATH", "/bin"), ("VAULT_TOKEN", "secret"), ("NOMAD_DC", "not ours")]);
    let tokens = variables(&[("default", "t0"), ("api", "t1"), ("silent", "t2")]);
    let hooks = [variables(&[("HOOK", "${FOO}"), ("TWICE", "1")]), variables(&[("TWICE", "2")])];
    let template_env = variables(&[("FOO", "3"), ("RAW", "${FOO}")]);
    let env = build(&Inputs {
        task: Some(&task),
        dirs: Some(&dirs),
        network: Some(&network),
        upstreams: &upstreams,
        host_env: &host_env,
        tokens: &tokens,
        api_socket: Some("/a/t/secrets/api.sock"),
        hook_env: &hooks,
        template_env: &template_env,
        cgroup_parent: Some("herdlet"),
        ..Inputs::new(&alloc, &node)
    });
    let expected = variables(&[
        ("NOMAD_ALLOC_DIR", "/a/alloc"),
        ("NOMAD_TASK_DIR", "/a/t/local"),
        ("NOMAD_SECRETS_DIR", "/a/t/secrets"),
        ("NOMAD_PARENT_CGROUP", "herdlet"),
        ("NOMAD_MEMORY_LIMIT", "256"),
        ("NOMAD_MEMORY_MAX_LIMIT", "512"),
        ("NOMAD_CPU_LIMIT", "500"),
        ("NOMAD_ALLOC_ID", ALLOC_ID),
        ("NOMAD_SHORT_ALLOC_ID", "b4e61df9"),
        ("NOMAD_ALLOC_NAME", "web.cache[12]"),
        ("NOMAD_ALLOC_INDEX", "12"),
        ("NOMAD_TASK_NAME", "redis"),
        ("NOMAD_GROUP_NAME", "cache"),
        ("NOMAD_JOB_ID", "web"),
        ("NOMAD_JOB_NAME", "The Web"),
        ("NOMAD_DC", "dc1"),
        ("NOMAD_REGION", "global"),
        ("NOMAD_NAMESPACE", "default"),
        ("NOMAD_META_owner_team", "task"),
        ("NOMAD_META_OWNER_TEAM", "task"),
        ("NOMAD_META_a", "job"),
        ("NOMAD_META_A", "job"),
        ("NOMAD_META_b", "edge"),
        ("NOMAD_META_B", "edge"),
        ("NOMAD_IP_http", "10.0.0.5"),
        ("NOMAD_ADDR_http", "10.0.0.5:21000"),
        ("NOMAD_PORT_http", "8080"),
        ("NOMAD_HOST_IP_http", "10.0.0.5"),
        ("NOMAD_HOST_ADDR_http", "10.0.0.5:21000"),
        ("NOMAD_HOST_PORT_http", "21000"),
        ("NOMAD_ALLOC_PORT_http", "8080"),
        ("NOMAD_ALLOC_INTERFACE_http", "eth0"),
        ("NOMAD_ALLOC_IP_http", "172.26.64.9"),
        ("NOMAD_ALLOC_ADDR_http", "172.26.64.9:8080"),
        ("NOMAD_IP_raw", "10.0.0.5"),
        ("NOMAD_ADDR_raw", "10.0.0.5:22000"),
        ("NOMAD_PORT_raw", "22000"),
        ("NOMAD_HOST_IP_raw", "10.0.0.5"),
        ("NOMAD_HOST_ADDR_raw", "10.0.0.5:22000"),
        ("NOMAD_HOST_PORT_raw", "22000"),
        ("NOMAD_ALLOC_PORT_raw", "22000"),
        ("NOMAD_ALLOC_INTERFACE_raw", "eth0"),
        ("NOMAD_ALLOC_IP_raw", "172.26.64.9"),
        ("NOMAD_ALLOC_ADDR_raw", "172.26.64.9:22000"),
        ("NOMAD_UPSTREAM_IP_count-api", "127.0.0.1"),
        ("NOMAD_UPSTREAM_PORT_count-api", "8080"),
        ("NOMAD_UPSTREAM_ADDR_count-api", "127.0.0.1:8080"),
        ("NOMAD_UPSTREAM_IP_count_api", "127.0.0.1"),
        ("NOMAD_UPSTREAM_PORT_count_api", "8080"),
        ("NOMAD_UPSTREAM_ADDR_count_api", "127.0.0.1:8080"),
        ("NOMAD_TOKEN", "t0"),
        ("NOMAD_TOKEN_api", "t1"),
        ("NOMAD_UNIX_ADDR", "unix:///a/t/secrets/api.sock"),
        ("PATH", "/bin"),
        ("URL", "http://10.0.0.5:21000/${unknown.var}"),
        ("HOOK", "2"),
        ("TWICE", "2"),
        ("FOO", "3"),
        ("RAW", "${FOO}"),
    ]);
    assert_eq!(env.variables(), &expected);
}

#[test]
fn a_csi_plugin_has_its_socket_unless_its_env_names_another() {
    let (alloc, node, mut task) = (alloc(), NodeFacts::default(), task());
    let endpoint = |task: &Task| {
        let inputs = Inputs {
            task: Some(task),
            csi_endpoint: Some("unix:///csi/csi.sock"),
            ..Inputs::new(&alloc, &node)
        };
        build(&inputs).var("CSI_ENDPOINT").map(String::from)
    };
    assert_eq!(endpoint(&task).as_deref(), Some("unix:///csi/csi.sock"));
    task.env.insert(String::from("CSI_ENDPOINT"), String::from("unix:///other.sock"));
    assert_eq!(endpoint(&task).as_deref(), Some("unix:///other.sock"));
}

#[test]
fn missing_values_set_no_variable() {
    let (alloc, node) = (alloc(), NodeFacts::default());
    let mut task = task();
    task.resources = Default::default();
    task.resources.cpu_mhz = Some(0);
    task.identities = vec![identity("default", &[], None)];
    let env = build(&Inputs { task: Some(&task), api_socket: Some("/s"), ..Inputs::new(&alloc, &node) });
    for name in [
        "NOMAD_MEMORY_LIMIT",
        "NOMAD_MEMORY_MAX_LIMIT",
        "NOMAD_CPU_CORES",
        "NOMAD_CPU_LIMIT",
        "NOMAD_ALLOC_DIR",
        "NOMAD_TOKEN",
        "NOMAD_UNIX_ADDR",
        "NOMAD_DC",
        "NOMAD_PARENT_CGROUP",
        "NOMAD_ALLOC_IP_http",
    ] {
        assert_eq!(env.var(name), None, "{name}");
    }
    let group = build(&Inputs::new(&alloc, &node));
    assert_eq!(group.var("NOMAD_TASK_NAME"), None);
    assert_eq!(group.var("NOMAD_GROUP_NAME"), Some("cache"));
}

#[test]
fn ports_with_other_labels_and_addresses() {
    let node = node();
    let mut alloc = alloc();
    alloc.ports = [("x".into(), port("::1", 80, 0)), ("my-port".into(), port("10.0.0.5", 81, 0))].into();
    let env = build(&Inputs::new(&alloc, &node));
    check(
        &env,
        &[
            ("NOMAD_ADDR_x", "[::1]:80"),
            ("NOMAD_IP_x", "::1"),
            ("NOMAD_PORT_my_port", "81"),
            ("NOMAD_HOST_PORT_my_port", "81"),
            ("NOMAD_ADDR_my_port", "10.0.0.5:81"),
            ("NOMAD_IP_my_port", "10.0.0.5"),
            ("NOMAD_HOST_ADDR_my-port", "10.0.0.5:81"),
            ("NOMAD_HOST_IP_my-port", "10.0.0.5"),
            ("NOMAD_ALLOC_PORT_my-port", "81"),
        ],
    );
    assert_eq!(env.variables().get("NOMAD_PORT_my-port"), None);
    assert_eq!(env.interpolate("${NOMAD_PORT_my-port}"), "81");
}

#[test]
fn tasks_with_networks_of_their_own_know_each_others_ports() {
    let node = node();
    let mut alloc = alloc();
    let ports_at = |ip: &str, value| BTreeMap::from([("http".to_string(), port(ip, value, 80))]);
    alloc.task_ports = [
        ("redis".to_string(), ports_at("10.0.0.5", 23_000)),
        ("my-web".to_string(), ports_at("::1", 23_001)),
    ]
    .into();
    alloc.ports.clear();
    let task = task();
    let env = build(&Inputs { task: Some(&task), ..Inputs::new(&alloc, &node) });
    check(
        &env,
        &[
            ("NOMAD_IP_http", "10.0.0.5"),
            ("NOMAD_IPv4_http", "10.0.0.5"),
            ("NOMAD_PORT_http", "23000"),
            ("NOMAD_HOST_PORT_http", "23000"),
            ("NOMAD_ADDR_http", "10.0.0.5:23000"),
            ("NOMAD_IP_my_web_http", "::1"),
            ("NOMAD_PORT_my_web_http", "23001"),
            ("NOMAD_ADDR_my_web_http", "[::1]:23001"),
        ],
    );
    assert_eq!(env.var("NOMAD_ADDR_redis_http"), None);
    assert_eq!(env.interpolate("${NOMAD_ADDR_my-web_http}"), "[::1]:23001");
}

#[test]
fn unbounded_memory_is_minus_one() {
    let (node, alloc) = (node(), alloc());
    let mut task = task();
    task.resources.memory_max_mib = Some(herdlet_api_types::job::Resources::ALL_MEMORY);
    let env = build(&Inputs { task: Some(&task), ..Inputs::new(&alloc, &node) });
    check(&env, &[("NOMAD_MEMORY_MAX_LIMIT", "-1"), ("NOMAD_MEMORY_LIMIT", "256")]);
}

#[test]
fn cores_and_their_clock_rate_are_known_to_the_task() {
    let (node, mut alloc) = (node(), alloc());
    let given = AssignedCores { cores: CoreSet([0, 1, 5].into()), cpu_mhz: 6_000 };
    alloc.task_cores.insert("redis".to_string(), given);
    let mut task = task();
    task.resources.cpu_mhz = None;
    let env = build(&Inputs { task: Some(&task), ..Inputs::new(&alloc, &node) });
    check(&env, &[("NOMAD_CPU_CORES", "0-1,5"), ("NOMAD_CPU_LIMIT", "6000")]);
}

#[test]
fn written_meta_wins_over_made_upper_case() {
    let (node, alloc) = (node(), alloc_with(|job| job.meta = variables(&[("foo", "low"), ("FOO", "up")])));
    check(&build(&Inputs::new(&alloc, &node)), &[("NOMAD_META_foo", "low"), ("NOMAD_META_FOO", "up")]);
}

fn task_env(entries: &[(&str, &str)]) -> TaskEnv {
    let (alloc, node, mut task) = (alloc(), node(), task());
    task.env = variables(entries);
    let host_env = variables(&[("PATH", "/bin"), ("A", "host")]);
    build(&Inputs { task: Some(&task), host_env: &host_env, ..Inputs::new(&alloc, &node) })
}

#[test]
fn a_task_with_a_user_has_not_the_agents_login() {
    let (alloc, node, mut task) = (alloc(), node(), task());
    task.env = variables(&[("SHELL", "/bin/own")]);
    let host_env = variables(&[
        ("HOME", "/root"),
        ("USER", "root"),
        ("LOGNAME", "root"),
        ("MAIL", "/m"),
        ("SHELL", "/s"),
    ]);
    let build_for =
        |task: &Task| build(&Inputs { task: Some(task), host_env: &host_env, ..Inputs::new(&alloc, &node) });
    check(&build_for(&task), &[("HOME", "/root"), ("USER", "root"), ("MAIL", "/m"), ("SHELL", "/bin/own")]);
    task.user = Some("web".into());
    let env = build_for(&task);
    assert_eq!(["HOME", "USER", "LOGNAME", "MAIL"].map(|name| env.var(name)), [None; 4]);
    assert_eq!(env.var("SHELL"), Some("/bin/own"));
}

#[test]
fn entries_that_name_each_other_resolve_by_dependency() {
    // In Nomad the result depends on the order of a Go map.
    let env = task_env(&[("A1", "${B1}!"), ("B1", "${C1}-${C1}"), ("C1", "${node.class}")]);
    check(&env, &[("A1", "edge-edge!"), ("B1", "edge-edge"), ("C1", "edge")]);
    let env = task_env(&[("Z", "z"), ("M", "${Z}m"), ("B", "${M}b")]);
    check(&env, &[("B", "zmb")]);
}

#[test]
fn an_entry_that_names_itself_has_the_earlier_value() {
    let env = task_env(&[("PATH", "${PATH}:/opt/bin"), ("SEARCH", "${PATH}"), ("NEW", "${NEW}")]);
    check(&env, &[("PATH", "/bin:/opt/bin"), ("SEARCH", "/bin:/opt/bin"), ("NEW", "${NEW}")]);
}

#[test]
fn cycles_stay_as_written() {
    let env = task_env(&[
        ("A", "${B}/${NOMAD_JOB_ID}"),
        ("B", "${A}"),
        ("AFTER", "<${A}>"),
        ("AFTER2", "${AFTER}"),
        ("FREE", "ok"),
    ]);
    check(
        &env,
        &[
            ("A", "${B}/web"),
            ("B", "${A}"),
            ("AFTER", "<${B}/web>"),
            ("AFTER2", "<${B}/web>"),
            ("FREE", "ok"),
        ],
    );
}

#[test]
fn values_that_multiply_stay_bounded() {
    let mut entries = vec![("V00".to_string(), "x".repeat(1000))];
    for level in 1..30 {
        entries.push((format!("V{level:02}"), format!("${{V{:02}}}", level - 1).repeat(10)));
    }
    let entries: Vec<_> = entries.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let env = task_env(&entries);
    let total: usize = env.variables().values().map(String::len).sum();
    let written: usize = entries.iter().map(|(_, value)| value.len()).sum();
    assert!(total < VALUES_BYTES_MAX + written, "{total}");
    let big = "x".repeat(900_000);
    let mut entries = vec![("BIG", big.as_str())];
    entries.extend(["A0", "A1", "A2", "A3", "A4"].map(|name| (name, "${BIG}")));
    let env = task_env(&entries);
    check(&env, &[("A2", &big), ("A3", "${BIG}"), ("A4", "${BIG}")]);
    // Entries on a cycle share the remaining room.
    let entries =
        [("BIG", &*big), ("A", "${B}${BIG}"), ("B", "${C}${BIG}"), ("C", "${D}${BIG}"), ("D", "${A}${BIG}")];
    check(&task_env(&entries), &entries[1..]);
}

#[test]
fn debug_prints_no_value() {
    let text = format!("{:?}", task_env(&[("PASSWORD", "hunter2")]));
    assert!(text.contains("PASSWORD") && !text.contains("hunter2"));
}

#[test]
fn names_are_cleaned_bytewise() {
    for (name, expected) in [
        ("NOMAD_META_owner.team", "NOMAD_META_owner_team"),
        ("NOMAD_ADDR_a-b", "NOMAD_ADDR_a_b"),
        ("NOMAD_PORT_h2.c", "NOMAD_PORT_h2_c"),
        ("NOMAD_META_ü", "NOMAD_META___"),
        ("NOMAD_HOST_IP_a-b", "NOMAD_HOST_IP_a-b"),
        ("OTHER.NAME", "OTHER.NAME"),
    ] {
        assert_eq!(key::cleaned(name), expected);
    }
    assert_eq!(key::clean("9lives.x"), "_lives_x");
}

fn names() -> impl Strategy<Value = Variables> {
    let text = prop_oneof!["(\\$\\{[A-D]\\}|x){0,4}", ".{0,20}"];
    proptest::collection::btree_map(prop_oneof!["[A-D]", ".{0,8}"], text, 0..8)
}

proptest! {
    #[test]
    fn never_panics_and_is_deterministic(host_env in names(), own in names(), meta in names(), hook in names()) {
        let alloc = alloc_with(|job| job.meta = meta);
        let (node, mut task, hooks) = (node(), task(), [hook]);
        task.env = own.clone();
        let inputs =
            Inputs { task: Some(&task), host_env: &host_env, hook_env: &hooks, ..Inputs::new(&alloc, &node) };
        let env = build(&inputs);
        prop_assert!(own.keys().all(|name| env.var(name).is_some()));
        prop_assert_eq!(env, build(&inputs));
    }

    #[test]
    fn acyclic_entries_leave_nothing_unresolved(uses in proptest::collection::vec(proptest::collection::vec(0usize..12, 0..4), 12)) {
        // Entry n refers only to smaller numbers, with names that sort backwards.
        let name = |n: usize| format!("N{}", 90 - n);
        let entries: Variables = uses
            .iter()
            .enumerate()
            .map(|(n, uses)| {
                let named = uses.iter().filter(|&&used| used < n).map(|&used| format!("${{{}}}", name(used)));
                (name(n), named.collect::<String>() + ".")
            })
            .collect();
        let pairs: Vec<_> = entries.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        let env = task_env(&pairs);
        prop_assert!(entries.keys().all(|name| !env.var(name).unwrap_or("$").contains('$')));
    }
}

/// As in Nomad: later than variables and facts of the node, and not in meta.
#[test]
fn secrets_are_values_of_env_and_texts_but_no_variables() {
    let (alloc, node) = (alloc(), node());
    let mut task = task();
    task.env = variables(&[("PASSWORD", "${secret.db.password}"), ("NONE", "${secret.db.none}")]);
    task.meta = variables(&[("m", "${secret.db.password}")]);
    let secrets =
        variables(&[("secret.db.password", "hunter2"), ("secret.db.a b", "odd"), ("PASSWORD", "no")]);
    let env = build(&Inputs { task: Some(&task), secrets: &secrets, ..Inputs::new(&alloc, &node) });
    check(
        &env,
        &[("PASSWORD", "hunter2"), ("NONE", "${secret.db.none}"), ("NOMAD_META_m", "${secret.db.password}")],
    );
    assert_eq!(env.var("secret.db.password"), None);
    assert_eq!(env.interpolate("x ${secret.db.password} ${secret.db.none}"), "x hunter2 ${secret.db.none}");
    let config = |text: &str| crate::interpolate::interpolate_config(&serde_json::json!({ "a": text }), &env);
    let read = |text: &str| config(text).map(|config| config["a"].as_str().unwrap_or_default().to_string());
    assert_eq!(read("${secret.db.password}").as_deref(), Ok("hunter2"));
    assert_eq!(read("${secret.db[\"a b\"]}").as_deref(), Ok("odd"));
    for unknown in ["${secret.db.none}", "${secret.other.password}", "${secret[\"db\"]}"] {
        assert!(config(unknown).is_err(), "{unknown}");
    }
    let shown = format!("{env:?}");
    assert!(!shown.contains("hunter2") && shown.contains("secret.db.password"), "{shown}");
}
