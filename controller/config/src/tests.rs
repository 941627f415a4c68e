//! Precedence of the sources of a setting, and faulty files.

use std::{fs, path::Path};

use herdlet_api_types::driver::DriverInfo;
use herdlet_driver::Availability;

use super::{
    sources::{Language, Sources},
    *,
};

fn surroundings<'a>(root: bool, variable: &'a dyn Fn(&str) -> Option<String>) -> Surroundings<'a> {
    Surroundings { variable, root, host_name: "box" }
}

fn load(flags: Flags, root: bool, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variable =
        |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Config::load(flags, &surroundings(root, &variable))
}

fn read(text: &str) -> Result<File, String> {
    File::read("agent.yaml", text.as_bytes()).map_err(|problems| problems.to_string())
}

#[test]
fn the_sample_is_valid_and_says_the_defaults() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/herdlet.yaml");
    let flags = Flags { config: vec![sample.clone()], ..Flags::default() };
    let of_sample = Config { files: Vec::new(), ..load(flags, true, &[]).unwrap() };
    assert_eq!(of_sample, load(Flags::default(), true, &[]).unwrap());
    // The commented-out settings are valid too.
    let text = fs::read_to_string(sample).unwrap();
    let uncommented: String = text
        .lines()
        .map(|line| {
            let setting = line.strip_prefix("# ").filter(|rest| {
                rest.starts_with("  ")
                    || rest.split_once(':').is_some_and(|(key, _)| {
                        key.chars().all(|char| char == '_' || char.is_ascii_lowercase())
                    })
            });
            format!("{}\n", setting.unwrap_or(line))
        })
        .collect();
    let file = read(&uncommented).unwrap();
    assert_eq!(file.host_volumes.len(), 1);
    assert_eq!(file.consul.address.as_deref(), Some("http://127.0.0.1:8500"));
    assert_eq!(file.meta["rack"].0, "17");
    assert!(file.dns_listen.is_some());
    assert!(file.listen.is_some() && file.metrics_listen.is_some() && !file.manifests.is_empty());
}

#[test]
fn flag_overrides_variable_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    fs::write(
        &path,
        "name: file\nstate_dir: /file\nmanifests: [/file]\nlog_level: debug\nhost_ip: 10.0.0.1\n",
    )
    .unwrap();
    let flags = Flags { config: vec![path], ..Flags::default() };
    let config = load(flags.clone(), true, &[]).unwrap();
    assert_eq!((config.name.as_str(), config.state_dir.as_path()), ("file", Path::new("/file")));
    let variables = [
        ("HERDLET_NAME", "variable"),
        ("HERDLET_STATE_DIR", "/variable"),
        ("HERDLET_MANIFESTS", "/a:/b"),
        ("RUST_LOG", "warn"),
    ];
    let config = load(flags.clone(), true, &variables).unwrap();
    assert_eq!((config.name.as_str(), config.state_dir.as_path()), ("variable", Path::new("/variable")));
    assert_eq!(config.manifests, [PathBuf::from("/a"), PathBuf::from("/b")]);
    assert_eq!(config.log_level, "warn");
    let flags = Flags { name: Some("flag".to_owned()), state_dir: Some("flag".into()), ..flags };
    let config = load(flags, true, &variables).unwrap();
    assert_eq!(
        (config.name.as_str(), config.state_dir),
        ("flag", std::env::current_dir().unwrap().join("flag"))
    );
    assert_eq!(config.host_ip.to_string(), "10.0.0.1");
}

// The systemd unit has --manifests, and the folders of the config had no effect, without a line.
#[test]
fn a_list_of_a_file_that_a_flag_replaces_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    std::fs::write(&path, "manifests: [/a]\nname: file\n").unwrap();
    let with = |manifests: Vec<PathBuf>| Flags {
        config: vec![path.clone()],
        name: Some("flag".to_owned()),
        manifests,
        ..Flags::default()
    };
    let config = load(with(vec!["/b".into()]), true, &[]).unwrap();
    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    let [warning] = &*warnings else { panic!("{warnings:?}") };
    assert!(warning.contains("agent.yaml: manifests: it has no effect, because --manifests"), "{warning}");
    for same in [vec!["/a".into()], Vec::new()] {
        assert!(load(with(same), true, &[]).unwrap().warnings.is_empty());
    }
}

#[test]
fn places_follow_the_user() {
    let root = load(Flags::default(), true, &[("HOME", "/root")]).unwrap();
    let instance = InstanceId("0123456789abcdef".to_owned());
    assert_eq!(root.state_dir, Path::new("/var/lib/herdlet"));
    assert_eq!(root.socket, Path::new("/run/herdlet/herdlet.sock"));
    assert_eq!(root.paths(&instance).runtime, Path::new("/run/herdlet/0123456789abcdef"));

    let user = [("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "/run/user/1")];
    let user = load(Flags::default(), false, &user).unwrap();
    assert_eq!(user.state_dir, Path::new("/home/u/.local/state/herdlet"));
    assert_eq!(user.socket, Path::new("/run/user/1/herdlet.sock"));
    assert_eq!(user.paths(&instance).runtime, Path::new("/run/user/1/herdlet/0123456789abcdef"));

    let bare = [("XDG_STATE_HOME", "/state"), ("HOME", "/home/u"), ("XDG_RUNTIME_DIR", "relative")];
    let bare = load(Flags::default(), false, &bare).unwrap();
    assert_eq!(bare.socket, Path::new("/state/herdlet/herdlet.sock"));
    assert_eq!(bare.paths(&instance).runtime, Path::new("/state/herdlet/run"));

    let error = load(Flags::default(), false, &[]).unwrap_err();
    assert!(error.to_string().contains("HOME and XDG_STATE_HOME are not set"), "{error}");
    let flags = Flags { state_dir: Some("/s".into()), ..Flags::default() };
    assert_eq!(load(flags, false, &[]).unwrap().socket, Path::new("/s/herdlet.sock"));
}

#[test]
fn tcp_without_a_token_refuses_on_loopback_too() {
    let flags = Flags { listen: Some("127.0.0.1:4680".to_owned()), ..Flags::default() };
    let error = load(flags.clone(), true, &[]).unwrap_err();
    assert!(error.to_string().starts_with("serve 127.0.0.1:4680: TCP needs a token"), "{error}");
    let config = load(Flags { token_file: Some("/t".into()), ..flags }, true, &[]).unwrap();
    assert_eq!(config.listen.unwrap().1, Path::new("/t"));
    let flags = Flags { metrics_listen: Some("[::1]:9".to_owned()), ..Flags::default() };
    assert_eq!(load(flags, true, &[]).unwrap().metrics_listen.unwrap().to_string(), "[::1]:9");
    let config = load(Flags::default(), true, &[("HERDLET_DNS_LISTEN", "127.0.0.1:53")]).unwrap();
    assert_eq!(config.dns_listen.unwrap().to_string(), "127.0.0.1:53");
}

#[test]
fn invalid_flags_are_named() {
    let with = |change: fn(&mut Flags)| {
        let mut flags = Flags::default();
        change(&mut flags);
        load(flags, true, &[]).unwrap_err().to_string()
    };
    for (text, flag) in [
        (with(|flags| flags.listen = Some("nowhere".to_owned())), "--listen: expected HOST:PORT"),
        (with(|flags| flags.metrics_listen = Some(":1".to_owned())), "--metrics-listen: expected HOST:PORT"),
        (
            with(|flags| flags.metrics_listen = Some("::1:1".to_owned())),
            "--metrics-listen: expected HOST:PORT",
        ),
        (
            with(|flags| flags.metrics_listen = Some("a:70000".to_owned())),
            "--metrics-listen: expected HOST:PORT",
        ),
        (with(|flags| flags.dns_listen = Some("53".to_owned())), "--dns-listen: expected HOST:PORT"),
        (with(|flags| flags.host_ip = Some("eth0".to_owned())), "--host-ip: expected an IP address"),
        (with(|flags| flags.cgroup_parent = Some("../x".to_owned())), "--cgroup-parent: expected a cgroup"),
        (with(|flags| flags.cgroup_parent = Some(String::new())), "--cgroup-parent: expected a cgroup"),
        (with(|flags| flags.log_level = Some("a=b=c".to_owned())), "--log-level: expected error"),
        (with(|flags| flags.log_format = Some("xml".to_owned())), "--log-format: expected text or json"),
    ] {
        assert!(text.contains(flag), "{text}");
    }
    let missing = with(|flags| flags.config = vec!["/does/not/exist.yaml".into()]);
    assert!(missing.contains("read the config /does/not/exist.yaml"), "{missing}");
}

#[test]
fn file_problems_are_reported_together() {
    let text = "nme: x\nstate_dir:\nraw_exec: {enable: true}\ndynamic_ports: {min: 70000, max: 1}\nmax_kill_timeout: 30\n";
    let problems = read(text).unwrap_err();
    for expected in [
        "agent.yaml:1:1: nme",
        "agent.yaml:2:1: state_dir",
        "agent.yaml:3:12: raw_exec.enable",
        "agent.yaml:4:22: dynamic_ports.min",
        "agent.yaml:5:19: max_kill_timeout",
    ] {
        assert!(problems.contains(expected), "{expected} in\n{problems}");
    }
    assert!(
        problems.contains("\"name\"") || problems.contains("`name`") || problems.contains("name?"),
        "{problems}"
    );

    let text = "state_dir: var/lib\nlisten: 4680\nhost_ip: eth0\nlog_level: info,a=b=c\ncgroup_parent: /\n\
                dynamic_ports: {min: 5, max: 4}\nmanifests: [/a, b]\n\
                host_volumes: [{name: a, path: /a}, {name: a, path: a}]\nconsul: {token_file: t}\n\
                tls: {cert_file: c, verify_https_client: true}\n";
    let problems = read(&text.replace("listen: 4680", "listen: \"4680\"")).unwrap_err();
    for expected in [
        "agent.yaml:1:12: state_dir: must be an absolute path",
        "agent.yaml:2:9: listen: expected HOST:PORT",
        "agent.yaml:3:10: host_ip: expected an IP address",
        "agent.yaml:4:12: log_level: expected error",
        "agent.yaml:5:16: cgroup_parent: expected a cgroup",
        "agent.yaml:6:16: dynamic_ports: is empty",
        "manifests[1]: must be an absolute path",
        "host_volumes[1].path: must be an absolute path",
        "host_volumes[1].name: \"a\" is already the name of host_volumes[0]",
        "consul.token_file: must be an absolute path",
        "tls.cert_file: requires key_file",
        "tls.cert_file: must be an absolute path",
    ] {
        assert!(problems.contains(expected), "{expected} in\n{problems}");
    }
    assert!(read("tls: {}").unwrap_err().contains("tls.cert_file: is missing, and so is key_file"));
    assert!(read("a: 1\n---\nb: 2\n").unwrap_err().contains("second document"));
    assert!(read("- a\n").is_err());
    assert_eq!(read("").unwrap(), File::default());
    assert_eq!(read("# nothing\n").unwrap(), File::default());
}

#[test]
fn a_token_is_the_first_line_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    fs::write(&path, "  s3cret \nmore\n").unwrap();
    assert_eq!(read_token(&path).unwrap().as_str(), "s3cret");
    fs::write(&path, "\n").unwrap();
    assert!(read_token(&path).is_err());
}

#[test]
fn allowed_hosts_are_hosts() {
    let text = "http: {allowed_hosts: [ui.example, 'ui.example:8443', '*'], max_conns_per_client: 7}";
    let section = read(text).unwrap().http;
    assert_eq!((section.allowed_hosts.len(), section.max_conns_per_client), (3, Some(7)));
    let error = read("http: {allowed_hosts: [ui.example, 'http://ui.example']}").unwrap_err();
    assert!(error.contains("http.allowed_hosts[1]: expected HOST, HOST:PORT or *"), "{error}");
}

#[test]
fn volumes_and_facts_reach_the_planner() {
    let text = "meta: {rack: 017, on: yes}\nhost_volumes: [{name: certs, path: /etc/ssl, read_only: true}]\nmax_kill_timeout: 5m";
    let mut sources = Sources::default();
    sources.add("agent.yaml", text.as_bytes(), Language::Yaml);
    let loaded = sources.file().unwrap();
    let config = Config::merge(Flags::default(), loaded, &surroundings(true, &|_| None)).unwrap();
    let instance = InstanceId("0123456789abcdef".to_owned());
    assert_eq!(config.node_facts(&instance, Room::ENDLESS).meta["rack"], "017");
    assert_eq!(config.node_facts(&instance, Room::ENDLESS).meta["on"], "yes");
    assert_eq!(config.planner_settings(instance, Room::ENDLESS).max_kill_timeout, Duration::from_secs(300));
    let volume = &config.volumes()[0];
    assert!(volume.read_only && matches!(&volume.kind, VolumeKind::HostPath { path } if path == "/etc/ssl"));
}

#[test]
fn a_view_leaves_out_no_key() {
    let (_, shown) = view::settings(Flags::default(), &surroundings(true, &|_| None)).unwrap();
    let schema = serde_json::to_value(schemars::schema_for!(File)).unwrap();
    for key in schema["properties"].as_object().unwrap().keys() {
        let is_shown = shown.iter().any(|setting| setting.key.split('.').next() == Some(key));
        assert!(is_shown, "{key}");
    }
}

/// `config view` omitted them on a standalone machine, where they have an effect, too.
#[test]
fn networks_of_the_machine_have_the_file_as_their_source() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    for section in ["cluster", "network"] {
        fs::write(&path, format!("{section}: {{host_networks: [{{name: lan, interface: eth1}}]}}\n"))
            .unwrap();
        let flags = Flags { config: vec![path.clone()], ..Flags::default() };
        let (_, shown) = view::settings(flags, &surroundings(true, &|_| None)).unwrap();
        let networks = shown.iter().find(|setting| setting.key == "network.host_networks").unwrap();
        assert_eq!(networks.source, view::Source::File, "{section}");
        assert_eq!(networks.value[0]["name"], "lan");
    }
}

/// The sample lacked whole sections, and documents promise that it describes every key.
#[test]
fn the_sample_has_every_key() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/herdlet.yaml");
    let text = fs::read_to_string(sample).unwrap();
    let words: std::collections::BTreeSet<&str> = text
        .split(|char: char| !char.is_ascii_alphanumeric() && char != '_' && char != ':')
        .filter_map(|word| word.strip_suffix(':'))
        .collect();
    let mut keys = std::collections::BTreeSet::new();
    collect_keys(&serde_json::to_value(schemars::schema_for!(File)).unwrap(), &mut keys);
    // docs/nomad/docker.md has the options of containers.
    let infos = [DriverInfo::raw_exec(), DriverInfo::exec(), DriverInfo::qemu(), DriverInfo::mock()];
    infos.iter().for_each(|info| collect_keys(info.options.as_value(), &mut keys));
    let missing: Vec<&String> = keys.iter().filter(|key| !words.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The names of all fields below a schema.
fn collect_keys(schema: &serde_json::Value, keys: &mut std::collections::BTreeSet<String>) {
    if let Some(fields) = schema.get("properties").and_then(|fields| fields.as_object()) {
        keys.extend(fields.keys().cloned());
    }
    schema.as_object().into_iter().flatten().for_each(|(_, inner)| collect_keys(inner, keys));
    schema.as_array().into_iter().flatten().for_each(|inner| collect_keys(inner, keys));
}

#[test]
fn servers_make_a_node_of_a_cluster() {
    let alone = load(Flags::default(), true, &[]).unwrap();
    assert!(alone.cluster.is_none());
    assert_eq!(alone.drivers.availability("raw_exec"), Availability::Enabled);
    let servers = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let flags = Flags {
        servers: servers(&["10.0.0.1", "[2001:db8::1]:4747", "_nomad._tcp.example.org"]),
        region: Some("eu".to_owned()),
        meta: vec!["rack=17".to_owned(), "a=b=c".to_owned()],
        ..Flags::default()
    };
    let variables = [("HERDLET_REGION", "us"), ("HERDLET_NODE_CLASS", "edge"), ("HERDLET_META", "x=1")];
    let config = load(flags.clone(), true, &variables).unwrap();
    let cluster = config.cluster.unwrap();
    assert_eq!(cluster.servers, flags.servers);
    assert_eq!((config.region.as_str(), config.node_class.as_str()), ("eu", "edge"));
    assert_eq!(
        (config.meta["rack"].as_str(), config.meta["a"].as_str(), config.meta.len()),
        ("17", "b=c", 2)
    );
    assert_eq!(config.drivers.availability("raw_exec"), Availability::Disabled);
    let config = load(Flags { raw_exec: Some("true".to_owned()), ..flags.clone() }, true, &[]).unwrap();
    assert_eq!(config.drivers.availability("raw_exec"), Availability::Enabled);

    // The API admits clients with a token of the cluster.
    let flags = Flags { listen: Some("127.0.0.1:4646".to_owned()), ..flags };
    let config = load(flags.clone(), true, &[]).unwrap();
    assert_eq!((config.listen, config.cluster.unwrap().http.to_string().as_str()), (None, "127.0.0.1:4646"));

    let config = load(Flags::default(), true, &[("HERDLET_SERVERS", "a, b:1")]).unwrap();
    assert_eq!(config.cluster.unwrap().servers, servers(&["a", "b:1"]));
    for (flags, expected) in [
        (
            Flags { servers: servers(&["http://a"]), ..Flags::default() },
            "--servers: expected HOST, HOST:PORT",
        ),
        (Flags { raw_exec: Some("x".to_owned()), ..Flags::default() }, "--raw-exec: expected true or false"),
        (Flags { meta: servers(&["a"]), ..Flags::default() }, "--meta: expected KEY=VALUE, found \"a\""),
    ] {
        let error = load(flags, true, &[]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_cluster_is_in_our_own_files_too() {
    let text = "servers: [10.0.0.1]\nraw_exec: {enabled: true}\ncluster:\n  network_interface: eth0\n  http_port: 5646\n  \
                host_networks: [{name: private, cidr: 10.0.0.0/8}]\n  tls: {rpc: true, ca_file: /a, cert_file: /b, key_file: /c}\n";
    let file = read(text).unwrap();
    assert_eq!(file.servers, ["10.0.0.1"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.yaml");
    fs::write(&path, text).unwrap();
    let flags = Flags { config: vec![path], ..Flags::default() };
    let config = load(flags.clone(), true, &[]).unwrap();
    let cluster = config.cluster.unwrap();
    assert_eq!((cluster.http.port, cluster.network.host_networks.len()), (5_646, 1));
    assert_eq!(
        config.network.host_networks, cluster.network.host_networks,
        "ports of local jobs can be there too"
    );
    assert!(cluster.tls.is_some() && cluster.http_tls.is_none());
    let (_, shown) = view::settings(flags, &surroundings(true, &|_| None)).unwrap();
    let setting_of = |key: &str| shown.iter().find(|setting| setting.key == key).unwrap();
    assert_eq!(
        (setting_of("servers").source, setting_of("cluster.http_port").source),
        (Source::File, Source::File)
    );
    assert_eq!(setting_of("cluster.retry_interval").source, Source::Default);
    let listening = Flags {
        listen: Some("127.0.0.1:4680".to_owned()),
        servers: vec!["a".to_owned()],
        ..Flags::default()
    };
    let (_, shown) = view::settings(listening, &surroundings(true, &|_| None)).unwrap();
    let setting_of = |key: &str| shown.iter().find(|setting| setting.key == key).unwrap();
    assert_eq!(
        (&setting_of("listen").value, setting_of("listen").source),
        (&"127.0.0.1:4680".into(), Source::Flag)
    );
    assert_eq!(
        (&setting_of("cluster.http_port").value, setting_of("cluster.http_port").source),
        (&4_680.into(), Source::Flag)
    );
    let problems = read("cluster: {bind_addr: x, moved_from: a, tls: {rpc: true}, host_networks: [{name: default}]}\nservers: [a b]\n").unwrap_err();
    for expected in [
        "cluster.bind_addr: expected an IP address",
        "cluster.moved_from: must be an absolute path",
        "cluster.tls.cert_file: is missing: TLS needs it",
        "cluster.host_networks[0].name: must be a name other than default",
        "servers[0]: expected HOST, HOST:PORT or the name of an SRV record",
    ] {
        assert!(problems.contains(expected), "{expected} in\n{problems}");
    }
}

#[test]
fn a_driver_has_its_section() {
    let raw_exec = |text: &str, flags: Flags| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.yaml");
        fs::write(&path, text).unwrap();
        let config = load(Flags { config: vec![path], ..flags }, true, &[]).unwrap();
        config.drivers.availability("raw_exec")
    };
    for (text, expected) in [
        ("drivers: {raw_exec: {enabled: false}}", Availability::Disabled),
        ("raw_exec: {enabled: false}", Availability::Disabled),
        ("drivers: {mock: {enabled: false}}", Availability::Enabled),
        ("servers: [a]\ndrivers: {raw_exec: {enabled: true}}", Availability::Enabled),
        ("servers: [a]\nraw_exec: {enabled: true}", Availability::Enabled),
        ("raw_exec: {enabled: false}\ndrivers: {raw_exec: {enabled: false}}", Availability::Disabled),
        ("raw_exec: {enabled: false}\ndrivers: {mock: {}}", Availability::Disabled),
    ] {
        assert_eq!(raw_exec(text, Flags::default()), expected, "{text}");
        let flag = Flags { raw_exec: Some("true".to_owned()), ..Flags::default() };
        assert_eq!(raw_exec(text, flag), Availability::Enabled, "{text}");
    }
}

/// One of the two was ignored without a word.
#[test]
fn contradicting_driver_alias_is_refused() {
    let problems = read("raw_exec: {enabled: false}\ndrivers: {raw_exec: {enabled: true}}\n").unwrap_err();
    let expected = "agent.yaml:1:21: raw_exec.enabled: has another value than drivers.raw_exec.enabled";
    assert!(problems.contains(expected), "{problems}");
}

#[test]
fn driver_section_problems_have_a_position() {
    let text = "drivers:\n  raw_exek: {}\n  mock: {enable: true}\n  raw_exec: {enabled: 7}\n";
    let problems = read(text).unwrap_err();
    for expected in [
        "agent.yaml:2:3: drivers.raw_exek: there is no driver of this name; did you mean raw_exec?",
        "agent.yaml:3:10: drivers.mock.enable",
        "agent.yaml:4:23: drivers.raw_exec.enabled",
    ] {
        assert!(problems.contains(expected), "{expected} in\n{problems}");
    }
    let problems = read("raw_exec: {enabled: 7}\ndrivers: {mock: {enabled: 8}}\n").unwrap_err();
    for expected in ["agent.yaml:1:21: raw_exec.enabled", "agent.yaml:2:27: drivers.mock.enabled"] {
        assert!(problems.contains(expected), "{expected} in\n{problems}");
    }
}

/// After a full disk, the next start used the default state directory, without any folder of manifests.
#[test]
fn empty_config_is_refused_and_one_of_comments_is_valid() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let loaded = |text: &str| {
        fs::write(&path, text).unwrap();
        load(Flags { config: vec![path.clone()], ..Flags::default() }, true, &[])
    };
    for text in ["", " \n\n"] {
        let error = loaded(text).unwrap_err().to_string();
        assert!(error.contains("c.yaml: is empty; to use the defaults"), "{error}");
    }
    assert!(loaded("# nothing\n").is_ok());
}

/// A reload waited for the other end of the pipe for ever, and so did all later ones.
#[test]
fn pipe_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("c.yaml");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let flags = Flags { config: vec![pipe], ..Flags::default() };
    let error = view::settings_again(flags, &surroundings(true, &|_| None)).unwrap_err();
    assert!(herdlet_base::error::in_full(&error).contains("it is no regular file"), "{error:?}");
}
