//! The section `drivers` of a config: which task drivers are offered, and their options.
//!
//! In: `drivers: {NAME: {…}}`, the flag and the alias of `raw_exec`, what a cluster's node may offer. Out: [`DriverSettings`], with an
//! entry for each driver that is built in. A driver's own options are checked against the schema in its `DriverInfo` and handed to it as they
//! are written; `enabled` is the one key that every driver has.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_api_types::driver::{DriverInfo, RAW_EXEC, ServerJobs, built_in};
use herdlet_driver::Availability;
use herdlet_manifest::yaml::{self, Entry, Located, Node, Problems, Value, nearest};
use serde_json::{Map, Value as Json, json};

use super::{Cluster, merge::merged};

/// What a file says of its drivers: options by driver.
pub(super) type Section = BTreeMap<String, Map<String, Json>>;

/// The task drivers of this machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DriverSettings(BTreeMap<String, DriverSetting>);

/// One of them.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverSetting {
    /// Whether it may start tasks.
    pub availability: Availability,
    /// What the config says of it, in the driver's own words.
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
    /// Every built-in driver is offered, without options: for an agent without a config.
    pub fn all() -> Self {
        Self::of(&Section::new(), &Given { raw_exec: None, cluster: None })
    }

    /// The same, but for one driver.
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
                // A cluster's jobs get a shell of this machine only where somebody said so.
                (ServerJobs::WhereEnabled, Some(cluster)) => {
                    enabled.unwrap_or(false) && cluster.drivers.allows(&info.name)
                }
            };
            let availability = if is_offered { Availability::Enabled } else { Availability::Disabled };
            (info.name, DriverSetting { availability, options })
        };
        Self(built_in().into_iter().map(setting).collect())
    }

    /// Whether a driver may start tasks.
    pub fn availability(&self, driver: &str) -> Availability {
        self.0.get(driver).map_or(Availability::Disabled, |setting| setting.availability)
    }

    /// Whether servers find a driver on this node.
    pub fn offers_servers_any(&self) -> bool {
        let is_for_servers = |info: &DriverInfo| match info.capabilities.servers {
            ServerJobs::Never => false,
            ServerJobs::WhereEnabled => self.availability(&info.name) == Availability::Enabled,
        };
        built_in().iter().any(is_for_servers)
    }

    /// As a config file says it.
    pub(super) fn to_json(&self) -> Json {
        let options = |(name, setting): (&String, &DriverSetting)| {
            let mut options = setting.options.clone();
            options.insert("enabled".to_owned(), json!(setting.availability == Availability::Enabled));
            (name.clone(), Json::Object(options))
        };
        Json::Object(self.0.iter().map(options).collect())
    }
}

/// Checks the section against what drivers say of their options.
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
                    "there is no driver of this name; there are {}",
                    names().collect::<Vec<_>>().join(", ")
                ),
            }));
            continue;
        };
        problems.append(yaml::check(&place(value), &yaml::strictly(driver.options.clone())));
    }
    problems
}

/// The older place of the options of `raw_exec`, and what it is called here.
const ALIAS: (&str, &str) = ("raw_exec", "drivers.raw_exec");

/// A file in which `raw_exec` at the top is moved to `drivers.raw_exec`, whose own keys count more; and how its keys were called.
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
