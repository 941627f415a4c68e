//! A plugin for tests, with all faults that a plugin can have. It attaches nothing: its result has the loopback interface of the
//! namespace.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use crate::config::Directories;

const SCRIPT: &str = r#"#!/bin/sh
cd DIR || exit 9
name=${0##*/}
cat >"input.$name.$CNI_COMMAND"
echo "$name $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS $CNI_ARGS" >>log
fault=$(cat "fault.$name.$CNI_COMMAND" 2>/dev/null)
case $fault in
hangs) (trap '' TERM; sleep 1000) & sleep 1000 ;;
garbage) echo '{"cniVersion": '; exit 0 ;;
endless) yes ;;
exits) echo oh no >&2; exit 3 ;;
refuses) echo '{"cniVersion": "1.0.0", "code": 7, "msg": "no"}'; exit 1 ;;
unready) echo '{"cniVersion": "1.1.0", "code": 50, "msg": "later"}'; exit 1 ;;
half) echo '{"interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "10.0.0.2/8", "interface": 0}]}'; exit 0 ;;
esac
[ "$CNI_COMMAND" != ADD ] ||
    echo '{"interfaces": [{"name": "lo", "sandbox": "x"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}],
        "dns": {"nameservers": ["192.0.2.53"]}}'
"#;

/// The plugins `first` and `last`, with a network of them.
pub(crate) struct TestPlugins {
    dir: tempfile::TempDir,
}

impl TestPlugins {
    /// With a network `net` of this version of the specification.
    pub(crate) fn new(version: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plugins = Self { dir };
        for name in ["first", "last"] {
            let path = plugins.path(name);
            fs::write(&path, SCRIPT.replace("DIR", &plugins.path("").display().to_string())).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let list = format!(
            r#"{{"cniVersion": "{version}", "name": "net", "plugins": [{{"type": "first", "mtu": 1400}}, {{"type": "last", "capabilities": {{"portMappings": true}}}}]}}"#
        );
        fs::write(plugins.path("net.conflist"), list).unwrap();
        plugins
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn directories(&self) -> Directories {
        Directories { configs: self.dir.path().to_owned(), plugins: vec![self.dir.path().to_owned()] }
    }

    /// Makes a call of a plugin fail: `last.ADD`.
    pub(crate) fn break_call(&self, call: &str, fault: &str) {
        fs::write(self.path(&format!("fault.{call}")), fault).unwrap();
    }

    pub(crate) fn mend(&self, call: &str) {
        fs::remove_file(self.path(&format!("fault.{call}"))).unwrap();
    }

    /// The plugins and commands of all calls since the last time.
    pub(crate) fn calls(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        let words = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        log.lines().map(words).collect()
    }

    /// What the plugin has read at its last such call.
    pub(crate) fn input(&self, call: &str) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.path(&format!("input.{call}"))).unwrap()).unwrap()
    }
}
