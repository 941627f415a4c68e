//! Config files of CNI networks.
//!
//! In: the directories of an agent, the name of a network. Out: its plugins with their settings. The files decide which programs run
//! as root, so a file that others could have changed is refused. Each file has one network: a list of plugins (`plugins`), or one
//! plugin.

use std::{
    fmt, fs, io,
    io::Read as _,
    path::{Path, PathBuf},
};

use herdlet_base::{
    ownership::{self, OwnershipError},
    regular::open_regular,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Where Nomad looks for config files.
pub const CONFIG_DIR: &str = "/opt/cni/config";

/// Where Nomad and the packages of distributions have plugins.
pub const PLUGIN_DIRS: [&str; 3] = ["/opt/cni/bin", "/usr/libexec/cni", "/usr/lib/cni"];

/// The endings of config files.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

/// The longest config file. Lists of plugins have a few kilobytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The most files of a directory that are read; one with more is not one of CNI.
const FILES_MAX: usize = 1_000;

/// The most plugins of a network: each is a process.
const PLUGINS_MAX: usize = 32;

/// The directories of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Of config files.
    pub configs: PathBuf,
    /// Of plugins, in the order in which they are searched.
    pub plugins: Vec<PathBuf>,
}

impl Default for Directories {
    fn default() -> Self {
        Self { configs: CONFIG_DIR.into(), plugins: PLUGIN_DIRS.map(PathBuf::from).into() }
    }
}

/// The settings of a plugin.
pub type PluginConfig = Map<String, Value>;

/// A network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NetworkConfig {
    /// Its name.
    pub name: String,
    /// The version of the specification that its plugins get.
    pub version: SpecVersion,
    /// Whether its plugins can compare a network with what they have made.
    pub check: Checks,
    /// Its plugins, in the order in which they are called.
    pub plugins: Vec<PluginConfig>,
}

/// Whether plugins may be called with CHECK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checks {
    Allowed,
    /// The config sets `disableCheck`.
    Disabled,
}

/// A version of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SpecVersion {
    #[serde(rename = "0.3.0")]
    V030,
    #[serde(rename = "0.3.1")]
    V031,
    /// Brought CHECK, and the result for DEL.
    #[serde(rename = "0.4.0")]
    V040,
    #[serde(rename = "1.0.0")]
    V100,
    /// Brought STATUS, GC and several versions in a config.
    #[serde(rename = "1.1.0")]
    V110,
}

impl SpecVersion {
    const ALL: [Self; 5] = [Self::V030, Self::V031, Self::V040, Self::V100, Self::V110];

    /// As in config files and results.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V030 => "0.3.0",
            Self::V031 => "0.3.1",
            Self::V040 => "0.4.0",
            Self::V100 => "1.0.0",
            Self::V110 => "1.1.0",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

impl fmt::Display for SpecVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a network can't be read. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "find the CNI network {name}: no file *.conflist, *.conf or *.json in {} has this name; install its config file there, \
         or set `network.cni_config_dir`{}",
        dir.display(),
        unreadable.as_ref().map(|why| format!(" (a file there can't be used: {why})")).unwrap_or_default()
    )]
    Absent {
        name: String,
        dir: PathBuf,
        /// Why the first unreadable file there can't be read.
        unreadable: Option<String>,
    },
    #[error("use the CNI network {name}: {source}")]
    Untrusted { name: String, source: OwnershipError },
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("use the CNI network of {}: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
}

/// The network of this name: that of the first file that has it, in the order of their names.
///
/// # Errors
/// [`ConfigError`].
pub fn find(directories: &Directories, name: &str) -> Result<NetworkConfig, ConfigError> {
    let dir = &directories.configs;
    let mut unreadable = None;
    for path in files(dir) {
        match read(&path) {
            Ok(document) if document.get("name").and_then(Value::as_str) == Some(name) => {
                ownership::check(&path)
                    .map_err(|source| ConfigError::Untrusted { name: name.to_owned(), source })?;
                // What was read before may be of another user, who could change it then.
                return of_document(&path, read(&path)?);
            }
            Ok(_) => {}
            Err(error) => {
                unreadable.get_or_insert_with(|| herdlet_base::error::in_full(&error));
            }
        }
    }
    Err(ConfigError::Absent { name: name.to_owned(), dir: dir.clone(), unreadable })
}

/// The names of all networks that can be used, and why others can't be.
pub fn usable(directories: &Directories) -> (Vec<String>, Vec<ConfigError>) {
    let (mut names, mut errors) = (Vec::new(), Vec::new());
    for path in files(&directories.configs) {
        let name =
            read(&path).map(|document| document.get("name").and_then(Value::as_str).map(str::to_owned));
        match name {
            Ok(Some(name)) if names.contains(&name) => {}
            Ok(Some(name)) => match find(directories, &name) {
                Ok(network) => names.push(network.name),
                Err(error) => errors.push(error),
            },
            Ok(None) => errors.push(invalid(&path, "it has no `name`".to_owned())),
            Err(error) => errors.push(error),
        }
    }
    names.sort();
    (names, errors)
}

/// The config files of a directory, in the order of their names.
pub(crate) fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let has_ending = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str());
        ending.is_some_and(|ending| ENDINGS.contains(&ending))
    };
    let mut paths: Vec<PathBuf> = paths.filter(has_ending).take(FILES_MAX).collect();
    paths.sort();
    paths
}

fn read(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let Some(file) = open_regular(path).map_err(failed)? else {
        return Err(invalid(path, "it is no regular file".to_owned()));
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
        return Err(invalid(path, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) => Err(invalid(path, "it is no JSON object".to_owned())),
        Err(error) => Err(invalid(path, format!("it is no JSON: {error}"))),
    }
}

fn of_document(path: &Path, document: Map<String, Value>) -> Result<NetworkConfig, ConfigError> {
    let refused = |why: String| invalid(path, why);
    let name = document.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !is_name(&name) {
        return Err(refused("`name` must be letters, digits, `_`, `.` and `-`".to_owned()));
    }
    let version = version_of(&document).map_err(refused)?;
    let is_set = |field: &str| document.get(field).and_then(Value::as_bool) == Some(true);
    let check = if is_set("disableCheck") { Checks::Disabled } else { Checks::Allowed };
    let plugins = match document.get("plugins") {
        None => vec![document.clone()],
        Some(Value::Array(plugins)) => {
            let objects = plugins.iter().map(|plugin| plugin.as_object().cloned());
            let inlined = objects.collect::<Option<Vec<PluginConfig>>>();
            let mut plugins =
                inlined.ok_or_else(|| refused("`plugins` must be a list of objects".to_owned()))?;
            if !is_set("loadOnlyInlinedPlugins") && version == SpecVersion::V110 {
                plugins.extend(in_folder(&path.with_file_name(&name))?);
            }
            plugins
        }
        Some(_) => return Err(refused("`plugins` must be a list".to_owned())),
    };
    if plugins.is_empty() || plugins.len() > PLUGINS_MAX {
        return Err(refused(format!("it must have 1 to {PLUGINS_MAX} plugins, and has {}", plugins.len())));
    }
    if let Some(plugin) = plugins.iter().find(|plugin| !is_name(type_of(plugin))) {
        return Err(refused(format!(
            "`type` of each plugin must be the name of a program, found {:?}",
            type_of(plugin)
        )));
    }
    Ok(NetworkConfig { name, version, check, plugins })
}

/// Further plugins of a network, one in each file of a directory with its name (since 1.1.0).
fn in_folder(dir: &Path) -> Result<Vec<PluginConfig>, ConfigError> {
    let plugins =
        files(dir).into_iter().filter(|path| path.extension().is_some_and(|ending| ending == "conf"));
    let trusted = |path: PathBuf| {
        let name = path.display().to_string();
        ownership::check(&path).map_err(|source| ConfigError::Untrusted { name, source })?;
        read(&path)
    };
    plugins.map(trusted).collect()
}

/// The newest version that the config and we have.
fn version_of(document: &Map<String, Value>) -> Result<SpecVersion, String> {
    let several = document.get("cniVersions").and_then(Value::as_array);
    let listed = several.into_iter().flatten().chain(document.get("cniVersion")).filter_map(Value::as_str);
    let known = listed.clone().filter_map(SpecVersion::parse).max();
    known.ok_or_else(|| {
        let found: Vec<&str> = listed.collect();
        let found = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        format!("`cniVersion` must be one of 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0, found {found}")
    })
}

/// The program of a plugin.
pub fn type_of(plugin: &PluginConfig) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Whether a plugin has declared a capability.
pub fn has_capability(plugin: &PluginConfig, name: &str) -> bool {
    let declared = plugin.get("capabilities").and_then(|capabilities| capabilities.get(name));
    declared.and_then(Value::as_bool) == Some(true)
}

/// As the specification has it; also, no such name leaves its directory.
pub fn is_name(name: &str) -> bool {
    name.len() <= 255
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn invalid(path: &Path, why: String) -> ConfigError {
    ConfigError::Invalid { path: path.to_owned(), why }
}

#[cfg(test)]
mod tests;
