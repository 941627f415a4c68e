//! Requests to create containers: what a config becomes, and what is refused.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_api_types::{
    AllocId,
    alloc::{AssignedPort, CoreSet},
    job::{LogMode, Logs, Resources},
};
use herdlet_driver::{AttemptId, KillDefaults, TaskDirs};
use serde_json::{Value as Json, json};

use super::*;
use crate::policy::Mode;

struct Case {
    task: TaskConfig,
    options: Json,
    about: About,
    pins: Option<PathBuf>,
}

impl Case {
    fn new() -> Self {
        let port = |value, to| AssignedPort { host_ip: "127.0.0.1".into(), value, to };
        let task = TaskConfig {
            id: AttemptId { alloc: AllocId::from_hash([4; 16]), task: "t".into(), attempt: 1 },
            labels: BTreeMap::new(),
            env: vec![("A".into(), "1".into())],
            config: Json::Null,
            user: None,
            users: Vec::new(),
            resources: Resources { cpu_mhz: Some(500), memory_mib: Some(64), ..Resources::default() },
            cores: CoreSet::default(),
            dirs: TaskDirs {
                task: "/a/t".into(),
                shared: "/a/alloc".into(),
                logs: "/a/alloc/logs".into(),
                log_name: "t".into(),
            },
            logs: Logs { max_files: 1, max_file_size_mib: 1, disabled: false, mode: LogMode::Drop },
            kill: KillDefaults { signal: None, timeout: Duration::ZERO },
            mounts: Vec::new(),
            devices: Vec::new(),
            ports: [("http".to_owned(), port(20_000, 80)), ("raw".to_owned(), port(20_001, 0))].into(),
            own_ports: BTreeMap::new(),
            network: None,
        };
        Self { task, options: json!({}), about: About::fixture(), pins: None }
    }

    fn make(&self, mut config: Json) -> Result<Request, String> {
        config["image"] = "x".into();
        let config = crate::config::read("docker", &config).map_err(|error| error.to_string())?;
        let policy = Policy::of(&serde_json::from_value(self.options.clone()).unwrap(), Mode::Node).unwrap();
        let material = Material {
            task: &self.task,
            config: &config,
            policy: &policy,
            about: &self.about,
            compute: Compute { mhz: 2_000, cores: 2 },
            labels: BTreeMap::new(),
            pins: self.pins.clone(),
            pause: "pause".into(),
        };
        request(&material).map_err(|error| error.to_string())
    }

    fn denial(&self, mut config: Json) -> Option<String> {
        config["image"] = "x".into();
        let policy = Policy::of(&serde_json::from_value(self.options.clone()).unwrap(), Mode::Node).unwrap();
        denial(&crate::config::read("docker", &config).unwrap(), &policy)
    }

    fn host(&self, config: Json) -> HostConfig {
        self.make(config).unwrap().body.host_config.unwrap()
    }
}

#[test]
fn a_container_runs_on_the_cores_of_its_task() {
    let mut case = Case::new();
    case.task.cores = CoreSet([1, 2, 4].into());
    case.task.resources = Resources { cpu_mhz: Some(3_000), cores: Some(3), ..Resources::default() };
    let host = case.make(json!({})).unwrap().body.host_config.unwrap();
    assert_eq!(host.cpuset_cpus.as_deref(), Some("1-2,4"));
    assert_eq!(Case::new().make(json!({})).unwrap().body.host_config.unwrap().cpuset_cpus, None);
}

#[test]
fn ports_of_the_group_are_published_with_both_protocols() {
    let made = Case::new().make(json!({"ports": ["http", "raw"]})).unwrap();
    assert_eq!(made.port_map, [("http".to_owned(), 80), ("raw".to_owned(), 20_001)].into());
    let host = made.body.host_config.unwrap();
    let bindings = host.port_bindings.unwrap();
    let names: std::collections::BTreeSet<&str> = bindings.keys().map(String::as_str).collect();
    assert_eq!(names, ["80/tcp", "80/udp", "20001/tcp", "20001/udp"].into());
    let http = &bindings["80/tcp"].as_ref().unwrap()[0];
    assert_eq!((http.host_ip.as_deref(), http.host_port.as_deref()), (Some("127.0.0.1"), Some("20000")));
    let refused = Case::new().make(json!({"ports": ["nope"]})).unwrap_err();
    assert!(refused.contains("config.ports[0]: Port \"nope\" not found"), "{refused}");
}

#[test]
fn the_old_port_map_overrides_ports_and_their_variables() {
    let mut case = Case::new();
    case.task.env.push(("NOMAD_PORT_http".into(), "80".into()));
    let made = case.make(json!({"port_map": [{"http": 8080}]})).unwrap();
    assert_eq!(made.port_map["http"], 8080);
    assert!(made.body.env.unwrap().contains(&"NOMAD_PORT_http=8080".to_owned()));
    // A task's own network, as before groups had one: all ports are published.
    case.task.own_ports = [("db".to_owned(), AssignedPort { host_ip: "::1".into(), value: 5, to: 9 })].into();
    for config in [json!({}), json!({"ports": ["db"]})] {
        assert_eq!(case.make(config).unwrap().port_map, [("db".to_owned(), 5)].into());
    }
    case.task.env.push(("NOMAD_PORT_db".into(), "5".into()));
    let made = case.make(json!({"port_map": [{"db": 6379}]})).unwrap();
    assert_eq!(made.port_map, [("db".to_owned(), 6379)].into());
    assert!(made.body.env.unwrap().contains(&"NOMAD_PORT_db=6379".to_owned()));
    let bindings = made.body.host_config.unwrap().port_bindings.unwrap();
    let bound = &bindings["6379/tcp"].as_ref().unwrap()[0];
    assert_eq!((bound.host_ip.as_deref(), bound.host_port.as_deref()), (Some("::1"), Some("5")));
}

#[test]
fn a_shared_network_publishes_nothing() {
    for mode in ["host", "none", "container:x"] {
        let host = Case::new().host(json!({"network_mode": mode, "ports": ["http"]}));
        assert_eq!((host.network_mode.as_deref(), host.port_bindings), (Some(mode), None));
    }
    let refused = Case::new().make(json!({"ipv4_address": "10.0.0.2"})).unwrap_err();
    assert!(refused.contains("config.ipv4_address"), "{refused}");
}

#[test]
fn volumes_outside_of_the_allocation_need_a_permission() {
    let case = Case::new();
    let host = case.host(json!({"volumes": ["local/x:/x:ro", "../alloc/data:/y"]}));
    let binds = host.binds.unwrap();
    assert!(
        binds.contains(&"/a/t/local/x:/x:ro".to_owned()) && binds.contains(&"/a/alloc/data:/y".to_owned())
    );
    assert!(binds.contains(&"/a/alloc/logs:/alloc/logs:ro".to_owned()));
    for source in ["/etc", "../../etc", "/a/../etc"] {
        let refused = case.make(json!({"volumes": [format!("{source}:/x")]})).unwrap_err();
        assert!(refused.contains("config.volumes[0]") && refused.contains("volumes.enabled"), "{refused}");
    }
    for (mount, part) in [
        (json!({"type": "bind", "source": "/etc", "target": "/x"}), "volumes.enabled"),
        (json!({"source": "v", "target": "/x"}), "volumes.enabled"),
        (json!({"type": "other", "target": "/x"}), "`type` must be"),
        (json!({"type": "tmpfs", "target": "x"}), "absolute"),
    ] {
        let refused = case.make(json!({"mount": [mount]})).unwrap_err();
        assert!(refused.contains("config.mount[0]") && refused.contains(part), "{refused}");
    }
    let tmpfs = json!({"type": "tmpfs", "target": "/x", "tmpfs_options": [{"size": 1000}]});
    let mounts = case.host(json!({"mount": [tmpfs]})).mounts.unwrap();
    assert_eq!(mounts[0].tmpfs_options.as_ref().unwrap().size_bytes, Some(1000));
    let case = Case { options: json!({"volumes": {"enabled": true}}), ..Case::new() };
    let host = case.host(json!({"volumes": ["/etc:/x:ro,rslave"], "mount": {"type": "bind"}}).take_mount());
    assert!(host.binds.unwrap().contains(&"/etc:/x:ro,rslave".to_owned()));
}

/// The engine gets mounts of the agent in place of paths that tasks may change; and with a permission, the paths.
#[test]
fn paths_of_the_allocation_are_pinned() {
    let config = json!({"volumes": ["local/x:/x:ro", "../alloc/data:/y"], "mount": [{"type": "bind", "source": "local/z", "target": "/z"}]});
    let mut case = Case { pins: Some("/pins/a1".into()), ..Case::new() };
    let made = case.make(config.clone()).unwrap();
    let host = made.body.host_config.as_ref().unwrap();
    let binds = host.binds.as_ref().unwrap();
    assert!(
        binds.contains(&"/pins/a1/0:/x:ro".to_owned()) && binds.contains(&"/pins/a1/1:/y".to_owned()),
        "{binds:?}"
    );
    assert_eq!(host.mounts.as_ref().unwrap()[0].source.as_deref(), Some("/pins/a1/2"));
    let pins: Vec<_> =
        made.pins.iter().map(|pin| (pin.field.as_str(), pin.source.to_str(), pin.missing)).collect();
    assert_eq!(
        pins,
        [
            ("volumes[0]", Some("/a/t/local/x"), Missing::Create),
            ("volumes[1]", Some("/a/alloc/data"), Missing::Create),
            ("mount[0]", Some("/a/t/local/z"), Missing::Refuse),
        ]
    );
    // Later mounts would not reach a mount of the agent.
    for config in [
        json!({"volumes": ["local/x:/x:rshared"]}),
        json!({"mount": [{"type": "bind", "source": "local/x", "target": "/x", "bind_options": {"propagation": "rslave"}}]}),
    ] {
        let refused = case.make(config).unwrap_err();
        assert!(refused.contains("propagation") && refused.contains("volumes.enabled"), "{refused}");
    }
    case.options = json!({"volumes": {"enabled": true}});
    let made = case.make(config).unwrap();
    assert!(made.pins.is_empty());
    assert!(made.body.host_config.unwrap().binds.unwrap().contains(&"/a/t/local/x:/x:ro".to_owned()));
}

trait TakeMount {
    fn take_mount(self) -> Json;
}

impl TakeMount for Json {
    fn take_mount(mut self) -> Json {
        self.as_object_mut().unwrap().remove("mount");
        self
    }
}

/// A task could bind any directory of the machine at its next start: through a link in its own directory.
#[test]
fn a_link_that_leads_outside_is_no_way_around() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("t/local")).unwrap();
    std::os::unix::fs::symlink("/etc", dir.path().join("t/local/x")).unwrap();
    let mut case = Case::new();
    case.task.dirs.task = dir.path().join("t");
    assert!(case.make(json!({"volumes": ["local/x:/x"]})).is_err());
    assert!(case.make(json!({"volumes": ["local/y:/x"]})).is_ok());
    for (name, to) in [("dangling", "/nowhere"), ("up", "../.."), ("beside", "../../alloc")] {
        std::os::unix::fs::symlink(to, dir.path().join("t/local").join(name)).unwrap();
    }
    assert!(case.make(json!({"volumes": ["local/dangling/x:/x"]})).is_err());
    assert!(case.make(json!({"volumes": ["local/up:/x"]})).is_err());
    case.task.dirs.shared = dir.path().join("alloc");
    case.task.dirs.logs = dir.path().join("alloc/logs");
    std::fs::create_dir_all(&case.task.dirs.logs).unwrap();
    assert!(case.make(json!({"volumes": ["local/beside/data:/x"]})).is_ok());
}

/// A task mounted the directory that has its own, and put a link in place of `local`: its next attempt had the machine's `/`.
#[test]
fn a_task_cannot_replace_the_directories_that_are_mounted() {
    let case = Case::new();
    for source in ["..", ".", "../t", "../u", "private", "../u/private/x", "../alloc.json", "local/../../"] {
        let refused = case.make(json!({"volumes": [format!("{source}:/x")]})).unwrap_err();
        assert!(refused.contains("volumes.enabled"), "{refused}");
    }
    for source in ["local", "conf/x", "../alloc", "../alloc/data", "../u/local"] {
        case.make(json!({"volumes": [format!("{source}:/x")]})).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let mut case = Case::new();
    case.task.dirs.task = dir.path().join("t");
    case.task.dirs.shared = dir.path().join("alloc");
    case.task.dirs.logs = dir.path().join("alloc/logs");
    std::fs::create_dir_all(&case.task.dirs.logs).unwrap();
    std::fs::create_dir_all(dir.path().join("t/secrets")).unwrap();
    case.make(json!({})).unwrap();
    for name in ["t/local", "alloc/logs"] {
        let _ = std::fs::remove_dir(dir.path().join(name));
        std::os::unix::fs::symlink("/etc", dir.path().join(name)).unwrap();
        let refused = case.make(json!({})).unwrap_err();
        assert!(refused.contains(name) && refused.contains("is a link"), "{refused}");
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
}

#[test]
fn memory_and_processor() {
    let mut case = Case::new();
    let host = case.host(json!({}));
    assert_eq!(
        (host.memory, host.memory_reservation, host.memory_swap),
        (Some(64 << 20), None, Some(64 << 20))
    );
    assert_eq!((host.cpu_shares, host.cpu_quota), (Some(500), None));
    let host = case.host(json!({"cpu_hard_limit": true, "memory_hard_limit": 128}));
    assert_eq!((host.cpu_period, host.cpu_quota), (Some(100_000), Some(50_000)));
    assert_eq!((host.memory, host.memory_reservation), (Some(128 << 20), Some(64 << 20)));
    case.task.resources.memory_max_mib = Some(Resources::ALL_MEMORY);
    let host = case.host(json!({}));
    assert_eq!((host.memory, host.memory_reservation), (None, Some(64 << 20)));
    let host = case.host(json!({"ulimit": {"nofile": "10:20", "nproc": 5}, "pids_limit": 9}));
    let limits = host.ulimits.unwrap();
    assert_eq!((limits[0].soft, limits[0].hard, limits[1].hard), (Some(10), Some(20), Some(5)));
    assert_eq!(host.pids_limit, Some(9));
    assert!(case.make(json!({"ulimit": {"nofile": "x"}})).unwrap_err().contains("config.ulimit.nofile"));
    case.options = json!({"pids_limit": 5});
    assert!(case.make(json!({"pids_limit": 9})).unwrap_err().contains("config.pids_limit"));
}

/// A job whose every start fails was accepted without a warning.
#[test]
fn what_the_options_deny_is_known_before_the_start() {
    let [closed, open] = [
        json!({}),
        json!({"allow_privileged": true, "allow_caps": ["all"], "allow_runtimes": ["kata"], "volumes": {"enabled": true}}),
    ]
    .map(|options| Case { options, ..Case::new() });
    for (config, field) in [
        (json!({"privileged": true}), "use config.privileged: "),
        (json!({"cap_add": ["net_admin"]}), "use config.cap_add: "),
        (json!({"ipc_mode": "host"}), "use config.ipc_mode: "),
        (json!({"runtime": "kata"}), "use config.runtime: "),
        (json!({"volumes": ["data:/x", "/srv:/srv:ro"]}), "use config.volumes[1]: "),
        (json!({"mount": [{"type": "bind", "source": "/srv", "target": "/x"}]}), "use config.mount[0]: "),
        (json!({"mounts": [{"type": "volume", "source": "x", "target": "/x"}]}), "use config.mounts[0]: "),
    ] {
        assert!(closed.denial(config.clone()).is_some_and(|why| why.starts_with(field)), "{config}");
        assert_eq!(open.denial(config), None);
    }
    // What a variable or a link leads to is known at the start.
    for config in [
        json!({"pid_mode": "container:t-${NOMAD_ALLOC_ID}"}),
        json!({"volumes": ["${NOMAD_TASK_DIR}/x:/x", "local/x:/y"]}),
        json!({"mount": [{"type": "tmpfs", "target": "/x"}]}),
    ] {
        assert_eq!(closed.denial(config), None);
    }
}

#[test]
fn rights_need_a_permission() {
    let case = Case::new();
    for (config, field) in [
        (json!({"privileged": true}), "config.privileged"),
        (json!({"cap_add": ["net_admin"]}), "config.cap_add"),
        (json!({"pid_mode": "host"}), "config.pid_mode"),
        (json!({"ipc_mode": "host"}), "config.ipc_mode"),
        // A container of somebody else.
        (json!({"pid_mode": "container:vault"}), "config.pid_mode"),
        (json!({"ipc_mode": "container:vault"}), "config.ipc_mode"),
        (json!({"uts_mode": "host"}), "config.uts_mode"),
        (json!({"userns_mode": "host"}), "config.userns_mode"),
        (json!({"runtime": "kata"}), "config.runtime"),
        (json!({"cgroupns": "x"}), "config.cgroupns"),
        (json!({"security_opt": ["x"]}), "config.security_opt[0]"),
        (json!({"security_opt": ["seccomp=none.json"]}), "config.security_opt[0]"),
    ] {
        let refused = case.make(config).unwrap_err();
        assert!(refused.contains(field), "{refused}");
    }
    let case = Case { options: json!({"allow_privileged": true, "allow_caps": ["all"]}), ..Case::new() };
    let host = case.host(json!({"privileged": true, "pid_mode": "host"}));
    assert_eq!((host.privileged, host.pid_mode.as_deref()), (Some(true), Some("host")));
    let case = Case { options: json!({"allowed_modes": {"pid": ["host"]}}), ..Case::new() };
    assert!(
        case.make(json!({"pid_mode": "host"})).is_ok() && case.make(json!({"ipc_mode": "host"})).is_err()
    );
    assert!(case.make(json!({"pid_mode": "container:x"})).is_err());
    let modes = json!({"pid": ["container"], "ipc": ["container:x"]});
    let case = Case { options: json!({"allowed_modes": modes}), ..Case::new() };
    let host = case.host(json!({"pid_mode": "container:y", "ipc_mode": "container:x"}));
    assert_eq!(
        (host.pid_mode.as_deref(), host.ipc_mode.as_deref()),
        (Some("container:y"), Some("container:x"))
    );
    for config in [json!({"ipc_mode": "container:y"}), json!({"pid_mode": "host"})] {
        case.make(config).unwrap_err();
    }
    for private in ["private", "shareable", "none"] {
        case.make(json!({"ipc_mode": private})).unwrap();
    }
}

/// The errors of a profile told a job's author which files a machine has, and what is in them.
#[test]
fn a_seccomp_profile_of_the_machine_needs_a_permission() {
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("p.json");
    std::fs::write(&outside, "{\"x\": 1}").unwrap();
    let mut case = Case::new();
    case.task.dirs.task = dir.path().join("t");
    std::fs::create_dir_all(dir.path().join("t/local")).unwrap();
    std::fs::write(dir.path().join("t/local/p.json"), "{}").unwrap();
    let option = |path: &Path| json!({"security_opt": [format!("seccomp={}", path.display())]});
    let reasons = [&outside, Path::new("/etc/passwd"), Path::new("/no/such")].map(|path| {
        let refused = case.make(option(path)).unwrap_err();
        refused.replace(&*path.to_string_lossy(), "PATH")
    });
    assert!(
        reasons[0].contains("volumes.enabled") && reasons.iter().all(|why| *why == reasons[0]),
        "{reasons:?}"
    );
    for inside in ["local/p.json".into(), dir.path().join("t/local/p.json")] {
        case.make(option(&inside)).unwrap();
    }
    case.options = json!({"volumes": {"enabled": true}});
    assert_eq!(case.host(option(&outside)).security_opt.unwrap(), ["seccomp={\"x\":1}"]);
}

/// With `compress` the engine rewrites its files, which were read no further.
#[test]
fn compressed_log_files_are_not_asked_for() {
    let mut case = Case::new();
    let config = json!({"logging": {"type": "json-file", "config": {"compress": "true", "max-file": "5"}}});
    let made = case.make(config.clone()).unwrap();
    let options = made.body.host_config.unwrap().log_config.unwrap().config.unwrap();
    assert_eq!(options.into_iter().collect::<Vec<_>>(), [("max-file".to_owned(), "5".to_owned())]);
    assert!(made.notes.iter().any(|note| note.contains("compress")), "{:?}", made.notes);
    // Nothing reads them.
    case.task.logs.disabled = true;
    let made = case.make(config).unwrap();
    assert_eq!(made.body.host_config.unwrap().log_config.unwrap().config.unwrap()["compress"], "true");
    assert!(made.notes.is_empty());
}

#[test]
fn the_hash_depends_on_all_of_the_request_and_not_on_order() {
    let case = Case::new();
    let config = || json!({"labels": {"a": "1", "b": "2", "c": "3"}, "sysctl": {"x": 1, "y": 2}});
    let first = case.make(config()).unwrap().hash();
    for _ in 0..8 {
        assert_eq!(case.make(config()).unwrap().hash(), first);
    }
    assert_ne!(case.make(json!({"args": ["x"]})).unwrap().hash(), case.make(json!({})).unwrap().hash());
}

#[test]
fn command_logging_and_the_rest() {
    let case = Case::new();
    let made = case.make(json!({"command": "a", "args": ["b", "c"], "entrypoint": "e", "hostname": "h", "init": true,
        "healthchecks": {"disable": true}, "logging": {"type": "syslog", "config": {"tag": "x"}}, "devices": [{"host_path": "/dev/x"}]}));
    let made = made.unwrap();
    assert_eq!(made.body.cmd.unwrap(), ["a", "b", "c"]);
    assert_eq!(made.body.entrypoint.unwrap(), ["e"]);
    assert_eq!(made.body.healthcheck.unwrap().test.unwrap(), ["NONE"]);
    assert_eq!(made.logs, LogSource::Elsewhere("syslog".into()));
    let host = made.body.host_config.unwrap();
    assert_eq!(host.devices.unwrap()[0].path_in_container.as_deref(), Some("/dev/x"));
    let made = case.make(json!({})).unwrap();
    assert_eq!((made.logs, made.body.cmd), (LogSource::Files, None));
    let case = Case { options: json!({"disable_log_collection": true, "oom_score_adj": 7}), ..Case::new() };
    let made = case.make(json!({"storage_opt": {"size": "1G"}, "volume_driver": "v", "group_add": ["5"]}));
    let made = made.unwrap();
    assert_eq!(made.logs, LogSource::Disabled);
    let host = made.body.host_config.as_ref().unwrap();
    assert_eq!(
        (&host.storage_opt.as_ref().unwrap()["size"], host.oom_score_adj),
        (&"1G".to_owned(), Some(7))
    );
    assert_eq!(
        (host.volume_driver.as_deref(), host.group_add.as_ref().unwrap()),
        (Some("v"), &vec!["5".to_owned()])
    );
    assert!(Path::new(&made.body.host_config.unwrap().binds.unwrap()[0]).starts_with("/a/alloc:"));
}

/// A task whose group has a network of its own.
fn in_group() -> Case {
    let mut case = Case::new();
    case.task.network = Some(herdlet_driver::NetworkSpace { path: "/run/netns/a".into(), hostname: None });
    let file = |name: &str| herdlet_driver::Mount {
        host_path: Path::new("/a/.network").join(name),
        task_path: Path::new("/etc").join(name),
        readonly: true,
        propagation: herdlet_driver::Propagation::Private,
    };
    case.task.mounts = vec![file("hosts"), file("resolv.conf")];
    case
}

fn targets(host: &HostConfig) -> Vec<&str> {
    host.mounts.iter().flatten().filter_map(|mount| mount.target.as_deref()).collect()
}

#[test]
fn a_container_joins_the_network_of_its_group() {
    let mut case = in_group();
    let made = case.make(json!({"ports": ["http"], "extra_hosts": ["db:10.0.0.5"]})).unwrap();
    let network = made.network.unwrap();
    assert_eq!(
        (network.namespace.to_str(), &*network.hosts),
        (Some("/run/netns/a"), &["10.0.0.5 db".to_owned()][..])
    );
    assert_eq!((made.port_map.len(), made.notes.len(), made.body.exposed_ports), (0, 0, None));
    let host = made.body.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("container:pause"));
    assert_eq!((&host.port_bindings, &host.extra_hosts, &host.dns), (&None, &None, &None));
    assert_eq!(targets(&host), ["/etc/hosts", "/etc/resolv.conf"]);
    case.about.kind = crate::engine::Kind::Podman;
    assert_eq!(case.host(json!({})).network_mode.as_deref(), Some("ns:/run/netns/a"));
    assert!(case.make(json!({"hostname": "h"})).unwrap_err().contains("config.hostname: "));
}

/// Nomad's rule: a mode that the task writes itself wins.
#[test]
fn a_task_with_a_mode_of_its_own_does_not_use_the_network_of_its_group() {
    let made = in_group().make(json!({"network_mode": "host", "extra_hosts": ["db:host-gateway"]})).unwrap();
    assert!(made.network.is_none());
    assert!(made.notes[0].contains("its network_mode is \"host\""), "{:?}", made.notes);
    let host = made.body.host_config.unwrap();
    assert_eq!((host.network_mode.as_deref(), targets(&host).len()), (Some("host"), 0));
    assert_eq!(host.extra_hosts.unwrap(), ["db:host-gateway"]);
}

/// Two mounts at one place are an error of the engine.
#[test]
fn a_file_that_the_task_mounts_replaces_the_one_of_the_network() {
    let mut case = in_group();
    case.options = json!({"volumes": {"enabled": true}});
    let host = case.host(json!({"volumes": ["local/hosts:/etc/hosts"]}));
    assert_eq!(targets(&host), ["/etc/resolv.conf"]);
    let mount = json!({"type": "bind", "source": "local/r", "target": "/etc/resolv.conf"});
    assert_eq!(targets(&case.host(json!({"mount": [mount]}))), ["/etc/hosts", "/etc/resolv.conf"]);
}

#[test]
fn users_of_containers_alone_cannot_join_the_network_of_a_group() {
    let mut case = in_group();
    case.about.remaps_users = true;
    let refused = case.make(json!({})).unwrap_err();
    assert!(refused.contains("config.userns_mode: ") && refused.contains("userns-remap"), "{refused}");
    case.options = json!({"allow_privileged": true});
    case.make(json!({"userns_mode": "host"})).unwrap();
}

#[test]
fn volumes_get_the_label_and_containers_the_log_driver_of_the_options() {
    let mut case = Case::new();
    case.options = json!({"volumes": {"enabled": true, "selinuxlabel": "z"}, "logging": {"type": "syslog", "config": {"tag": "own"}}});
    let made = case.make(json!({"volumes": ["/srv:/srv:ro"]})).unwrap();
    let host = made.body.host_config.unwrap();
    let binds = host.binds.unwrap();
    for bind in ["/a/alloc:/alloc:z", "/a/alloc/logs:/alloc/logs:ro,z", "/srv:/srv:ro,z"] {
        assert!(binds.iter().any(|found| found == bind), "{bind}: {binds:?}");
    }
    let log = host.log_config.unwrap();
    assert_eq!((log.typ.as_deref(), &log.config.unwrap()["tag"]), (Some("syslog"), &"own".to_owned()));
    assert_eq!(made.logs, LogSource::Elsewhere("syslog".to_owned()));
    let own = case.host(json!({"logging": {"type": "json-file"}}));
    assert_eq!(own.log_config.unwrap().typ.as_deref(), Some("json-file"));
}
