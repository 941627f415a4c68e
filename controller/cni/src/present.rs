//! The plugins and networks of this machine.
//!
//! In: the directories of an agent. Out: the versions of its plugins, and the names of its networks, for servers and people.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, SystemTime},
};

use herdlet_base::{error::in_full, ownership};

use crate::{
    config::{self, Directories},
    plugin::search_path,
    process,
};

/// How long a plugin may take to print its version, as in Nomad.
const VERSION_TIME_MAX: Duration = Duration::from_secs(3);

/// The most programs of a directory that are run; one with more is not one of plugins.
const PLUGINS_MAX: usize = 64;

/// The longest version.
const VERSION_LEN_MAX: usize = 64;

/// What is on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Versions of plugins by name.
    pub plugins: BTreeMap<String, String>,
    /// Names of networks, in order.
    pub networks: Vec<String>,
}

/// The times at which the files of CNI were changed.
pub type Stamp = Vec<(PathBuf, SystemTime)>;

impl Present {
    /// Differs from an earlier one if files were added, removed or replaced since.
    pub fn stamp(directories: &Directories) -> Stamp {
        let paths = directories.plugins.iter().cloned().chain([directories.configs.clone()]);
        let paths = paths.chain(config::files(&directories.configs));
        let stamped = |path: PathBuf| {
            let changed = path.metadata().ok()?.modified().ok()?;
            Some((path, changed))
        };
        paths.filter_map(stamped).collect()
    }

    /// Asks each plugin for its version, and reads the config files. What can't be used is logged and left out.
    pub fn find(directories: &Directories) -> Self {
        let mut plugins = BTreeMap::new();
        // The first directory with a plugin counts.
        for dir in directories.plugins.iter().rev() {
            plugins.extend(versions(dir));
        }
        let (networks, errors) = config::usable(directories);
        for error in errors {
            tracing::warn!(error = in_full(&error), "a CNI network can't be used");
        }
        Self { plugins, networks }
    }
}

fn versions(dir: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    let programs = entries.map(|entry| entry.path()).filter(|path| is_program(path)).take(PLUGINS_MAX);
    programs.filter_map(|program| Some((name_of(&program)?, version(&program)?))).collect()
}

fn name_of(program: &Path) -> Option<String> {
    Some(program.file_name()?.to_str()?.to_owned()).filter(|name| config::is_name(name))
}

/// A plugin without a command prints what it is: `CNI bridge plugin v1.1.1`.
fn version(program: &Path) -> Option<String> {
    if let Err(error) = ownership::check(program) {
        tracing::warn!(error = in_full(&error), "a CNI plugin can't be used");
        return None;
    }
    let mut command = Command::new(program);
    command.env_clear().env("PATH", search_path()).current_dir("/");
    let mark = format!("version of {}", program.display());
    let output = process::run(command, b"", &mark, VERSION_TIME_MAX)
        .inspect_err(
            |error| tracing::warn!(plugin = %program.display(), error = in_full(error), "no version"),
        )
        .ok()?;
    let printed = [output.messages, output.result].concat();
    version_in(&String::from_utf8_lossy(&printed))
}

/// The word after `plugin` on the first line, without a `v`.
fn version_in(text: &str) -> Option<String> {
    let mut words = text.lines().next()?.split_ascii_whitespace().skip_while(|word| *word != "plugin");
    let version = words.nth(1)?.trim_start_matches('v');
    let is_version = version.len() <= VERSION_LEN_MAX
        && version.starts_with(|first: char| first.is_ascii_digit())
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-+~".contains(&byte));
    is_version.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_in_the_first_line() {
        for (text, expected) in [
            ("CNI bridge plugin v1.1.1\nCNI protocol versions supported: 0.1.0, 1.0.0\n", Some("1.1.1")),
            ("CNI host-local plugin 1.6.0-rc1", Some("1.6.0-rc1")),
            ("CNI bridge plugin version unknown", None),
            ("Usage: something", None),
            ("CNI x plugin 1.0.0;rm", None),
            ("", None),
        ] {
            assert_eq!(version_in(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn plugins_are_asked_and_others_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, script: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        program("good", "echo CNI good plugin v1.2.3 >&2; exit 1", 0o755);
        program("silent", "exit 0", 0o755);
        program("text", "echo CNI text plugin v1.2.3", 0o644);
        program("open", "echo CNI open plugin v1.2.3", 0o777);
        let directories = Directories {
            configs: dir.path().to_owned(),
            plugins: vec![dir.path().join("none"), dir.path().to_owned()],
        };
        let expected = BTreeMap::from([("good".to_owned(), "1.2.3".to_owned())]);
        assert_eq!(Present::find(&directories), Present { plugins: expected, networks: Vec::new() });
        let before = Present::stamp(&directories);
        assert_eq!(Present::stamp(&directories), before);
        let config = r#"{"cniVersion": "1.0.0", "name": "net", "type": "good"}"#;
        fs::write(dir.path().join("net.conf"), config).unwrap();
        assert_ne!(Present::stamp(&directories), before);
        assert_eq!(Present::find(&directories).networks, ["net"]);
    }
}
