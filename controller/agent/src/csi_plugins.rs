//! Tasks that are CSI plugins: their supervision while they run, and those that can be called.
//!
//! In: attempts that run and that end. Out: reports about their health to the planner, which decides what follows, and a registry
//! for calls. A plugin is registered from its first response until its attempt ends. Nothing is stored: the next agent supervises
//! the attempts that it recovers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use herdlet_api_types::{
    AllocId,
    csi::CsiPluginView,
    job::{CsiPlugin, CsiPluginType},
};
use herdlet_base::{
    error::in_full,
    paths::{Paths, alloc_ids},
};
use herdlet_csi::{
    client::Client,
    description::PluginType,
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

/// Between two times that a plugin was not ready in time, and the planner did not restart it.
const PAUSE: Duration = Duration::from_secs(5);

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
type TaskKey = (AllocId, String);

/// An attempt that is supervised.
struct Supervision {
    attempt: u32,
    plugin: String,
    /// Ends it.
    _guard: DropGuard,
}

impl CsiPlugins {
    /// Removes sockets whose allocation is gone, and supervises nothing yet.
    pub(crate) fn open(paths: &Paths, inbox: Inbox<Input>) -> Arc<Self> {
        let directories = Directories::new(paths.csi());
        let known: Vec<String> = alloc_ids(&paths.allocs()).iter().map(AllocId::to_string).collect();
        if let Err(error) = directories.sweep(|begin| known.iter().any(|id| id.starts_with(begin))) {
            tracing::warn!(error = in_full(&error), "failed to remove sockets of CSI plugins");
        }
        Arc::new(Self { directories, registry: Plugins::default(), supervised: Mutex::default(), inbox })
    }

    /// Supervises an attempt from now on, in place of an earlier one of the task. It can be repeated.
    pub(crate) fn begin(self: &Arc<Self>, key: TaskKey, attempt: u32, plugin: &CsiPlugin) {
        let mut supervised = self.lock();
        if supervised.get(&key).is_some_and(|known| known.attempt == attempt) {
            return;
        }
        let ended = CancellationToken::new();
        let alloc = key.0.to_string();
        let socket = self.directories.socket(Owner { alloc: &alloc, task: &key.1 });
        let watch = AttemptWatch {
            plugins: Arc::downgrade(self),
            inbox: self.inbox.clone(),
            key: key.clone(),
            attempt,
            client: Client::new(&plugin.id, socket),
            plugin: plugin.clone(),
        };
        let guard = ended.clone().drop_guard();
        let known = Supervision { attempt, plugin: plugin.id.clone(), _guard: guard };
        if let Some(earlier) = supervised.insert(key.clone(), known) {
            self.registry.deregister(&earlier.plugin, &owner(&key));
        }
        tokio::spawn(async move { ended.run_until_cancelled(watch.follow()).await });
    }

    /// The attempt of a task has ended, or is about to: nobody calls the plugin from now on.
    pub(crate) fn end(&self, key: &TaskKey) {
        let mut supervised = self.lock();
        if let Some(ended) = supervised.remove(key) {
            self.registry.deregister(&ended.plugin, &owner(key));
        }
    }

    /// All that have been ready and whose tasks run, by their ids; of one id the newest last.
    pub fn views(&self) -> Vec<CsiPluginView> {
        let view = |(id, instance): (String, Instance)| {
            let (alloc, task) = instance.owner.split_once('/')?;
            let description = instance.description;
            Some(CsiPluginView {
                id,
                alloc: AllocId(alloc.parse().ok()?),
                task: task.to_owned(),
                kind: match instance.kind {
                    PluginType::Node => CsiPluginType::Node,
                    PluginType::Controller => CsiPluginType::Controller,
                    PluginType::Monolith => CsiPluginType::Monolith,
                },
                provider: description.info.name,
                version: description.info.version,
                node_id: description.node.map(|node| node.info.id),
                has_controller: description.features.contains(&PluginFeature::Controller),
                unhealthy: instance.unhealthy,
            })
        };
        self.registry.list().into_iter().filter_map(view).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TaskKey, Supervision>> {
        self.supervised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a task in the registry.
fn owner((alloc, task): &TaskKey) -> String {
    format!("{alloc}/{task}")
}

/// An attempt, while it is supervised.
struct AttemptWatch {
    /// Gone with the agent.
    plugins: Weak<CsiPlugins>,
    inbox: Inbox<Input>,
    key: TaskKey,
    attempt: u32,
    client: Client,
    plugin: CsiPlugin,
}

/// What the supervision has found.
#[derive(Clone)]
enum Report {
    Health(supervision::PluginHealth),
    Overdue(String),
}

impl AttemptWatch {
    /// Reports the plugin's health until it is cancelled.
    async fn follow(self) {
        let Some(kind) = PluginType::from_name(self.plugin.kind.as_str()) else { return };
        let (sender, mut reports) = watch::channel(None);
        let limit = Duration::from_nanos(self.plugin.health_timeout.as_nanos().max(0).unsigned_abs());
        let supervision = async {
            loop {
                let describe = || {
                    let client = self.client.clone();
                    async move { client.describe(kind).await }
                };
                let report = |health| drop(sender.send_replace(Some(Report::Health(health))));
                // A plugin that the planner does not restart is supervised on.
                let Err(overdue) = supervise(limit, describe, report).await;
                sender.send_replace(Some(Report::Overdue(format!("failed to {overdue}"))));
                tokio::time::sleep(PAUSE).await;
            }
        };
        let passing_on = async {
            while reports.changed().await.is_ok() {
                let report = reports.borrow_and_update().clone();
                if let Some(report) = report
                    && self.pass_on(kind, report).await.is_none()
                {
                    return;
                }
            }
        };
        tokio::select! {
            () = supervision => {}
            () = passing_on => {}
        }
    }

    /// Registers what can be called, and reports to the planner. `None` if the attempt or the agent has ended.
    async fn pass_on(&self, kind: PluginType, report: Report) -> Option<()> {
        let plugins = self.plugins.upgrade()?;
        let (id, owner) = (&self.plugin.id, owner(&self.key));
        let health = {
            // The attempt can't end in between.
            let supervised = plugins.lock();
            supervised.get(&self.key).filter(|known| known.attempt == self.attempt)?;
            match report {
                Report::Health(supervision::PluginHealth::Healthy(description)) => {
                    let client = self.client.clone();
                    let instance =
                        Instance { owner, kind, client, description: *description, unhealthy: None };
                    plugins.registry.register(id, instance);
                    PluginHealth::Healthy { plugin: id.clone() }
                }
                Report::Health(supervision::PluginHealth::Unhealthy { why }) => {
                    let known = supervision::PluginHealth::Unhealthy { why: why.clone() };
                    plugins.registry.report(id, &owner, known);
                    PluginHealth::Unhealthy { why: format!("failed to {why}") }
                }
                Report::Overdue(why) => PluginHealth::Overdue { why },
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
