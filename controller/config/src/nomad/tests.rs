//! Typical agent files, and faulty ones.

use herdlet_driver::Availability;
use herdlet_fingerprint::Family;
use herdlet_manifest::yaml::Problems;

use crate::{
    Config, ConfigError, Flags, Surroundings,
    sources::{Language, Loaded, Opening, Sources},
};

fn load(texts: &[(&str, &str)]) -> Result<Loaded, Problems> {
    let mut sources = Sources::default();
    for (name, text) in texts {
        let language = match name.rsplit_once('.').unwrap().1 {
            "hcl" => Language::Hcl,
            "json" => Language::Json,
            _ => Language::Yaml,
        };
        sources.add(name, text.as_bytes(), language);
    }
    sources.file()
}

fn config_of(texts: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "box" };
    Config::merge(Flags::default(), load(texts).map_err(ConfigError::Problems)?, &surroundings)
}

fn lines(problems: &Problems) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

const CLIENT: &str = r#"
# /etc/nomad.d/client.hcl
region     = "eu"
datacenter = "fra1"
name       = "edge-1"
data_dir   = "/opt/nomad"
bind_addr  = "10.0.0.7"
log_level  = "WARN"
log_json   = true
leave_on_terminate = true
disable_update_check = true

addresses { http = "127.0.0.1" }
ports     { http = 5646 rpc = 5647 }
advertise { http = "10.0.0.7" }

server { enabled = false  bootstrap_expect = 3 }

client {
  enabled    = true
  servers    = ["10.0.0.1", "10.0.0.2:4747"]
  node_class = "edge"
  node_pool  = "gpu"

  server_join {
    retry_join     = ["nomad.example.org", "provider=aws tag_key=x"]
    retry_interval = "15s"
    retry_max      = 3
  }
  meta {
    "rack.row" = "17"
    size = 3
  }
  options = {
    "driver.allowlist" = "raw_exec,exec"
    "fingerprint.denylist" = "env_aws, consul"
  }
  host_volume "certs" {
    path      = "/etc/ssl/certs"
    read_only = true
  }
  host_volume "data" { path = "/data" }
  host_network "private" {
    cidr = "10.0.0.0/8,192.168.0.0/16"
    reserved_ports = "22,80"
  }
  reserved {
    cpu            = 500
    memory         = 512
    disk           = 1024
    reserved_ports = "22,8500-8600"
  }
  network_interface        = "eth0"
  network_speed            = 100
  preferred_address_family = "ipv6"
  cpu_total_compute        = "8000"
  disk_free_mb             = 1000
  disk_total_mb            = 5000
  min_dynamic_port         = 25000
  max_kill_timeout         = "1m"
  gc_interval              = "30s"
  gc_disk_usage_threshold  = 80.5
  gc_max_allocs            = 10
  cgroup_parent            = "nomad.slice"
  node_max_allocs          = 7
  no_host_uuid             = true
  drain_on_shutdown {
    ignore_system_jobs = true
  }
}

plugin "raw_exec" { config { enabled = true } }
consul { address = "127.0.0.1:8501" ssl = true token = "s3cret" client_auto_join = false }
acl { enabled = true token_ttl = "1m" }
tls {
  http = true
  rpc  = true
  ca_file   = "/tls/ca.pem"
  cert_file = "/tls/client.pem"
  key_file  = "/tls/client-key.pem"
  verify_server_hostname = true
  verify_https_client    = true
}
telemetry { publish_allocation_metrics = true prometheus_metrics = true }
"#;

#[test]
fn an_agent_file_of_a_client_is_understood() {
    let config = config_of(&[("client.hcl", CLIENT)]).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    assert_eq!(
        (config.region.as_str(), config.datacenter.as_str(), config.name.as_str()),
        ("eu", "fra1", "edge-1")
    );
    assert_eq!((config.node_class.as_str(), config.node_pool.as_str()), ("edge", "gpu"));
    assert_eq!((text(&config.state_dir).as_str(), config.log_level.as_str()), ("/opt/nomad/herdlet", "warn"));
    assert_eq!((config.meta["rack.row"].as_str(), config.meta["size"].as_str()), ("17", "3"));
    assert_eq!(config.drivers.availability("raw_exec"), Availability::Enabled);
    assert_eq!(config.dynamic_ports, 25_000..=32_000);
    assert_eq!(
        (config.reserved.cpu_mhz, config.reserved.memory_mib, config.reserved.disk_mib),
        (500, 512, 1_024)
    );
    assert!(config.reserved_ports.contains(&8_550));
    assert_eq!((config.total.cpu_mhz, config.total.disk_mib), (Some(8_000), Some(1_000)));
    assert_eq!((config.gc.gc_disk_usage_threshold, config.gc.gc_max_allocs), (80, 10));
    assert_eq!(config.max_kill_timeout.as_secs(), 60);
    assert_eq!(config.cgroup_parent, "nomad.slice");
    assert!(config.publish_allocation_metrics && config.listen.is_none());
    assert_eq!(config.consul.address.as_deref(), Some("https://127.0.0.1:8501"));
    assert_eq!(config.consul.token.as_ref().unwrap().reveal(), "s3cret");
    let volumes: Vec<_> =
        config.host_volumes.iter().map(|volume| (&volume.name.0[..], volume.read_only)).collect();
    assert_eq!(volumes, [("certs", true), ("data", false)]);

    let cluster = config.cluster.unwrap();
    assert_eq!(cluster.servers, ["10.0.0.1", "10.0.0.2:4747", "nomad.example.org"]);
    assert_eq!((cluster.retry_interval.as_secs(), cluster.retry_max), (15, 3));
    assert_eq!((cluster.http.to_string().as_str(), cluster.client_auto_join), ("127.0.0.1:5646", false));
    assert_eq!(cluster.http_addr(None), "10.0.0.7:5646");
    assert_eq!(cluster.moved_from.as_deref().map(text).as_deref(), Some("/opt/nomad/client"));
    assert_eq!(cluster.network.interface.as_deref(), Some("eth0"));
    assert_eq!((cluster.network.speed, cluster.network.family), (Some(100), Some(Family::Ipv6)));
    let network = &cluster.network.host_networks[0];
    assert_eq!(
        (network.name.as_str(), network.cidr.len(), network.reserved_ports.as_str()),
        ("private", 2, "22,80")
    );
    assert_eq!(cluster.node_max_allocs, 7);
    assert!(cluster.leave_on_terminate && !cluster.leave_on_interrupt && cluster.acl.enabled);
    assert_eq!((cluster.acl.token_ttl.as_secs(), cluster.acl.policy_ttl.as_secs()), (60, 30));
    let drain = cluster.drain_on_shutdown.unwrap();
    assert_eq!(drain.deadline.unwrap().as_secs(), 3_600);
    assert!(drain.ignore_system_jobs && !drain.force);
    let tls = cluster.tls.unwrap();
    assert!(tls.verify_server_hostname && tls.key.ends_with("client-key.pem"));
    assert!(cluster.http_tls.unwrap().clients.unwrap().ends_with("ca.pem"));
    assert!(cluster.drivers.allows("raw_exec") && !cluster.drivers.allows("docker"));
    assert!(cluster.fingerprints.allows("cpu") && !cluster.fingerprints.allows("consul"));

    let warnings = lines(&config.warnings);
    let cloud = "client.hcl:26:44: client.server_join.retry_join: finds servers with a cloud's API, which herdlet does not support: name them, or use DNS or Consul";
    assert_eq!(warnings, [cloud]);
}

#[test]
fn settings_of_templates_are_read() {
    let hcl = r#"client { enabled = true servers = ["10.0.0.1"] template {
  function_denylist    = ["plugin", "sprig_*"]
  disable_file_sandbox = true
  max_stale            = "87600h"
  block_query_wait     = "5m"
  wait { min = "1s" max = "1m" }
  wait_bounds { min = "2s" }
  consul_retry { attempts = 0 backoff = "250ms" max_backoff = "1m" }
  nomad_retry { attempts = 12 backoff = "250ms" max_backoff = "2m" }
} }"#;
    let config = config_of(&[("a.hcl", hcl)]).unwrap();
    let template = config.template;
    assert_eq!(template.function_denylist, ["plugin", "sprig_*"]);
    assert_eq!((template.wait.min.as_secs(), template.wait.max.as_secs()), (1, 60));
    assert_eq!((template.wait_min.as_secs(), template.wait_max), (2, None));
    let set =
        [template.block_query_wait, template.max_stale, template.retry_backoff, template.retry_backoff_max];
    assert_eq!(set.map(|span| span.unwrap().as_millis()), [300_000, 315_360_000_000, 250, 120_000]);
    let of_consul = [template.consul_retry_backoff, template.consul_retry_backoff_max];
    assert_eq!(of_consul.map(|span| span.unwrap().as_millis()), [250, 60_000]);
    let unused = lines(&config.warnings);
    let starts = [
        "a.hcl:3:3: client.template.disable_file_sandbox: ",
        "a.hcl:8:18: client.template.consul_retry.attempts: ",
        "a.hcl:9:17: client.template.nomad_retry.attempts: ",
    ];
    assert_eq!(unused.len(), starts.len(), "{unused:?}");
    for (warning, start) in unused.iter().zip(starts) {
        assert!(warning.starts_with(start), "{warning}");
    }
    let all_allowed = config_of(&[(
        "a.hcl",
        "client { enabled = true servers = [\"10.0.0.1\"] template { function_denylist = [] } }",
    )])
    .unwrap();
    assert!(all_allowed.template.function_denylist.is_empty());
    let problems =
        load(&[("a.hcl", "client { template { wait { min = \"2s\" max = \"1s\" } } }")]).unwrap_err();
    let message = "client.template.wait.min: must be at most max (1s), found 2s";
    assert!(lines(&problems)[0].ends_with(message), "{problems}");
}

#[test]
fn json_and_several_files_give_the_same_config() {
    let json = r#"{"client": [{"enabled": true, "servers": "10.0.0.1", "meta": {"a": "1", "b": "1"},
        "host_volume": [{"certs": [{"path": "/a"}]}]}], "plugin": {"raw_exec": {"config": {"enabled": true}}}, "data_dir": "/a"}"#;
    let hcl = "client { servers = [\"10.0.0.2\"]\n meta { b = \"2\" }\n host_volume \"certs\" { path = \"/b\" }\n host_volume \"x\" { path = \"/x\" } }\n\
               plugin \"raw_exec\" { config { enabled = false } }";
    let yaml = "meta: {c: 3}\nstate_dir: /ours\n";
    let config = config_of(&[("a.json", json), ("b.hcl", hcl), ("c.yaml", yaml)]).unwrap();
    assert_eq!(config.meta.values().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(config.cluster.as_ref().unwrap().servers, ["10.0.0.1", "10.0.0.2"]);
    let volumes: Vec<_> = config.host_volumes.iter().map(|volume| volume.path.to_str().unwrap()).collect();
    assert_eq!(volumes, ["/b", "/x"]);
    assert_eq!(
        config.drivers.availability("raw_exec"),
        Availability::Disabled,
        "a later file overrides an earlier one"
    );
    assert_eq!(config.state_dir, std::path::Path::new("/ours"));
    assert!(config.warnings.is_empty());
}

#[test]
fn config_problems_are_reported_together() {
    let text = "data_dir = \"opt\"\nlog_level = \"LOUD\"\nserver { enabled = true }\nclient {\n  enabled = \"yes\"\n  servers = 1.5\n\
                \n  reserved { cpu = -1 }\n  max_kill_timeout = 30\n  gc_disk_usage_threshold = 101\n  host_volume \"a\" { path = [] }\n\
                \n  network_interface = \"{{ GetPrivateIP }}\"\n}\nports = 4646\nbind_addr = \"{{ GetNothing }}\"\n";
    let problems = load(&[("client.hcl", text)]).unwrap_err();
    let mut found = lines(&problems);
    let template = found.pop().unwrap();
    assert_eq!(
        found,
        [
            "client.hcl:2:13: log_level: expected TRACE, DEBUG, INFO, WARN or ERROR, found the string \"LOUD\"",
            "client.hcl:3:20: server.enabled: herdlet can't be a server: run servers with Nomad, and remove this key",
            "client.hcl:5:13: client.enabled: expected true or false, found the string \"yes\"",
            "client.hcl:8:20: client.reserved.cpu: expected a whole number, 0 or more, found the integer -1",
            "client.hcl:9:22: client.max_kill_timeout: expected a duration such as 30s or 1h30m, found the integer 30",
            "client.hcl:10:29: client.gc_disk_usage_threshold: expected a number from 0 to 100, found the integer 101",
            "client.hcl:11:28: client.host_volume.a.path: expected a string, found a list",
            "client.hcl:13:23: client.network_interface: is a template, but herdlet requires the name of an interface here, such as eth0",
            "client.hcl:15:9: ports: expected a block `ports { … }`, found the integer 4646",
        ]
    );
    assert!(template.starts_with(
        "client.hcl:16:13: bind_addr: has a template that herdlet does not support, `GetNothing`"
    ));
    let text = "data_dir = \"opt\"\nbind_addr = \"here\"\nclient {\n  enabled = true\n  servers = [\"a\", \"http://b\"]\n\
                \n  reserved { reserved_ports = \"x\" }\n  host_volume \"a\" { path = \"b\" }\n  host_network \"n\" { cidr = \"10.0.0.0\" }\n\
                \n  min_dynamic_port = 30000\n  max_dynamic_port = 20000\n}\ntls { rpc = true\n cert_file = \"/c\" }\n";
    let problems = load(&[("client.hcl", text)]).unwrap_err();
    for expected in [
        "client.hcl:1:12: data_dir: must be an absolute path, found \"opt/herdlet\"",
        "client.hcl:2:13: bind_addr: expected an IP address such as 0.0.0.0, found \"here\"",
        "client.hcl:5:19: client.servers[1]: expected HOST, HOST:PORT or the name of an SRV record, found \"http://b\"",
        "client.hcl:7:31: client.reserved.reserved_ports: expected ports such as 22,80,8500-8600, found \"x\"",
        "client.hcl:8:28: client.host_volume.a.path: must be an absolute path, found \"b\"",
        "client.host_network.n.cidr: expected a network such as 10.0.0.0/8, found \"10.0.0.0\"",
        "dynamic_ports: is empty: min 30000 is above max 20000",
        "cluster.tls.key_file: is missing: TLS needs it",
    ] {
        assert!(lines(&problems).iter().any(|line| line.contains(expected)), "{expected} in\n{problems}");
    }
}

#[test]
fn unused_or_unknown_settings_are_warnings() {
    let text = "vault { enabled = false tokn = \"x\" }\nclient {\n  enabled = true\n  node_clas = \"x\"\n  alloc_dir = \"/opt\"\n  host_volume \"a\" { path = \"/a\" readonly = true }\n\
                \n  options { \"env.denylist\" = \"X\" }\n}\nplugin \"docker\" { config { gc { image = true } imagine = 1 } }\nconsul { name = \"other\" address = \"x\" timeout = \"5s\" }\nwhatever = {}\n\
                plugin \"raw-exec\" {}\ntls { ca_file = \"/ca.pem\" }\n";
    let config = config_of(&[("client.hcl", text)]).unwrap();
    assert_eq!(
        lines(&config.warnings),
        [
            "client.hcl:1:25: vault.tokn: is not a known key; did you mean token?",
            "client.hcl:4:3: client.node_clas: is not a known key; did you mean node_class?",
            "client.hcl:5:3: client.alloc_dir: is not used by herdlet",
            "client.hcl:6:33: client.host_volume.a.readonly: is not a known key; did you mean read_only?",
            "client.hcl:8:13: client.options.env.denylist: is not used by herdlet",
            "client.hcl:10:48: plugin.docker.config.imagine: is not used by herdlet",
            "client.hcl:11:39: consul.timeout: is not used by herdlet",
            "client.hcl:12:1: whatever: is not a known key",
            "client.hcl:13:8: plugin.raw-exec: is not used by herdlet; did you mean raw_exec?",
            "client.hcl:14:17: cluster.tls: connections to servers do not use TLS, because rpc is not true",
        ]
    );
    assert_eq!(
        config.drivers.availability("raw_exec"),
        Availability::Disabled,
        "raw_exec must be enabled explicitly"
    );
}

#[test]
fn servers_of_vault_are_read_by_name() {
    let text = r#"client { enabled = true servers = ["10.0.0.1"] }
vault { enabled = true token = "server's" task_token_ttl = "72h" create_from_role = "nomad"
  default_identity { aud = ["v"] ttl = "10m" } }
vault { name = "eu" address = "https://eu:8200" namespace = "ns" tls_skip_verify = true jwt_auth_backend_path = "jwt" }
vault { name = "off" enabled = false address = "https://off" }"#;
    let config = config_of(&[("a.hcl", text)]).unwrap();
    assert!(config.warnings.is_empty(), "{}", config.warnings);
    assert_eq!(config.vault.keys().collect::<Vec<_>>(), ["default", "eu"]);
    let (default, eu) = (&config.vault["default"], &config.vault["eu"]);
    assert_eq!(default.address, "https://vault.service.consul:8200");
    assert_eq!(default.role.as_deref(), Some("nomad"));
    assert_eq!((&default.audiences[..], default.identity_ttl.as_secs()), (&["v".to_owned()][..], 600));
    assert_eq!((eu.namespace.as_deref(), eu.auth_path.as_str(), eu.skip_verify), (Some("ns"), "jwt", true));
    let wrong = load(&[("a.hcl", r#"vault { address = "vault:8200" }"#)]).unwrap_err();
    assert!(lines(&wrong)[0].starts_with("a.hcl:1:19: vault.address: must be like"), "{wrong}");
}

#[test]
fn consuls_are_read_by_name() {
    let text = r#"client { enabled = true servers = ["10.0.0.1"] }
consul { address = "10.0.0.2:8500" service_identity { aud = ["c"] ttl = "10m" } }
consul { name = "eu" address = "eu:8501" ssl = true token = "s3cret" namespace = "ns" client_auto_join = true
  task_identity { aud = ["e"] } task_auth_method = "jwt" }
consul { name = "local" }"#;
    let config = config_of(&[("a.hcl", text)]).unwrap();
    assert!(config.warnings.is_empty(), "{}", config.warnings);
    let all = config.consul.by_name();
    assert_eq!(all.keys().collect::<Vec<_>>(), ["default", "eu", "local"]);
    let addresses: Vec<_> = all.values().filter_map(|one| one.address.as_deref()).collect();
    assert_eq!(addresses, ["10.0.0.2:8500", "https://eu:8501", "127.0.0.1:8500"]);
    let (default, eu) = (&all["default"], &all["eu"]);
    assert_eq!(default.logins().services.identity.unwrap().audiences, ["c"]);
    assert_eq!((eu.namespace.as_deref(), eu.token.as_ref().unwrap().reveal()), (Some("ns"), "s3cret"));
    let tasks = eu.logins().tasks;
    assert_eq!((tasks.method.as_str(), &*tasks.identity.unwrap().audiences), ("jwt", &["e".to_owned()][..]));
    let wrong = load(&[("a.hcl", r#"consul { name = "a.b" }"#)]).unwrap_err();
    assert!(lines(&wrong)[0].contains("consul.name: must not contain a dot"), "{wrong}");
}

#[test]
fn a_client_has_to_be_enabled() {
    let not_enabled = config_of(&[("a.hcl", "client { servers = [\"a\"] }")]).unwrap_err();
    assert!(
        not_enabled.to_string().contains("no Nomad config file sets client { enabled = true }"),
        "{not_enabled}"
    );
    let off = config_of(&[("a.hcl", "client { enabled = false\n servers = [\"a\"] }")]).unwrap();
    assert!(off.cluster.is_none());
    assert_eq!(
        lines(&off.warnings),
        ["a.hcl:1:20: client.enabled: is false, so this machine is not a node of a cluster"]
    );
    // Consul has its servers.
    let on = config_of(&[("a.hcl", "client { enabled = true }")]).unwrap().cluster.unwrap();
    assert!(on.servers.is_empty() && on.client_auto_join);
    assert_eq!(on.http.to_string(), "0.0.0.0:4646");
}

#[test]
fn settings_of_isolated_tasks_are_those_of_the_driver() {
    let text = r#"client {
      enabled = true
      chroot_env {
        "/bin" = "/bin"
        "/etc/ld.so.cache" = "/etc/ld.so.cache"
      }
      options { "user.denylist" = "root, www-data" }
    }
    plugin "exec" { config { allow_caps = ["net_raw"] no_pivot_root = true default_pid_mode = "host" } }
    plugin "java" { config { allow_caps = ["all"] default_ipc_mode = "host" } }
    plugin "qemu" { config { image_paths = ["/srv"] args_allowlist = ["-smp"] emulators_allowlist = ["x86_64"] } }"#;
    let config = config_of(&[("a.hcl", text)]).unwrap();
    assert_eq!(config.warnings.to_string(), "");
    let expected = serde_json::json!({
        "chroot_env": {"/bin": "/bin", "/etc/ld.so.cache": "/etc/ld.so.cache"},
        "denied_users": ["root", "www-data"],
        "allow_caps": ["net_raw"],
        "no_pivot_root": true,
        "default_pid_mode": "host",
    });
    assert_eq!(serde_json::Value::Object(config.drivers.options("exec")), expected);
    let expected = serde_json::json!({
        "chroot_env": {"/bin": "/bin", "/etc/ld.so.cache": "/etc/ld.so.cache"},
        "denied_users": ["root", "www-data"],
        "allow_caps": ["all"],
        "default_ipc_mode": "host",
    });
    assert_eq!(serde_json::Value::Object(config.drivers.options("java")), expected);
    let expected = serde_json::json!({
        "denied_users": ["root", "www-data"],
        "image_paths": ["/srv"],
        "args_allowlist": ["-smp"],
        "emulators_allowlist": ["x86_64"],
    });
    assert_eq!(serde_json::Value::Object(config.drivers.options("qemu")), expected);
    let text = "client { enabled = true\n options { \"user.denylist\" = \"\" } }";
    let options = config_of(&[("a.hcl", text)]).unwrap().drivers.options("exec");
    assert_eq!(options["denied_users"], serde_json::json!([]), "all users are allowed");
}

#[test]
fn the_drivers_option_enables_raw_exec_too() {
    for (options, expected) in [
        ("\"driver.raw_exec.enable\" = \"1\"", Availability::Enabled),
        ("\"driver.raw_exec.enable\" = \"0\"", Availability::Disabled),
        ("\"driver.raw_exec.enable\" = \"true\"\n\"driver.denylist\" = \"raw_exec\"", Availability::Disabled),
    ] {
        let text = format!("client {{ enabled = true\n options {{ {options} }} }}");
        assert_eq!(
            config_of(&[("a.hcl", &text)]).unwrap().drivers.availability("raw_exec"),
            expected,
            "{options}"
        );
    }
}

#[test]
fn a_directory_is_read_by_the_names_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("10.hcl", "name = \"first\"\nclient { enabled = true }"),
        ("20.json", "{\"name\": \"second\"}"),
        ("30.hcl~", "}"),
        (".hidden.hcl", "}"),
        ("readme.txt", "}"),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let loaded = Sources::read(&[dir.path().to_owned()], Opening::MayWait).unwrap().file().unwrap();
    assert_eq!(loaded.file.name.unwrap().0, "second");
    assert!(loaded.has_nomads);
    std::fs::write(dir.path().join("40.hcl"), "name =").unwrap();
    let problems =
        Sources::read(&[dir.path().to_owned()], Opening::MayWait).unwrap().file().unwrap_err().to_string();
    assert!(problems.ends_with("40.hcl:1:7: expected a value"), "{problems}");
}

#[test]
fn a_file_may_be_damaged_anywhere() {
    let bytes = CLIENT.as_bytes();
    for at in 0..bytes.len() {
        for byte in [b'{', b'"', b'=', b'\n', 0, 0xc3] {
            let mut damaged = bytes.to_vec();
            damaged[at] = byte;
            for bytes in [&damaged[..], &bytes[..at]] {
                if let Ok(root) = super::parse("damaged.hcl", bytes) {
                    super::translate_on("damaged.hcl", &root, &Vec::new);
                }
            }
        }
    }
}

#[test]
fn client_connection_limit_is_read_like_nomad() {
    let enabled = "client { enabled = true }\nlimits { http_max_conns_per_client = 7 }\n";
    assert_eq!(config_of(&[("a.hcl", enabled)]).unwrap().http.max_conns_per_client, 7);
    let default = config_of(&[("a.hcl", "client { enabled = true }")]).unwrap();
    assert_eq!(default.http.max_conns_per_client, 100);
    let unlimited = enabled.replace('7', "\"0\"");
    assert_eq!(config_of(&[("a.hcl", &unlimited)]).unwrap().http.max_conns_per_client, 0);
}

#[test]
fn a_plugin_block_is_the_section_of_a_driver() {
    let text = "client { enabled = true }\nplugin \"mock\" { config { enabled = false } }\n\
                plugin \"raw_exec\" { config { enabled = \"1\" no_cgroups = true } args = [] }\n";
    let config = config_of(&[("a.hcl", text)]).unwrap();
    assert_eq!(config.drivers.availability("mock"), Availability::Disabled);
    assert_eq!(config.drivers.availability("raw_exec"), Availability::Enabled);
    assert_eq!(
        lines(&config.warnings),
        [
            "a.hcl:3:44: plugin.raw_exec.config.no_cgroups: is not used by herdlet",
            "a.hcl:3:64: plugin.raw_exec.args: is not used by herdlet",
        ]
    );
    // Later files take precedence, whichever name they use for the driver's section.
    let ours = "raw_exec: {enabled: false}\n";
    let config = config_of(&[("a.hcl", text), ("b.yaml", ours)]).unwrap();
    assert_eq!(config.drivers.availability("raw_exec"), Availability::Disabled);
}
