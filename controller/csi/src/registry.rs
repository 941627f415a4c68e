//! The plugins that run on this machine now, by the ids of their `csi_plugin` blocks.
//!
//! In: registrations by tasks that are supervised. Out: the plugin for a call, or the reason why there is none; a signal at
//! each change. Several instances have one id while a plugin is replaced: of the healthy ones, the one that was ready last is used. Nothing is stored:
//! tasks outlive the agent, and the next agent supervises them again.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::{
    client::Client,
    description::{PluginDescription, PluginType, Service},
    directories::Owner,
};

/// A task that is a plugin.
#[derive(Debug, Clone)]
pub struct Instance {
    pub owner: Owner,
    pub kind: PluginType,
    pub client: Client,
    /// The last description, also while it is unhealthy.
    pub description: PluginDescription,
    /// `None`: it is healthy.
    pub unhealthy: Option<String>,
}

/// Why no plugin can be called. The text continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPluginError {
    #[error(
        "use the CSI plugin `{id}`: no task on this machine has a `csi_plugin` block with this id, or none is ready yet"
    )]
    Unknown { id: String },
    #[error("use the CSI plugin `{id}`: its tasks on this machine have no {} service", service.name())]
    NoService { id: String, service: Service },
    #[error("use the CSI plugin `{id}`: it is unhealthy: {why}")]
    Unhealthy { id: String, why: String },
}

/// The instances of one id are in the order of their first responses under this agent.
#[derive(Debug)]
pub struct Plugins {
    instances: Mutex<BTreeMap<String, Vec<Instance>>>,
    changes: watch::Sender<()>,
}

impl Default for Plugins {
    fn default() -> Self {
        Self { instances: Mutex::default(), changes: watch::Sender::new(()) }
    }
}

impl Plugins {
    /// Registers a healthy instance; one of the same owner is replaced, and keeps its place.
    pub fn register(&self, id: &str, instance: Instance) {
        let mut plugins = self.lock();
        let instances = plugins.entry(id.to_owned()).or_default();
        match instances.iter_mut().find(|known| known.owner == instance.owner) {
            Some(known) => *known = instance,
            None => instances.push(instance),
        }
        drop(plugins);
        self.changes.send_replace(());
    }

    /// An instance does not respond any more. Returns whether there is such an instance.
    pub fn mark_unhealthy(&self, id: &str, owner: &Owner, why: &str) -> bool {
        let mut plugins = self.lock();
        let known =
            plugins.get_mut(id).and_then(|known| known.iter_mut().find(|known| known.owner == *owner));
        let Some(known) = known else { return false };
        known.unhealthy = Some(why.to_owned());
        drop(plugins);
        self.changes.send_replace(());
        true
    }

    /// Removes the instance of an owner, and no other. Returns whether there was one.
    pub fn deregister(&self, id: &str, owner: &Owner) -> bool {
        let mut plugins = self.lock();
        let Some(instances) = plugins.get_mut(id) else { return false };
        let before = instances.len();
        instances.retain(|known| known.owner != *owner);
        let was_known = instances.len() < before;
        if instances.is_empty() {
            plugins.remove(id);
        }
        drop(plugins);
        if was_known {
            self.changes.send_replace(());
        }
        was_known
    }

    /// The newest healthy instance with a service.
    ///
    /// # Errors
    ///
    /// The reason why there is none, for people.
    pub fn find(&self, id: &str, service: Service) -> Result<Instance, NoPluginError> {
        let plugins = self.lock();
        let instances = plugins.get(id).ok_or_else(|| NoPluginError::Unknown { id: id.to_owned() })?;
        let serving = instances.iter().rev().filter(|instance| match service {
            Service::Node => instance.description.node.is_some(),
            Service::Controller => instance.description.controller.is_some(),
        });
        let mut newest = None;
        for instance in serving {
            match &instance.unhealthy {
                None => return Ok(instance.clone()),
                Some(why) => newest = newest.or(Some(why.clone())),
            }
        }
        Err(match newest {
            Some(why) => NoPluginError::Unhealthy { id: id.to_owned(), why },
            None => NoPluginError::NoService { id: id.to_owned(), service },
        })
    }

    /// All instances by the ids of plugins, in the order of their first responses.
    pub fn list(&self) -> Vec<(String, Instance)> {
        let plugins = self.lock();
        let pairs =
            plugins.iter().flat_map(|(id, all)| all.iter().map(|instance| (id.clone(), instance.clone())));
        pairs.collect()
    }

    /// A signal at each change.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Instance>>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{description::NodeDescription, identity::PluginInfo, node::NodeInfo};

    fn description(kind: PluginType, version: &str) -> PluginDescription {
        let node = NodeInfo { id: "n1".to_owned(), volumes_max: None, topology: None };
        PluginDescription {
            info: PluginInfo { name: "p".to_owned(), version: version.to_owned() },
            features: BTreeSet::new(),
            node: kind.has(Service::Node).then(|| NodeDescription { info: node, features: BTreeSet::new() }),
            controller: kind.has(Service::Controller).then(BTreeSet::new),
        }
    }

    fn instance(owner: &str, kind: PluginType, version: &str) -> Instance {
        Instance {
            owner: task(owner),
            kind,
            client: Client::new("p", format!("/{owner}.sock").into()),
            description: description(kind, version),
            unhealthy: None,
        }
    }

    fn task(name: &str) -> Owner {
        Owner { alloc: "a".to_owned(), task: name.to_owned() }
    }

    fn owner(found: Result<Instance, NoPluginError>) -> Result<String, String> {
        found.map(|instance| instance.owner.task).map_err(|error| error.to_string())
    }

    #[test]
    fn newest_healthy_instance_is_used() {
        let plugins = Plugins::default();
        let node = || owner(plugins.find("p", Service::Node));
        assert_eq!(
            node(),
            Err("use the CSI plugin `p`: no task on this machine has a `csi_plugin` block with this id, or none is ready \
                 yet"
                .to_owned())
        );
        plugins.register("p", instance("old", PluginType::Node, "1"));
        plugins.register("p", instance("new", PluginType::Node, "2"));
        assert_eq!(node().as_deref(), Ok("new"));
        assert!(plugins.mark_unhealthy("p", &task("new"), "it hangs"));
        assert_eq!(node().as_deref(), Ok("old"));
        assert!(plugins.mark_unhealthy("p", &task("old"), "it ended"));
        assert_eq!(node(), Err("use the CSI plugin `p`: it is unhealthy: it hangs".to_owned()));
        plugins.register("p", instance("new", PluginType::Node, "3"));
        assert_eq!(
            plugins.find("p", Service::Node).map(|found| found.description.info.version).as_deref(),
            Ok("3")
        );
        assert!(plugins.deregister("p", &task("new")));
        assert!(plugins.deregister("p", &task("old")));
        assert!(plugins.list().is_empty());
    }

    #[test]
    fn instances_of_one_id_may_have_different_services() {
        let plugins = Plugins::default();
        plugins.register("p", instance("node", PluginType::Node, "1"));
        assert_eq!(
            owner(plugins.find("p", Service::Controller)),
            Err("use the CSI plugin `p`: its tasks on this machine have no Controller service".to_owned())
        );
        plugins.register("p", instance("controller", PluginType::Controller, "1"));
        assert_eq!(owner(plugins.find("p", Service::Controller)).as_deref(), Ok("controller"));
        assert_eq!(owner(plugins.find("p", Service::Node)).as_deref(), Ok("node"));
        plugins.register("q", instance("both", PluginType::Monolith, "1"));
        for service in [Service::Node, Service::Controller] {
            assert_eq!(owner(plugins.find("q", service)).as_deref(), Ok("both"));
        }
    }

    /// FLAW of Nomad: the deregistration of an unknown allocation is reported as that of the last one.
    #[test]
    fn unknown_owners_deregister_nothing() {
        let plugins = Plugins::default();
        plugins.register("p", instance("a", PluginType::Node, "1"));
        let changes = plugins.changes();
        assert!(!plugins.deregister("p", &task("b")) && !plugins.deregister("q", &task("a")));
        assert!(!plugins.mark_unhealthy("p", &task("b"), ""));
        assert!(changes.has_changed().is_ok_and(|changed| !changed));
        assert_eq!(owner(plugins.find("p", Service::Node)).as_deref(), Ok("a"));
        // A second registration of the same owner is no second instance.
        plugins.register("p", instance("a", PluginType::Node, "2"));
        assert_eq!(plugins.list().len(), 1);
        assert!(changes.has_changed().is_ok_and(|changed| changed));
    }
}
