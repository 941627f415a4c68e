//! Tests of config files.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A directory that nobody else can change.
struct Configs(tempfile::TempDir);

impl Configs {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    fn directories(&self) -> Directories {
        Directories { configs: self.0.path().to_owned(), plugins: Vec::new() }
    }

    fn find(&self, name: &str) -> Result<NetworkConfig, ConfigError> {
        find(&self.directories(), name)
    }
}

const LIST: &str = r#"{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}"#;

#[test]
fn network_is_that_of_the_first_file_with_its_name() {
    let configs = Configs::new(&[
        ("00-broken.conf", "{"),
        ("10-net.conflist", LIST),
        ("20-net.conflist", r#"{"cniVersion": "1.0.0", "name": "net", "type": "other"}"#),
        (
            "30-single.conf",
            r#"{"cniVersion": "0.3.1", "name": "single", "type": "macvlan", "master": "eth0"}"#,
        ),
        ("40-other.txt", r#"{"cniVersion": "1.0.0", "name": "other", "type": "macvlan"}"#),
    ]);
    let list = configs.find("net").unwrap();
    assert_eq!((list.version, list.check), (SpecVersion::V040, Checks::Allowed));
    assert_eq!(list.plugins.iter().map(type_of).collect::<Vec<_>>(), ["bridge", "portmap"]);
    let maps_ports = |plugin| has_capability(plugin, "portMappings");
    assert_eq!(list.plugins.iter().map(maps_ports).collect::<Vec<_>>(), [false, true]);
    let single = configs.find("single").unwrap();
    assert_eq!((single.version, single.plugins.len()), (SpecVersion::V031, 1));
    assert_eq!(single.plugins[0]["master"], "eth0");
    let absent = configs.find("other").unwrap_err().to_string();
    let dir = configs.0.path().display();
    let expected =
        format!("no file *.conflist, *.conf or *.json in {dir} has this name; install its config file there");
    assert!(absent.contains(&expected) && absent.contains("00-broken.conf: it is no JSON"), "{absent}");
    let (names, errors) = usable(&configs.directories());
    assert_eq!((names, errors.len()), (vec!["net".to_owned(), "single".to_owned()], 1));
}

#[test]
fn network_of_version_1_1_has_several_versions_and_plugins_of_a_directory() {
    let list = r#"{"cniVersions": ["1.0.0", "1.1.0", "9.0.0"], "cniVersion": "1.0.0", "name": "net", "disableCheck": true,
        "plugins": [{"type": "bridge"}]}"#;
    let configs = Configs::new(&[
        ("net.conflist", list),
        ("net/10-more.conf", r#"{"type": "tuning"}"#),
        ("net/20-none.conflist", r#"{"type": "none"}"#),
    ]);
    let network = configs.find("net").unwrap();
    assert_eq!((network.version, network.check), (SpecVersion::V110, Checks::Disabled));
    assert_eq!(network.plugins.iter().map(type_of).collect::<Vec<_>>(), ["bridge", "tuning"]);
}

#[test]
fn unusable_networks_are_refused_with_the_reason() {
    for (text, expected) in [
        (
            r#"{"name": "net", "type": "a"}"#,
            "`cniVersion` must be one of 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0, found none",
        ),
        (r#"{"cniVersion": "0.2.0", "name": "net", "type": "a"}"#, "and 1.1.0, found 0.2.0"),
        (
            r#"{"cniVersion": "1.0.0", "name": "net"}"#,
            "`type` of each plugin must be the name of a program, found \"\"",
        ),
        (r#"{"cniVersion": "1.0.0", "name": "net", "type": "../sh"}"#, "found \"../sh\""),
        (
            r#"{"cniVersion": "1.0.0", "name": "net", "plugins": []}"#,
            "it must have 1 to 32 plugins, and has 0",
        ),
        (r#"{"cniVersion": "1.0.0", "name": "net", "plugins": {}}"#, "`plugins` must be a list"),
        (
            r#"{"cniVersion": "1.0.0", "name": "net", "plugins": ["a"]}"#,
            "`plugins` must be a list of objects",
        ),
    ] {
        let configs = Configs::new(&[("net.conf", text)]);
        let why = configs.find("net").unwrap_err().to_string();
        assert!(why.contains(expected), "{text}: {why}");
    }
    let large = format!("{{\"name\": \"{}\"}}", "x".repeat(1 << 20));
    let configs = Configs::new(&[("net.conf", &large)]);
    assert!(configs.find("net").unwrap_err().to_string().contains("more than 1048576 bytes"));
}

/// Root runs what it names.
#[test]
fn file_that_others_can_change_is_refused() {
    let configs = Configs::new(&[("net.conflist", LIST)]);
    fs::set_permissions(configs.0.path().join("net.conflist"), fs::Permissions::from_mode(0o666)).unwrap();
    let why = configs.find("net").unwrap_err().to_string();
    assert!(why.contains("net.conflist") && why.contains("use the CNI network net"), "{why}");
    assert_eq!(usable(&configs.directories()).0, Vec::<String>::new());
}
