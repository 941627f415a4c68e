//! Tasks that are CSI plugins: their supervision while they run, and those that can be called.
//!
//! In: attempts that run and that end. Out: reports about their health to the planner, which decides what follows, and a registry
//! for calls. A plugin is registered from its first response until its attempt ends. Nothing is stored: the next agent supervises
//! the attempts that it recovers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use herdlet_api_types::{
    AllocId,
    csi::{CsiNode, CsiPluginDescription, CsiPluginView},
    job::{CsiPlugin, CsiPluginType},
};
use herdlet_base::paths::Paths;
use herdlet_csi::{
    client::Client,
    description::{PluginDescription, PluginType},
    directories::{Directories, Owner},
    identity::PluginFeature,
    registry::{Instance, Plugins},
    supervision::{self, supervise},
};
use herdlet_plan::event::{Event, PluginHealth};
use herdlet_runtime::Inbox;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::planner::Input;

/// Why a plugin can't be called before its first report.
const NOT_READY: &str = "it was not ready yet since the start of its task or of the agent";

/// The plugins among the tasks of this agent.
pub struct CsiPlugins {
    /// Their directories.
    pub directories: Directories,
    /// Those that have been ready.
    pub registry: Plugins,
    supervised: Mutex<BTreeMap<TaskKey, Supervision>>,
    inbox: Inbox<Input>,
}

/// An allocation and the name of its task.
pub(crate) type TaskKey = (AllocId, String);

/// The newest attempt of a task that is a plugin.
struct Supervision {
    attempt: u32,
    plugin: CsiPlugin,
    /// The last report, if it was not healthy.
    unhealthy: Option<String>,
    /// Ends the supervision; `None` if it has ended, and the attempt may still run.
    guard: Option<DropGuard>,
}

impl CsiPlugins {
    /// Supervises nothing yet.
    pub(crate) fn new(paths: &Paths, inbox: Inbox<Input>) -> Arc<Self> {
        let directories = Directories::new(paths);
        Arc::new(Self { directories, registry: Plugins::default(), supervised: Mutex::default(), inbox })
    }

    /// Supervises an attempt from now on, in place of an earlier one of the task. It can be repeated, and has no effect on an
    /// attempt that is to end.
    pub(crate) fn begin(self: &Arc<Self>, key: TaskKey, attempt: u32, plugin: &CsiPlugin) {
        let mut supervised = self.lock();
        if supervised.get(&key).is_some_and(|known| known.attempt == attempt) {
            return;
        }
        let ended = CancellationToken::new();
        let watch = AttemptWatch {
            plugins: Arc::downgrade(self),
            inbox: self.inbox.clone(),
            key: key.clone(),
            attempt,
            client: Client::new(&plugin.id, self.directories.socket(&owner(&key))),
            kind: plugin_type(plugin.kind),
            plugin: plugin.clone(),
        };
        let guard = Some(ended.clone().drop_guard());
        let known = Supervision { attempt, plugin: plugin.clone(), unhealthy: None, guard };
        if let Some(earlier) = supervised.insert(key.clone(), known) {
            self.registry.deregister(&earlier.plugin.id, &owner(&key));
        }
        tokio::spawn(async move { ended.run_until_cancelled(watch.follow()).await });
    }

    /// An attempt is to end: the plugin is not called any more. An earlier one than the newest changes nothing.
    pub(crate) fn end(&self, key: TaskKey, attempt: u32, plugin: &CsiPlugin) {
        let mut supervised = self.lock();
        if supervised.get(&key).is_some_and(|known| known.attempt > attempt) {
            return;
        }
        self.registry.deregister(&plugin.id, &owner(&key));
        supervised.insert(key, Supervision { attempt, plugin: plugin.clone(), unhealthy: None, guard: None });
    }

    /// An attempt has ended.
    pub(crate) fn forget(&self, key: &TaskKey, attempt: u32) {
        let mut supervised = self.lock();
        if supervised.get(key).is_some_and(|known| known.attempt == attempt)
            && let Some(ended) = supervised.remove(key)
        {
            self.registry.deregister(&ended.plugin.id, &owner(key));
        }
    }

    /// All that run, by their ids. Of one id, those that were not ready since the agent's start are first, and the one that was
    /// ready last is last.
    pub fn views(&self) -> Vec<CsiPluginView> {
        // In this order: an attempt that is registered meanwhile is not shown with the description of the one before.
        let supervised = self.lock();
        let registered = self.registry.list();
        let view = |(key, known): (&TaskKey, &Supervision)| {
            let owner = owner(key);
            let place = registered.iter().position(|(_, instance)| instance.owner == owner);
            let instance = place.and_then(|place| registered.get(place)).map(|(_, instance)| instance);
            let not_ready = || Some(known.unhealthy.clone().unwrap_or_else(|| NOT_READY.to_owned()));
            let view = CsiPluginView {
                id: known.plugin.id.clone(),
                alloc: key.0,
                task: key.1.clone(),
                kind: known.plugin.kind,
                description: instance.map(|instance| description(&instance.description)),
                unhealthy: instance.map_or_else(not_ready, |instance| instance.unhealthy.clone()),
            };
            (place, view)
        };
        let mut views: Vec<_> =
            supervised.iter().filter(|(_, known)| known.guard.is_some()).map(view).collect();
        views.sort_by(|(place, view), (other_place, other)| (&view.id, place).cmp(&(&other.id, other_place)));
        views.into_iter().map(|(_, view)| view).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskKey, Supervision>> {
        self.supervised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task as the owner of its directory and of its place in the registry.
pub(crate) fn owner((alloc, task): &TaskKey) -> Owner {
    Owner { alloc: alloc.to_string(), task: task.clone() }
}

pub(crate) fn plugin_type(kind: CsiPluginType) -> PluginType {
    match kind {
        CsiPluginType::Node => PluginType::Node,
        CsiPluginType::Controller => PluginType::Controller,
        CsiPluginType::Monolith => PluginType::Monolith,
    }
}

fn description(found: &PluginDescription) -> CsiPluginDescription {
    let node = found.node.as_ref().map(|node| CsiNode {
        id: node.info.id.clone(),
        volumes_max: node.info.volumes_max,
        topology: node.info.topology.as_ref().map(|topology| topology.segments.clone()),
        features: node.features.iter().map(|feature| feature.name().to_owned()).collect(),
    });
    let of_controller = found.controller.as_ref();
    CsiPluginDescription {
        provider: found.info.name.clone(),
        version: found.info.version.clone(),
        requires_controller: found.features.contains(&PluginFeature::Controller),
        node,
        controller: of_controller
            .map(|features| features.iter().map(|feature| feature.name().to_owned()).collect()),
    }
}

/// An attempt, while it is supervised.
struct AttemptWatch {
    /// Gone with the agent.
    plugins: Weak<CsiPlugins>,
    inbox: Inbox<Input>,
    key: TaskKey,
    attempt: u32,
    client: Client,
    kind: PluginType,
    plugin: CsiPlugin,
}

impl AttemptWatch {
    /// Reports the plugin's health until it is cancelled.
    async fn follow(self) {
        let (sender, mut reports) = watch::channel(None);
        let describe = || {
            let client = self.client.clone();
            async move { client.describe(self.kind).await }
        };
        let report = |health| drop(sender.send_replace(Some(health)));
        let supervision = supervise(self.plugin.health_timeout.to_std(), describe, report);
        let passing_on = async {
            while reports.changed().await.is_ok() {
                let report = reports.borrow_and_update().clone();
                if let Some(report) = report
                    && self.pass_on(report).await.is_none()
                {
                    return;
                }
            }
        };
        tokio::select! {
            _ = supervision => {}
            () = passing_on => {}
        }
    }

    /// Registers what can be called, and reports to the planner. `None` if the attempt or the agent has ended.
    async fn pass_on(&self, report: supervision::PluginHealth) -> Option<()> {
        let plugins = self.plugins.upgrade()?;
        let (id, owner) = (&self.plugin.id, owner(&self.key));
        let health = {
            // The attempt can't end in between.
            let mut supervised = plugins.lock();
            let is_meant = |known: &&mut Supervision| known.attempt == self.attempt && known.guard.is_some();
            let known = supervised.get_mut(&self.key).filter(is_meant)?;
            match report {
                supervision::PluginHealth::Healthy(description) => {
                    known.unhealthy = None;
                    let (kind, client) = (self.kind, self.client.clone());
                    let instance =
                        Instance { owner, kind, client, description: *description, unhealthy: None };
                    plugins.registry.register(id, instance);
                    PluginHealth::Healthy { plugin: id.clone() }
                }
                supervision::PluginHealth::Unhealthy { why } => {
                    known.unhealthy = Some(why.clone());
                    plugins.registry.mark_unhealthy(id, &owner, &why);
                    PluginHealth::Unhealthy { why }
                }
                supervision::PluginHealth::Overdue { why } => {
                    known.unhealthy = Some(why.clone());
                    PluginHealth::Overdue { why }
                }
            }
        };
        drop(plugins);
        let (alloc, task) = self.key.clone();
        let event = Event::Plugin { alloc, task, attempt: self.attempt, health };
        self.inbox.send(Input::Event(event)).await.ok()
    }
}

#[cfg(test)]
mod tests;
