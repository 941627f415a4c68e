//! The section `drivers` of a config: which task drivers are enabled, and their options.
//!
//! In: `drivers: {NAME: {…}}`, the flag and the alias of `raw_exec`, the drivers that a cluster's node may offer. Out:
//! [`DriverSettings`], with an entry for each built-in driver. A driver's own options are checked against the schema in its
//! `DriverInfo` and passed to it unchanged; `enabled` is the only key that all drivers have.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use herdlet_api_types::driver::{DockerOptions, DriverInfo, RAW_EXEC, ServerJobs, built_in, runs_images};
use herdlet_driver::Availability;
use herdlet_manifest::yaml::{self, Document, Entry, Located, Node, Problems, Value, nearest};
use serde::Deserialize as _;
use serde_json::{Map, Value as Json, json};

use super::{Cluster, merge::merged};

/// The options of drivers in a config file, by driver.
pub(super) type Section = BTreeMap<String, Map<String, Json>>;

/// The task drivers of this machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DriverSettings(BTreeMap<String, DriverSetting>);

/// The settings of a driver.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverSetting {
    /// Whether it may start tasks.
    pub availability: Availability,
    /// Its options in the config, as written.
    pub options: Map<String, Json>,
}

/// Settings from outside the section.
pub(super) struct Given<'g> {
    /// The flag `--raw-exec`.
    pub(super) raw_exec: Option<bool>,
    /// The cluster whose node this is.
    pub(super) cluster: Option<&'g Cluster>,
}

impl DriverSettings {
    /// Enables every built-in driver without options: for an agent without a config.
    pub fn all() -> Self {
        Self::of(&Section::new(), &Given { raw_exec: None, cluster: None })
    }

    /// Replaces the settings of one driver.
    #[must_use]
    pub fn with(mut self, driver: &str, availability: Availability) -> Self {
        self.0.insert(driver.to_owned(), DriverSetting { availability, options: Map::new() });
        self
    }

    pub(super) fn of(section: &Section, given: &Given<'_>) -> Self {
        let setting = |info: DriverInfo| {
            let options = section.get(&info.name).cloned().unwrap_or_default();
            let flag = given.raw_exec.filter(|_| info.name == RAW_EXEC);
            let enabled = flag.or_else(|| options.get("enabled").and_then(Json::as_bool));
            let is_offered = match (info.capabilities.servers, given.cluster) {
                (ServerJobs::Never, _) | (_, None) => enabled.unwrap_or(true),
                (ServerJobs::UnlessDisabled, Some(cluster)) => {
                    enabled.unwrap_or(true) && cluster.drivers.allows(&info.name)
                }
                // Give a cluster's jobs a shell on this machine only if the config explicitly enables it.
                (ServerJobs::WhereEnabled, Some(cluster)) => {
                    enabled.unwrap_or(false) && cluster.drivers.allows(&info.name)
                }
            };
            let availability = if is_offered { Availability::Enabled } else { Availability::Disabled };
            (info.name, DriverSetting { availability, options })
        };
        Self(built_in().into_iter().map(setting).collect())
    }

    /// Whether a driver is enabled.
    pub fn availability(&self, driver: &str) -> Availability {
        self.0.get(driver).map_or(Availability::Disabled, |setting| setting.availability)
    }

    /// A driver's options, as written. They match its schema.
    pub fn options(&self, driver: &str) -> Map<String, Json> {
        self.0.get(driver).map(|setting| setting.options.clone()).unwrap_or_default()
    }

    /// Files with credentials for registries.
    pub fn credential_files(&self) -> Vec<PathBuf> {
        let with_images = self.0.iter().filter(|(name, _)| runs_images(name));
        let file = |(_, setting): (&String, &DriverSetting)| {
            let options = DockerOptions::deserialize(Json::Object(setting.options.clone())).ok()?;
            options.auth?.0.config.filter(|path| !path.is_empty()).map(PathBuf::from)
        };
        with_images.filter_map(file).collect()
    }

    /// Whether any driver is offered to servers that needs nothing else on this machine.
    pub fn offers_servers_any(&self) -> bool {
        let is_for_servers = |info: &DriverInfo| match info.capabilities.servers {
            ServerJobs::Never | ServerJobs::UnlessDisabled => false,
            ServerJobs::WhereEnabled => self.availability(&info.name) == Availability::Enabled,
        };
        built_in().iter().any(is_for_servers)
    }

    /// The settings as a config file states them.
    pub(super) fn to_json(&self) -> Json {
        let options = |(name, setting): (&String, &DriverSetting)| {
            let mut options = setting.options.clone();
            options.insert("enabled".to_owned(), json!(setting.availability == Availability::Enabled));
            (name.clone(), Json::Object(options))
        };
        Json::Object(self.0.iter().map(options).collect())
    }
}

/// Checks the section against the drivers' option schemas.
pub(super) fn check(source: &str, root: &Node) -> Problems {
    let mut problems = Problems::new();
    let known = built_in();
    let section = root.get("drivers").and_then(Node::entries).unwrap_or_default();
    for Entry { key, key_position, value } in section {
        let path = format!("drivers.{key}");
        let place = |node| Located { source, path: path.clone(), node };
        let Some(driver) = known.iter().find(|driver| driver.name == **key) else {
            let names = || known.iter().map(|driver| driver.name.as_str());
            let at_key = Node { position: *key_position, ..Node::clone(value) };
            problems.push(place(&at_key).problem(match nearest(key, names()) {
                Some(name) => format!("there is no driver of this name; did you mean {name}?"),
                None => format!(
                    "there is no driver of this name; the drivers are {}",
                    names().collect::<Vec<_>>().join(", ")
                ),
            }));
            continue;
        };
        let found = yaml::check(&place(value), &yaml::strictly(driver.options.clone()));
        if found.is_empty()
            && runs_images(&driver.name)
            && let Some((key, why)) = wrong_engine(value)
        {
            let path = format!("{path}.{key}");
            let node = value.get(key).unwrap_or(value);
            problems.push(Located { source, path, node }.problem(why));
        }
        problems.append(found);
    }
    problems
}

/// The option of a driver of containers that names an engine that can't be used, and why.
fn wrong_engine(options: &Node) -> Option<(&'static str, String)> {
    let text = |key: &str| options.get(key).and_then(Node::scalar_text).map(str::to_owned);
    let engine = DockerOptions {
        endpoint: text("endpoint"),
        socket_path: text("socket_path"),
        tls: options.get("tls").map(|_| Default::default()),
        ..DockerOptions::default()
    };
    engine.socket().err()
}

/// The former path of the options of `raw_exec`, and the current one.
const ALIAS: (&str, &str) = ("raw_exec", "drivers.raw_exec");

/// Keys that the alias and the section give different values: which one is meant is unknown.
pub(super) fn contradictions(document: &Document) -> Problems {
    let mut problems = Problems::new();
    let (alias, path) = ALIAS;
    let root = &document.root;
    let current = root.get("drivers").and_then(|drivers| drivers.get(alias));
    let former = root.get(alias).and_then(Node::entries).unwrap_or_default();
    for Entry { key, value, .. } in former {
        if let Some(current) = current.and_then(|current| current.get(key))
            && current.text != value.text
        {
            let place = Located { source: &document.source, path: format!("{alias}.{key}"), node: value };
            problems
                .push(place.problem(format!("has another value than {path}.{key}; remove {alias}.{key}")));
        }
    }
    problems
}

/// Moves `raw_exec` at the top level to `drivers.raw_exec`, whose own keys take precedence. Returns the new root, and pairs of
/// the current and the former paths of the moved keys.
pub(super) fn without_alias(root: &Arc<Node>) -> (Arc<Node>, Vec<(String, String)>) {
    let (alias, path) = ALIAS;
    let Some(entries) = root.entries().filter(|entries| entries.iter().any(|entry| &*entry.key == alias))
    else {
        return (Arc::clone(root), Vec::new());
    };
    let (moved, mut kept): (Vec<Entry>, Vec<Entry>) =
        entries.iter().cloned().partition(|entry| &*entry.key == alias);
    let with = |entries| Arc::new(Node { value: Value::Map(entries), ..Node::clone(root) });
    let drivers = kept.iter().position(|entry| &*entry.key == "drivers").map(|at| kept.remove(at));
    let own = drivers.as_ref().and_then(|drivers| drivers.value.get(alias));
    let mut names = Vec::new();
    if own.is_none() {
        names.push((path.to_owned(), alias.to_owned()));
    }
    for key in moved.iter().flat_map(|entry| entry.value.entries().unwrap_or_default()) {
        if own.is_none_or(|own| own.get(&key.key).is_none()) {
            names.push((format!("{path}.{}", key.key), format!("{alias}.{}", key.key)));
        }
    }
    let mut section = with(moved.clone());
    if let Some(drivers) = &drivers {
        section = merged(&section, &drivers.value);
    }
    let key_position = moved.first().map_or(root.position, |entry| entry.key_position);
    kept.push(Entry { key: "drivers".into(), key_position, value: section });
    (with(kept), names)
}
